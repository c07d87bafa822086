"""The delivery commands against a server whose clients are boto3, and whose pipeline is this test."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from threading import Timer
from typing import Any

import pytest

from cli.conftest import CommandLine
from cli.test_exports import Pipeline
from conformance.firehose_calls import (
    S3,
    create,
    description,
    firehose_client,
    wait_for_encryption,
    wait_until_gone,
)
from harness import ServerProcess
from penstock.cli import exits


@pytest.fixture
def pipeline(server: ServerProcess) -> Iterator[Pipeline]:
    with Pipeline(server) as pipeline:
        yield pipeline


@pytest.fixture
def client(server: ServerProcess) -> Any:
    """With a stream 'logs' that has three records."""
    client = firehose_client(server)
    create(client, "logs", ExtendedS3DestinationConfiguration={**S3, "Prefix": "p/"})
    for data in (b"one", b"two\x07", b"\xff"):
        client.put_record(DeliveryStreamName="logs", Record={"Data": data})
    return client


@pytest.fixture
def penstock(server: ServerProcess, client: Any) -> CommandLine:
    command_line = CommandLine(server)
    command_line.env["PENSTOCK_HTTP_PORT"] = str(server.http_port)
    command_line.env["PENSTOCK_DATA_DIR"] = str(server.data_dir)
    return command_line


def test_list(penstock: CommandLine, server: ServerProcess) -> None:
    create(firehose_client(server, "us-east-1"), "other")
    rows = [line.split("\t") for line in penstock.ok("delivery", "list").stdout.decode().splitlines()]
    assert rows[0][:6] == ["name", "region", "account", "status", "state", "waiting"]
    assert [row[:6] for row in rows[1:]] == [
        ["logs", "eu-west-1", "000000000000", "ACTIVE", "waiting", "3"],
        ["other", "us-east-1", "000000000000", "ACTIVE", "idle", "0"],
    ]
    there = penstock.ok("delivery", "list", "--region", "us-east-1", "--json").json["deliveryStreams"]
    assert [(listing["name"], listing["progress"]["waitingRecords"]) for listing in there] == [("other", 0)]
    assert penstock.ok("delivery", "list", "--account", "1", "--json").json == {"deliveryStreams": []}


def test_describe(penstock: CommandLine) -> None:
    described = penstock.ok("delivery", "describe", "logs", "--json").json
    assert (described["status"], described["destination"], described["version"]) == (
        "ACTIVE",
        "ExtendedS3",
        1,
    )
    [destination] = described["description"]["Destinations"]
    assert destination["ExtendedS3DestinationDescription"]["Prefix"] == "p/"
    lines = penstock.ok("delivery", "describe", described["arn"]).stdout.decode().splitlines()
    properties = dict(line.split("\t") for line in lines)
    assert properties["waiting records"] == "3"
    assert properties["Prefix"] == "p/"
    assert properties["BufferingHints.SizeInMBs"] == "5"


@pytest.mark.parametrize("command", ["describe", "flush", "tail"])
def test_unknown_and_ambiguous_names(penstock: CommandLine, server: ServerProcess, command: str) -> None:
    unknown = penstock.run("delivery", command, "unknown", "--json")
    assert unknown.code == exits.NOT_FOUND
    assert json.loads(unknown.stderr)["error"] == "DeliveryNotFound"
    create(firehose_client(server, "us-east-1"), "logs")
    ambiguous = penstock.run("delivery", command, "logs")
    assert ambiguous.code == exits.REFUSED
    assert "--region" in ambiguous.stderr
    elsewhere = ("delivery", command, "logs", "--region", "us-east-1", "--account", "000000000000")
    penstock.ok(*elsewhere)


def test_flush(penstock: CommandLine, pipeline: Pipeline) -> None:
    """Long before 5 MiB or 300 s."""
    delivering = Timer(0.2, pipeline.deliver_all)
    delivering.start()
    flushed = penstock.ok("delivery", "flush", "logs")
    delivering.join()
    assert "everything is delivered" in flushed.stderr
    again = penstock.ok("delivery", "flush", "logs", "--json").json
    assert (again["waitingRecords"], again["deliveredRecords"]) == (0, 3)


def test_flush_without_a_pipeline(penstock: CommandLine) -> None:
    penstock.ok("delivery", "flush", "logs", "--wait", "0")
    waited = penstock.run("delivery", "flush", "logs", "--wait", "0.5")
    assert waited.code == exits.REFUSED
    assert "records of logs that are not delivered: 3" in waited.stderr


def test_tail(penstock: CommandLine) -> None:
    assert penstock.ok("delivery", "tail", "logs").stdout == b"one\ntwo\x07\n\xff\n"
    assert penstock.ok("delivery", "tail", "logs", "-n", "1", "--format", "%n %S\\n").stdout == b"2 1\n"
    assert penstock.ok("delivery", "tail", "logs", "-n", "0").stdout == b""
    lines = penstock.ok("delivery", "tail", "logs", "--json").json_lines
    assert [(line["sequenceNumber"], line["encoding"]) for line in lines] == [
        (0, "utf-8"),
        (1, "utf-8"),
        (2, "base64"),
    ]


def test_tail_shows_what_is_sealed(penstock: CommandLine, client: Any) -> None:
    client.start_delivery_stream_encryption(DeliveryStreamName="logs")
    wait_for_encryption(client, "logs", "ENABLED")
    client.put_record(DeliveryStreamName="logs", Record={"Data": b"secret"})
    assert penstock.ok("delivery", "tail", "logs", "-n", "2").stdout == b"\xff\nsecret\n"


def test_tail_follows(penstock: CommandLine, client: Any) -> None:
    following = penstock.start("delivery", "tail", "logs", "-n", "1", "-f")
    try:
        assert following.stdout is not None
        assert following.stdout.readline() == b"\xff\n"
        client.put_record(DeliveryStreamName="logs", Record={"Data": b"four"})
        assert following.stdout.readline() == b"four\n"
    finally:
        following.kill()
        following.communicate()


def test_sql(penstock: CommandLine, client: Any) -> None:
    nothing = penstock.ok("delivery", "sql", "logs")
    assert nothing.stdout == b""
    query = "SELECT upper(data) AS data FROM records"
    assert "from version 2 on" in penstock.ok("delivery", "sql", "logs", query).stderr
    assert penstock.ok("delivery", "sql", "logs").stdout.decode() == query + "\n"
    assert description(client, "logs")["VersionId"] == "2"
    again = penstock.ok("delivery", "sql", "logs", "--file", "-", "--json", stdin=query.encode() + b"\n").json
    assert (again["version"], again["sql"]) == (3, query)
    refused = penstock.run("delivery", "sql", "logs", "SELECT count(*) AS data FROM records GROUP BY 1")
    assert refused.code == exits.REFUSED
    assert "GROUP" in refused.stderr
    assert penstock.run("delivery", "sql", "logs", query, "--remove").code == exits.USAGE
    assert penstock.ok("delivery", "sql", "logs", "--remove", "--json").json["sql"] == ""


def test_records_of_a_deleted_stream_are_delivered_before(
    start_server: Callable[..., ServerProcess],
) -> None:
    server = start_server(env={"PENSTOCK_FIREHOSE_FLUSH_ON_DELETE": "on"})
    client = firehose_client(server)
    create(client, "logs")
    client.put_record(DeliveryStreamName="logs", Record={"Data": b"wanted"})
    client.delete_delivery_stream(DeliveryStreamName="logs")
    server.restart()
    client = firehose_client(server)
    answer = client.describe_delivery_stream(DeliveryStreamName="logs")
    assert answer["DeliveryStreamDescription"]["DeliveryStreamStatus"] == "DELETING"
    with Pipeline(server) as pipeline:
        flush = pipeline.lease()
        assert (flush.first, flush.next) == (0, 1)
        pipeline.report(flush, next=1, messages=1, payload_bytes=6, done=True)
    wait_until_gone(client, "logs")
