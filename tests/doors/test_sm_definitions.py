from __future__ import annotations

from typing import Any

import cbor2
import msgspec
import pytest
from stream_manager import data as sdk
from stream_manager.utilinternal import UtilInternal

from penstock.doors.streammanager.codec import decode_map, encode_frame
from penstock.doors.streammanager.definitions import (
    definition_to_wire,
    info_to_wire,
    moved_starts,
    parse_definition,
    parse_update_definition,
    update_problem,
    updated_definition,
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

MIB = 1024 * 1024
SMALLEST = {"name": "s", "strategyOnFull": 0}

# For each kind: the SDK's class, its attribute in ExportDefinition, and the settings it cannot do without.
KINDS: dict[ExportKind, tuple[Any, str, dict[str, Any]]] = {
    ExportKind.HTTP: (sdk.HTTPConfig, "http", {"identifier": "e", "uri": "http://x"}),
    ExportKind.IOT_ANALYTICS: (
        sdk.IoTAnalyticsConfig,
        "iot_analytics",
        {"identifier": "e", "iotChannel": "c"},
    ),
    ExportKind.KINESIS: (sdk.KinesisConfig, "kinesis", {"identifier": "e", "kinesisStreamName": "k"}),
    ExportKind.IOT_SITEWISE: (sdk.IoTSiteWiseConfig, "iot_sitewise", {"identifier": "e"}),
    ExportKind.S3_TASK_EXECUTOR: (sdk.S3ExportTaskExecutorConfig, "s3_task_executor", {"identifier": "e"}),
}


def parsed(value: object) -> StreamDefinition:
    definition, problems = parse_definition(value)
    assert problems == []
    assert definition is not None
    return definition


def problems_of(value: object) -> list[str]:
    definition, problems = parse_definition(value)
    assert definition is None
    assert problems
    return problems


def with_export(kind: ExportKind, *settings: dict[str, Any]) -> dict[str, Any]:
    return {**SMALLEST, "exportDefinition": {kind.value: list(settings)}}


def camel(snake: str) -> str:
    head, *rest = snake.split("_")
    return head + "".join(word.capitalize() for word in rest)


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


@pytest.mark.parametrize("kind", ExportKind)
def test_smallest_export_of_each_kind(kind: ExportKind) -> None:
    settings = KINDS[kind][2]
    assert parsed(with_export(kind, settings)).exports == (Export(kind, settings),)


@pytest.mark.parametrize("kind", ExportKind)
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
        for kind in list(ExportKind)[1:]
    ]
    assert problems_of(with_export(ExportKind.IOT_SITEWISE, {"identifier": "e"}, {"identifier": "e"})) == [
        "definition.exportDefinition.IotSitewise[1].identifier: must be unique within the stream."
    ]


def test_exports_are_ordered_by_kind_then_as_listed() -> None:
    exports = {
        kind.value: [{**settings, "identifier": f"{kind.value}{n}"} for n in (1, 0)]
        for kind, (_, _, settings) in reversed(KINDS.items())
    }
    definition = parsed({**SMALLEST, "exportDefinition": exports})
    assert [export.identifier for export in definition.exports] == [
        f"{kind.value}{n}" for kind in ExportKind for n in (1, 0)
    ]


# --- the SDK as the judge ---


def boundary_values(rules: dict[str, Any]) -> list[Any]:
    values: list[Any] = []
    for key, beyond in (("minimum", -1), ("maximum", 1)):
        if key in rules:
            values += [rules[key], rules[key] + beyond]
    for key, beyond in (("minLength", -1), ("maxLength", 1)):
        if key in rules:
            values += ["x" * rules[key], "x" * (rules[key] + beyond)]
    if "pattern" in rules:
        values += ["a/b", "a b,c.d-e_f"]
    return values


def boundaries(sdk_class: Any) -> list[tuple[str, Any]]:
    return [
        (attribute, value)
        for attribute, rules in sdk_class._validations_map.items()
        for value in boundary_values(rules)
    ]


def judged_alike(theirs: Any, ours: list[str], value: Any) -> bool:
    if value == INT64_MAX + 1:
        return ours == []  # clamped, for JavaScript's sake
    return bool(UtilInternal.is_invalid(theirs)) == bool(ours)


@pytest.mark.parametrize(("attribute", "value"), boundaries(sdk.MessageStreamDefinition))
def test_stream_limits_are_those_of_the_sdk(attribute: str, value: Any) -> None:
    definition = sdk.MessageStreamDefinition(name="s", strategy_on_full=sdk.StrategyOnFull.RejectNewData)
    setattr(definition, attribute, value)
    assert judged_alike(definition, parse_definition(definition.as_dict())[1], value)


@pytest.mark.parametrize(
    ("kind", "attribute", "value"),
    [(kind, *boundary) for kind, (sdk_class, _, _) in KINDS.items() for boundary in boundaries(sdk_class)],
)
def test_export_limits_are_those_of_the_sdk(kind: ExportKind, attribute: str, value: Any) -> None:
    sdk_class, list_name, settings = KINDS[kind]
    export = sdk_class.from_dict(settings)
    setattr(export, attribute, value)
    definition = sdk.MessageStreamDefinition(
        name="s",
        strategy_on_full=sdk.StrategyOnFull.RejectNewData,
        export_definition=sdk.ExportDefinition(**{list_name: [export]}),
    )
    assert judged_alike(definition, parse_definition(definition.as_dict())[1], value)


@pytest.mark.parametrize("kind", ExportKind)
def test_keys_of_exports_are_those_of_the_sdk(kind: ExportKind) -> None:
    sdk_class, _, settings = KINDS[kind]
    samples = {"disabled": True, "statusConfig": {}, "uri": "u", "iotMsgIdPrefix": "p", "exportFormat": 1}
    samples |= {"batchIntervalMillis": 60000, "sizeThresholdForMultipartUploadBytes": 5242880}
    everything = {
        camel(attribute): settings.get(camel(attribute), samples.get(camel(attribute), 1))
        for attribute in sdk_class._types_map
    }
    assert parsed(with_export(kind, everything)).exports[0].settings == everything


def test_enums_are_those_of_the_sdk() -> None:
    for value in sdk.Persistence:
        parsed({**SMALLEST, "persistence": value.value})
    for value in sdk.StrategyOnFull:
        parsed({**SMALLEST, "strategyOnFull": value.value})
    for value in sdk.ExportFormat:
        parsed(with_export(ExportKind.HTTP, {"identifier": "e", "uri": "u", "exportFormat": value.value}))
    for value in sdk.StatusLevel:
        config = {"statusLevel": value.value}
        parsed(with_export(ExportKind.S3_TASK_EXECUTOR, {"identifier": "e", "statusConfig": config}))


# --- to the wire ---


def info(
    definition: StreamDefinition, *statuses: ExportStatus, newest: int = -1, total: int = 0
) -> StreamInfo:
    return StreamInfo(definition, 0, newest, total, statuses)


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


# --- updates ---


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
