"""What an update may change, what it may not, and that it does all or nothing."""

from __future__ import annotations

from typing import Any

import pytest

from conformance.raw_client import RawClient
from conformance.wire import Op, Status


def kinesis(*identifiers: str, **fields: Any) -> dict[str, Any]:
    exports = [
        {"identifier": one, "kinesisStreamName": "k", "disabled": True, **fields} for one in identifiers
    ]
    return {"kinesis": exports}


def update(raw: RawClient, name: str, **definition: Any) -> None:
    raw.succeed(Op.UPDATE, definition={"name": name, "strategyOnFull": 0, **definition})


def refused(raw: RawClient, status: Status, name: str, **definition: Any) -> None:
    """The refusal leaves everything as it was."""
    before = raw.describe(name)
    raw.fail(status, Op.UPDATE, definition={"name": name, "strategyOnFull": 0, **definition})
    assert raw.describe(name) == before


def test_unknown_stream(raw: RawClient, name: str) -> None:
    raw.fail(Status.RESOURCE_NOT_FOUND, Op.UPDATE, definition={"name": name, "strategyOnFull": 0})


def test_absent_fields_revert_to_their_defaults(raw: RawClient, name: str) -> None:
    raw.create(
        name,
        maxSize=65536,
        streamSegmentSize=2048,
        timeToLiveMillis=60000,
        strategyOnFull=1,
        flushOnWrite=True,
        exportDefinition=kinesis("k"),
    )
    update(raw, name)
    definition = raw.definition(name)
    assert "timeToLiveMillis" not in definition
    assert definition["maxSize"] == 268435456
    assert definition["streamSegmentSize"] == 16777216
    assert definition["strategyOnFull"] == 0
    assert definition["flushOnWrite"] is False
    assert definition["exportDefinition"]["kinesis"] == []
    assert raw.describe(name)["exportStatuses"] == []


def test_messages_and_numbers_survive(raw: RawClient, name: str) -> None:
    raw.create(name)
    raw.append(name, b"before")
    update(raw, name, maxSize=1 << 20, streamSegmentSize=1024, timeToLiveMillis=60000, flushOnWrite=True)
    assert raw.append(name, b"after") == 1
    assert [message["payload"] for message in raw.read(name, minMessageCount=2)] == [b"before", b"after"]


@pytest.mark.parametrize(("was", "becomes"), [(0, 1), (1, 0)])
def test_persistence_may_not_change(raw: RawClient, name: str, was: int, becomes: int) -> None:
    raw.create(name, persistence=was)
    refused(raw, Status.UPDATE_NOT_ALLOWED, name, persistence=becomes)
    update(raw, name, persistence=was)


def test_absent_persistence_is_unchanged(raw: RawClient, name: str) -> None:
    raw.create(name, persistence=1)
    raw.append(name, b"x")
    update(raw, name)
    assert raw.definition(name)["persistence"] == 1
    assert raw.read(name)[0]["payload"] == b"x"


def test_size_may_not_fall_below_what_is_stored(raw: RawClient, name: str) -> None:
    raw.create(name)
    for _ in range(20):
        raw.append(name, bytes(1000))
    total_bytes = raw.storage(name)[2]
    refused(raw, Status.UPDATE_NOT_ALLOWED, name, maxSize=total_bytes - 1, streamSegmentSize=1024)
    update(raw, name, maxSize=total_bytes, streamSegmentSize=1024)


def test_size_may_not_fall_below_a_segment(raw: RawClient, name: str) -> None:
    raw.create(name)
    refused(raw, Status.INVALID_REQUEST, name, maxSize=4096, streamSegmentSize=4097)
    refused(raw, Status.INVALID_REQUEST, name, maxSize=4096)  # the default segment is larger
    update(raw, name, maxSize=4096, streamSegmentSize=4096)


def test_field_violations(raw: RawClient, name: str) -> None:
    raw.create(name, exportDefinition=kinesis("k"))
    refused(raw, Status.INVALID_REQUEST, name, maxSize=1)
    refused(raw, Status.INVALID_REQUEST, name, strategyOnFull=2)
    refused(raw, Status.INVALID_REQUEST, name, exportDefinition=kinesis("k", "k"))
    refused(raw, Status.INVALID_REQUEST, name, exportDefinition=kinesis("k", priority=11))
    missing = {
        "s3TaskExecutor": [{"identifier": "s", "statusConfig": {"statusStreamName": "no such stream"}}]
    }
    refused(raw, Status.INVALID_REQUEST, name, exportDefinition=missing)


def test_exports_are_added_changed_and_deleted_by_omission(raw: RawClient, name: str) -> None:
    raw.create(name, exportDefinition=kinesis("stays", "goes"))
    changed = {
        **kinesis("stays", batchSize=5),
        "http": [{"identifier": "comes", "uri": "http://127.0.0.1:1", "disabled": True}],
    }
    update(raw, name, exportDefinition=changed)
    info = raw.describe(name)
    assert [one["exportConfigIdentifier"] for one in info["exportStatuses"]] == ["comes", "stays"]
    assert info["definition"]["exportDefinition"]["kinesis"] == changed["kinesis"]


def test_start_of_an_existing_export_must_be_below_the_newest(raw: RawClient, name: str) -> None:
    raw.create(name, exportDefinition=kinesis("k"))
    for _ in range(10):
        raw.append(name, b"x")
    refused(raw, Status.UPDATE_NOT_ALLOWED, name, exportDefinition=kinesis("k", startSequenceNumber=9))
    refused(raw, Status.UPDATE_NOT_ALLOWED, name, exportDefinition=kinesis("k", startSequenceNumber=1000))
    update(raw, name, exportDefinition=kinesis("k", startSequenceNumber=8))


def test_start_of_a_new_export_may_lie_ahead(raw: RawClient, name: str) -> None:
    raw.create(name)
    update(raw, name, exportDefinition=kinesis("k", startSequenceNumber=1000))
    update(
        raw, name, exportDefinition=kinesis("k", startSequenceNumber=1000)
    )  # the stored value is no change


def test_growing_a_full_stream_makes_room(raw: RawClient, name: str) -> None:
    raw.create(name, maxSize=2048, streamSegmentSize=1024)
    raw.append(name, bytes(1500))
    text = raw.fail(Status.INVALID_REQUEST, Op.APPEND, name=name, payload=bytes(1500))
    assert "full" in text
    update(raw, name, maxSize=8192, streamSegmentSize=1024)
    assert raw.append(name, bytes(1500)) == 1


def test_switch_to_overwriting_makes_room(raw: RawClient, name: str) -> None:
    raw.create(name, maxSize=2048, streamSegmentSize=1024)
    raw.append(name, bytes(1500))
    update(raw, name, maxSize=2048, streamSegmentSize=1024, strategyOnFull=1)
    assert raw.append(name, bytes(1500)) == 1
    assert [message["sequenceNumber"] for message in raw.read(name)] == [1]
