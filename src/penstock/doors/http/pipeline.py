"""The pipeline's routes: lease flushes, keep them, report what became of them; and the exports for operators."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.delivery.view import DeliveryView
from penstock.delivery_run import DeliveryRun
from penstock.doors.http.access import Access, Guarded
from penstock.errors import InvalidRequest
from penstock.export_view import ExportView
from penstock.flush import LeaseRequest, Renewal, Report
from penstock.planner import Planner
from penstock.runs import ExportRun

BODY_BYTES_MAX = 16 * 1024 * 1024
WAIT_MS_MAX = 30_000
HUNG_UP = 499  # nobody will see it

T = TypeVar("T")


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
            Route("/v1/exports/rewind", guarded(self._rewind), methods=["POST"]),
            Route("/v1/delivery/flush", guarded(self._flush), methods=["POST"]),
        ]

    async def _lease(self, request: Request) -> Response:
        wanted = await _body(request, LeaseRequest)
        wanted.wait_ms = min(wanted.wait_ms, WAIT_MS_MAX)
        wanted.flushes_max = max(1, wanted.flushes_max)
        leasing = asyncio.create_task(self._planner.lease(wanted))
        leaving = asyncio.ensure_future(request.receive())  # all there is to come: that the client hangs up
        await asyncio.wait({leasing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not leaving.done():
            leaving.cancel()
            return _json(leasing.result())
        leasing.cancel()
        await asyncio.wait({leasing})
        if not leasing.cancelled():
            self._planner.give_back(leasing.result().flushes)
        return Response(status_code=HUNG_UP)

    async def _renew(self, request: Request) -> Response:
        renewal = await _body(request, Renewal)
        self._planner.renew(renewal.pipeline, renewal.flushes)
        return _json({})

    async def _report(self, request: Request) -> Response:
        report = await _body(request, Report)
        return _json(await self._planner.report(report.pipeline, report.outcomes))

    async def _exports(self, request: Request) -> Response:
        return _json([self._view(run) for run in self._planner.runs()])

    async def _retry(self, request: Request) -> Response:
        stream, identifier = _export_of(request)
        if not self._planner.retry_now(stream, identifier):
            return _no_such_export(stream, identifier)
        return _json({})

    async def _rewind(self, request: Request) -> Response:
        stream, identifier = _export_of(request)
        to = request.query_params.get("to", "")
        if not re.fullmatch("[0-9]{1,19}", to):
            raise BadBody(f"the parameter 'to' must be a sequence number, not {to[:40]!r}")
        try:
            # Not to be left half done when the client goes away.
            run = await asyncio.shield(self._planner.rewind(stream, identifier, int(to)))
        except InvalidRequest as error:
            raise BadBody(str(error)) from error
        return _no_such_export(stream, identifier) if run is None else _json(self._view(run))

    async def _flush(self, request: Request) -> Response:
        """Deliver now, by ARN; the answer waits until that is done, has failed, or `wait_ms` are over."""
        arn = request.query_params.get("arn", "")
        wait_ms = request.query_params.get("wait_ms", "0")
        if not re.fullmatch("[0-9]{1,9}", wait_ms):
            raise BadBody(f"the parameter 'wait_ms' must be a number, not {wait_ms[:40]!r}")
        upto = request.query_params.get("upto")
        if upto is not None and not re.fullmatch("[0-9]{1,19}", upto):
            raise BadBody(f"the parameter 'upto' must be a sequence number, not {upto[:40]!r}")
        run = await self._planner.flush_now(
            arn, min(int(wait_ms), WAIT_MS_MAX) / 1000, None if upto is None else int(upto)
        )
        if run is None:
            return JSONResponse({"error": f"there is no delivery stream {arn}"}, status_code=404)
        return _json(delivery_view(run, self._planner))

    def _view(self, run: ExportRun) -> ExportView:
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
            upload_bytes=run.upload[0],
            upload_total_bytes=run.upload[1],
            skipped_messages=status.skipped_messages,
            lost_messages=status.lost_messages,
            failures=run.failures,
            retry_in_ms=_retry_in_ms(run, self._planner),
            error=status.error_message,
        )


def delivery_view(run: DeliveryRun, planner: Planner) -> DeliveryView:
    status = run.status
    return DeliveryView(
        arn=run.stream.definition.name,
        state=run.state,
        waiting_records=run.waiting_messages,
        buffered_bytes=run.unplanned_bytes,
        flushes=len(run.flushes),
        delivered_records=status.exported_messages,
        delivered_bytes=status.exported_bytes,
        failed_records=status.skipped_messages,
        lost_records=status.lost_messages,
        last_delivery_time_ms=status.last_export_time_ms,
        failures=run.failures,
        retry_in_ms=_retry_in_ms(run, planner),
        delivered_upto=run.undelivered_from,
        flush_upto=run.flush_upto,
        error=status.error_message,
    )


def _retry_in_ms(run: ExportRun, planner: Planner) -> int:
    wait_s = run.not_before_s - planner.monotonic_s()
    return max(0, round(wait_s * 1000)) if run.failures else 0


def _export_of(request: Request) -> tuple[str, str]:
    return request.query_params.get("stream", ""), request.query_params.get("export", "")


def _no_such_export(stream: str, identifier: str) -> Response:
    return JSONResponse({"error": f"stream {stream} has no export {identifier}"}, status_code=404)


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
