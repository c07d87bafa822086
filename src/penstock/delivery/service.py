"""Delivery streams as the Firehose door sees them: every operation on them, with its rules."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

from msgspec.structs import replace

from penstock.delivery import tags
from penstock.delivery.delivery import Delivery
from penstock.delivery.destinations import Config, find_destination
from penstock.delivery.errors import ApiError
from penstock.delivery.keyring import KeyRing, KeyUnavailable
from penstock.delivery.lifecycle import TRANSITION_S, Lifecycle
from penstock.delivery.settings import DataKey
from penstock.delivery.stored import (
    DESTINATION_ID,
    Encryption,
    EncryptionStatus,
    Status,
    StoredDelivery,
    decode,
)
from penstock.delivery.updates import merged
from penstock.errors import PenstockError
from penstock.streams import Streams

SOURCES = {
    "DirectPut": "DirectPutSourceConfiguration",
    "KinesisStreamAsSource": "KinesisStreamSourceConfiguration",
    "MSKAsSource": "MSKSourceConfiguration",
    "DatabaseAsSource": "DatabaseSourceConfiguration",
}
DELETABLE = (Status.ACTIVE, Status.CREATING_FAILED, Status.DELETING_FAILED)
STREAMS_MAX = 5000  # of one account in one region
SIZE_MAX_BYTES = 10 * 2**30  # of the records that a stream keeps until they are delivered
ENCRYPTION_CALLS_MAX = 25
DAY_MS = 24 * 60 * 60 * 1000

Check = Callable[[StoredDelivery, str, Config], Awaitable[None]]


class DeliveryStreams:
    def __init__(
        self,
        streams: Streams,
        keyring: KeyRing,
        *,
        streams_max: int = STREAMS_MAX,
        streams_per_key: int | None = None,
        size_max_bytes: int = SIZE_MAX_BYTES,
        sync_create: bool = False,
        transition_s: float = TRANSITION_S,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._streams = streams
        self._keyring = keyring
        self._streams_max = streams_max
        self._streams_per_key = streams_per_key
        self._sync_create = sync_create
        self._wall_ms = wall_ms
        self._deliveries: dict[tuple[str, str, str], Delivery] = {}
        self._lifecycle = Lifecycle(
            streams, keyring, self._forget, size_max_bytes=size_max_bytes, transition_s=transition_s
        )

    async def open(self) -> None:
        for encoded in self._streams.store.catalog.delivery_streams():
            record = decode(encoded)
            self._deliveries[record.account, record.region, record.name] = Delivery(record)
            for row in record.encryption.keys:
                if row.key is not None:
                    self._keyring.note_in_use(row.key)
        await self._lifecycle.recover(list(self._deliveries.values()))

    async def close(self) -> None:
        await self._lifecycle.close()

    def _forget(self, delivery: Delivery) -> None:
        del self._deliveries[delivery.account, delivery.region, delivery.name]

    # -- looking ------------------------------------------------------------------------------------

    def find(self, account: str, region: str, name: str) -> Delivery:
        delivery = self._deliveries.get((account, region, name))
        if delivery is None:
            raise _not_found(account, name)
        return delivery

    def all(self) -> list[Delivery]:
        return [self._deliveries[key] for key in sorted(self._deliveries)]

    def names(
        self, account: str, region: str, source_type: str | None, start: str | None, limit: int
    ) -> tuple[list[str], bool]:
        """Names behind `start`, and whether there are more."""
        names = sorted(
            delivery.name
            for delivery in self._deliveries.values()
            if (delivery.account, delivery.region) == (account, region)
            and source_type in (None, delivery.source_type)
        )
        begin = 0 if start is None else bisect_right(names, start)
        return names[begin : begin + limit], begin + limit < len(names)

    async def data_keys(self, arn: str) -> list[DataKey]:
        """What opens the records of a delivery stream, to be handed out with its flushes. Raises KeyUnavailable."""
        delivery = self.by_arn(arn)
        if delivery is None:
            raise KeyUnavailable(
                f"{arn} is not in the catalog, so it is not known what its records are sealed with"
            )
        return await self._lifecycle.data_keys(delivery)

    def by_arn(self, arn: str) -> Delivery | None:
        _, _, _, region, account, resource = (arn.split(":", 5) + [""] * 6)[:6]
        delivery = self._deliveries.get((account, region, resource.partition("/")[2]))
        return delivery if delivery is not None and delivery.arn == arn else None

    def drain_before_delete(self, drain: Callable[[str], Awaitable[bool]]) -> None:
        """Deliver what is in a deleted stream before it goes. To be called before `open`."""
        self._lifecycle.drain = drain

    # -- creating and deleting ----------------------------------------------------------------------

    async def create(self, account: str, region: str, request: Mapping[str, Any]) -> str:
        """Returns the ARN. `request` is what CreateDeliveryStream sends, checked."""
        name = request["DeliveryStreamName"]
        self._check_free(account, region, name)
        delivery = Delivery(self._new_record(account, region, request))
        self._check_key(delivery.record.encryption.key_arn, delivery)
        # The name is taken from here on, before anything is awaited.
        self._deliveries[account, region, name] = delivery
        key = None
        try:
            async with delivery.changing:
                with _storing():
                    encryption = delivery.record.encryption
                    if encryption.key_type is not None:
                        key = await self._lifecycle.new_key(encryption.key_type, encryption.key_arn)
                    await self._lifecycle.store(delivery, delivery.record)
        except BaseException:
            self._forget(delivery)
            raise
        if self._sync_create:
            await asyncio.shield(self._lifecycle.begin(self._lifecycle.activate(delivery, key)))
        else:
            self._later(partial(self._lifecycle.activate, delivery, key))
        return delivery.arn

    def _check_free(self, account: str, region: str, name: str) -> None:
        if (account, region, name) in self._deliveries:
            raise ApiError(
                "ResourceInUseException", f"Firehose {name} under accountId {account} already exists"
            )
        names, _ = self.names(account, region, None, None, self._streams_max)
        if len(names) >= self._streams_max:
            raise ApiError(
                "LimitExceededException",
                f"You have already consumed your firehose quota of {self._streams_max} hoses. "
                f"Firehose names: [{', '.join(names)}]",
            )

    def _new_record(self, account: str, region: str, request: Mapping[str, Any]) -> StoredDelivery:
        source_type = request.get("DeliveryStreamType", "DirectPut")
        kind, config = find_destination(request, "Configuration")
        encryption = Encryption()
        key = request.get("DeliveryStreamEncryptionConfigurationInput")
        if key is not None:
            encryption = Encryption(EncryptionStatus.ENABLING, key["KeyType"], key.get("KeyARN"))
        return StoredDelivery(
            account=account,
            region=region,
            name=request["DeliveryStreamName"],
            status=Status.CREATING,
            source_type=source_type,
            source=request.get(SOURCES[source_type]),
            created_ms=self._wall_ms(),
            destination=kind,
            config=config,
            tags=tags.tagged({}, tags.tags_from(request.get("Tags", ()))),
            encryption=encryption,
        )

    async def delete(self, account: str, region: str, name: str) -> None:
        async with self._changing(account, region, name) as delivery:
            if delivery.status is Status.DELETING:
                return
            if delivery.status not in DELETABLE:
                raise _in_use(delivery)
            deleting = replace(delivery.record, status=Status.DELETING, failure=None)
            await self._lifecycle.store(delivery, deleting)
        self._later(partial(self._lifecycle.remove, delivery))

    # -- changing -----------------------------------------------------------------------------------

    async def update_destination(
        self, account: str, region: str, request: Mapping[str, Any], check: Check
    ) -> None:
        """`check` gets the record, and the kind and configuration that the destination would have."""
        name = request["DeliveryStreamName"]
        if (account, region, name) not in self._deliveries:
            raise _not_found(account, name, called="accountId")
        async with self._changing_active(account, region, name) as delivery:
            record = delivery.record
            _check_version(record, request["CurrentDeliveryStreamVersionId"])
            if request["DestinationId"] != DESTINATION_ID:
                raise ApiError(
                    "InvalidArgumentException", f"Destination Id {request['DestinationId']} not found"
                )
            kind, update = find_destination(request, "Update")
            config = merged(record.destination, record.config, kind, update)
            await check(record, kind, config)
            await self._change(delivery, replace(record, destination=kind, config=config))

    async def set_sql(self, account: str, region: str, name: str, sql: str) -> None:
        """Transform records by a query from now on; not at all if it is empty."""
        async with self._changing_active(account, region, name) as delivery:
            await self._change(delivery, replace(delivery.record, sql=sql))

    async def _change(self, delivery: Delivery, record: StoredDelivery) -> None:
        """Make it the next version."""
        before = delivery.record
        changed = replace(record, version=before.version + 1, updated_ms=self._wall_ms())
        await self._lifecycle.store(delivery, changed)
        try:
            await self._lifecycle.apply(delivery)
        except PenstockError:
            await self._lifecycle.store(delivery, before)
            raise

    async def tag(self, account: str, region: str, name: str, more: tags.Tags) -> None:
        async with self._changing_active(account, region, name) as delivery:
            together = tags.tagged(delivery.record.tags, more)
            await self._lifecycle.store(delivery, replace(delivery.record, tags=together))

    async def untag(self, account: str, region: str, name: str, keys: Iterable[str]) -> None:
        async with self._changing_active(account, region, name) as delivery:
            left = tags.untagged(delivery.record.tags, keys)
            await self._lifecycle.store(delivery, replace(delivery.record, tags=left))

    # -- encryption ---------------------------------------------------------------------------------

    async def start_encryption(
        self, account: str, region: str, name: str, key_type: str, key_arn: str | None
    ) -> None:
        async with self._changing_active(account, region, name) as delivery:
            encryption = self._counted(delivery)
            self._check_key(key_arn, delivery)
            key = await self._lifecycle.new_key(key_type, key_arn)
            enabling = replace(
                encryption, status=EncryptionStatus.ENABLING, key_type=key_type, key_arn=key_arn, failure=None
            )
            await self._lifecycle.store(delivery, replace(delivery.record, encryption=enabling))
        self._later(partial(self._lifecycle.switch_key, delivery, key))

    async def stop_encryption(self, account: str, region: str, name: str) -> None:
        async with self._changing_active(account, region, name) as delivery:
            encryption = self._counted(delivery)
            disabling = replace(encryption, status=EncryptionStatus.DISABLING, failure=None)
            await self._lifecycle.store(delivery, replace(delivery.record, encryption=disabling))
        self._later(partial(self._lifecycle.switch_key, delivery))

    def _counted(self, delivery: Delivery) -> Encryption:
        """The encryption with one more call noted, if another one is allowed."""
        encryption = delivery.record.encryption
        if delivery.source_type != "DirectPut":
            raise ApiError(
                "InvalidArgumentException",
                "Server-side encryption is only applicable for DirectPut delivery streams.",
            )
        if encryption.status in (EncryptionStatus.ENABLING, EncryptionStatus.DISABLING):
            raise ApiError(
                "ResourceInUseException",
                f"The encryption of firehose {delivery.name} under accountId {delivery.account} is being changed: "
                f"{encryption.status.value}",
            )
        now_ms = self._wall_ms()
        recent = tuple(
            called_ms for called_ms in encryption.calls_ms if now_ms - DAY_MS < called_ms <= now_ms
        )
        if len(recent) >= ENCRYPTION_CALLS_MAX:
            raise ApiError(
                "LimitExceededException",
                f"StartDeliveryStreamEncryption and StopDeliveryStreamEncryption can be called {ENCRYPTION_CALLS_MAX} "
                f"times in 24 hours for a delivery stream, and firehose {delivery.name} has used them up",
            )
        return replace(encryption, calls_ms=(*recent, now_ms))

    def _check_key(self, key_arn: str | None, delivery: Delivery) -> None:
        """Whether the key may encrypt one more delivery stream."""
        if key_arn is None or self._streams_per_key is None:
            return
        others = [
            other
            for other in self._deliveries.values()
            if other is not delivery and other.record.encryption.key_arn == key_arn
        ]
        if len(others) >= self._streams_per_key:
            raise ApiError(
                "LimitExceededException",
                f"The key {key_arn} encrypts {len(others)} delivery streams, and a key can encrypt at most "
                f"{self._streams_per_key}; use another one",
            )

    # -- one change at a time -----------------------------------------------------------------------

    @asynccontextmanager
    async def _changing(self, account: str, region: str, name: str) -> AsyncIterator[Delivery]:
        delivery = self.find(account, region, name)
        async with delivery.changing:
            if self._deliveries.get((account, region, name)) is not delivery:  # deleted while we waited
                raise _not_found(account, name)
            with _storing():
                yield delivery

    @asynccontextmanager
    async def _changing_active(self, account: str, region: str, name: str) -> AsyncIterator[Delivery]:
        async with self._changing(account, region, name) as delivery:
            if delivery.status is not Status.ACTIVE:
                raise _in_use(delivery)
            yield delivery

    def _later(self, work: Callable[[], Awaitable[None]]) -> None:
        """Have something done when the status before it could be seen for a while."""
        self._lifecycle.begin(self._after_pause(work))

    async def _after_pause(self, work: Callable[[], Awaitable[None]]) -> None:
        await self._lifecycle.pause()
        await work()


def _check_version(record: StoredDelivery, given: str) -> None:
    if given != str(record.version):
        raise ApiError(
            "ConcurrentModificationException",
            f"Cannot update firehose: {record.name} since the current version id: {record.version} "
            f"and specified version id: {given} do not match",
        )


def _not_found(account: str, name: str, called: str = "account") -> ApiError:
    return ApiError("ResourceNotFoundException", f"Firehose {name} under {called} {account} not found.")


def _in_use(delivery: Delivery) -> ApiError:
    return ApiError(
        "ResourceInUseException",
        f"Firehose {delivery.name} under accountId {delivery.account} is not ready for this: "
        f"its status is {delivery.status.value}",
    )


@contextmanager
def _storing() -> Iterator[None]:
    """What the disk or the keys refuse, in the API's words."""
    try:
        yield
    except KeyUnavailable as error:
        raise ApiError("InvalidKMSResourceException", str(error), code="UNKNOWN_ERROR") from error
    except (PenstockError, sqlite3.Error, OSError) as error:
        raise ApiError(
            "InternalFailure",
            f"The change could not be stored ({error}); check the server's disk.",
            http_status=500,
        ) from error
