"""penstock streams list, describe, create, update, delete"""

from __future__ import annotations

import json
import os
import pty
import uuid
from pathlib import Path

import pytest

from cli.conftest import CommandLine
from penstock.cli import exits

KINESIS = {"identifier": "k", "kinesisStreamName": "cloud", "batchSize": 7}


@pytest.fixture
def name(penstock: CommandLine) -> str:
    return f"d-{uuid.uuid4()}"


def test_create_with_defaults(penstock: CommandLine, name: str) -> None:
    definition = penstock.ok("streams", "create", name, "--json").json["definition"]
    assert definition == {
        "name": name,
        "maxSize": 256 * 2**20,
        "streamSegmentSize": 16 * 2**20,
        "strategyOnFull": 0,
        "persistence": 0,
        "flushOnWrite": False,
        "exportDefinition": {
            kind: [] for kind in ("http", "iotAnalytics", "kinesis", "IotSitewise", "s3TaskExecutor")
        },
    }


def test_create_with_every_flag(penstock: CommandLine, name: str) -> None:
    sizes = ["--max-size", "1MiB", "--segment-size", "64KiB", "--ttl", "7d"]
    others = ["--on-full", "overwrite", "--persistence", "memory", "--flush-on-write", "--json"]
    definition = penstock.ok("streams", "create", name, *sizes, *others).json["definition"]
    definition.pop("exportDefinition")
    assert definition == {
        "name": name,
        "maxSize": 2**20,
        "streamSegmentSize": 2**16,
        "timeToLiveMillis": 7 * 86_400_000,
        "strategyOnFull": 1,
        "persistence": 1,
        "flushOnWrite": True,
    }


def test_create_says_so_on_stderr_only(penstock: CommandLine, name: str) -> None:
    finished = penstock.ok("streams", "create", name)
    assert finished.stdout == b""
    assert name in finished.stderr


def test_create_twice(penstock: CommandLine, stream: str) -> None:
    finished = penstock.run("streams", "create", stream)
    assert finished.code == exits.REFUSED
    assert "the message stream already exists" in finished.stderr


def test_the_servers_rules_are_told(penstock: CommandLine, name: str) -> None:
    finished = penstock.run("streams", "create", name, "--ttl", "1s", "--json")
    assert finished.code == exits.REFUSED
    error = json.loads(finished.stderr)
    assert error["error"] == "InvalidRequest"
    assert "timeToLiveMillis" in error["message"]


def test_create_from_a_definition_and_copy_it(penstock: CommandLine, name: str, tmp_path: Path) -> None:
    path = tmp_path / "definition.json"
    path.write_text(json.dumps({"strategyOnFull": 1, "exportDefinition": {"kinesis": [KINESIS]}}))
    penstock.ok("streams", "create", name, "--definition", str(path), "--max-size", "32MiB")
    described = penstock.ok("streams", "describe", name, "--json")
    assert described.json["definition"]["exportDefinition"]["kinesis"] == [KINESIS]
    assert described.json["definition"]["maxSize"] == 32 * 2**20
    assert described.json["exportStatuses"][0]["exportConfigIdentifier"] == "k"

    copy = f"{name}-copy"
    penstock.ok("streams", "create", copy, "--definition", "-", stdin=described.stdout)
    copied = penstock.ok("streams", "describe", copy, "--json").json["definition"]
    assert copied == described.json["definition"] | {"name": copy}


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff"])
def test_a_definition_that_is_none(penstock: CommandLine, name: str, content: bytes) -> None:
    finished = penstock.run("streams", "create", name, "--definition", "-", stdin=content)
    assert finished.code == exits.USAGE
    assert "--definition" in finished.stderr
    assert "Traceback" not in finished.stderr


