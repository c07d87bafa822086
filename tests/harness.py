"""A real `penstock server` process that a test starts, stops, kills and starts again."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

READY_LINE = re.compile(rb"^penstock ready stream-manager=(\S+):(\d+) http=(\S+):(\d+)\n$")
START_TIMEOUT_S = 30
STOP_TIMEOUT_S = 20
FOREIGN_SETTINGS = ("PENSTOCK_", "STREAM_MANAGER_")
# The suite also runs under the interpreter of an SDK that cannot share a virtualenv with Penstock.
SERVER_PYTHON = os.environ.get("PENSTOCK_TEST_PYTHON", sys.executable)


class ServerDidNotStart(Exception):
    """The process ended or stayed silent instead of printing its ready line."""


class ServerProcess:
    """`command` is 'server' or 'up'.

    `flags` replaces the usual command line, for tests of settings that come from elsewhere.
    """

    def __init__(
        self,
        data_dir: Path,
        env: Mapping[str, str] | None = None,
        flags: Sequence[str] | None = None,
        command: str = "server",
    ) -> None:
        self.command = command
        self.data_dir = data_dir
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.host = "127.0.0.1"
        self.port = 0
        self.http_port = 0
        self._env = dict(env or {})
        self._flags = [
            *("--data-dir", str(data_dir), "--host", self.host),
            *("--stream-manager-port", "0", "--http-port", "0"),
        ]
        if flags is not None:
            self._flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self) -> ServerProcess:
        assert not self.is_running, "the server is running already"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(FOREIGN_SETTINGS)}
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [SERVER_PYTHON, "-m", "penstock", self.command, *self._flags],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**inherited, **self._env},
            )
        line = self._read_first_line(self._process)
        match = READY_LINE.match(line)
        if match is None:
            self._discard(self._process)
            raise ServerDidNotStart(f"stdout: {line!r}\n{self._log_tail()}")
        self.host, self.port, self.http_port = match[1].decode(), int(match[2]), int(match[4])
        return self

    def stop(self) -> None:
        process = self._running()
        process.send_signal(signal.SIGTERM)
        try:
            status = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"SIGTERM did not end the server\n{self._log_tail()}") from None
        finally:
            self._discard(process)
        assert status == 0, f"exit status {status}\n{self._log_tail()}"

    def kill(self) -> None:
        self._discard(self._running())

    def restart(self) -> ServerProcess:
        self.stop()
        return self.start()

    def _running(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server was not started"
        assert self._process.poll() is None, f"the server has died\n{self._log_tail()}"
        return self._process

    def _read_first_line(self, process: subprocess.Popen[bytes]) -> bytes:
        assert process.stdout is not None
        line = b""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            chunk = os.read(process.stdout.fileno(), 1) if readable else b""
            if not chunk:
                break
            line += chunk
        return line

    def _discard(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()

    def _log_tail(self) -> str:
        return "--- tail of the server's log ---\n" + "\n".join(self.log_text.splitlines()[-40:])
