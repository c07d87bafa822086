"""`penstock up`: two processes that are started in order, started again when they die, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cli.conftest import CommandLine
from harness import ServerProcess
from penstock.cli import exits
from penstock.pipeline.java import java_problem
from penstock.supervisor import RESTART_MAX_S, STEADY_S, Backoff

DEADLINE_S = 120


@pytest.fixture
def up(tmp_path: Path) -> Iterator[ServerProcess]:
    """Not started. Its Java, if the test lets it need one, is not there."""
    yield from supervised(
        ServerProcess(tmp_path / "data", {"JAVA_HOME": str(tmp_path / "java")}, command="up")
    )


@pytest.fixture
def up_with_java(tmp_path: Path) -> Iterator[ServerProcess]:
    """Not started. Has the Java of the machine, and its data under 'data'."""
    data_dir = tmp_path / "data"
    flags = ["--data-dir", str(data_dir), "--stream-manager-port", "0", "--http-port", "0", "--heap", "500m"]
    env = {"PENSTOCK_PIPELINE_MASTER": "local[2]"}
    yield from supervised(ServerProcess(data_dir, env, flags, command="up"))


def supervised(process: ServerProcess) -> Iterator[ServerProcess]:
    yield process
    if process.is_running:
        process.kill()


def wait_until(condition: Callable[[], object], why: Callable[[], str]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, why()
        time.sleep(0.05)  # it happens in other processes, in whatever way the caller looks at


def wait_for_line(up: ServerProcess, text: str, count: int = 1) -> None:
    wait_until(lambda: up.log_text.count(text) >= count, lambda: f"not said: {text}\n{up.log_text}")


def children(up: ServerProcess, command: str) -> list[int]:
    """Processes that the supervisor has started for this part."""
    path = Path(f"/proc/{up.pid}/task/{up.pid}/children")
    found = [int(pid) for pid in path.read_text().split()]
    return [pid for pid in found if command.encode() in arguments_of(pid)]


def arguments_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except FileNotFoundError:
        return []


def is_alive(pid: int) -> bool:
    return bool(arguments_of(pid))  # a zombie has none


def create_export(up: ServerProcess, uri: str = "http://127.0.0.1:1/", **settings: object) -> CommandLine:
    command_line = CommandLine(up)
    export = {"identifier": "e", "uri": uri, **settings}
    definition = json.dumps({"exportDefinition": {"http": [export]}}).encode()
    command_line.ok("streams", "create", "s", "--definition", "-", stdin=definition)
    return command_line


def test_without_exports_there_is_no_pipeline(up: ServerProcess) -> None:
    up.start()
    [server] = children(up, "server")
    create_export(up, disabled=True)
    time.sleep(2.5)  # it looks for exports every second
    assert children(up, "pipeline") == []
    up.stop()
    assert not is_alive(server)
    assert "penstock: " not in up.log_text


def test_a_killed_server_is_started_again_where_it_was(up: ServerProcess) -> None:
    up.start()
    command_line = CommandLine(up)
    command_line.ok("streams", "create", "kept")
    os.kill(children(up, "server")[0], signal.SIGKILL)
    wait_for_line(up, "penstock: the server was killed (SIGKILL); it is started again in 1 s\n")

    def listed() -> bool:
        return command_line.run("streams", "list", "-q").stdout == b"kept\n"

    wait_until(listed, lambda: up.log_text)
    up.stop()


def test_children_do_not_outlive_a_killed_supervisor(up: ServerProcess) -> None:
    up.start()
    [server] = children(up, "server")
    up.kill()
    wait_until(lambda: not is_alive(server), lambda: up.log_text)
    assert "stopped; everything is synced" in up.log_text


def test_a_server_that_cannot_start_ends_it(server: ServerProcess, offline: CommandLine) -> None:
    ports = ["--stream-manager-port", "0", "--http-port"]
    in_use = offline.run("up", "--data-dir", str(server.data_dir), *ports, "0")
    assert in_use.code == exits.REFUSED
    assert str(server.data_dir) in in_use.stderr
    other_dir = str(server.data_dir.with_name("other"))
    taken = offline.run("up", "--data-dir", other_dir, *ports, str(server.http_port))
    assert taken.code == exits.USAGE
    assert str(server.http_port) in taken.stderr
    for finished in (in_use, taken):
        assert "started again" not in finished.stderr
        assert "Traceback" not in finished.stderr
        assert finished.stdout == b""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--heap", "300m"], "--heap: '300m' is not a Java heap size"),
        (["--http-port", "x"], "--http-port: 'x' is not a port"),
        (["--master", "local", "--remote", "sc://a"], "not both"),
        (["--conf", "spark.ui.enabled"], "is not KEY=VALUE"),
    ],
)
def test_wrong_settings(offline: CommandLine, tmp_path: Path, arguments: list[str], said: str) -> None:
    finished = offline.run("up", "--data-dir", str(tmp_path / "data"), *arguments)
    assert finished.code == exits.USAGE
    assert said in finished.stderr
    assert not (tmp_path / "data").exists()


def test_without_java_the_server_runs_and_exports_wait(up: ServerProcess, tmp_path: Path) -> None:
    up.start()
    command_line = create_export(up)
    wait_for_line(up, "apt-get install default-jre-headless")
    command_line.ok("streams", "append", "s", "kept")
    assert children(up, "pipeline") == []

    # A Java that tells its version and does nothing else: the pipeline dies on it, again and again.
    java = tmp_path / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.with_name("new").write_text("#!/bin/sh\necho 'openjdk version \"21.0.1\"' >&2\n")
    java.with_name("new").chmod(0o755)
    java.with_name("new").rename(java)
    wait_for_line(up, "penstock: Java was found")
    wait_for_line(up, "penstock: the pipeline ended (exit code 1); it is started again in 1 s\n")
    wait_for_line(up, "penstock: the pipeline ended (exit code 1); it is started again in 2 s\n")
    command_line.ok("streams", "append", "s", "still served")
    assert up.log_text.count("default-jre-headless") == 1
    up.stop()


def test_a_pipeline_without_java_says_what_to_install(offline: CommandLine, tmp_path: Path) -> None:
    env = {"JAVA_HOME": str(tmp_path), "PENSTOCK_HTTP_TOKEN": "t"}
    finished = offline.run("pipeline", env=env)
    assert finished.code == exits.USAGE
    assert "default-jre-headless" in finished.stderr


@pytest.mark.parametrize(
    ("answer", "problem"),
    [('openjdk version "17.0.15"', None), ('java version "1.8.0_392"', "too old"), ("moo", "version")],
)
def test_versions_of_java(tmp_path: Path, answer: str, problem: str | None) -> None:
    (tmp_path / "java").write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    (tmp_path / "java").chmod(0o755)
    found = java_problem({"PATH": str(tmp_path)})
    assert (found is None) if problem is None else (problem in str(found))


def test_back_off() -> None:
    backoff = Backoff()
    assert [backoff.after(0.1) for _ in range(8)] == [1, 2, 4, 8, 16, 32, RESTART_MAX_S, RESTART_MAX_S]
    assert backoff.after(STEADY_S) == 1
    assert backoff.after(STEADY_S - 1) == 2


class Sink(ThreadingHTTPServer):
    """Takes what is posted and keeps it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _SinkHandler)
        self.bodies: list[bytes] = []
        self.uri = f"http://127.0.0.1:{self.server_port}/"

    def __enter__(self) -> Sink:
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()


