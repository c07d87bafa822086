"""Layer 1 of the checks of the Firehose door, compared with botocore's service model value by value."""

from __future__ import annotations

import json
import re
import time
from contextlib import suppress
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.serialize import create_serializer
from firehose_model import (
    MODEL,
    OPERATIONS,
    ROLE,
    S3,
    STRICT,
    Leaf,
    bounds,
    broken_rules,
    create,
    leaves,
    refused,
    sample,
    violations,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.delivery.errors import ApiError
from penstock.doors.firehose.validation import VIOLATIONS_MAX, Validator

RELAXED = Validator()
LENIENT = Validator(lenient=True)


# -- every value of the model -----------------------------------------------------------------------


LEAVES = list(leaves())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_values_at_their_bounds(operation: str) -> None:
    for leaf in leaves(operation):
        for value in bounds(leaf.shape):
            expected = {(leaf.reported, rule) for rule in broken_rules(leaf.shape, value)}
            if expected:
                assert set(violations(refused(operation, leaf.body(value)))) == expected, str(value)[:100]
            else:
                STRICT.check(operation, leaf.body(value))


@pytest.mark.parametrize("operation", OPERATIONS)
def test_null_is_not_sent(operation: str) -> None:
    for leaf in leaves(operation):
        _check_null(leaf)


def _check_null(leaf: Leaf) -> None:
    body = leaf.body(None)
    *parents, name = leaf.path
    is_required = name == "[]" or name in _parent(leaf).required_members
    if is_required:
        expected = [(leaf.reported, "Member must not be null")]
        assert violations(refused(leaf.operation, body)) == expected
    else:
        kept: Any = STRICT.check(leaf.operation, body)
        for part in parents:
            kept = kept[0 if part == "[]" else part]
        assert name not in kept


def _parent(leaf: Leaf) -> Any:
    shape = MODEL.operation_model(leaf.operation).input_shape
    for part in leaf.path[:-1]:
        shape = shape.member if part == "[]" else shape.members[part]
    return shape


WRONG = {
    "string": [1, True, [], {}],
    "integer": ["1", 1.5, True, [], {}, 2**31, float("inf")],
    "double": ["1", True, [], {}, float("nan"), 10**400],
    "timestamp": ["2026-01-01T00:00:00Z", True, [], {}, float("inf"), 10**400],
    "boolean": ["true", 1, 0, [], {}],
    "blob": [1, True, [], {}, "a", "YQ", "YQ=", "YQ====", "Y Q=", "YQ==\n", "-_8=", "ä"],
    "list": ["a", 1, True, {}],
    "map": ["a", 1, True, []],
}


@pytest.mark.parametrize("operation", OPERATIONS)
def test_wrong_types(operation: str) -> None:
    for leaf in leaves(operation):
        for value in WRONG[leaf.shape.type_name]:
            error = refused(operation, leaf.body(value))
            assert error.code == "SerializationException", (leaf, value)
            assert error.message.endswith(f" at '{leaf.reported}'")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_everything_at_once(operation: str) -> None:
    body = sample(MODEL.operation_model(operation).input_shape, complete=True)
    kept = STRICT.check(operation, body)
    serialized = create_serializer("json").serialize_to_request(kept, MODEL.operation_model(operation))
    assert json.loads(serialized["body"]) == body


@pytest.mark.parametrize("operation", OPERATIONS)
def test_unknown_members_are_ignored(operation: str) -> None:
    body = sample(MODEL.operation_model(operation).input_shape, complete=True)
    assert STRICT.check(operation, _with_strangers(body)) == STRICT.check(operation, body)


def _with_strangers(value: Any) -> Any:
    if isinstance(value, dict) and not any(name.islower() for name in value):  # a map has names of the client
        return {
            "Stranger": {"Deep": [1]},
            **{name: _with_strangers(member) for name, member in value.items()},
        }
    return [_with_strangers(item) for item in value] if isinstance(value, list) else value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.sampled_from(LEAVES), json_values)
