"""The HTTP door with nothing behind it but files, for tests that need no streams."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import uvloop
from starlette.applications import Starlette

from penstock.bandwidth import Bandwidth
from penstock.doors.http.access import Access
from penstock.doors.http.door import Door
from penstock.doors.http.files import files_route
from penstock.pipeline.server_client import ServerClient

TOKEN = "token-of-the-tests"
DEADLINE_S = 15


class _FilesOnly:
    def __init__(self, read_only_dirs: Sequence[Path], bandwidth: Bandwidth | None) -> None:
        self.threads = ThreadPoolExecutor(2, "files")
        route = files_route(Access([TOKEN.encode()]), read_only_dirs, self.threads, bandwidth)
        self.asgi = Starlette(routes=[route])

    def close(self) -> None:
        self.threads.shutdown()


@contextmanager
def file_door(read_only_dirs: Sequence[Path], bandwidth: Bandwidth | None = None) -> Iterator[str]:
    """The URL of a server that lets these directories be read. A list may change meanwhile."""
    loop = uvloop.new_event_loop()
    opened = threading.Event()
    stop = asyncio.Event()
    port = 0

    async def serve() -> None:
        nonlocal port
        door = Door(_FilesOnly(read_only_dirs, bandwidth))  # type: ignore[arg-type]
        _, port = await door.open("127.0.0.1", 0)
        opened.set()
        await stop.wait()
        await door.close()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        finally:
            loop.close()

    thread = threading.Thread(target=run, name="file-door")
    thread.start()
    assert opened.wait(DEADLINE_S), "the door did not open"
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), "the door does not close"


@contextmanager
def client_of(url: str) -> Iterator[ServerClient]:
    client = ServerClient(url, TOKEN)
    yield client
    client.close()
