"""Reads the bodies of requests: not too large, not too slowly, and not too many at a time."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive, Scope

from penstock.delivery.errors import ApiError
from penstock.doors.firehose.protocol import header

BODY_BYTES_MAX = 8 * 1024 * 1024 + 64 * 1024  # the largest batch in base64, and what is around it
DISCARD_BYTES_MAX = 64 * 1024 * 1024  # of a body that is too large, so that the client hears why
BODY_S = 60.0
# In a scope: says whether the whole body has arrived, so that nothing needs to be waited for.
WHOLE_BODY_EXTENSION = "penstock.whole_body"


class Disconnected(Exception):
    """The client has gone: there is nobody to answer."""


class UnreadBody(Exception):
    """The body is not taken, and the rest of it not waited for."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error


class Deadline:
    """Ends what the task awaits, in time. Cheaper than wait_for, which every put would pay for."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self.passed = False

    def __enter__(self) -> Deadline:
        self._task = asyncio.current_task()
        self._timer = asyncio.get_running_loop().call_later(self._duration_s, self._pass)
        return self

    def _pass(self) -> None:
        self.passed = True
        if self._task is not None:
            self._task.cancel()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self.passed and isinstance(error, asyncio.CancelledError):
            if self._task is not None and hasattr(self._task, "uncancel"):
                self._task.uncancel()
            raise TimeoutError from None


class Bodies:
    """All bodies that are being read or worked on, and what they hold in memory."""

    def __init__(self, held_max_bytes: int, body_s: float = BODY_S) -> None:
        self._held_max_bytes = held_max_bytes
        self._held_bytes = 0
        self._body_s = body_s

    def reading(self, scope: Scope, receive: Receive) -> _Body:
        """The body, for as long as the caller works on it."""
        return _Body(self, scope, receive, self._body_s)

    def take(self, count_bytes: int) -> bool:
        if self._held_bytes + count_bytes > self._held_max_bytes:
            return False
        self._held_bytes += count_bytes
        return True

    def give_back(self, count_bytes: int) -> None:
        self._held_bytes -= count_bytes


class _Body:
    def __init__(self, bodies: Bodies, scope: Scope, receive: Receive, body_s: float) -> None:
        self._bodies = bodies
        self._scope = scope
        self._receive = receive
        self._body_s = body_s
        self._held_bytes = 0

    async def __aenter__(self) -> bytes:
        try:
            return await self._read_in_time()
        except BaseException:
            self._release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    async def _read_in_time(self) -> bytes:
        has_whole_body = self._scope.get("extensions", {}).get(WHOLE_BODY_EXTENSION)
        if has_whole_body is not None and has_whole_body():
            return await self._read()
        try:
            with Deadline(self._body_s):
                return await self._read()
        except TimeoutError:
            raise UnreadBody(
                ApiError(
                    "RequestTimeoutException",
                    f"The body of the request did not arrive within {self._body_s:g} seconds.",
                    http_status=408,
                )
            ) from None

    async def _read(self) -> bytes:
        declared = header(self._scope, b"content-length")
        if declared is not None and int(declared) > BODY_BYTES_MAX:
            await self._discard(0)
        chunks: list[bytes] = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            chunk = message.get("body", b"")
            more = message.get("more_body", False)
            if not self._bodies.take(len(chunk)):
                raise UnreadBody(ApiError("ServiceUnavailableException", "Slow down.", http_status=503))
            self._held_bytes += len(chunk)
            if self._held_bytes > BODY_BYTES_MAX:
                await self._discard(self._held_bytes, more=more)
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _discard(self, seen_bytes: int, *, more: bool = True) -> None:
        """Clients write the whole body before they look for an answer."""
        self._release()
        while more and seen_bytes < DISCARD_BYTES_MAX:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            seen_bytes += len(message.get("body", b""))
            more = message.get("more_body", False)
        raise UnreadBody(
            ApiError(
                "RequestEntityTooLargeException",
                f"The body of the request is larger than {BODY_BYTES_MAX} bytes; send fewer records at a time.",
                http_status=413,
            )
        )

    def _release(self) -> None:
        self._bodies.give_back(self._held_bytes)
        self._held_bytes = 0
