"""Limits and defaults of definitions and read options, for clients that do not check before they send."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from conformance.raw_client import RawClient
from conformance.wire import Op, Status

LONG_MAX = 2**63 - 1
MILLIS_MAX = 9223372036854
REQUIRED_FIELDS = {
    "http": {"identifier": "e", "uri": "http://x"},
    "iotAnalytics": {"identifier": "e", "iotChannel": "c"},
    "kinesis": {"identifier": "e", "kinesisStreamName": "k"},
    "IotSitewise": {"identifier": "e"},
    "s3TaskExecutor": {"identifier": "e"},
}
STREAMING_KINDS = ["http", "iotAnalytics", "kinesis", "IotSitewise"]
BATCH_SIZE_MAX = {"http": 500, "iotAnalytics": 100, "kinesis": 500, "IotSitewise": 10}


def export(kind: str, **fields: Any) -> dict[str, Any]:
    """A definition's export part with one export, disabled; a field of None is left out."""
    settings = {**REQUIRED_FIELDS[kind], "disabled": True, **fields}
    return {kind: [{key: value for key, value in settings.items() if value is not None}]}


def common_export_cases() -> list[tuple[str, dict[str, Any]]]:
    cases = []
    for kind in REQUIRED_FIELDS:
        for identifier in (None, "", "a" * 256, "a/b", "a\n", 7):
            cases.append((kind, {"identifier": identifier}))
        for priority in (0, 11, "1"):
            cases.append((kind, {"priority": priority}))
        cases.append((kind, {"disabled": "no"}))
    for kind in STREAMING_KINDS:
        for batch_size in (0, -1, BATCH_SIZE_MAX[kind] + 1, "1"):
            cases.append((kind, {"batchSize": batch_size}))
        for interval_ms in (0, 59999, MILLIS_MAX + 1):
            cases.append((kind, {"batchIntervalMillis": interval_ms}))
        cases.append((kind, {"startSequenceNumber": -1}))
    return cases


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[
            ("name", value)
            for value in (None, "", "a" * 256, "a/b", "a\\b", "a\n", "é", "a\x00", 7, b"a", ["a"])
        ],
        *[("maxSize", value) for value in (0, 1023, -1, 1024.5, "2048", True, float("nan"), float("inf"))],
        *[("streamSegmentSize", value) for value in (0, 1023, -1, 2**31, "2048")],
        *[("timeToLiveMillis", value) for value in (0, 59999, -1, MILLIS_MAX + 1)],
        *[("strategyOnFull", value) for value in (None, 2, -1, "0", [0])],
        *[("persistence", value) for value in (2, -1, "File")],
        *[("flushOnWrite", value) for value in ("true", 2)],
        *[("exportDefinition", value) for value in ("x", [], 1, {"kinesis": {}}, {"kinesis": ["x"]})],
    ],
)
def test_definition_field_is_refused(raw: RawClient, name: str, field: str, value: Any) -> None:
    definition = {"name": name, "strategyOnFull": 0, field: value}
    text = raw.fail(Status.INVALID_REQUEST, Op.CREATE, definition=definition)
    assert f"definition.{field}" in text
    assert name not in raw.list()


@pytest.mark.parametrize(("kind", "fields"), common_export_cases())
def test_export_field_is_refused(raw: RawClient, name: str, kind: str, fields: dict[str, Any]) -> None:
    definition = {"name": name, "strategyOnFull": 0, "exportDefinition": export(kind, **fields)}
    text = raw.fail(Status.INVALID_REQUEST, Op.CREATE, definition=definition)
    assert next(iter(fields)) in text


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("http", {"uri": None}),
        ("http", {"uri": ""}),
        ("http", {"exportFormat": 2}),
        ("http", {"exportFormat": -1}),
        ("iotAnalytics", {"iotChannel": None}),
        ("iotAnalytics", {"iotChannel": ""}),
        ("iotAnalytics", {"iotMsgIdPrefix": "p" * 33}),
        ("kinesis", {"kinesisStreamName": None}),
        ("kinesis", {"kinesisStreamName": ""}),
        ("s3TaskExecutor", {"sizeThresholdForMultipartUploadBytes": 5242879}),
        ("s3TaskExecutor", {"statusConfig": "x"}),
        ("s3TaskExecutor", {"statusConfig": {"statusLevel": 5}}),
        ("s3TaskExecutor", {"statusConfig": {"statusStreamName": ""}}),
        ("s3TaskExecutor", {"statusConfig": {"statusStreamName": "a/b"}}),
        ("s3TaskExecutor", {"statusConfig": {"statusStreamName": "a" * 256}}),
        ("s3TaskExecutor", {"statusConfig": {"statusStreamName": "there is no such stream"}}),
    ],
)
def test_field_of_one_kind_is_refused(raw: RawClient, name: str, kind: str, fields: dict[str, Any]) -> None:
    definition = {"name": name, "strategyOnFull": 0, "exportDefinition": export(kind, **fields)}
    raw.fail(Status.INVALID_REQUEST, Op.CREATE, definition=definition)


