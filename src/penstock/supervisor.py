"""Server and pipeline under one roof: started in order, started again when they die, stopped in order."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from penstock.client import ServerUnreachable
from penstock.config import HTTP_TOKEN_FILE_NAME, http_url, load_first_token
from penstock.errors import PenstockError
from penstock.http_client import HttpClient
from penstock.pipeline.java import ADVICE, java_problem

RESTART_FIRST_S = 1.0
RESTART_MAX_S = 60.0
STEADY_S = 60.0  # after so long the next crash counts as the first
EXPORTS_INTERVAL_S = 1.0
EXPORTS_TIMEOUT_S = 10.0
JAVA_INTERVAL_S = 10.0
PIPELINE_STOP_S = 10.0
SERVER_STOP_S = 60.0


class Backoff:
    """How long to wait before the next start."""

    def __init__(self) -> None:
        self._next_s = RESTART_FIRST_S

    def after(self, ran_s: float) -> float:
        wait_s = RESTART_FIRST_S if ran_s >= STEADY_S else self._next_s
        self._next_s = min(RESTART_MAX_S, wait_s * 2)
        return wait_s


class Child:
    """A process of ours in a group of its own, so that Ctrl-C reaches the supervisor alone."""

    def __init__(self, name: str, stop_s: float) -> None:
        self.name = name
        self._stop_s = stop_s
        self._process: Process | None = None
        self._started_s = 0.0

    @property
    def ran_s(self) -> float:
        return time.monotonic() - self._started_s

    async def start(self, arguments: Sequence[str], stdout: int) -> Process:
        self._started_s = time.monotonic()
        # The kernel watches the thread that starts a child, not the process: this must be the main one.
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "penstock", self.name, "--supervisor-pid", str(os.getpid())),
            *arguments,
            stdin=DEVNULL,
            stdout=stdout,
            start_new_session=True,
        )
        return self._process

    async def wait(self) -> int:
        """The exit code, negative for a signal. Nothing that the child started is left behind."""
        assert self._process is not None
        code = await self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        return code

    async def stop(self) -> None:
        if self._process is None:
            return
        if self._process.returncode is None:
            self._process.terminate()
            try:
                await asyncio.wait_for(self._process.wait(), self._stop_s)
            except asyncio.TimeoutError:
                say(f"the {self.name} did not stop within {self._stop_s:.0f} s and is killed")
                self._process.kill()
        await self.wait()


class Supervisor:
    def __init__(
        self, server_flags: Sequence[str], pipeline_flags: Sequence[str], data_dir: Path, needs_java: bool
    ) -> None:
        self._server_flags = list(server_flags)
        self._pipeline_flags = list(pipeline_flags)
        self._token_path = data_dir / HTTP_TOKEN_FILE_NAME
        self._needs_java = needs_java
        self._server = Child("server", SERVER_STOP_S)
        self._pipeline = Child("pipeline", PIPELINE_STOP_S)
        self._url = ""
        self._serving = asyncio.Event()  # set for good when the server has served once

    async def run(self) -> int:
        """Until a signal, or until the server cannot be started at all. Returns the exit code."""
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        serving = asyncio.create_task(self._keep_serving())
        delivering = asyncio.create_task(self._keep_delivering())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({serving, delivering, stopping}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for task, child in ((delivering, self._pipeline), (serving, self._server)):
            task.cancel()
            await asyncio.wait({task})
            await child.stop()
        for task in (delivering, serving):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        return 0 if serving.cancelled() else serving.result()

    # -- the server ---------------------------------------------------------------------------------

    async def _keep_serving(self) -> int:
        """Returns only if the server never served: then what it said on stderr is the answer."""
        backoff = Backoff()
        while True:
            try:
                process = await self._server.start(self._server_flags, PIPE)
            except OSError as error:
                await self._pause(self._server, f"could not be started ({error})", backoff)
                continue
            assert process.stdout is not None
            while line := await process.stdout.readline():
                self._pass_on(line)
            code = await self._server.wait()
            if code > 0 and not self._serving.is_set():
                return code
            await self._pause(self._server, _ended(code), backoff)

    def _pass_on(self, line: bytes) -> None:
        if line.startswith(b"penstock ready "):
            self._note_ready(line.decode())
        with suppress(BrokenPipeError):  # nobody listens any more: no reason to stop serving
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()

    def _note_ready(self, line: str) -> None:
        """'penstock ready stream-manager=HOST:PORT http=HOST:PORT'"""
        addresses = dict(word.split("=", 1) for word in line.split()[2:])
        host, _, port = addresses["http"].rpartition(":")
        self._url = http_url(host, int(port))
        if not self._serving.is_set():
            # Whoever was told to take any free port must be found there again after a crash.
            stream_manager_port = addresses["stream-manager"].rpartition(":")[2]
            self._server_flags += ["--stream-manager-port", stream_manager_port, "--http-port", port]
        self._serving.set()

    # -- the pipeline -------------------------------------------------------------------------------

    async def _keep_delivering(self) -> None:
        await self._serving.wait()
        await self._something_to_deliver()
        say("there is an export to deliver: the pipeline is started")
        backoff = Backoff()
        while True:
            if self._needs_java:
                await self._java()
            where = ["--server", self._url, "--token-file", str(self._token_path)]
            try:
                await self._pipeline.start([*where, *self._pipeline_flags], sys.stderr.fileno())
                how = _ended(await self._pipeline.wait())
            except OSError as error:
                how = f"could not be started ({error})"
            await self._pause(self._pipeline, how, backoff)

    async def _something_to_deliver(self) -> None:
        """A Spark session takes memory and time to start: not before there is an export that is not paused, or a
        delivery stream."""
        said = ""
        with HttpClient(self._url, load_first_token(self._token_path), EXPORTS_TIMEOUT_S) as client:
            while True:
                try:
                    exports = await asyncio.to_thread(client.exports)
                    if any(export.state != "paused" for export in exports):
                        return
                    if await asyncio.to_thread(client.deliveries):
                        return
                except ServerUnreachable:
                    pass  # that it died is said elsewhere
                except PenstockError as error:
                    if str(error) != said:
                        say(f"the server does not tell its exports: {error}")
                    said = str(error)
                await asyncio.sleep(EXPORTS_INTERVAL_S)

    async def _java(self) -> None:
        problem = await asyncio.to_thread(java_problem, os.environ)
        if problem is None:
            return
        say(f"{problem}, so exports wait; {ADVICE}; the server goes on, and Java is looked for again")
        while problem is not None:
            await asyncio.sleep(JAVA_INTERVAL_S)
            problem = await asyncio.to_thread(java_problem, os.environ)
        say("Java was found: exports are delivered")

    async def _pause(self, child: Child, how: str, backoff: Backoff) -> None:
        wait_s = backoff.after(child.ran_s)
        say(f"the {child.name} {how}; it is started again in {wait_s:.0f} s")
        await asyncio.sleep(wait_s)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended (exit code {code})"
    names = {number.value: number.name for number in signal.Signals}
    return f"was killed ({names.get(-code, f'signal {-code}')})"


def say(text: str) -> None:
    print(f"penstock: {text}", file=sys.stderr, flush=True)


async def supervise(
    server_flags: Sequence[str], pipeline_flags: Sequence[str], data_dir: Path, needs_java: bool
) -> int:
    return await Supervisor(server_flags, pipeline_flags, data_dir, needs_java).run()
