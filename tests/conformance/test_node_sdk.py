"""The scenarios in node/, driven by the unmodified npm package."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.raw_client import RawClient
from harness import ServerProcess

NODE_DIR = Path(__file__).parent / "node"
SCENARIO_TIMEOUT_S = 60


@pytest.fixture(autouse=True, scope="module")
def _node_modules() -> None:
    assert (NODE_DIR / "node_modules/aws-greengrass-core-sdk").exists(), "run scripts/setup-tests.sh first"


def start(script: str, port: int, **env: str) -> subprocess.Popen[str]:
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    return subprocess.Popen(
        ["node", script, str(port)],
        cwd=NODE_DIR,
        env={**inherited, **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], stdin: str = "") -> tuple[int, str]:
    with process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=SCENARIO_TIMEOUT_S)
        finally:
            process.kill()
    return process.returncode, stdout + stderr


def expect_success(process: subprocess.Popen[str], stdin: str = "") -> None:
    status, output = finish(process, stdin)
    assert status == 0, output


def expect_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    if said != line:
        raise AssertionError(finish(process)[1])


@pytest.mark.parametrize("script", ["operations.js", "exports.js", "overlap.js"])
def test_scenario(server: ServerProcess, script: str) -> None:
    expect_success(start(script, server.port))


def test_limits(server: ServerProcess) -> None:
    expect_success(start("limits.js", server.port))
    with RawClient(server.port) as client:
        assert client.definition("float")["maxSize"] == 2**63 - 1


def test_stopping_server_settles_waiting_promises(server: ServerProcess) -> None:
    process = start("stopping.js", server.port)
    expect_line(process, "waiting")
    server.stop()
    expect_success(process)


def test_client_goes_on_after_a_restart(
    start_server: Callable[..., ServerProcess], tmp_path: Path, free_port: int
) -> None:
    flags = [
        "--data-dir",
        str(tmp_path / "data"),
        "--stream-manager-port",
        str(free_port),
        "--http-port",
        "0",
    ]
    server = start_server(flags=flags)
    process = start("restarting.js", server.port)
    expect_line(process, "ready")
    server.restart()
    expect_success(process, stdin="go on\n")


def test_tokens(server_with_tokens: ServerProcess) -> None:
    port = server_with_tokens.port
    expect_success(start("connects.js", port, AWS_CONTAINER_AUTHORIZATION_TOKEN="first-token"))
    for env in ({"AWS_CONTAINER_AUTHORIZATION_TOKEN": "wrong"}, {}):
        status, output = finish(start("connects.js", port, **env))
        assert status == 1
        assert "Failed to establish connection" in output
