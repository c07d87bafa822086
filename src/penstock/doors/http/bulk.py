"""The bulk read: a range of a stream as the raw frames of the log, sent by the kernel where it can."""

from __future__ import annotations

import asyncio
import logging
import os
import select
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.log.segment import FrameRun

logger = logging.getLogger(__name__)

SENDFILE_EXTENSION = "penstock.sendfile"
THREADS = 8
STALL_S = 30.0
CHUNK_BYTES = 1024 * 1024
DRAIN_STEP_S = 0.001
TURN_S = 0.1  # how long one client may keep a thread
PATIENCE_MS = 20  # how much of that to wait for a client that reads

_Stalled = (TimeoutError, asyncio.TimeoutError)  # one and the same from Python 3.11 on


class FramesResponse(Response):
    """An ASGI response whose body is runs of frames in files. Reading them never blocks the event loop."""

    def __init__(
        self, runs: list[FrameRun], headers: dict[str, str], threads: ThreadPoolExecutor, stall_s: float
    ) -> None:
        self._runs = runs
        self._size_bytes = sum(run.end - run.begin for run in runs)
        super().__init__(status_code=200)
        self._fields = {
            **headers,
            "content-type": "application/vnd.penstock.frames",
            "content-length": str(self._size_bytes),
        }
        self._threads = threads
        self._stall_s = stall_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_headers = [(name.encode(), value.encode()) for name, value in self._fields.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw_headers})
        if scope["method"] != "HEAD":
            await self._send_body(scope["extensions"][SENDFILE_EXTENSION], send)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_body(self, cycle: Any, send: Send) -> None:
        try:
            if all(run.file.descriptor() is not None for run in self._runs):
                await self._send_files(cycle)
            else:
                async for chunk in self._chunks():
                    body = {"type": "http.response.body", "body": chunk, "more_body": True}
                    await asyncio.wait_for(send(body), self._stall_s)
        except (OSError, *_Stalled) as error:
            logger.info("a bulk read ended early: %s", error or "the client does not read")
            cycle.transport.abort()
            cycle.expected_content_length = 0
        except asyncio.CancelledError:  # the server stops, and has waited long enough for the client
            cycle.transport.abort()
            cycle.expected_content_length = 0

    async def _send_files(self, cycle: Any) -> None:
        """Let the kernel copy from the page cache to the socket, in a thread, behind the headers."""
        transport = cycle.transport
        await asyncio.wait_for(_drained(transport), self._stall_s)
        if transport.is_closing():
            cycle.expected_content_length = 0
            return
        # A descriptor of our own: the transport may close (and the number be used again) meanwhile.
        descriptor = os.dup(transport.get_extra_info("socket").fileno())
        work: Future[int] | None = None
        try:
            for run in self._runs:
                offset = run.begin
                while offset < run.end:
                    work = self._threads.submit(_send_some, descriptor, run, offset)
                    sent_to = await asyncio.wrap_future(work)
                    if sent_to == offset:
                        await asyncio.wait_for(_writable(descriptor), self._stall_s)
                    offset = sent_to
            cycle.expected_content_length -= self._size_bytes
        finally:
            if work is None:
                os.close(descriptor)
            else:  # the thread may still use it, if it is we who were cancelled
                work.add_done_callback(lambda _: os.close(descriptor))

    async def _chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        for run in self._runs:
            offset = run.begin
            while offset < run.end:
                size_bytes = min(CHUNK_BYTES, run.end - offset)
                yield await loop.run_in_executor(self._threads, run.file.read_at, size_bytes, offset)
                offset += size_bytes


async def _drained(transport: Any) -> None:
    while transport.get_write_buffer_size():
        await asyncio.sleep(DRAIN_STEP_S)


async def _writable(descriptor: int) -> None:
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_writer(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_writer(descriptor)


def _send_some(descriptor: int, run: FrameRun, offset: int) -> int:
    """Send from `offset` on for as long as the client keeps reading, but leave the thread to others soon."""
    source = run.file.descriptor()
    assert source is not None
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    deadline_s = time.monotonic() + TURN_S
    while offset < run.end and time.monotonic() < deadline_s:
        try:
            sent = os.sendfile(descriptor, source, offset, run.end - offset)
        except BlockingIOError:
            if not poll.poll(PATIENCE_MS):
                break
            continue
        if sent == 0:
            raise OSError("the file is shorter than its index says")
        offset += sent
    return offset
