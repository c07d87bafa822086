"""Delivery streams for operators: which there are, what they are, what waits in them."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from penstock.delivery.delivery import Delivery
from penstock.delivery.describe import describe
from penstock.delivery.errors import ApiError
from penstock.delivery.listing import DeliveryDescription, DeliveryListing, DeliveryRecord, DeliveryRecords
from penstock.delivery.sealing import Opener
from penstock.delivery.service import DeliveryStreams
from penstock.delivery.stored import Status
from penstock.doors.http.access import Access, Guarded
from penstock.doors.http.pipeline import BadBody, delivery_view
from penstock.errors import CorruptMessages, NotEnoughMessages, PenstockError
from penstock.model import INT64_MAX, Message
from penstock.planner import Planner
from penstock.record_query import BadQuery, parse_query
from penstock.streams import Streams

RECORDS_MAX = 1000
QUERY_BYTES_MAX = 100_000
WAIT_MS_MAX = 30_000


class DeliveryRoutes:
    def __init__(
        self, deliveries: DeliveryStreams, streams: Streams, planner: Planner, access: Access
    ) -> None:
        self._deliveries = deliveries
        self._streams = streams
        self._planner = planner
        guarded = Guarded(access)
        self.routes = [
            Route("/v1/delivery", guarded(self._list), methods=["GET"]),
            Route("/v1/delivery/describe", guarded(self._describe), methods=["GET"]),
            Route("/v1/delivery/records", guarded(self._records), methods=["GET"]),
            Route("/v1/delivery/sql", guarded(self._set_sql), methods=["POST"]),
        ]

    async def _list(self, request: Request) -> Response:
        return _json([self._listing(delivery) for delivery in self._deliveries.all()])

    def _listing(self, delivery: Delivery) -> DeliveryListing:
        run = self._planner.delivery(delivery.arn)
        record = delivery.record
        return DeliveryListing(
            name=record.name,
            arn=record.arn,
            account=record.account,
            region=record.region,
            status=record.status.value,
            destination=record.destination,
            version=record.version,
            encryption=record.encryption.status.value,
            sql=record.sql,
            progress=None if run is None else delivery_view(run, self._planner),
        )

    async def _describe(self, request: Request) -> Response:
        delivery = self._find(request)
        if delivery is None:
            return _not_found(request)
        return _json(
            DeliveryDescription(listing=self._listing(delivery), description=describe(delivery.record))
        )

    async def _set_sql(self, request: Request) -> Response:
        """Transform records by the query in the body from now on; an empty one ends that."""
        delivery = self._find(request)
        if delivery is None:
            return _not_found(request)
        sql = await _query(request)
        try:
            await self._deliveries.set_sql(delivery.account, delivery.region, delivery.name, sql)
        except ApiError as error:
            return JSONResponse({"error": error.message}, status_code=409 if error.http_status < 500 else 500)
        return _json(self._listing(delivery))

    async def _records(self, request: Request) -> Response:
        """Records from `from` on, as they were put; waits for the first of them if there is none yet."""
        delivery = self._find(request)
        if delivery is None or delivery.status is not Status.ACTIVE:
            return _not_found(request)
        stream = delivery.stream
        oldest, behind = stream.oldest_sequence, stream.visible_next
        start = _number(request, "from", behind, INT64_MAX)
        count = _number(request, "count", RECORDS_MAX, RECORDS_MAX)
        wait_ms = min(_number(request, "wait_ms", 0, INT64_MAX), WAIT_MS_MAX)
        next_sequence = start = max(start, oldest)
        messages: list[Message] = []
        try:
            await self._streams.wait_for_messages(delivery.arn, start, 1, wait_ms)
            if count:
                messages = await self._streams.read(delivery.arn, start, 1, count, list)
                next_sequence = messages[-1].sequence_number + 1
        except NotEnoughMessages:
            pass
        except CorruptMessages as error:
            next_sequence = error.next_readable
        try:
            opened = await self._opened(delivery, messages)
        except PenstockError as error:
            return JSONResponse({"error": str(error)}, status_code=500)
        return _json(DeliveryRecords(oldest=oldest, next=next_sequence, end=behind, records=opened))

    async def _opened(self, delivery: Delivery, messages: list[Message]) -> list[DeliveryRecord]:
        sequences = [message.sequence_number for message in messages]
        opener = Opener(await self._deliveries.data_keys(delivery.arn), delivery.arn)
        payloads = await asyncio.to_thread(opener.open, sequences, [message.payload for message in messages])
        return [
            DeliveryRecord(message.sequence_number, message.arrival_ms, base64.b64encode(payload).decode())
            for message, payload in zip(messages, payloads, strict=True)
        ]

    def _find(self, request: Request) -> Delivery | None:
        return self._deliveries.by_arn(request.query_params.get("arn", ""))


async def _query(request: Request) -> str:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > QUERY_BYTES_MAX:
            raise BadBody(f"a query of more than {QUERY_BYTES_MAX} bytes is refused")
    try:
        sql = body.decode().strip()
        if sql:
            parse_query(sql)
    except (UnicodeDecodeError, BadQuery) as error:
        raise BadBody(str(error)) from error
    return sql


def _number(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not re.fullmatch("[0-9]{1,19}", text) or int(text) > maximum:
        raise BadBody(f"the parameter '{name}' must be a number from 0 to {maximum}, not {text[:40]!r}")
    return int(text)


def _not_found(request: Request) -> Response:
    arn = request.query_params.get("arn", "")
    return JSONResponse({"error": f"there is no delivery stream {arn[:512]}"}, status_code=404)


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
