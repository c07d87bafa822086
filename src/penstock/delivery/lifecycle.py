"""What happens to a delivery stream after its client has the answer, and when the server starts.

The catalog's record comes first and goes last: a log stream without one never had an acknowledged record in it. So
a server that was killed anywhere in between finds in the record what is left to do.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any, TypeVar

from msgspec.structs import replace

from penstock.delivery.delivery import Delivery
from penstock.delivery.errors import ApiError
from penstock.delivery.keyring import KeyRing
from penstock.delivery.log_stream import ensure_stream
from penstock.delivery.settings import DataKey
from penstock.delivery.stored import (
    Encryption,
    EncryptionStatus,
    Failure,
    KeyRow,
    Status,
    StoredDelivery,
    WrappedKey,
    encode,
)
from penstock.errors import PenstockError
from penstock.streams import Streams

logger = logging.getLogger(__name__)

T = TypeVar("T")

TRANSITION_S = 0.2  # how long CREATING, DELETING, ENABLING and DISABLING can be seen at least
KEY_THREADS = 4
UNLOCK_RETRY_S = 30.0
UNLOCK_PATIENCE_S = 5.0
DETAILS_CHARS_MAX = 1024

_FAILURES = (PenstockError, ApiError, sqlite3.Error, OSError)


class Lifecycle:
    def __init__(
        self,
        streams: Streams,
        keyring: KeyRing,
        forget: Callable[[Delivery], None],
        *,
        size_max_bytes: int,
        transition_s: float = TRANSITION_S,
    ) -> None:
        self._streams = streams
        self._catalog = streams.store.catalog
        self._keyring = keyring
        self._forget = forget
        self._size_max_bytes = size_max_bytes
        self._transition_s = transition_s
        # Delivers what waits in a delivery stream, by its ARN, for a while; whether nothing waits any more.
        self.drain: Callable[[str], Awaitable[bool]] | None = None
        # Of their own: KMS may take its time to answer, and everything else needs the others.
        self._key_threads = ThreadPoolExecutor(KEY_THREADS, "penstock-keys")
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    # -- tasks --------------------------------------------------------------------------------------

    def begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Have something done that nobody waits for."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a change of a delivery stream failed inside", exc_info=task.exception())

    async def close(self) -> None:
        """Everything that is under way ends soon; what does not get done is done at the next start."""
        self._closing.set()
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def pause(self) -> None:
        """Leave a status to be seen for a while, unless the server stops."""
        await self._wait(self._transition_s)

    async def _wait(self, duration_s: float) -> None:
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._closing.wait(), duration_s)

    # -- the record ---------------------------------------------------------------------------------

    async def store(self, delivery: Delivery, record: StoredDelivery) -> None:
        """Returns when the change is on stable storage. To be called by whoever holds `delivery.changing`."""
        await asyncio.to_thread(self._catalog.put_delivery_stream, record.arn, encode(record))
        delivery.record = record

    async def _store_failure(self, delivery: Delivery, record: StoredDelivery) -> None:
        delivery.record = record  # even if the disk takes nothing any more
        try:
            await self.store(delivery, record)
        except sqlite3.Error as error:
            logger.error("%s: its status cannot be stored (%s); check the disk", record.arn, error)

    async def apply(self, delivery: Delivery) -> None:
        """Have later flushes use what the record says."""
        delivery.stream = await ensure_stream(self._streams, delivery.record, self._size_max_bytes)

    # -- creating and deleting ----------------------------------------------------------------------

    async def activate(self, delivery: Delivery, key: WrappedKey | None = None) -> None:
        """CREATING becomes ACTIVE."""
        async with delivery.changing:
            record = delivery.record
            try:
                await self.apply(delivery)
                encryption = await self._first_key(delivery, key)
                await self.store(delivery, replace(record, status=Status.ACTIVE, encryption=encryption))
            except _FAILURES as error:
                logger.error("%s could not be created: %s", record.arn, error)
                if record.encryption.status is EncryptionStatus.ENABLING:
                    record = _switch_failed(record, error)
                failed = replace(record, status=Status.CREATING_FAILED, failure=_failure(error))
                await self._store_failure(delivery, failed)

    async def _first_key(self, delivery: Delivery, key: WrappedKey | None) -> Encryption:
        encryption = delivery.record.encryption
        if encryption.status is not EncryptionStatus.ENABLING:
            return encryption
        key = key or await self._wanted_key(encryption)
        delivery.use_key(await self._open_key(delivery, key))
        row = KeyRow(delivery.stream.next_sequence, key)
        return replace(encryption, status=EncryptionStatus.ENABLED, keys=(row,))

    async def remove(self, delivery: Delivery) -> None:
        """DELETING becomes nothing."""
        if not await self._drained(delivery):
            return
        async with delivery.changing:
            try:
                if delivery.arn in self._streams.store.streams:
                    await self._streams.delete(delivery.arn)
                await asyncio.to_thread(self._catalog.remove_delivery_stream, delivery.arn)
            except _FAILURES as error:
                logger.error("%s could not be deleted: %s", delivery.arn, error)
                failed = replace(delivery.record, status=Status.DELETING_FAILED, failure=_failure(error))
                await self._store_failure(delivery, failed)
            else:
                self._forget(delivery)

    async def _drained(self, delivery: Delivery) -> bool:
        """Whether the stream may go. Its records go with it, unless somebody wants them delivered before."""
        while self.drain is not None and delivery.arn in self._streams.store.streams:
            if self._closing.is_set():
                return False
            if await self.drain(delivery.arn):
                break
        return True

    # -- encryption ---------------------------------------------------------------------------------

    async def new_key(self, key_type: str, key_arn: str | None) -> WrappedKey:
        return await self._with_keys(self._keyring.new_data_key, key_type, key_arn)

    async def _with_keys(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._key_threads, work, *arguments)

    async def _wanted_key(self, encryption: Encryption) -> WrappedKey:
        """When the server that had made one was killed."""
        return await self.new_key(str(encryption.key_type), encryption.key_arn)

    async def switch_key(self, delivery: Delivery, key: WrappedKey | None = None) -> None:
        """ENABLING becomes ENABLED, DISABLING becomes DISABLED: from now on records are sealed with another key, or
        with none."""
        async with delivery.changing:
            if delivery.status is not Status.ACTIVE:
                return
            encryption = delivery.record.encryption
            try:
                opened = None
                if encryption.status is EncryptionStatus.ENABLING:
                    key = key or await self._wanted_key(encryption)
                    opened = await self._open_key(delivery, key)
                async with delivery.gate.shut():
                    await self.store(delivery, _switched(delivery, key))
                    delivery.use_key(opened)
            except _FAILURES as error:
                logger.error("%s: the encryption could not be switched: %s", delivery.arn, error)
                await self._store_failure(delivery, _switch_failed(delivery.record, error))
            rows = delivery.record.encryption.keys
            delivery.opened_keys = {
                row.key: delivery.opened_keys[row.key] for row in rows if row.key in delivery.opened_keys
            }

    async def _open_key(self, delivery: Delivery, key: WrappedKey) -> bytes:
        if key not in delivery.opened_keys:
            delivery.opened_keys[key] = await self._with_keys(self._keyring.unwrap, key)
        return delivery.opened_keys[key]

    async def data_keys(self, delivery: Delivery) -> list[DataKey]:
        """All that records still in the log may be sealed with. Raises KeyUnavailable."""
        return [
            DataKey(row.first_sequence, b"" if row.key is None else await self._open_key(delivery, row.key))
            for row in delivery.record.encryption.keys
        ]

    async def unlock(self, delivery: Delivery) -> None:
        """Get the key that is in force, however long that takes."""
        rows = delivery.record.encryption.keys
        while rows and rows[-1].key is not None and not self._closing.is_set():
            try:
                key = await self._open_key(delivery, rows[-1].key)
            except PenstockError as error:
                if rows is delivery.record.encryption.keys:  # nobody has switched it meanwhile
                    logger.error("%s takes no records: %s", delivery.arn, error)
                    delivery.lock(str(error))
                    await self._wait(UNLOCK_RETRY_S)
                rows = delivery.record.encryption.keys
            else:
                if rows is delivery.record.encryption.keys:
                    delivery.use_key(key)
                return

    # -- the start of the server --------------------------------------------------------------------

    async def recover(self, deliveries: list[Delivery]) -> None:
        """Bring to its end whatever the server before left half done."""
        for delivery in deliveries:
            if delivery.status is Status.CREATING:
                await self.activate(delivery)
            elif delivery.status is Status.DELETING and self.drain is None:
                await self.remove(delivery)
            elif delivery.status is Status.DELETING:
                self.begin(self.remove(delivery))
            elif delivery.status is Status.ACTIVE:
                await self._adopt(delivery)
        await self._remove_strays({delivery.arn for delivery in deliveries})
        unlocking = {self.begin(self.unlock(delivery)) for delivery in deliveries}
        if unlocking:
            await asyncio.wait(unlocking, timeout=UNLOCK_PATIENCE_S)

    async def _adopt(self, delivery: Delivery) -> None:
        await self.apply(delivery)
        encryption = delivery.record.encryption
        # Records that were never acknowledged may be gone, and their numbers come again: with the newest key.
        next_sequence = delivery.stream.next_sequence
        keys = tuple(KeyRow(min(row.first_sequence, next_sequence), row.key) for row in encryption.keys)
        if keys != encryption.keys:
            await self.store(delivery, replace(delivery.record, encryption=replace(encryption, keys=keys)))
        if keys and keys[-1].key is not None:
            delivery.lock("The key of this delivery stream is not available yet.")
        if encryption.status in (EncryptionStatus.ENABLING, EncryptionStatus.DISABLING):
            self.begin(self.switch_key(delivery))

    async def _remove_strays(self, known: set[str]) -> None:
        """Log streams of delivery streams that the catalog does not know: nothing of ours leaves one with records."""
        for stream in list(self._streams.store.streams.values()):
            name = stream.definition.name
            if not stream.definition.is_delivery_stream or name in known:
                continue
            if stream.next_sequence:
                logger.error(
                    "%s holds records, and the catalog has no such delivery stream; it is left", name
                )
            else:
                await self._streams.delete(name)


def _failure(error: Exception) -> Failure:
    kind = error.members.get("code", "UNKNOWN_ERROR") if isinstance(error, ApiError) else "UNKNOWN_ERROR"
    return Failure(str(kind), str(error)[:DETAILS_CHARS_MAX])


def _switched(delivery: Delivery, key: WrappedKey | None) -> StoredDelivery:
    """Nobody may be putting meanwhile."""
    record, stream = delivery.record, delivery.stream
    row = KeyRow(stream.next_sequence, key)
    in_use = [
        old
        for old, following in pairwise((*record.encryption.keys, row))
        if following.first_sequence > stream.oldest_sequence
    ]
    keys = (*in_use, row) if key is not None or in_use else ()
    status = EncryptionStatus.DISABLED if key is None else EncryptionStatus.ENABLED
    key_type, key_arn = (None, None) if key is None else (key.key_type, key.key_arn)
    return replace(
        record,
        encryption=replace(
            record.encryption, status=status, key_type=key_type, key_arn=key_arn, failure=None, keys=keys
        ),
    )


def _switch_failed(record: StoredDelivery, error: Exception) -> StoredDelivery:
    enabling = record.encryption.status is EncryptionStatus.ENABLING
    status = EncryptionStatus.ENABLING_FAILED if enabling else EncryptionStatus.DISABLING_FAILED
    return replace(record, encryption=replace(record.encryption, status=status, failure=_failure(error)))