def test_status_stream_is_the_stream_itself(raw: RawClient, name: str) -> None:
    exports = export("s3TaskExecutor", statusConfig={"statusStreamName": name})
    definition = {"name": name, "strategyOnFull": 0, "exportDefinition": exports}
    raw.fail(Status.INVALID_REQUEST, Op.CREATE, definition=definition)


@pytest.mark.parametrize(
    "exports",
    [
        {"kinesis": [REQUIRED_FIELDS["kinesis"], REQUIRED_FIELDS["kinesis"]]},
        {"kinesis": [REQUIRED_FIELDS["kinesis"]], "http": [REQUIRED_FIELDS["http"]]},
    ],
    ids=["one-kind", "two-kinds"],
)
def test_identifiers_must_differ(raw: RawClient, name: str, exports: dict[str, Any]) -> None:
    definition = {"name": name, "strategyOnFull": 0, "exportDefinition": exports}
    raw.fail(Status.INVALID_REQUEST, Op.CREATE, definition=definition)


def test_all_problems_are_listed(raw: RawClient) -> None:
    definition = {
        "name": "a/b",
        "maxSize": 1,
        "exportDefinition": export("kinesis", priority=11, batchSize=0),
    }
    text = raw.fail(Status.INVALID_REQUEST, Op.CREATE, definition=definition)
    for problem in (
        "definition.name: must match",
        "definition.maxSize: must be at least 1024",
        "definition.strategyOnFull is required",
        "priority",
        "batchSize",
    ):
        assert problem in text


@pytest.mark.parametrize(
    "fields",
    [
        {"maxSize": 1024, "streamSegmentSize": 1024},
        {"maxSize": LONG_MAX, "streamSegmentSize": 2**31 - 1},
        {"timeToLiveMillis": 60000},
        {"timeToLiveMillis": MILLIS_MAX},
        {"strategyOnFull": 1, "persistence": 1, "flushOnWrite": True},
        {"persistence": 0, "flushOnWrite": False},
    ],
)
def test_definition_at_its_limits(raw: RawClient, name: str, fields: dict[str, Any]) -> None:
    raw.create(name, **fields)
    described = raw.definition(name)
    assert {key: described[key] for key in fields} == fields


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *[(kind, {"batchSize": BATCH_SIZE_MAX[kind], "priority": 10}) for kind in STREAMING_KINDS],
        *[(kind, {"batchSize": 1, "priority": 1, "batchIntervalMillis": 60000}) for kind in STREAMING_KINDS],
        *[(kind, {"startSequenceNumber": LONG_MAX}) for kind in STREAMING_KINDS],
        *[(kind, {"identifier": "a" * 255}) for kind in REQUIRED_FIELDS],
        ("http", {"exportFormat": 0}),
        ("http", {"uri": "http://x/" + "y" * 5000}),
        ("iotAnalytics", {"iotMsgIdPrefix": "p" * 32}),
        ("s3TaskExecutor", {"sizeThresholdForMultipartUploadBytes": 5242880}),
        ("s3TaskExecutor", {"statusConfig": {"statusLevel": 0}}),
        ("s3TaskExecutor", {"statusConfig": {}}),
    ],
)
def test_export_at_its_limits(raw: RawClient, name: str, kind: str, fields: dict[str, Any]) -> None:
    exports = export(kind, **fields)
    raw.create(name, exportDefinition=exports)
    described = raw.definition(name)["exportDefinition"]
    assert described == {**{kind: [] for kind in REQUIRED_FIELDS}, **exports}


