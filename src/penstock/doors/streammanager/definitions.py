"""Stream definitions: from the wire, to the wire, and what an update may change."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import msgspec

from penstock.doors.streammanager.fields import (
    INT32_MAX,
    MILLISECONDS_MAX,
    NAME,
    Array,
    Choice,
    Flag,
    Int,
    Map,
    Rule,
    Text,
)
from penstock.errors import InvalidRequest, PenstockError, UpdateNotAllowed
from penstock.model import (
    INT64_MAX,
    Export,
    ExportKind,
    ExportStatus,
    Persistence,
    StrategyOnFull,
    StreamDefinition,
    StreamInfo,
)


class ExportFormat(IntEnum):
    RAW_NOT_BATCHED = 0
    JSON_BATCHED = 1


class StatusLevel(IntEnum):
    ERROR = 0
    WARN = 1
    INFO = 2
    DEBUG = 3
    TRACE = 4


_SIZE_OF_PART_MIN_BYTES = 5 * 1024 * 1024
_PRIORITY = Int(1, 10)


def _batched(
    batch_size_max: int, required: dict[str, Rule] | None = None, optional: dict[str, Rule] | None = None
) -> Map:
    return Map(
        required={"identifier": NAME, **(required or {})},
        optional={
            **(optional or {}),
            "batchSize": Int(1, batch_size_max),
            "batchIntervalMillis": Int(60_000, MILLISECONDS_MAX),
            "priority": _PRIORITY,
            "startSequenceNumber": Int(0, INT64_MAX),
            "disabled": Flag(),
        },
    )


_EXPORT_RULES: dict[ExportKind, Map] = {
    ExportKind.HTTP: _batched(500, {"uri": Text(length_min=1)}, {"exportFormat": Choice(ExportFormat)}),
    ExportKind.IOT_ANALYTICS: _batched(
        100, {"iotChannel": Text(length_min=1)}, {"iotMsgIdPrefix": Text(length_max=32)}
    ),
    ExportKind.KINESIS: _batched(500, {"kinesisStreamName": Text(length_min=1)}),
    ExportKind.IOT_SITEWISE: _batched(10),
    ExportKind.S3_TASK_EXECUTOR: Map(
        required={"identifier": NAME},
        optional={
            "sizeThresholdForMultipartUploadBytes": Int(_SIZE_OF_PART_MIN_BYTES, INT64_MAX),
            "priority": _PRIORITY,
            "disabled": Flag(),
            "statusConfig": Map(
                required={}, optional={"statusLevel": Choice(StatusLevel), "statusStreamName": NAME}
            ),
        },
    ),
}

_DEFINITION_RULE = Map(
    required={"name": NAME, "strategyOnFull": Choice(StrategyOnFull)},
    optional={
        "maxSize": Int(1024, INT64_MAX),
        "streamSegmentSize": Int(1024, INT32_MAX),
        "timeToLiveMillis": Int(60_000, MILLISECONDS_MAX),
        "persistence": Choice(Persistence),
        "flushOnWrite": Flag(),
        "exportDefinition": Map(
            required={}, optional={kind.value: Array(rule) for kind, rule in _EXPORT_RULES.items()}
        ),
    },
)


def parse_definition(value: object, path: str = "definition") -> tuple[StreamDefinition | None, list[str]]:
    """The definition, or everything that is wrong with it."""
    if value is None:
        return None, [f"{path} is required."]
    problems: list[str] = []
    fields = _DEFINITION_RULE.convert(value, path, problems)
    if problems:
        return None, problems
    exports = tuple(
        Export(kind, settings)
        for kind in _EXPORT_RULES
        for settings in fields.get("exportDefinition", {}).get(kind.value, ())
    )
    problems = _export_problems(fields["name"], exports, f"{path}.exportDefinition")
    if problems:
        return None, problems
    return _definition(fields, exports), []


def parse_update_definition(
    value: object, path: str = "definition"
) -> tuple[StreamDefinition | None, bool, list[str]]:
    """As parse_definition, and whether persistence was given: without it an update leaves it as it is."""
    definition, problems = parse_definition(value, path)
    persistence_given = isinstance(value, dict) and value.get("persistence") is not None
    return definition, persistence_given, problems


def _definition(fields: dict[str, Any], exports: tuple[Export, ...]) -> StreamDefinition:
    defaults = StreamDefinition(name=fields["name"])
    return StreamDefinition(
        name=fields["name"],
        max_size_bytes=fields.get("maxSize", defaults.max_size_bytes),
        segment_size_bytes=fields.get("streamSegmentSize", defaults.segment_size_bytes),
        ttl_ms=fields.get("timeToLiveMillis"),
        strategy_on_full=StrategyOnFull(fields["strategyOnFull"]),
        persistence=Persistence(fields.get("persistence", defaults.persistence)),
        flush_on_write=fields.get("flushOnWrite", defaults.flush_on_write),
        exports=exports,
    )


def _export_problems(stream_name: str, exports: tuple[Export, ...], path: str) -> list[str]:
    problems = []
    identifiers: set[str] = set()
    counts = dict.fromkeys(_EXPORT_RULES, 0)
    for export in exports:
        at = f"{path}.{export.kind.value}[{counts[export.kind]}]"
        counts[export.kind] += 1
        if export.identifier in identifiers:
            problems.append(f"{at}.identifier: must be unique within the stream.")
        identifiers.add(export.identifier)
        if export.status_stream_name == stream_name:
            problems.append(f"{at}.statusConfig.statusStreamName: must name another stream.")
    return problems


def updated_definition(
    current: StreamDefinition, new: StreamDefinition, persistence_given: bool
) -> StreamDefinition:
    """What an update stores: everything is replaced, except persistence that is not given."""
    if persistence_given:
        return new
    return msgspec.structs.replace(new, persistence=current.persistence)


def moved_starts(current: StreamDefinition, new: StreamDefinition) -> dict[str, int]:
    """Exports that an update tells to go on from another sequence number, by identifier.

    Only a number that the client sends and that is not the stored one moves an export. Describe returns a
    number only if one was set, so sending a description back moves nothing, and 0 where nothing was set is a
    deliberate rewind.
    """
    return {
        after.identifier: after.start_sequence_number
        for before, after in _kept_exports(current, new)
        if "startSequenceNumber" in after.settings
        and after.start_sequence_number != before.settings.get("startSequenceNumber")
    }


def _kept_exports(current: StreamDefinition, new: StreamDefinition) -> list[tuple[Export, Export]]:
    """Before and after. The same identifier in another list is a new export."""
    before = {(export.kind, export.identifier): export for export in current.exports}
    pairs = ((before.get((after.kind, after.identifier)), after) for after in new.exports)
    return [(old, after) for old, after in pairs if old is not None]


def update_problem(
    current: StreamInfo, new: StreamDefinition, persistence_given: bool
) -> PenstockError | None:
    """Why the stream cannot take this definition in its present state, with all reasons in the text."""
    not_allowed = _state_problems(current, new, persistence_given)
    invalid = _segment_size_problems(current.definition, new)
    if not_allowed:
        return UpdateNotAllowed(" ".join(not_allowed + invalid))
    return InvalidRequest(" ".join(invalid)) if invalid else None


def _state_problems(current: StreamInfo, new: StreamDefinition, persistence_given: bool) -> list[str]:
    problems = []
    old = current.definition
    if persistence_given and new.persistence != old.persistence:
        problems.append(
            f"definition.persistence: must stay {old.persistence.value} ({old.persistence.name})."
        )
    if new.max_size_bytes < min(current.total_bytes, old.max_size_bytes):
        problems.append(
            f"definition.maxSize: must be at least {current.total_bytes}, the present size of the stream."
        )
    newest = current.newest_sequence_number
    problems.extend(
        f"definition.exportDefinition.{after.kind.value}: startSequenceNumber of {after.identifier} "
        f"must be less than {newest}, the newest sequence number."
        for before, after in _kept_exports(old, new)
        if "startSequenceNumber" in after.settings
        # 0 is what an export without a number has: to say it aloud is no change.
        and after.start_sequence_number != before.start_sequence_number
        and after.start_sequence_number >= newest
    )
    return problems


def _segment_size_problems(current: StreamDefinition, new: StreamDefinition) -> list[str]:
    """Create takes a segment size above maxSize (clients always send 16 MiB) and the log then uses maxSize.

    A description of such a stream must be good for an update, so the rule that updates have does not hold
    while the segment size stays what it was and was above maxSize already.
    """
    if new.segment_size_bytes <= new.max_size_bytes:
        return []
    kept = new.segment_size_bytes == current.segment_size_bytes
    if kept and current.segment_size_bytes > current.max_size_bytes:
        return []
    return [
        f"definition.streamSegmentSize: must be at most {new.max_size_bytes}, which is maxSize "
        f"(lower it, or set maxSize to at least {new.segment_size_bytes})."
    ]


def definition_to_wire(definition: StreamDefinition) -> dict[str, Any]:
    wire: dict[str, Any] = {
        "name": definition.name,
        "maxSize": definition.max_size_bytes,
        "streamSegmentSize": definition.segment_size_bytes,
        "strategyOnFull": int(definition.strategy_on_full),
        "persistence": int(definition.persistence),
        "flushOnWrite": definition.flush_on_write,
    }
    if definition.ttl_ms is not None:
        wire["timeToLiveMillis"] = definition.ttl_ms
    # Documented snippets reach into the lists without a check: all five are there, empty or not.
    lists: dict[str, list[dict[str, Any]]] = {kind.value: [] for kind in _EXPORT_RULES}
    for export in definition.exports:
        lists[export.kind.value].append(export.settings)
    wire["exportDefinition"] = lists
    return wire


def info_to_wire(info: StreamInfo) -> dict[str, Any]:
    statuses = {status.identifier: status for status in info.export_statuses}
    exports = [export for kind in _EXPORT_RULES for export in info.definition.exports if export.kind is kind]
    return {
        "definition": definition_to_wire(info.definition),
        "storageStatus": {
            "oldestSequenceNumber": info.oldest_sequence_number,
            "newestSequenceNumber": info.newest_sequence_number,
            "totalBytes": info.total_bytes,
        },
        "exportStatuses": [
            _status_to_wire(statuses.get(export.identifier, ExportStatus(export.identifier)))
            for export in exports
        ],
    }


def _status_to_wire(status: ExportStatus) -> dict[str, Any]:
    return {
        "exportConfigIdentifier": status.identifier,
        "lastExportedSequenceNumber": status.last_exported_sequence_number,
        "lastExportTime": status.last_export_time_ms,
        "errorMessage": status.error_message,
        "exportedBytesFromStream": status.exported_bytes,
        "exportedMessagesCount": status.exported_messages,
    }
