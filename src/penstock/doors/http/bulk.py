"""The bulk read: a range of a stream as the raw frames of the log, sent by the kernel where it can."""

from __future__ import annotations

import asyncio
import os
import select
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from penstock.log.segment import FrameRun

SENDFILE_EXTENSION = "penstock.sendfile"
THREADS = 8
STALL_S = 30.0
CHUNK_BYTES = 1024 * 1024
DRAIN_STEP_S = 0.001


class FramesResponse(Response):
    """An ASGI response whose body is runs of frames in files. Reading them never blocks the event loop."""

    def __init__(self, runs: list[FrameRun], headers: dict[str, str], threads: ThreadPoolExecutor) -> None:
        self._runs = runs
        self._size_bytes = sum(run.end - run.begin for run in runs)
        super().__init__(status_code=200)
        self._fields = {
            **headers,
            "content-type": "application/vnd.penstock.frames",
            "content-length": str(self._size_bytes),
        }
        self._threads = threads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_headers = [(name.encode(), value.encode()) for name, value in self._fields.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw_headers})
        cycle = scope.get("extensions", {}).get(SENDFILE_EXTENSION)
        if cycle is not None and all(run.file.descriptor() is not None for run in self._runs):
            await self._send_files(cycle)
        else:
            async for chunk in self._chunks():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_files(self, cycle: Any) -> None:
        """Let the kernel copy from the page cache to the socket, in a thread, behind the headers."""
        transport = cycle.transport
        while transport.get_write_buffer_size():
            await asyncio.sleep(DRAIN_STEP_S)
        if transport.is_closing():
            return
        # A descriptor of our own: the transport may close (and the number be used again) meanwhile.
        descriptor = os.dup(transport.get_extra_info("socket").fileno())
        try:
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(self._threads, _send_runs, descriptor, self._runs)
            cycle.expected_content_length -= self._size_bytes
        except OSError:
            transport.abort()
            cycle.expected_content_length = 0
        finally:
            os.close(descriptor)

    async def _chunks(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        for run in self._runs:
            offset = run.begin
            while offset < run.end:
                size_bytes = min(CHUNK_BYTES, run.end - offset)
                yield await loop.run_in_executor(self._threads, run.file.read_at, size_bytes, offset)
                offset += size_bytes


def _send_runs(descriptor: int, runs: list[FrameRun]) -> None:
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    for run in runs:
        offset = run.begin
        source = run.file.descriptor()
        assert source is not None
        deadline_s = time.monotonic() + STALL_S
        while offset < run.end:
            try:
                sent = os.sendfile(descriptor, source, offset, run.end - offset)
            except BlockingIOError:
                if not poll.poll((deadline_s - time.monotonic()) * 1000):
                    raise TimeoutError("the client does not read") from None
                continue
            if sent == 0:
                raise OSError("the file is shorter than its index says")
            offset += sent
            deadline_s = time.monotonic() + STALL_S