def test_update_changes_only_what_is_given(penstock: CommandLine, name: str) -> None:
    definition = json.dumps({"strategyOnFull": 1, "exportDefinition": {"kinesis": [KINESIS]}}).encode()
    penstock.ok("streams", "create", name, "--definition", "-", "--ttl", "1h", stdin=definition)
    before = penstock.ok("streams", "describe", name, "--json").json["definition"]

    after = penstock.ok("streams", "update", name, "--flush-on-write", "--json").json["definition"]
    assert after == before | {"flushOnWrite": True}

    without_ttl = penstock.ok("streams", "update", name, "--ttl", "none", "--json").json["definition"]
    assert without_ttl == {key: value for key, value in after.items() if key != "timeToLiveMillis"}


def test_update_with_a_definition_replaces_it(penstock: CommandLine, name: str) -> None:
    definition = json.dumps({"strategyOnFull": 1, "exportDefinition": {"kinesis": [KINESIS]}}).encode()
    penstock.ok("streams", "create", name, "--definition", "-", stdin=definition)
    replaced = penstock.ok(
        "streams", "update", name, "--definition", "-", "--json", stdin=b'{"strategyOnFull": 0}'
    ).json
    assert replaced["definition"]["strategyOnFull"] == 0
    assert replaced["exportStatuses"] == []


def test_update_with_nothing_to_change(penstock: CommandLine, stream: str) -> None:
    assert penstock.run("streams", "update", stream).code == exits.USAGE


@pytest.mark.parametrize(
    "command", [["describe"], ["update", "--ttl", "1h"], ["delete"], ["read"], ["tail"], ["append"]]
)
def test_no_such_stream(penstock: CommandLine, name: str, command: list[str]) -> None:
    finished = penstock.run("streams", *command, name, stdin=b"message\n")
    assert finished.code == exits.NOT_FOUND
    assert name in finished.stderr
    assert "Traceback" not in finished.stderr


def test_list(penstock: CommandLine, stream: str) -> None:
    penstock.ok("streams", "append", stream, "one", "two")
    listed = penstock.ok("streams", "list", "--json").json["streams"]
    info = next(info for info in listed if info["definition"]["name"] == stream)
    assert info["storageStatus"]["newestSequenceNumber"] == 1

    header, *rows = penstock.ok("streams", "list").stdout.decode().splitlines()
    row = next(row for row in rows if row.startswith(stream + "\t"))
    assert dict(zip(header.split("\t"), row.split("\t"), strict=True))["messages"] == "2"

    assert stream in penstock.ok("streams", "list", "-q").stdout.decode().splitlines()


def test_describe_for_people(penstock: CommandLine, name: str) -> None:
    definition = json.dumps({"exportDefinition": {"kinesis": [KINESIS | {"disabled": True}]}}).encode()
    penstock.ok("streams", "create", name, "--definition", "-", "--ttl", "1h30m", stdin=definition)
    shown = penstock.ok("streams", "describe", name).stdout.decode()
    assert "time to live\t1h30m\n" in shown
    assert "max size\t256 MiB\n" in shown
    assert "k\tkinesis (disabled)\t-1\t0\t0\tnever\t-\n" in shown


def test_delete_without_a_terminal_does_not_ask(penstock: CommandLine, stream: str) -> None:
    assert penstock.ok("streams", "delete", stream, "--json").json == {"deleted": stream}
    assert penstock.run("streams", "describe", stream).code == exits.NOT_FOUND


@pytest.mark.parametrize(("answer", "code", "described"), [(b"n\n", 1, 0), (b"y\n", 0, 3), (b"\x04", 130, 0)])
def test_delete_on_a_terminal_asks(
    penstock: CommandLine, stream: str, answer: bytes, code: int, described: int
) -> None:
    command = penstock.command("streams", "delete", stream)
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(command[0], command, penstock.env)
    shown = b""
    while b"[y/N]" not in shown:
        shown += os.read(terminal, 1024)
    os.write(terminal, answer)
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    assert stream.encode() in shown
    assert os.waitstatus_to_exitcode(status) == code
    assert penstock.run("streams", "describe", stream).code == described