class _SinkHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 1
    server: Sink

    def do_POST(self) -> None:
        self.server.bodies.append(self.rfile.read(int(self.headers["content-length"])))
        self.send_response(204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.skipif(java_problem(os.environ) is not None, reason="needs Java")
@pytest.mark.timeout(400)
def test_exports_are_delivered_also_after_a_kill(up_with_java: ServerProcess) -> None:
    up = up_with_java.start()
    with Sink() as sink:
        command_line = create_export(up, sink.uri)
        command_line.ok("streams", "append", "s", "before")
        wait_until(lambda: b"before" in sink.bodies, lambda: up.log_text)
        [pipeline] = children(up, "pipeline")
        java = [pid for pid in group_of(pipeline) if b"-Xmx500m" in arguments_of(pid)]
        assert len(java) == 1

        os.kill(pipeline, signal.SIGKILL)
        wait_for_line(up, "penstock: the pipeline was killed (SIGKILL); it is started again in ")
        wait_until(lambda: not is_alive(java[0]), lambda: "Java outlives its pipeline")
        command_line.ok("streams", "append", "s", "after")
        wait_until(lambda: b"after" in sink.bodies, lambda: up.log_text)

        [pipeline] = children(up, "pipeline")
        up.stop()
        assert set(sink.bodies) == {b"before", b"after"}
    wait_until(lambda: group_of(pipeline) == [], lambda: f"left behind: {group_of(pipeline)}")


def group_of(leader: int) -> list[int]:
    listed = subprocess.run(["ps", "-eo", "pid=,pgid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    return [pid for pid, group in pairs if group == leader]
