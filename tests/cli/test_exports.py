"""The exports commands against a server whose pipeline is this test: it leases and reports as it likes."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.conftest import CommandLine
from cli.test_app import free_port
from harness import ServerProcess
from penstock.cli import exits
from penstock.flush import Flush, LeaseRequest, Outcome, ReportAnswer
from penstock.pipeline.server_client import ServerClient

DOCS = Path(__file__).parent.parent.parent / "docs"


class Pipeline:
    def __init__(self, server: ServerProcess) -> None:
        token = (server.data_dir / "http-token").read_text().strip()
        self._client = ServerClient(f"http://127.0.0.1:{server.http_port}", token)

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def lease(self) -> Flush:
        leases = self._client.lease(LeaseRequest("test", wait_ms=10_000))
        [flush] = leases.flushes
        return flush

    def report(self, flush: Flush, **outcome: Any) -> ReportAnswer:
        return self._client.report("test", [Outcome(flush=flush.id, attempt=flush.attempt, **outcome)])

    def deliver_all(self) -> None:
        flush = self.lease()
        count = flush.next - flush.first
        self.report(flush, next=flush.next, messages=count, payload_bytes=count, done=True)


@pytest.fixture
def pipeline(server: ServerProcess) -> Iterator[Pipeline]:
    with Pipeline(server) as pipeline:
        yield pipeline


@pytest.fixture
def penstock(server: ServerProcess) -> CommandLine:
    """A stream 's' with three messages and an export 'e'."""
    command_line = CommandLine(server)
    command_line.env["PENSTOCK_HTTP_PORT"] = str(server.http_port)
    command_line.env["PENSTOCK_DATA_DIR"] = str(server.data_dir)
    define(command_line, "create", startSequenceNumber=0)
    command_line.ok("streams", "append", "s", "a", "b", "c")
    return command_line


def define(command_line: CommandLine, verb: str, name: str = "s", **changes: object) -> None:
    export = {"identifier": "e", "uri": "http://127.0.0.1:1/", **changes}
    definition = {"strategyOnFull": 0, "exportDefinition": {"http": [export]}}
    command_line.ok("streams", verb, name, "--definition", "-", stdin=json.dumps(definition).encode())


def described(command_line: CommandLine) -> dict[str, Any]:
    export: dict[str, Any] = command_line.ok("exports", "describe", "s", "e", "--json").json
    return export


def test_list(penstock: CommandLine, pipeline: Pipeline) -> None:
    define(penstock, "create", "another")
    rows = [line.split("\t") for line in penstock.ok("exports", "list").stdout.decode().splitlines()]
    assert rows[0][:6] == ["stream", "export", "kind", "state", "next", "waiting"]
    assert [row[:6] for row in rows[1:]] == [
        ["another", "e", "http", "idle", "0", "0"],
        ["s", "e", "http", "waiting", "0", "3"],
    ]
    pipeline.deliver_all()
    [listed] = penstock.ok("exports", "list", "--stream", "s", "--json").json["exports"]
    assert listed == described(penstock)
    assert (listed["state"], listed["nextSequenceNumber"], listed["waitingMessages"]) == ("idle", 3, 0)
    assert (listed["exportedMessagesCount"], listed["exportedBytesFromStream"]) == (3, 3)


def test_the_documentation_lists_the_keys(penstock: CommandLine) -> None:
    [row] = [
        line for line in (DOCS / "cli.md").read_text().splitlines() if line.startswith("| `exports list`")
    ]
    documented = re.findall(r"`(\w+)`", row.split("|")[2])
    assert documented == list(described(penstock))


def test_describe_for_people(penstock: CommandLine, pipeline: Pipeline) -> None:
    flush = pipeline.lease()
    pipeline.report(flush, next=1, messages=1, payload_bytes=1, error="no route to host", done=True)
    shown = dict(
        line.split("\t") for line in penstock.ok("exports", "describe", "s", "e").stdout.decode().splitlines()
    )
    assert shown["state"] == "failing"
    assert (shown["next sequence number"], shown["waiting messages"]) == ("1", "2")
    assert shown["error"] == "no route to host"
    assert shown["next attempt"].startswith("in ")


def test_what_is_not_there(penstock: CommandLine) -> None:
    for arguments in (
        ["describe", "s", "nobody"],
        ["describe", "nobody", "e"],
        ["pause", "s", "nobody"],
        ["resume", "nobody", "e"],
        ["rewind", "s", "nobody", "--to", "0"],
        ["retry-now", "nobody", "e"],
    ):
        finished = penstock.run("exports", *arguments, "--json")
        assert finished.code == exits.NOT_FOUND, arguments
        assert "nobody" in json.loads(finished.stderr)["message"]
        assert finished.stdout == b""


def test_pause_and_resume(penstock: CommandLine, pipeline: Pipeline) -> None:
    flush = pipeline.lease()
    for _ in range(2):
        paused = penstock.ok("exports", "pause", "s", "e", "--json").json
        assert paused == {"stream": "s", "export": "e", "disabled": True}
    assert described(penstock)["state"] == "paused"
    assert pipeline.report(flush, next=2, messages=2).cancelled == [flush.id]
    penstock.ok("exports", "resume", "s", "e")
    assert described(penstock)["state"] != "paused"
    assert described(penstock)["nextSequenceNumber"] == 2


def test_rewind_to_the_start_that_is_set_already(
    penstock: CommandLine, pipeline: Pipeline, server: ServerProcess
) -> None:
    pipeline.deliver_all()
    rewound = penstock.ok("exports", "rewind", "s", "e", "--to", "0", "--json").json
    assert (rewound["nextSequenceNumber"], rewound["waitingMessages"]) == (0, 3)
    server.restart()
    penstock.env["PENSTOCK_HTTP_PORT"] = str(server.http_port)
    assert described(penstock)["nextSequenceNumber"] == 0
    with Pipeline(server) as after_restart:
        assert after_restart.lease().first == 0


def test_rewind_gives_up_what_is_under_way(penstock: CommandLine, pipeline: Pipeline) -> None:
    flush = pipeline.lease()
    pipeline.report(flush, next=2, messages=2)
    said = penstock.ok("exports", "rewind", "s", "e", "--to", "1").stderr
    assert said == "export e of stream s goes on from 1; 2 messages wait\n"
    assert pipeline.report(flush, next=3, messages=3, done=True).cancelled == [flush.id]
    again = pipeline.lease()
    assert (again.first, again.next) == (1, 3)
    assert again.id != flush.id


def test_rewind_to_before_the_start_when_nothing_is_exported(
    penstock: CommandLine, pipeline: Pipeline, server: ServerProcess
) -> None:
    define(penstock, "update", startSequenceNumber=1)
    flush = pipeline.lease()
    assert flush.first == 1
    penstock.ok("exports", "rewind", "s", "e", "--to", "0")
    server.kill()
    server.start()
    with Pipeline(server) as after_restart:
        assert after_restart.lease().first == 0


def test_rewind_forward_leaves_out_what_waits(penstock: CommandLine) -> None:
    penstock.ok("exports", "rewind", "s", "e", "--to", "3")
    assert described(penstock)["waitingMessages"] == 0


def test_rewind_behind_the_end(penstock: CommandLine) -> None:
    refused = penstock.run("exports", "rewind", "s", "e", "--to", "4")
    assert refused.code == exits.REFUSED
    assert "up to 3" in refused.stderr


def test_rewind_of_file_tasks_keeps_the_definition_valid(penstock: CommandLine) -> None:
    definition = {"exportDefinition": {"s3TaskExecutor": [{"identifier": "up"}]}}
    penstock.ok("streams", "create", "tasks", "--definition", "-", stdin=json.dumps(definition).encode())
    penstock.ok("streams", "append", "tasks", "x", "y")
    assert penstock.ok("exports", "rewind", "tasks", "up", "--to", "1", "--json").json["waitingMessages"] == 1
    penstock.ok("exports", "pause", "tasks", "up")


def test_retry_now(penstock: CommandLine, pipeline: Pipeline) -> None:
    flush = pipeline.lease()
    pipeline.report(flush, next=0, error="no such host", permanent=True, done=True)
    failing = described(penstock)
    assert (failing["state"], failing["failures"], failing["errorMessage"]) == ("failing", 1, "no such host")
    assert failing["retryInMillis"] > 200_000
    penstock.ok("exports", "retry-now", "s", "e")
    again = pipeline.lease()
    assert (again.id, again.attempt) == (flush.id, flush.attempt + 1)


def test_watch_tells_what_changes(penstock: CommandLine) -> None:
    process = penstock.start("exports", "list", "--watch", "--json")
    assert process.stdout is not None
    assert json.loads(process.stdout.readline())["waitingMessages"] == 3
    penstock.ok("streams", "append", "s", "d")
    assert json.loads(process.stdout.readline())["waitingMessages"] == 4
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert (process.returncode, stderr) == (exits.INTERRUPTED, b"")


def test_watch_draws_bars_on_a_terminal(penstock: CommandLine, pipeline: Pipeline) -> None:
    terminal, other_end = pty.openpty()
    env = penstock.env | {"COLUMNS": "160", "TERM": "xterm"}
    command = penstock.command("exports", "describe", "s", "e", "--watch")
    process = subprocess.Popen(command, stdin=other_end, stdout=other_end, stderr=other_end, env=env)
    os.close(other_end)
    seen = read_until(terminal, rb"s .* e.*waiting.*0/3")
    pipeline.report(pipeline.lease(), next=2, messages=2)
    seen += read_until(terminal, rb"delivering.*2/3")
    process.send_signal(signal.SIGINT)
    while chunk := read(terminal):
        seen += chunk
    os.close(terminal)
    assert process.wait(30) == exits.INTERRUPTED
    assert b"Traceback" not in seen


def read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # the other end is closed
        return b""


def read_until(terminal: int, pattern: bytes) -> bytes:
    seen = b""
    while not re.search(pattern, re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", seen)):
        chunk = read(terminal)
        assert chunk, seen
        seen += chunk
    return seen


def test_no_server(penstock: CommandLine) -> None:
    finished = penstock.run("exports", "list", "--http", f"http://127.0.0.1:{free_port()}")
    assert finished.code == exits.UNREACHABLE
    assert "'penstock up'" in finished.stderr


def test_the_wrong_door(penstock: CommandLine, server: ServerProcess) -> None:
    finished = penstock.run("exports", "list", "--http", f"http://127.0.0.1:{server.port}")
    assert finished.code == exits.UNREACHABLE
    assert "Traceback" not in finished.stderr


@pytest.mark.parametrize("url", ["127.0.0.1:8080", "https://a", "http://", "http://a:b", "http://a/b", "x"])
def test_not_a_url(offline: CommandLine, url: str) -> None:
    finished = offline.run("exports", "list", "--http", url)
    assert finished.code == exits.USAGE
    assert "http://HOST:PORT" in finished.stderr


def test_tokens(penstock: CommandLine, server: ServerProcess, tmp_path: Path) -> None:
    refused = penstock.run("exports", "list", env={"PENSTOCK_HTTP_TOKEN": "wrong"})
    assert refused.code == exits.UNAUTHORIZED
    token_file = str(server.data_dir / "http-token")
    penstock.ok("exports", "list", "--token-file", token_file, env={"PENSTOCK_HTTP_TOKEN": "wrong"})
    penstock.env["PENSTOCK_DATA_DIR"] = str(tmp_path / "elsewhere")
    unknown = penstock.run("exports", "list")
    assert unknown.code == exits.USAGE
    assert "--data-dir" in unknown.stderr
    penstock.ok("exports", "list", "--data-dir", str(server.data_dir))
