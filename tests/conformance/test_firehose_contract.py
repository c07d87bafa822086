"""Every operation with requests made from botocore's service model: correct ones are accepted, wrong ones refused as
AWS refuses them, and each answer is what the model says."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conformance.firehose import FirehoseClient, record
from conformance.firehose_configurations import (
    Block,
    encryption_inputs,
    endings,
    streams,
    tags,
)
from doors.firehose_model import MODEL, OPERATIONS, Leaf, bounds, broken_rules, leaves, sample
from harness import ServerProcess

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"
ANY = settings(
    max_examples=1500 if SOAK else 40,
    deadline=None,
    derandomize=not SOAK,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
# Where Penstock accepts more than AWS: http:// and hosts of any kind.
RELAXED = {"HttpEndpointUrl", "ClusterJDBCURL", "ElasticsearchClusterEndpoint"}
RELAXED |= {"AmazonopensearchserviceClusterEndpoint", "AmazonOpenSearchServerlessCollectionEndpoint"}
NOT_FOUND, INVALID = "ResourceNotFoundException", "InvalidArgumentException"
DESTINATION_ID = "destinationId-000000000001"

_numbers = itertools.count()


@pytest.fixture(scope="module")
def client(firehose_server: ServerProcess) -> Iterator[FirehoseClient]:
    with FirehoseClient(firehose_server.http_port) as client:
        yield client


@pytest.fixture
def stream(client: FirehoseClient) -> Iterator[str]:
    name = f"stream-{next(_numbers)}"
    client.create(name)
    yield name
    client.succeed("DeleteDeliveryStream", {"DeliveryStreamName": name})


# -- from the model alone ---------------------------------------------------------------------------


def _leaves(operation: str) -> list[Leaf]:
    """Every constrained place of a request; but for the long run, only the first of those with the same shape."""
    found = [leaf for leaf in leaves() if leaf.operation == operation]
    return found if SOAK else list({leaf.shape.name: leaf for leaf in reversed(found)}.values())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_value_at_its_bounds(client: FirehoseClient, operation: str) -> None:
    for leaf in _leaves(operation):
        for value in bounds(leaf.shape):
            answer = client.call(operation, leaf.body(value))
            rules = broken_rules(leaf.shape, value)
            if rules and leaf.shape.name not in RELAXED:
                assert answer.code == "ValidationException", (leaf, value, answer)
                assert f"at '{leaf.reported}' failed to satisfy constraint" in answer.message
            elif not rules:
                assert answer.code != "ValidationException", (leaf, value, answer)
            if answer.status == 200 and operation == "CreateDeliveryStream":
                client.succeed(
                    "DeleteDeliveryStream", {"DeliveryStreamName": leaf.body(value)["DeliveryStreamName"]}
                )


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("complete", [True, False], ids=["all members", "required members"])
def test_what_the_model_allows_is_not_refused_by_it(
    client: FirehoseClient, operation: str, complete: bool
) -> None:
    """All destinations at once, and streams that are not there, are refused for other reasons."""
    body = sample(MODEL.operation_model(operation).input_shape, complete=complete)
    if operation != "ListDeliveryStreams":
        body["DeliveryStreamName"] = "nobody"
    expected = {NOT_FOUND}
    if operation in ("UpdateDestination", "StartDeliveryStreamEncryption"):
        expected = {NOT_FOUND, INVALID}
    elif operation == "CreateDeliveryStream":
        expected = {INVALID}
    elif operation == "ListDeliveryStreams":
        expected = {""}
    assert client.call(operation, body).code in expected


@pytest.mark.parametrize("operation", OPERATIONS)
def test_members_that_are_missing(client: FirehoseClient, operation: str) -> None:
    shape = MODEL.operation_model(operation).input_shape
    for name in shape.required_members:
        without = sample(shape)
        del without[name]
        for body in (without, {**without, name: None}):
            answer = client.call(operation, body)
            assert answer.code == "ValidationException"
            path = name[0].lower() + name[1:]
            assert answer.message == (
                f"1 validation error detected: Value at '{path}' failed to satisfy constraint: "
                "Member must not be null"
            )


@pytest.mark.parametrize("operation", OPERATIONS)
def test_members_of_another_type(client: FirehoseClient, operation: str) -> None:
    wrong: dict[str, Any] = {"string": 1, "structure": [], "list": {}, "integer": "1", "boolean": "true"}
    shape = MODEL.operation_model(operation).input_shape
    for name, member in shape.members.items():
        answer = client.call(operation, {**sample(shape), name: wrong[member.type_name]})
        assert answer.code == "SerializationException", (name, answer)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_members_that_nobody_knows(client: FirehoseClient, stream: str, operation: str) -> None:
    """A newer SDK may send them."""
    known = sample(MODEL.operation_model(operation).input_shape)
    if "DeliveryStreamName" in known and operation != "DeleteDeliveryStream":
        known["DeliveryStreamName"] = stream
    answer = client.call(operation, {**known, "Unheard": {"Of": [1]}, "Null": None})
    assert answer.code not in ("ValidationException", "SerializationException")


# -- correct requests are accepted ------------------------------------------------------------------


@ANY
@given(data=st.data())
def test_life_of_a_delivery_stream(client: FirehoseClient, data: st.DataObject) -> None:
    name = f"life-{next(_numbers):011}{data.draw(endings)}"
    body, update = data.draw(streams())
    created = client.succeed("CreateDeliveryStream", {"DeliveryStreamName": name, **body})
    shown = client.describe(name)
    assert created["DeliveryStreamARN"] == shown["DeliveryStreamARN"]
    assert (shown["DeliveryStreamStatus"], shown["VersionId"]) == ("ACTIVE", "1")
    assert client.describe(name) == shown
    block = next(value for key, value in body.items() if key.endswith("DestinationConfiguration"))
    check_shown(block, shown)
    check_encryption(body.get("DeliveryStreamEncryptionConfigurationInput"), shown)
    check_tags(client, name, body.get("Tags", []))

    answer = client.put_batch(name, [b"a", b""])
    assert answer.json["FailedPutCount"] == 0
    assert answer.json["Encrypted"] is ("DeliveryStreamEncryptionConfigurationInput" in body)

    client.succeed("UpdateDestination", destination_update(name, "1", update))
    shown = client.describe(name)
    assert shown["VersionId"] == "2"
    assert shown["LastUpdateTimestamp"] >= shown["CreateTimestamp"]
    check_shown(update, shown)
    client.succeed("DeleteDeliveryStream", {"DeliveryStreamName": name})


def destination_update(name: str, version: str, update: Block) -> Block:
    return {
        "DeliveryStreamName": name,
        "CurrentDeliveryStreamVersionId": version,
        "DestinationId": DESTINATION_ID,
        "ExtendedS3DestinationUpdate": update,
    }


def check_shown(block: Block, shown: Block) -> None:
    """What was sent is shown, in both forms."""
    (destination,) = shown["Destinations"]
    assert destination["DestinationId"] == DESTINATION_ID
    extended, plain = destination["ExtendedS3DestinationDescription"], destination["S3DestinationDescription"]
    assert {name: extended[name] for name in plain} == plain
    sent = dict(block)
    for name in ("S3BackupConfiguration", "S3BackupUpdate"):
        if name in sent:
            sent["S3BackupDescription"] = sent.pop(name)
    differing = list(_differences(sent, extended))
    assert not differing, differing


# What AWS leaves out of a description.
DEFAULTS = {
    "ConvertDotsInJsonKeysToUnderscores": False,
    "CaseInsensitive": True,
    "BlockSizeBytes": 268435456,
    "PageSizeBytes": 1048576,
    "EnableDictionaryCompression": False,
    "MaxPaddingBytes": 0,
    "WriterVersion": "V1",
    "Compression": "SNAPPY",
    "StripeSizeBytes": 67108864,
    "RowIndexStride": 10000,
    "EnablePadding": False,
    "PaddingTolerance": 0.05,
    "BloomFilterFalsePositiveProbability": 0.05,
    "DictionaryKeyThreshold": 0,
    "FormatVersion": "V0_12",
    "ErrorOutputPrefix": "",
}


def _differences(sent: Any, shown: Any, path: str = "") -> Iterator[str]:
    if isinstance(sent, dict):
        for name, value in sent.items():
            if name in shown:
                yield from _differences(value, shown[name], f"{path}.{name}")
            elif DEFAULTS.get(name) != value:
                yield f"{path}.{name} is not shown"
    elif path.endswith(".Processors") and len(sent) == len(shown):
        for number, (one, other) in enumerate(zip(sent, shown, strict=True)):
            parameters = one.get("Parameters", [])
            first = {**other, "Parameters": other.get("Parameters", [])[: len(parameters)]}
            yield from _differences(one, first, f"{path}[{number}]")
    elif sent != shown:
        yield f"{path} was sent as {sent!r} and is shown as {shown!r}"


def check_encryption(sent: Block | None, shown: Block) -> None:
    status = "DISABLED" if sent is None else "ENABLED"
    assert shown["DeliveryStreamEncryptionConfiguration"] == {**(sent or {}), "Status": status}


def check_tags(client: FirehoseClient, name: str, sent: list[Block]) -> None:
    seen: list[Block] = []
    more = True
    while more:
        start = {"ExclusiveStartTagKey": seen[-1]["Key"]} if seen else {}
        body = {"DeliveryStreamName": name, "Limit": 17, **start}
        page = client.succeed("ListTagsForDeliveryStream", body)
        seen += page["Tags"]
        more = page["HasMoreTags"]
        assert len(page["Tags"]) == 17 or not more
    assert seen == sent


@ANY
@given(data=st.data())
def test_tags(client: FirehoseClient, data: st.DataObject) -> None:
    name = f"tags-{next(_numbers)}"
    client.create(name)
    first, second = data.draw(tags()), data.draw(tags())
    client.succeed("TagDeliveryStream", {"DeliveryStreamName": name, "Tags": first})
    together = {tag["Key"]: tag for tag in first} | {tag["Key"]: tag for tag in second}
    answer = client.call("TagDeliveryStream", {"DeliveryStreamName": name, "Tags": second})
    assert answer.code == ("LimitExceededException" if len(together) > 50 else "")
    if answer.code:
        together = {tag["Key"]: tag for tag in first}
    check_tags(client, name, list(together.values()))
    keys = [tag["Key"] for tag in first]
    client.succeed("UntagDeliveryStream", {"DeliveryStreamName": name, "TagKeys": keys})
    check_tags(client, name, [tag for key, tag in together.items() if key not in keys])
    client.succeed("DeleteDeliveryStream", {"DeliveryStreamName": name})


@ANY
@given(
    records=st.lists(st.binary(max_size=200), min_size=1, max_size=20)
    | st.sampled_from(
        [[b"x"] * 500, [b""] * 500, [b"y" * 1_024_000] * 4, [b"z" * 1024 * 1000] * 4 + [b"z" * 98304]]
    )
)
def test_puts(client: FirehoseClient, records: list[bytes]) -> None:
    name = f"puts-{next(_numbers)}"
    client.create(name)
    answer = client.put_batch(name, records).json
    assert (answer["FailedPutCount"], answer["Encrypted"]) == (0, False)
    ids = [entry.pop("RecordId") for entry in answer["RequestResponses"]]
    assert answer["RequestResponses"] == [{}] * len(records), "an entry has more than an id"
    single = client.succeed("PutRecord", {"DeliveryStreamName": name, "Record": record(records[0])})
    ids.append(single["RecordId"])
    assert ids == sorted(set(ids))
    client.succeed("DeleteDeliveryStream", {"DeliveryStreamName": name})


@ANY
@given(chosen=encryption_inputs)
def test_encryption(client: FirehoseClient, chosen: Block) -> None:
    name = f"encrypted-{next(_numbers)}"
    client.create(name)
    body = {"DeliveryStreamName": name, "DeliveryStreamEncryptionConfigurationInput": chosen}
    assert client.succeed("StartDeliveryStreamEncryption", body) == {}
    enabling = client.describe(name)["DeliveryStreamEncryptionConfiguration"]
    assert enabling["Status"] in ("ENABLING", "ENABLED")
    check_encryption(chosen, client.wait_for(name, _has_encryption("ENABLED")))
    assert client.put_batch(name, [b"a"]).json["Encrypted"] is True
    client.succeed("StopDeliveryStreamEncryption", {"DeliveryStreamName": name})
    check_encryption(None, client.wait_for(name, _has_encryption("DISABLED")))
    assert client.put_batch(name, [b"a"]).json["Encrypted"] is False
    client.succeed("DeleteDeliveryStream", {"DeliveryStreamName": name})


def _has_encryption(status: str) -> Any:
    return lambda shown: shown["DeliveryStreamEncryptionConfiguration"]["Status"] == status
