"""Pausing and resuming: the same change of a definition, over the Stream Manager protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from penstock.cli.connection import connect


def set_disabled(
    stream: str, identifier: str, disabled: bool, server: str | None, token_file: Path | None
) -> None:
    from penstock.errors import ExportNotFound

    with connect(server, token_file) as client:
        definition = client.describe(stream)["definition"]
        export = _find(definition, identifier)
        if export is None:
            raise ExportNotFound(
                f"stream {stream} has no export {identifier}; 'penstock exports list' shows all"
            )
        if bool(export.get("disabled")) != disabled:
            export["disabled"] = disabled
            client.update(definition)


def _find(definition: dict[str, Any], identifier: str) -> dict[str, Any] | None:
    for exports in definition["exportDefinition"].values():
        for export in exports:
            if export["identifier"] == identifier:
                found: dict[str, Any] = export
                return found
    return None
