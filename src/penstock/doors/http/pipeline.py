"""The pipeline's routes: lease flushes, keep them, report what became of them; and the exports for operators."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.doors.http.access import Access, Guarded
from penstock.flush import LeaseRequest, Renewal, Report
from penstock.planner import ExportRun, Planner

BODY_BYTES_MAX = 16 * 1024 * 1024
WAIT_MS_MAX = 30_000

T = TypeVar("T")


class ExportView(msgspec.Struct):
    """An export as operators see it."""

    stream: str
    identifier: str
    kind: str
    state: str  # paused, idle, waiting, delivering, retrying or failing
    position: int  # next message to export
    waiting_messages: int
    last_exported_sequence_number: int
    last_export_time_ms: int
    exported_messages: int
    exported_bytes: int
    skipped_messages: int
    lost_messages: int
    failures: int
    error: str


class PipelineRoutes:
    def __init__(self, planner: Planner, access: Access) -> None:
        self._planner = planner
        guarded = Guarded(access)
        self.routes = [
            Route("/v1/pipeline/lease", guarded(self._lease), methods=["POST"]),
            Route("/v1/pipeline/renew", guarded(self._renew), methods=["POST"]),
            Route("/v1/pipeline/report", guarded(self._report), methods=["POST"]),
            Route("/v1/exports", guarded(self._exports), methods=["GET"]),
            Route("/v1/exports/retry", guarded(self._retry), methods=["POST"]),
        ]

    async def _lease(self, request: Request) -> Response:
        wanted = await _body(request, LeaseRequest)
        wanted.wait_ms = min(wanted.wait_ms, WAIT_MS_MAX)
        leasing = asyncio.create_task(self._planner.lease(wanted))
        return _json(await leasing)

    async def _renew(self, request: Request) -> Response:
        self._planner.renew((await _body(request, Renewal)).pipeline)
        return _json({})

    async def _report(self, request: Request) -> Response:
        report = await _body(request, Report)
        return _json(await self._planner.report(report.pipeline, report.outcomes))

    async def _exports(self, request: Request) -> Response:
        return _json([_view(run) for run in self._planner.runs()])

    async def _retry(self, request: Request) -> Response:
        stream, identifier = request.query_params.get("stream", ""), request.query_params.get("export", "")
        if not self._planner.retry_now(stream, identifier):
            return JSONResponse({"error": f"stream {stream} has no export {identifier}"}, status_code=404)
        return _json({})


def _view(run: ExportRun) -> ExportView:
    status = run.status
    return ExportView(
        stream=run.stream.definition.name,
        identifier=run.export.identifier,
        kind=run.export.kind.value,
        state=run.state,
        position=run.position,
        waiting_messages=run.waiting_messages,
        last_exported_sequence_number=status.last_exported_sequence_number,
        last_export_time_ms=status.last_export_time_ms,
        exported_messages=status.exported_messages,
        exported_bytes=status.exported_bytes,
        skipped_messages=status.skipped_messages,
        lost_messages=status.lost_messages,
        failures=run.failures,
        error=status.error_message,
    )


class BadBody(Exception):
    """The request's body is not what it should be."""


async def _body(request: Request, kind: type[T]) -> T:
    chunks = bytearray()
    async for chunk in request.stream():
        chunks += chunk
        if len(chunks) > BODY_BYTES_MAX:
            raise BadBody(f"a body of more than {BODY_BYTES_MAX} bytes is refused")
    try:
        return msgspec.json.decode(chunks, type=kind)
    except msgspec.DecodeError as error:
        raise BadBody(str(error)) from error


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


Handler = Callable[[Request], Awaitable[Response]]