def test_several_exports_of_a_kind_keep_their_order(raw: RawClient, name: str) -> None:
    exports = {
        "s3TaskExecutor": [{"identifier": "s", "disabled": True}],
        "kinesis": [
            {"identifier": one, "kinesisStreamName": "k", "disabled": True} for one in ("z", "a", "m")
        ],
    }
    raw.create(name, exportDefinition=exports)
    info = raw.describe(name)
    assert [one["exportConfigIdentifier"] for one in info["exportStatuses"]] == ["z", "a", "m", "s"]
    assert info["definition"]["exportDefinition"]["kinesis"] == exports["kinesis"]


def test_describe_has_exactly_the_effective_definition(raw: RawClient, name: str) -> None:
    raw.create(name)
    assert raw.describe(name) == {
        "definition": {
            "name": name,
            "maxSize": 268435456,
            "streamSegmentSize": 16777216,
            "strategyOnFull": 0,
            "persistence": 0,
            "flushOnWrite": False,
            "exportDefinition": {kind: [] for kind in REQUIRED_FIELDS},
        },
        "storageStatus": {"oldestSequenceNumber": 0, "newestSequenceNumber": -1, "totalBytes": 0},
        "exportStatuses": [],
    }


def test_unknown_keys_are_ignored(raw: RawClient, name: str) -> None:
    raw.succeed(
        Op.CREATE,
        future=[1, {"x": None}],
        definition={
            "name": name,
            "strategyOnFull": 0,
            "future": {"a": 1},
            "exportDefinition": {"future": [1], **export("kinesis", future=1)},
        },
    )
    assert raw.succeed(Op.APPEND, name=name, payload=b"x", future=1.5)["sequenceNumber"] == 0
    assert "future" not in raw.definition(name)


def test_null_and_undefined_count_as_absent(raw: RawClient, name: str) -> None:
    nothing = {
        "maxSize": None,
        "timeToLiveMillis": cbor2.undefined,
        "exportDefinition": None,
        "persistence": None,
    }
    raw.create(name, **nothing)
    assert raw.definition(name)["maxSize"] == 268435456
    raw.append(name, b"x")
    raw.succeed(Op.READ, streamName=name, readMessagesOptions=None)
    raw.succeed(
        Op.READ, streamName=name, readMessagesOptions={"minMessageCount": None, "maxMessageCount": None}
    )


def test_last_of_duplicate_keys_wins(raw: RawClient, name: str) -> None:
    raw.create(name)
    pairs = [
        ("requestId", "r"),
        ("name", "no such stream"),
        ("payload", b"one"),
        ("name", name),
        ("payload", b"two"),
    ]
    raw.send_frame(Op.APPEND, b"\xa5" + b"".join(cbor2.dumps(part) for pair in pairs for part in pair))
    assert raw.receive()[1]["status"] == Status.SUCCESS
    assert raw.read(name)[0]["payload"] == b"two"


def test_whole_floats_are_integers(raw: RawClient, name: str) -> None:
    raw.create(name, maxSize=2048.0, streamSegmentSize=1024.0, strategyOnFull=1.0)
    described = raw.definition(name)
    assert (described["maxSize"], described["streamSegmentSize"], described["strategyOnFull"]) == (
        2048,
        1024,
        1,
    )
    raw.append(name, b"x")
    assert len(raw.read(name, minMessageCount=1.0, readTimeoutMillis=0.0)) == 1  # type: ignore[arg-type]


def test_float_beyond_long_is_clamped(raw: RawClient, name: str) -> None:
    """What node-cbor makes of 2^63-1."""
    definition = b"\xa3" + cbor2.dumps("name") + cbor2.dumps(name) + cbor2.dumps("strategyOnFull") + b"\x00"
    definition += cbor2.dumps("maxSize") + bytes.fromhex("fa5f000000")
    request = b"\xa2" + cbor2.dumps("requestId") + cbor2.dumps("r") + cbor2.dumps("definition") + definition
    raw.send_frame(Op.CREATE, request)
    assert raw.receive()[1]["status"] == Status.SUCCESS
    assert raw.definition(name)["maxSize"] == LONG_MAX


