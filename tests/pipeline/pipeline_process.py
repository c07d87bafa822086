"""A real `penstock pipeline` process that a test starts, stops and kills, with all that Spark starts below it."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness import FOREIGN_SETTINGS, SERVER_PYTHON, ServerProcess

READY_LINE = re.compile(rb"^penstock pipeline ready (\S+)\n$", re.MULTILINE)
START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 30


class PipelineProcess:
    """The process has a session of its own: whatever it leaves behind is found by that."""

    def __init__(
        self,
        server: ServerProcess,
        log_path: Path,
        *,
        flags: Sequence[str] = ("--master", "local[2]"),
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._server = server
        self._flags = flags
        self._env = dict(env or {})
        self.log_path = log_path
        self.name = ""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def launch(self) -> PipelineProcess:
        """Start without waiting until it is ready."""
        assert not self.is_running, "the pipeline is running already"
        foreign = (*FOREIGN_SETTINGS, "AWS_", "SPARK_", "PYSPARK_")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        token_file = self._server.data_dir / "http-token"
        command = [
            *(SERVER_PYTHON, "-m", "penstock", "pipeline"),
            *("--server", f"http://127.0.0.1:{self._server.http_port}", "--token-file", str(token_file)),
            *("--data-dir", str(self._server.data_dir), *self._flags),
        ]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**inherited, **self._env},
                start_new_session=True,
            )
        return self

    def start(self) -> PipelineProcess:
        return self.launch().wait_until_ready()

    def wait_until_ready(self) -> PipelineProcess:
        assert self._process is not None
        assert self._process.stdout is not None
        said = b""
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while READY_LINE.search(said) is None:
            left_s = max(0.0, deadline_s - time.monotonic())
            readable, _, _ = select.select([self._process.stdout], [], [], left_s)
            chunk = os.read(self._process.stdout.fileno(), 4096) if readable else b""
            assert chunk, f"the pipeline is not ready, it said {said!r}\n{self.log_tail()}"
            said += chunk
        match = READY_LINE.search(said)
        assert match is not None
        self.name = match[1].decode()
        return self

    def stop(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        status = self.wait(STOP_TIMEOUT_S)
        assert status == 0, f"exit status {status}\n{self.log_tail()}"

    def wait(self, timeout_s: float) -> int:
        """Wait for the end that something else has brought about."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the pipeline does not end\n{self.log_tail()}") from None
        finally:
            self._close()

    def kill(self) -> None:
        """Only the process itself: its Java and its workers must notice."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._close()

    def descendants(self, command: str = "") -> list[int]:
        """Processes of its session besides itself whose command line has this in it."""
        assert self._process is not None
        return [
            pid
            for pid in processes_of_session(self._process.pid)
            if pid != self._process.pid and command in command_line_of(pid)
        ]

    def sweep(self) -> list[str]:
        """Kill what is left of it. Returns what that was."""
        if self._process is None:
            return []
        left = [command_line_of(pid) for pid in self.descendants()]
        if self.is_running:
            self.kill()
        for pid in processes_of_session(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._close()  # it may have died by itself
        return left

    def log_tail(self) -> str:
        return "--- tail of the pipeline's log ---\n" + "\n".join(self.log_text.splitlines()[-60:])

    def _close(self) -> None:
        assert self._process is not None
        if self._process.stdout is not None:
            self._process.stdout.close()


def processes_of_session(session: int) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # gone meanwhile
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def command_line_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
