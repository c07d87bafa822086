"""An export as operators see it: what the server tells of each over HTTP."""

from __future__ import annotations

import msgspec


class ExportView(msgspec.Struct, kw_only=True):
    stream: str
    identifier: str
    kind: str
    state: str  # paused, idle, waiting, delivering, retrying or failing
    position: int  # next message to export
    waiting_messages: int
    last_exported_sequence_number: int
    last_export_time_ms: int
    exported_messages: int
    exported_bytes: int
    upload_bytes: int = 0  # of the one long upload that is under way, if there is one
    upload_total_bytes: int = 0
    skipped_messages: int
    lost_messages: int
    failures: int
    retry_in_ms: int = 0  # how long an export that failed is left alone
    error: str
