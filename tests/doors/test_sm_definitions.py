"""Definitions: what a client may send, what is said about what it may not, and what it gets back."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from sm_definitions import KINDS, SMALLEST, info, parsed, problems_of, with_export
from stream_manager import data as sdk
from stream_manager.utilinternal import UtilInternal

from penstock.doors.streammanager.codec import decode_map, encode_frame
from penstock.doors.streammanager.definitions import definition_to_wire, info_to_wire, parse_definition
from penstock.model import (
    INT64_MAX,
    Export,
    ExportKind,
    ExportStatus,
    Persistence,
    StrategyOnFull,
    StreamDefinition,
)

MIB = 1024 * 1024


# --- fields of the stream ---


def test_defaults() -> None:
    assert parsed(SMALLEST) == StreamDefinition(
        name="s",
        max_size_bytes=268435456,
        segment_size_bytes=16777216,
        ttl_ms=None,
        strategy_on_full=StrategyOnFull.REJECT_NEW_DATA,
        persistence=Persistence.FILE,
        flush_on_write=False,
        exports=(),
    )


def test_everything_set_and_unknown_keys_ignored() -> None:
    definition = parsed(
        {
            "name": "a b,c.d-e_f",
            "maxSize": 2048,
            "streamSegmentSize": 4096,
            "timeToLiveMillis": 60000,
            "strategyOnFull": 1,
            "persistence": 1,
            "flushOnWrite": True,
            "exportDefinition": {"kinesis": [], "newKind": [1]},
            "newField": {"a": 1},
        }
    )
    assert definition == StreamDefinition(
        "a b,c.d-e_f",
        2048,
        4096,
        60000,
        StrategyOnFull.OVERWRITE_OLDEST_DATA,
        Persistence.MEMORY,
        flush_on_write=True,
    )
    assert type(definition.strategy_on_full) is StrategyOnFull
    assert type(definition.persistence) is Persistence


@pytest.mark.parametrize("name", ["..", " ", "s" * 255, "a.log", "_", "-,."])
def test_names_that_are_allowed(name: str) -> None:
    assert parsed({**SMALLEST, "name": name}).name == name


@pytest.mark.parametrize("name", ["", "s" * 256, "é", "a/b", "a\n", "\n", "a\0", "٣", 1, b"s", ["s"]])
def test_names_that_are_not(name: object) -> None:
    (problem,) = problems_of({**SMALLEST, "name": name})
    assert problem.startswith("definition.name: must ")


LIMITS = [
    ("maxSize", 1024, INT64_MAX),
    ("streamSegmentSize", 1024, 2147483647),
    ("timeToLiveMillis", 60000, 9223372036854),
    ("strategyOnFull", 0, 1),
    ("persistence", 0, 1),
]


@pytest.mark.parametrize(("key", "least", "most"), LIMITS)
def test_ranges_of_the_stream(key: str, least: int, most: int) -> None:
    for value in (least, most, float(least)):
        parsed({**SMALLEST, key: value})
    for value in (least - 1, -1, True, "1024", 1024.5, float("nan"), float("inf"), [], {}):
        assert problems_of({**SMALLEST, key: value})[0].startswith(f"definition.{key}: must be ")
    if most != INT64_MAX:
        assert len(problems_of({**SMALLEST, key: most + 1})) == 1
        assert len(problems_of({**SMALLEST, key: 2.0**63})) == 1


@pytest.mark.parametrize("value", [2.0**63, 2**63, 2**64 - 1, 1e300])
def test_numbers_over_int64_are_clamped_where_that_is_the_limit(value: float) -> None:
    assert parsed({**SMALLEST, "maxSize": value}).max_size_bytes == INT64_MAX


def test_max_size_as_javascript_sends_it() -> None:
    payload = b"\xa3\x64name\x61s\x6estrategyOnFull\x00\x67maxSize" + bytes.fromhex("fa5f000000")
    assert parsed(decode_map(payload)).max_size_bytes == INT64_MAX


def test_a_float_is_kept_as_an_integer() -> None:
    definition = parsed(
        {
            **with_export(
                ExportKind.KINESIS, {"identifier": "e", "kinesisStreamName": "k", "batchSize": 5.0}
            ),
            "maxSize": 4096.0,
        }
    )
    assert type(definition.max_size_bytes) is int
    assert type(definition.exports[0].settings["batchSize"]) is int


@pytest.mark.parametrize("value", [0, 1, "true", []])
def test_flush_on_write_is_a_boolean(value: object) -> None:
    assert problems_of({**SMALLEST, "flushOnWrite": value}) == [
        "definition.flushOnWrite: must be true or false."
    ]


def test_problems_have_the_shape_of_aws() -> None:
    assert problems_of({"name": "ä", "maxSize": 1023}) == [
        "definition.strategyOnFull is required.",
        'definition.name: must match regular expression "^[\\w ,.\\-_]*$".',
        "definition.maxSize: must be at least 1024.",
    ]
    assert problems_of({}) == ["definition.name is required.", "definition.strategyOnFull is required."]
    assert problems_of(None) == ["definition is required."]
    assert problems_of([]) == ["definition: must be a map."]
    assert parse_definition(None, "d")[1] == ["d is required."]
    assert problems_of({**SMALLEST, "exportDefinition": []}) == [
        "definition.exportDefinition: must be a map."
    ]
    assert problems_of({**SMALLEST, "exportDefinition": {"http": {}}}) == [
        "definition.exportDefinition.http: must be an array."
    ]
    assert problems_of({**SMALLEST, "exportDefinition": {"http": [None, "x"]}}) == [
        "definition.exportDefinition.http[0]: must be a map.",
        "definition.exportDefinition.http[1]: must be a map.",
    ]
    assert problems_of({**SMALLEST, "strategyOnFull": 2}) == [
        "definition.strategyOnFull: must be one of 0 (REJECT_NEW_DATA), 1 (OVERWRITE_OLDEST_DATA)."
    ]


# --- exports ---


@pytest.mark.parametrize("kind", KINDS)
def test_smallest_export_of_each_kind(kind: ExportKind) -> None:
    settings = KINDS[kind][2]
    assert parsed(with_export(kind, settings)).exports == (Export(kind, settings),)


@pytest.mark.parametrize("kind", KINDS)
def test_required_keys_of_each_kind(kind: ExportKind) -> None:
    settings = KINDS[kind][2]
    at = f"definition.exportDefinition.{kind.value}[0]"
    assert problems_of(with_export(kind, {})) == [f"{at}.{key} is required." for key in settings]
    for key in settings:
        for bad in ("", 5, b"x"):
            assert problems_of(with_export(kind, {**settings, key: bad}))[0].startswith(f"{at}.{key}: must ")


EXPORT_LIMITS: list[tuple[ExportKind, str, int, int]] = [
    (kind, key, least, most)
    for kind, batch_size_max in [
        (ExportKind.HTTP, 500),
        (ExportKind.IOT_ANALYTICS, 100),
        (ExportKind.KINESIS, 500),
        (ExportKind.IOT_SITEWISE, 10),
    ]
    for key, least, most in [
        ("batchSize", 1, batch_size_max),
        ("batchIntervalMillis", 60000, 9223372036854),
        ("priority", 1, 10),
        ("startSequenceNumber", 0, INT64_MAX),
    ]
] + [
    (ExportKind.HTTP, "exportFormat", 0, 1),
    (ExportKind.S3_TASK_EXECUTOR, "priority", 1, 10),
    (ExportKind.S3_TASK_EXECUTOR, "sizeThresholdForMultipartUploadBytes", 5242880, INT64_MAX),
]


@pytest.mark.parametrize(("kind", "key", "least", "most"), EXPORT_LIMITS)
def test_ranges_of_exports(kind: ExportKind, key: str, least: int, most: int) -> None:
    settings = KINDS[kind][2]
    for value in (least, most):
        assert parsed(with_export(kind, {**settings, key: value})).exports[0].settings[key] == value
    too_much = [] if most == INT64_MAX else [most + 1]
    for bad in [least - 1, *too_much, True, "1", 1.5]:
        (problem,) = problems_of(with_export(kind, {**settings, key: bad}))
        assert problem.startswith(f"definition.exportDefinition.{kind.value}[0].{key}: must be ")


def test_only_what_the_client_set_is_kept() -> None:
    kinesis = {"identifier": "e", "kinesisStreamName": "k", "disabled": True}
    assert parsed(with_export(ExportKind.KINESIS, {**kinesis, "new": 1})).exports[0].settings == kinesis
    # An S3 export has no position to start from and no batches.
    s3 = {"identifier": "e", "startSequenceNumber": 5, "batchSize": 5}
    assert parsed(with_export(ExportKind.S3_TASK_EXECUTOR, s3)).exports[0].settings == {"identifier": "e"}


def test_iot_analytics_prefix() -> None:
    channel = {"identifier": "e", "iotChannel": "c"}
    parsed(with_export(ExportKind.IOT_ANALYTICS, {**channel, "iotMsgIdPrefix": "p" * 32}))
    parsed(with_export(ExportKind.IOT_ANALYTICS, {**channel, "iotMsgIdPrefix": ""}))
    assert problems_of(with_export(ExportKind.IOT_ANALYTICS, {**channel, "iotMsgIdPrefix": "p" * 33})) == [
        "definition.exportDefinition.iotAnalytics[0].iotMsgIdPrefix: must have a length of at most 32."
    ]


def test_status_config() -> None:
    def s3(status_config: object) -> dict[str, Any]:
        return with_export(ExportKind.S3_TASK_EXECUTOR, {"identifier": "e", "statusConfig": status_config})

    at = "definition.exportDefinition.s3TaskExecutor[0].statusConfig"
    full = {"statusLevel": 4, "statusStreamName": "status"}
    assert parsed(s3(full)).exports[0].settings["statusConfig"] == full
    assert parsed(s3(full)).exports[0].status_stream_name == "status"
    assert parsed(s3({})).exports[0].status_stream_name is None
    assert problems_of(s3([])) == [f"{at}: must be a map."]
    assert problems_of(s3({"statusLevel": 5}))[0].startswith(f"{at}.statusLevel: must be one of 0 (ERROR), ")
    for bad in ("", "x" * 256, "a/b", 3):
        assert problems_of(s3({"statusStreamName": bad}))[0].startswith(f"{at}.statusStreamName: must ")
    assert problems_of(s3({"statusStreamName": "s"})) == [f"{at}.statusStreamName: must name another stream."]


def test_identifiers_are_unique_across_kinds() -> None:
    exports = {kind.value: [settings] for kind, (_, _, settings) in KINDS.items()}
    assert problems_of({**SMALLEST, "exportDefinition": exports}) == [
        f"definition.exportDefinition.{kind.value}[0].identifier: must be unique within the stream."
        for kind in list(KINDS)[1:]
    ]
    assert problems_of(with_export(ExportKind.IOT_SITEWISE, {"identifier": "e"}, {"identifier": "e"})) == [
        "definition.exportDefinition.IotSitewise[1].identifier: must be unique within the stream."
    ]


def test_the_export_of_delivery_streams_cannot_be_asked_for() -> None:
    assert parsed(with_export(ExportKind.DELIVERY, {"identifier": "e"})).exports == ()


def test_exports_are_ordered_by_kind_then_as_listed() -> None:
    exports = {
        kind.value: [{**settings, "identifier": f"{kind.value}{n}"} for n in (1, 0)]
        for kind, (_, _, settings) in reversed(KINDS.items())
    }
    definition = parsed({**SMALLEST, "exportDefinition": exports})
    assert [export.identifier for export in definition.exports] == [
        f"{kind.value}{n}" for kind in KINDS for n in (1, 0)
    ]


# --- to the wire ---


def test_an_empty_stream_on_the_wire() -> None:
    assert info_to_wire(info(parsed(SMALLEST))) == {
        "definition": {
            "name": "s",
            "maxSize": 268435456,
            "streamSegmentSize": 16777216,
            "strategyOnFull": 0,
            "persistence": 0,
            "flushOnWrite": False,
            "exportDefinition": {
                "http": [],
                "iotAnalytics": [],
                "kinesis": [],
                "IotSitewise": [],
                "s3TaskExecutor": [],
            },
        },
        "storageStatus": {"oldestSequenceNumber": 0, "newestSequenceNumber": -1, "totalBytes": 0},
        "exportStatuses": [],
    }


def full_definition() -> dict[str, Any]:
    status_config = {"statusLevel": 3, "statusStreamName": "status"}
    return {
        "name": "full",
        "maxSize": MIB,
        "streamSegmentSize": 2048,
        "timeToLiveMillis": 60000,
        "strategyOnFull": 1,
        "persistence": 1,
        "flushOnWrite": True,
        "exportDefinition": {
            "http": [{"identifier": "h", "uri": "u", "exportFormat": 1, "batchSize": 3, "disabled": False}],
            "iotAnalytics": [{"identifier": "a", "iotChannel": "c", "iotMsgIdPrefix": "p"}],
            "kinesis": [
                {"identifier": "k2", "kinesisStreamName": "x", "startSequenceNumber": 7},
                {"identifier": "k1", "kinesisStreamName": "x", "priority": 1, "batchIntervalMillis": 60000},
            ],
            "IotSitewise": [{"identifier": "w"}],
            "s3TaskExecutor": [
                {
                    "identifier": "s3",
                    "sizeThresholdForMultipartUploadBytes": 5242880,
                    "statusConfig": status_config,
                }
            ],
        },
    }


def test_a_definition_comes_back_as_it_was_sent() -> None:
    wire = full_definition()
    assert definition_to_wire(parsed(wire)) == wire
    assert parsed(definition_to_wire(parsed(wire))) == parsed(wire)


def test_statuses_follow_the_order_of_the_definition() -> None:
    given = [ExportStatus("w", 5, 1700000000000, "no route", 100, 6), ExportStatus("h"), ExportStatus("gone")]
    statuses = info_to_wire(info(parsed(full_definition()), *given))["exportStatuses"]
    assert [status["exportConfigIdentifier"] for status in statuses] == ["h", "a", "k2", "k1", "w", "s3"]
    assert statuses[4] == {
        "exportConfigIdentifier": "w",
        "lastExportedSequenceNumber": 5,
        "lastExportTime": 1700000000000,
        "errorMessage": "no route",
        "exportedBytesFromStream": 100,
        "exportedMessagesCount": 6,
    }
    assert statuses[1] == {
        "exportConfigIdentifier": "a",
        "lastExportedSequenceNumber": -1,
        "lastExportTime": 0,
        "errorMessage": "",
        "exportedBytesFromStream": 0,
        "exportedMessagesCount": 0,
    }


@pytest.mark.parametrize("definition", [SMALLEST, full_definition()])
def test_the_sdk_reads_what_describe_sends_and_sends_it_back(definition: dict[str, Any]) -> None:
    wire = info_to_wire(info(parsed(definition), newest=9, total=1000))
    body = {"requestId": "r", "status": 0, "errorMessage": "", "messageStreamInfo": wire}
    frame = encode_frame(14, body)
    response = sdk.DescribeMessageStreamResponse.from_dict(cbor2.loads(frame[5:]))
    theirs: sdk.MessageStreamInfo = response.message_stream_info
    assert not UtilInternal.is_invalid(theirs)
    assert theirs.as_dict() == wire
    assert theirs.storage_status.newest_sequence_number == 9
    assert parsed(theirs.definition.as_dict()) == parsed(definition)
