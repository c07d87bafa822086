"""The command line as a user runs it: a process with arguments, stdin, stdout and an exit code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from harness import FOREIGN_SETTINGS, ServerProcess

TIMEOUT_S = 60


class Finished:
    def __init__(self, process: subprocess.CompletedProcess[bytes]) -> None:
        self.code = process.returncode
        self.stdout = process.stdout
        self.stderr = process.stderr.decode()

    @property
    def json(self) -> Any:
        return json.loads(self.stdout)

    @property
    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.stdout.splitlines()]


class CommandLine:
    def __init__(self, server: ServerProcess | None = None) -> None:
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN_SETTINGS)}
        if server is not None:
            self.env["PENSTOCK_STREAM_MANAGER_PORT"] = str(server.port)

    def command(self, *arguments: str, program: Sequence[str] = ("-m", "penstock")) -> Sequence[str]:
        return [sys.executable, *program, *arguments]

    def run(
        self,
        *arguments: str,
        stdin: bytes = b"",
        env: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> Finished:
        """The exit code is the caller's to judge."""
        process = subprocess.run(
            self.command(*arguments),
            input=stdin,
            capture_output=True,
            env=self.env | (env or {}),
            timeout=timeout_s,
        )
        return Finished(process)

    def ok(self, *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Finished:
        finished = self.run(*arguments, stdin=stdin, env=env)
        assert finished.code == 0, finished.stderr
        return finished

    def start(self, *arguments: str, program: Sequence[str] = ("-m", "penstock")) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self.command(*arguments, program=program),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            preexec_fn=_hear_interrupts,
        )


def _hear_interrupts() -> None:
    """Whoever runs the tests in the background may have had them ignored, and that is inherited."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.fixture
def offline() -> CommandLine:
    return CommandLine()


@pytest.fixture
def penstock(shared_server: ServerProcess) -> CommandLine:
    return CommandLine(shared_server)


@pytest.fixture
def stream(penstock: CommandLine) -> str:
    name = f"s-{uuid.uuid4()}"
    penstock.ok("streams", "create", name)
    return name
