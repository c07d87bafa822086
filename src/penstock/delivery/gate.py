"""A gate that puts pass, and that a switch of the encryption shuts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Whoever puts is inside from before it looks at the stream's key until its records are stored."""

    def __init__(self) -> None:
        self._inside = 0
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()

    async def enter(self) -> None:
        """Costs nothing while the gate is open. Call `leave` in the end, whatever happens."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._empty.clear()

    def leave(self) -> None:
        self._inside -= 1
        if not self._inside:
            self._empty.set()

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        """Nobody is inside, and nobody comes in. One at a time."""
        self._open.clear()
        try:
            await self._empty.wait()
            yield
        finally:
            self._open.set()