@settings(max_examples=400, deadline=None)
def test_any_json_is_accepted_or_refused(leaf: Leaf, value: Any) -> None:
    for body in (leaf.body(value), value):
        code = ""
        try:
            RELAXED.check(leaf.operation, body)
        except ApiError as error:
            code = error.code
        assert code in ("", "ValidationException", "SerializationException")


# -- odd bodies ------------------------------------------------------------------------------------


def test_body_is_not_an_object() -> None:
    assert STRICT.check("ListDeliveryStreams", None) == {}
    for body in ([], "x", 1, True):
        assert refused("ListDeliveryStreams", body).code == "SerializationException"


def test_half_of_a_surrogate_pair() -> None:
    error = refused("CreateDeliveryStream", create({**S3, "Prefix": "a\ud800"}))
    assert (error.code, error.message[-30:]) == (
        "SerializationException",
        "at 'extendedS3DestinationConfiguration.prefix'"[-30:],
    )
    STRICT.check("CreateDeliveryStream", create({**S3, "Prefix": "a\U0001f600"}))


# -- switches ---------------------------------------------------------------------------------------


def http_endpoint(url: str) -> dict[str, Any]:
    block = {"EndpointConfiguration": {"Url": url}, "S3Configuration": S3}
    return create(block, "HttpEndpointDestinationConfiguration")


def redshift(url: str) -> dict[str, Any]:
    block = {
        "RoleARN": ROLE,
        "ClusterJDBCURL": url,
        "CopyCommand": {"DataTableName": "t"},
        "S3Configuration": S3,
    }
    return create(block, "RedshiftDestinationConfiguration")


@pytest.mark.parametrize(
    "body",
    [
        http_endpoint("http://127.0.0.1:8000/x"),
        redshift("jdbc:postgresql://localhost:5432/db"),
        redshift("jdbc:redshift://10.0.0.1/db"),
    ],
)
def test_relaxed_urls(body: dict[str, Any]) -> None:
    assert [rule for _, rule in violations(refused("CreateDeliveryStream", body))] == ["pattern"]
    RELAXED.check("CreateDeliveryStream", body)


@pytest.mark.parametrize(
    "body", [http_endpoint("ftp://host/"), redshift("jdbc:mysql://h/d"), redshift("jdbc:redshift:///d")]
)
def test_relaxed_urls_are_not_any_text(body: dict[str, Any]) -> None:
    assert [rule for _, rule in violations(refused("CreateDeliveryStream", body, RELAXED))] == ["pattern"]


def test_relaxed_pattern_is_the_one_that_is_told() -> None:
    assert refused("CreateDeliveryStream", http_endpoint("x"), RELAXED).message.endswith(
        "pattern: https?://.*"
    )


def test_lenient_leaves_arns_and_urls_unchecked() -> None:
    LENIENT.check("CreateDeliveryStream", create({"RoleARN": "role", "BucketARN": "bucket"}))
    LENIENT.check("CreateDeliveryStream", http_endpoint("ftp://host/"))
    found = violations(
        refused("CreateDeliveryStream", create({"RoleARN": "", "BucketARN": "b" * 2049}), LENIENT)
    )
    assert [path for path, _ in found] == [
        "extendedS3DestinationConfiguration.roleARN",
        "extendedS3DestinationConfiguration.bucketARN",
    ]
    assert violations(refused("DeleteDeliveryStream", {"DeliveryStreamName": "a b"}, LENIENT))


# -- bodies that are made to hurt -------------------------------------------------------------------


def nested(depth: int) -> Any:
    value: Any = {}
    for _ in range(depth):
        value = {"a": [value]}
    return value


