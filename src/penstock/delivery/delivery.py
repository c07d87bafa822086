"""A delivery stream, as it is while the server runs."""

from __future__ import annotations

import asyncio

from penstock.delivery.errors import ApiError
from penstock.delivery.gate import Gate
from penstock.delivery.sealing import Sealer
from penstock.delivery.stored import Status, StoredDelivery, WrappedKey
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
        self.changing = asyncio.Lock()  # held by whoever changes the record
        self.opened_keys: dict[WrappedKey, bytes] = {}
        self._stream: Stream | None = None
        self._cipher: Sealer | None = None
        self._locked: str | None = None

    @property
    def status(self) -> Status:
        return self.record.status

    @property
    def encrypted(self) -> bool:
        """As PutRecord reports it."""
        return self._cipher is not None

    @property
    def stream(self) -> Stream:
        """The log's stream. There is one whenever the status is ACTIVE."""
        assert self._stream is not None
        return self._stream

    @stream.setter
    def stream(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def cipher(self) -> Sealer | None:
        """Seals records from now on; look at it inside of the gate. Raises if its key cannot be had."""
        if self._locked is not None:
            raise ApiError("InvalidKMSResourceException", self._locked, code="KMS_KEY_NOT_FOUND")
        return self._cipher

    def lock(self, why: str) -> None:
        """The key that is in force cannot be had: nothing may be stored until it can."""
        self._locked = why

    def use_key(self, key: bytes | None) -> None:
        self._cipher = None if key is None else Sealer(key, self.arn)
        self._locked = None
