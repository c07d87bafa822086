"""A delivery stream, as it is while the server runs."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.delivery.gate import Gate
from penstock.delivery.stored import Status, StoredDelivery
from penstock.log.stream import Stream


class Delivery:
    def __init__(self, record: StoredDelivery) -> None:
        self.record = record
        self.account = record.account
        self.region = record.region
        self.name = record.name
        self.arn = record.arn
        self.source_type = record.source_type
        self.gate = Gate()
        self.cipher: Any = None  # seals records from now on; look at it inside of the gate
        self.changing = asyncio.Lock()  # held by whoever changes the record
        self._stream: Stream | None = None

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def encrypted(self) -> bool:
        """As PutRecord reports it."""
        return self.cipher is not None

    @property
    def stream(self) -> Stream:
        """The log's stream. There is one whenever the status is ACTIVE."""
        assert self._stream is not None
        return self._stream

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self._stream = stream
