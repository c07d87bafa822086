"""The routes of the HTTP door."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock import __version__
from penstock.doors.http.access import Access, Guarded
from penstock.doors.http.bulk import STALL_S, THREADS, FramesResponse
from penstock.doors.http.pipeline import BadBody
from penstock.errors import PenstockError, StreamNotFound
from penstock.model import INT64_MAX
from penstock.streams import Streams

BULK_BYTES_DEFAULT = 64 * 1024 * 1024
BULK_BYTES_MAX = 1024 * 1024 * 1024


class _BadParameter(PenstockError):
    """A query parameter is missing or wrong."""


class App:
    def __init__(
        self,
        streams: Streams,
        access: Access,
        routes: Sequence[BaseRoute] = (),
        *,
        firehose: ASGIApp | None = None,
        stall_s: float = STALL_S,
    ) -> None:
        self._streams = streams
        self._firehose = firehose
        self._stall_s = stall_s
        self._threads = ThreadPoolExecutor(THREADS, "penstock-bulk")
        self._others = Starlette(
            routes=[
                Route("/healthz", self._health),
                Route("/v1/frames", Guarded(access)(self._frames)),
                *routes,
            ],
            exception_handlers={
                StreamNotFound: _not_found,
                _BadParameter: _bad_request,
                BadBody: _bad_request,
                HTTPException: _no_such_route,
            },
        )

    async def asgi(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Firehose has `POST /`. Its requests are many, and need nothing of what a framework does for them."""
        is_firehose = scope["type"] == "http" and scope["method"] == "POST" and scope["path"] == "/"
        if is_firehose and self._firehose is not None:
            await self._firehose(scope, receive, send)
        else:
            await self._others(scope, receive, send)

    def close(self) -> None:
        self._threads.shutdown()

    async def _health(self, request: Request) -> Response:
        store = self._streams.store
        problems = []
        if store.disk_full:
            problems.append(f"the disk is full: {store.free_bytes} bytes free")
        if store.journal.broken is not None:
            problems.append(f"the journal failed: {store.journal.broken}")
        status = "degraded" if problems else "ok"
        return JSONResponse({"status": status, "problems": problems, "version": __version__})

    async def _frames(self, request: Request) -> Response:
        name = request.query_params.get("stream")
        if name is None:
            raise _BadParameter("the parameter 'stream' is missing: give the name of a stream")
        start = _number(request, "from", 0, INT64_MAX)
        stop = _number(request, "to", INT64_MAX, INT64_MAX)
        size_max_bytes = _number(request, "max_bytes", BULK_BYTES_DEFAULT, BULK_BYTES_MAX)
        stream = self._streams.find(name)
        # Finding the frames may read an index from disk.
        locate = partial(stream.locate, start, stop, size_max_bytes)
        runs, next_sequence = await asyncio.get_running_loop().run_in_executor(self._threads, locate)
        headers = {
            "penstock-oldest-sequence": str(stream.oldest_sequence),
            "penstock-next-sequence": str(next_sequence),
            "penstock-end-sequence": str(stream.visible_next),
        }
        if not runs:
            return Response(status_code=204, headers=headers)
        return FramesResponse(runs, headers, self._threads, self._stall_s)


def _number(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > maximum:
        raise _BadParameter(f"the parameter '{name}' must be a number from 0 to {maximum}, not {text[:40]!r}")
    return int(text)


async def _not_found(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=404)


async def _bad_request(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, status_code=400)


async def _no_such_route(request: Request, error: Exception) -> Response:
    """In JSON, because some clients of AWS decode whatever is not 200."""
    assert isinstance(error, HTTPException)
    problem = {"error": f"there is no {request.method} {request.url.path[:200]} here: {error.detail}"}
    return JSONResponse(problem, status_code=error.status_code, headers=error.headers)