def test_deep_nesting_is_not_followed() -> None:
    deep = nested(100_000)
    assert STRICT.check("DescribeDeliveryStream", {"DeliveryStreamName": "s", "Unknown": deep})
    for name in ("DeliveryStreamName", "Limit"):
        body = {"DeliveryStreamName": "s", name: deep}
        assert refused("DescribeDeliveryStream", body).code == "SerializationException"
    while deep:  # else the interpreter's own recursion frees it
        deep = deep["a"][0]


def test_violations_are_bounded() -> None:
    conversion = {"Deserializer": {"HiveJsonSerDe": {"TimestampFormats": [""] * 500_000}}}
    block = {**S3, "DataFormatConversionConfiguration": {"InputFormatConfiguration": conversion}}
    started_s = time.monotonic()
    assert len(violations(refused("CreateDeliveryStream", create(block)))) == VIOLATIONS_MAX
    assert time.monotonic() - started_s < 5


@pytest.mark.parametrize("unit", [":kms:a", ":glue:a", "arn:", ":s3:::", "a.", "https:", "-", " "])
def test_patterns_do_not_backtrack_for_long(unit: str) -> None:
    long = unit * (8_000_000 // len(unit))
    started_s = time.monotonic()
    for leaf in leaves("CreateDeliveryStream"):
        if leaf.shape.type_name == "string":
            for text in (
                "arn:" + unit * (2040 // len(unit)),
                "https:" + unit * 100,
                "jdbc:redshift://" + unit * 200,
            ):
                with suppress(ApiError):
                    STRICT.check(leaf.operation, leaf.body(text))
    refused("CreateDeliveryStream", create({"RoleARN": long, "BucketARN": long}))
    assert time.monotonic() - started_s < 30


# -- requests of boto3 ------------------------------------------------------------------------------


class Requests:
    """A boto3 client that talks to nobody: what it would send is kept."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.client = boto3.client(
            "firehose", region_name="eu-west-1", aws_access_key_id="a", aws_secret_access_key="b"
        )
        self.client.meta.events.register("before-send.firehose", self._keep)

    def _keep(self, request: Any, **_: Any) -> Any:
        operation = request.headers["X-Amz-Target"].decode().removeprefix("Firehose_20150804.")
        self.sent.append((operation, json.loads(request.body)))
        return _Answer()


class _Answer(AWSResponse):
    def __init__(self) -> None:
        super().__init__("http://nobody", 200, {}, None)
        self._content = b"{}"


def test_requests_of_boto3() -> None:
    requests = Requests()
    client = requests.client
    extended = {**S3, "Prefix": "", "FileExtension": "", "CustomTimeZone": "UTC"}
    extended["ProcessingConfiguration"] = {"Enabled": False, "Processors": []}
    extended["DataFormatConversionConfiguration"] = {"Enabled": False}
    client.create_delivery_stream(DeliveryStreamName="s", ExtendedS3DestinationConfiguration=extended)
    client.put_record(DeliveryStreamName="s", Record={"Data": b"\x00\xff"})
    client.put_record_batch(DeliveryStreamName="s", Records=[{"Data": b""}, {"Data": b"x" * 1_024_000}])
    client.list_delivery_streams()
    checked = [STRICT.check(operation, body) for operation, body in requests.sent]
    assert checked == [
        {"DeliveryStreamName": "s", "ExtendedS3DestinationConfiguration": extended},
        {"DeliveryStreamName": "s", "Record": {"Data": b"\x00\xff"}},
        {"DeliveryStreamName": "s", "Records": [{"Data": b""}, {"Data": b"x" * 1_024_000}]},
        {},
    ]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_complete_requests_of_boto3(operation: str) -> None:
    requests = Requests()
    arguments = STRICT.check(operation, sample(MODEL.operation_model(operation).input_shape, complete=True))
    method = re.sub(r"(?<!^)(?=[A-Z])", "_", operation).lower()
    getattr(requests.client, method)(**arguments)
    [(sent_operation, body)] = requests.sent
    kept = STRICT.check(sent_operation, body)
    assert (sent_operation, kept) == (operation, arguments)
