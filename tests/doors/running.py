"""A whole server inside the test's process: real sockets, a real event loop, and its insides open to the test."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import uvloop

from conformance.raw_client import RawClient
from penstock.config import Settings
from penstock.doors.http.access import Access
from penstock.doors.http.app import App
from penstock.doors.http.door import Door as HttpDoor
from penstock.doors.streammanager.door import Door
from penstock.log.store import Store
from penstock.server import Server
from penstock.streams import Streams

T = TypeVar("T")

DEADLINE_S = 15
TOKEN = b"token-of-the-tests"


class _Complaints(logging.Handler):
    """Everything that the server logs as an error, tracebacks included."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.texts: list[str] = []
        self.setFormatter(logging.Formatter("%(name)s %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))


class RunningServer:
    """Runs in a thread of its own from `with` to the end; complains there about what the server logged."""

    def __init__(self, data_dir: Path, *, bulk_stall_s: float = 30, **settings: Any) -> None:
        self._bulk_stall_s = bulk_stall_s
        self.settings = Settings(data_dir=data_dir, **{"free_space_floor_bytes": 0, **settings})
        self.complaints = _Complaints()
        self.expected_complaints: tuple[str, ...] = ()
        self.port = 0
        self.http_port = 0
        self.loop = uvloop.new_event_loop()
        self._opened = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="server")
        self._failure: BaseException | None = None

    def __enter__(self) -> RunningServer:
        logging.getLogger().addHandler(self.complaints)
        self._thread.start()
        self._opened.wait(DEADLINE_S)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        logging.getLogger().removeHandler(self.complaints)
        if kind is None:
            self.assert_no_complaints()

    def assert_no_complaints(self) -> None:
        gc.collect()
        unexpected = [
            text
            for text in self.complaints.texts
            if not any(expected in text for expected in self.expected_complaints)
        ]
        assert not unexpected, "\n".join(unexpected)

    def make_as_new(self) -> None:
        """After a test, when others will use the same server."""
        self.assert_nothing_left()
        self.assert_no_complaints()
        for name in self.streams.names():
            self.run(self.streams.delete(name))

    def stop(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the server does not stop"
        if self._failure is not None:
            raise self._failure

    # -- the server's thread ------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self.loop.run_until_complete(self._run())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        except BaseException as error:
            self._failure = error
        finally:
            self.loop.close()
            self._opened.set()

    async def _run(self) -> None:
        settings = self.settings
        self._stop = asyncio.Event()
        self.store = Store(settings.data_dir, free_space_floor_bytes=settings.free_space_floor_bytes)
        self.streams = Streams(
            self.store,
            message_size_max_bytes=settings.message_size_max_bytes,
            memory_streams_size_max_bytes=settings.memory_streams_size_max_bytes,
            read_soft_limit_bytes=settings.read_soft_limit_bytes,
        )
        self.door = Door(
            self.streams,
            authenticate=False,
            client_tokens=(),
            message_size_max_bytes=settings.message_size_max_bytes,
            input_buffer_max_bytes=settings.input_buffer_max_bytes,
        )
        self.http = HttpDoor(App(self.streams, Access([TOKEN]), stall_s=self._bulk_stall_s))
        server = Server(settings)
        upkeep = asyncio.create_task(server._upkeep(self.streams))
        _, self.port = await self.door.open("127.0.0.1", 0)
        _, self.http_port = await self.http.open("127.0.0.1", 0)
        self.idle_tasks = len(asyncio.all_tasks())
        self._opened.set()
        await self._stop.wait()
        self.streams.release_waiters()
        await self.door.close()
        await self.http.close()
        await server._close_store(self.streams, upkeep)

    # -- the test's side ----------------------------------------------------------------------------

    def client(self, **changes: Any) -> RawClient:
        return RawClient(self.port, **changes)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(DEADLINE_S)

    def look(self, question: Callable[[], T]) -> T:
        """The answer to a question about the server's insides, asked between two turns of its loop."""

        async def ask() -> T:
            return question()

        return self.run(ask())

    def wait_until(self, condition: Callable[[], bool], why: str) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not self.look(condition):
            assert time.monotonic() < deadline_s, why
            time.sleep(0.01)  # what is looked at tells nobody when it changes

    def assert_nothing_left(self) -> None:
        """No connection, task or waiting read stays behind when clients have gone."""
        self.wait_until(lambda: not self.door._connections, "connections are left")
        self.wait_until(lambda: not self.door._assembling, "unfinished frames are left")
        self.wait_until(lambda: not any(self.streams._waiters.values()), "waiting reads are left")
        # the question itself is a task, and so is a wait with a time limit
        self.wait_until(lambda: len(asyncio.all_tasks(self.loop)) <= self.idle_tasks + 2, "tasks are left")


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