def test_integers_of_any_width(raw: RawClient, name: str) -> None:
    raw.create(name)
    raw.append(name, b"x")
    options = b"\xa1" + cbor2.dumps("minMessageCount") + bytes.fromhex("1b0000000000000001")
    request = b"\xa3" + cbor2.dumps("requestId") + bytes.fromhex("7900") + b"\x01r"
    request += cbor2.dumps("streamName") + cbor2.dumps(name) + cbor2.dumps("readMessagesOptions") + options
    raw.send_frame(Op.READ, request)
    assert raw.receive()[1]["status"] == Status.SUCCESS


def test_byte_strings_in_chunks(raw: RawClient, name: str) -> None:
    raw.create(name)
    request = b"\xbf" + cbor2.dumps("requestId") + cbor2.dumps("r") + cbor2.dumps("name") + cbor2.dumps(name)
    request += cbor2.dumps("payload") + b"\x5f" + cbor2.dumps(b"one ") + cbor2.dumps(b"two") + b"\xff\xff"
    raw.send_frame(Op.APPEND, request)
    assert raw.receive()[1]["status"] == Status.SUCCESS
    assert raw.read(name)[0]["payload"] == b"one two"


def test_keys_in_any_order(raw: RawClient, name: str) -> None:
    raw.create(name)
    for number, keys in enumerate((("payload", "name", "requestId"), ("name", "requestId", "payload"))):
        values = {"payload": b"x", "name": name, "requestId": "r"}
        raw.send_frame(Op.APPEND, cbor2.dumps({key: values[key] for key in keys}))
        assert raw.receive()[1]["sequenceNumber"] == number


@pytest.mark.parametrize(
    "options",
    [
        {"minMessageCount": 0},
        {"minMessageCount": 2**31},
        {"minMessageCount": "1"},
        {"minMessageCount": 1.5},
        {"maxMessageCount": 0},
        {"maxMessageCount": 2**31},
        {"minMessageCount": 3, "maxMessageCount": 2},
        {"readTimeoutMillis": -1},
        {"readTimeoutMillis": MILLIS_MAX + 1},
        {"desiredStartSequenceNumber": -1},
        {"desiredStartSequenceNumber": "0"},
        "x",
        [1],
    ],
)
def test_read_options_are_refused(raw: RawClient, name: str, options: Any) -> None:
    raw.create(name)
    raw.append(name, b"x")
    raw.fail(Status.INVALID_REQUEST, Op.READ, streamName=name, readMessagesOptions=options)


def test_read_options_at_their_limits(raw: RawClient, name: str) -> None:
    raw.create(name)
    for i in range(3):
        raw.append(name, b"%d" % i)
    assert len(raw.read(name, maxMessageCount=2**31 - 1, readTimeoutMillis=MILLIS_MAX)) == 3
    assert len(raw.read(name, minMessageCount=3, maxMessageCount=3)) == 3
    assert len(raw.read(name, maxMessageCount=2)) == 2
    text = raw.fail(
        Status.NOT_ENOUGH_MESSAGES,
        Op.READ,
        streamName=name,
        readMessagesOptions={"desiredStartSequenceNumber": LONG_MAX},
    )
    assert text == f"the desired sequence number {LONG_MAX} is greater than the last sequence number 2"
    raw.fail(
        Status.NOT_ENOUGH_MESSAGES,
        Op.READ,
        streamName=name,
        readMessagesOptions={"minMessageCount": 2**31 - 1},
    )


def test_read_without_options(raw: RawClient, name: str) -> None:
    raw.create(name)
    raw.append(name, b"x")
    assert len(raw.succeed(Op.READ, streamName=name)["messages"]) == 1


def test_start_beyond_the_end_is_accepted_at_creation(raw: RawClient, name: str) -> None:
    raw.create(name, exportDefinition=export("kinesis", startSequenceNumber=1000))
    assert raw.definition(name)["exportDefinition"]["kinesis"][0]["startSequenceNumber"] == 1000
