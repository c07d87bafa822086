"""Updates: what of a stream may change, and when an export moves."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from sm_definitions import KINDS, SMALLEST, info, parsed

from penstock.doors.streammanager.definitions import (
    definition_to_wire,
    moved_starts,
    parse_update_definition,
    update_problem,
    updated_definition,
)
from penstock.errors import InvalidRequest, PenstockError, UpdateNotAllowed
from penstock.model import INT64_MAX, ExportKind, Persistence

MIB = 1024 * 1024


def updating(
    old: dict[str, Any], new: dict[str, Any], *, newest: int = -1, total: int = 0
) -> PenstockError | None:
    definition, persistence_given, problems = parse_update_definition({**SMALLEST, **new})
    assert problems == []
    assert definition is not None
    return update_problem(
        info(parsed({**SMALLEST, **old}), newest=newest, total=total), definition, persistence_given
    )


def not_allowed(error: PenstockError | None) -> str:
    assert type(error) is UpdateNotAllowed
    return str(error)


def test_an_update_has_the_checks_of_a_definition() -> None:
    assert parse_update_definition(None) == (None, False, ["definition is required."])
    assert parse_update_definition({"name": "s"}) == (None, False, ["definition.strategyOnFull is required."])
    assert parse_update_definition(SMALLEST) == (parsed(SMALLEST), False, [])
    assert parse_update_definition({**SMALLEST, "persistence": 0})[1] is True


def test_persistence_may_not_change() -> None:
    assert "persistence: must stay 0 (FILE)" in not_allowed(updating({}, {"persistence": 1}))
    assert "persistence: must stay 1 (MEMORY)" in not_allowed(
        updating({"persistence": 1}, {"persistence": 0})
    )
    assert updating({"persistence": 1}, {"persistence": 1}) is None


def test_absent_persistence_is_unchanged() -> None:
    assert updating({"persistence": 1}, {}) is None
    memory = parsed({**SMALLEST, "persistence": 1})
    new = parsed({**SMALLEST, "maxSize": 32 * MIB})
    assert updated_definition(memory, new, persistence_given=False) == msgspec.structs.replace(
        new, persistence=Persistence.MEMORY
    )
    assert updated_definition(parsed(SMALLEST), memory, persistence_given=True) == memory


def test_max_size_may_not_go_below_what_is_stored() -> None:
    segment = {"streamSegmentSize": 1024}
    assert updating(segment, {"maxSize": 5000, **segment}, total=5000) is None
    assert "maxSize: must be at least 5001" in not_allowed(
        updating(segment, {"maxSize": 5000, **segment}, total=5001)
    )
    # Unchanged is no violation, whatever the stream holds for the moment.
    assert updating({"maxSize": 5000, **segment}, {"maxSize": 5000, **segment}, total=5001) is None


def test_segment_size_may_not_exceed_max_size() -> None:
    assert updating({}, {"maxSize": MIB, "streamSegmentSize": MIB}) is None
    for new in (
        {"maxSize": MIB},
        {"maxSize": MIB, "streamSegmentSize": MIB + 1},
        {"streamSegmentSize": 2**30},
    ):
        error = updating({}, new)
        assert type(error) is InvalidRequest
        assert "definition.streamSegmentSize: must be at most" in str(error)


def test_a_stream_created_with_a_segment_above_max_size_can_be_described_edited_and_updated() -> None:
    created = {"maxSize": MIB, "streamSegmentSize": 16 * MIB}
    described = definition_to_wire(parsed({**SMALLEST, **created}))
    assert updating(created, described) is None
    assert updating(created, {**described, "flushOnWrite": True}) is None
    assert updating(created, {**described, "maxSize": MIB // 2}) is None
    assert type(updating(created, {**described, "streamSegmentSize": 8 * MIB})) is InvalidRequest
    assert updating(created, {**described, "streamSegmentSize": MIB}) is None
    # Once in order, it stays in order.
    assert type(updating({}, described)) is InvalidRequest


def test_all_reasons_are_told_and_the_stronger_status_wins() -> None:
    text = not_allowed(updating({}, {"persistence": 1, "maxSize": 1024}, total=2048))
    assert [part in text for part in ("persistence", "maxSize", "streamSegmentSize")] == [True, True, True]


def exports(kind: ExportKind = ExportKind.KINESIS, **extra: Any) -> dict[str, Any]:
    return {"exportDefinition": {kind.value: [{**KINDS[kind][2], **extra}]}}


def starts(old: dict[str, Any], new: dict[str, Any]) -> dict[str, int]:
    return moved_starts(parsed({**SMALLEST, **old}), parsed({**SMALLEST, **new}))


def test_start_of_an_existing_export_must_be_below_the_newest() -> None:
    assert updating(exports(), exports(startSequenceNumber=8), newest=9) is None
    for start in (9, 10, INT64_MAX):
        text = not_allowed(updating(exports(), exports(startSequenceNumber=start), newest=9))
        assert "startSequenceNumber of e must be less than 9" in text
    not_allowed(updating(exports(startSequenceNumber=5), exports(startSequenceNumber=0), newest=0))


@pytest.mark.parametrize(
    ("old", "new", "moved"),
    [
        (exports(), exports(), {}),
        (exports(startSequenceNumber=50), exports(startSequenceNumber=50), {}),
        (exports(startSequenceNumber=50), exports(), {}),
        (exports(), exports(startSequenceNumber=0), {"e": 0}),
        (exports(startSequenceNumber=5), exports(startSequenceNumber=0), {"e": 0}),
        (exports(), exports(startSequenceNumber=3), {"e": 3}),
        (exports(), exports(ExportKind.HTTP, startSequenceNumber=3), {}),  # another export
        ({}, exports(startSequenceNumber=3), {}),  # a new one
        (exports(), {}, {}),
    ],
)
def test_only_a_number_that_changed_moves_an_export(
    old: dict[str, Any], new: dict[str, Any], moved: dict[str, int]
) -> None:
    assert starts(old, new) == moved


def test_start_that_is_not_a_change_is_allowed_in_an_empty_stream() -> None:
    assert updating(exports(startSequenceNumber=50), exports(startSequenceNumber=50)) is None
    assert updating(exports(startSequenceNumber=50), exports()) is None
    assert updating(exports(), exports(startSequenceNumber=0)) is None
    assert updating({}, exports(startSequenceNumber=50)) is None
    assert updating(exports(), exports(ExportKind.HTTP, startSequenceNumber=50)) is None
    not_allowed(updating(exports(), exports(startSequenceNumber=1)))


def test_everything_else_may_change() -> None:
    new = {
        "timeToLiveMillis": 60000,
        "strategyOnFull": 1,
        "flushOnWrite": True,
        "maxSize": 2**40,
        "streamSegmentSize": 2**30,
        **exports(disabled=True),
    }
    assert updating({}, new, newest=9, total=1000) is None
    assert updating(new, {}, newest=9, total=1000) is None
