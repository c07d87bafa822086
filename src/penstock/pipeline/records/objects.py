"""The objects of a flush: where they go and what they are called. The same flush always makes the same names."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import tzinfo
from hashlib import blake2b
from itertools import groupby
from typing import Any, NamedTuple
from uuid import UUID

from penstock.delivery.settings import DeliverySettings
from penstock.flush import Flush
from penstock.java_time import Instant, format_timestamp, zone_named
from penstock.pipeline.destinations.base import DeliveryFailed, Progress
from penstock.pipeline.objects import Body, ObjectError, ObjectHeaders, ObjectRefused, ObjectStore
from penstock.pipeline.records.compression import Buffer, Compression, compression_named
from penstock.pipeline.records.error_output import error_line
from penstock.pipeline.records.record import Failed, Record
from penstock.prefix import PARTITION_NAMESPACES, Prefix, parse_prefix

logger = logging.getLogger(__name__)

CONTENT_TYPE = "application/octet-stream"
SUFFIX_PATTERN = "yyyy-MM-dd-HH-mm-ss"
UNCOMPRESSED = "UNCOMPRESSED"
LONGEST_EXTENSION = ".parquet"  # of converted data


class Target(NamedTuple):
    """What an S3 block of a configuration says."""

    bucket: str
    prefix: Prefix
    error_prefix: Prefix
    compression: Compression
    file_extension: str  # instead of that of the compression
    zone: tzinfo
    kms_key: str | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Target:
        """Raises BadPrefix or BadZone, though nobody should have accepted such a configuration."""
        prefix = parse_prefix(config.get("Prefix") or "")
        error_text = config.get("ErrorOutputPrefix")
        encryption = (config.get("EncryptionConfiguration") or {}).get("KMSEncryptionConfig") or {}
        return cls(
            bucket=str(config["BucketARN"]).rpartition(":")[2],
            prefix=prefix,
            error_prefix=parse_prefix(error_text) if error_text else _for_errors(prefix),
            compression=compression_named(config.get("CompressionFormat") or UNCOMPRESSED),
            file_extension=config.get("FileExtension") or "",
            zone=zone_named(config.get("CustomTimeZone") or ""),
            kms_key=encryption.get("AWSKMSKeyARN"),
        )


def _for_errors(prefix: Prefix) -> Prefix:
    return parse_prefix("") if prefix.has_expressions else prefix


class Partition(NamedTuple):
    """The records of a flush that go to one object: all of them, or those with the same keys."""

    values: tuple[str, ...]
    arrival_ms: int  # of the oldest record
    query_keys: Mapping[str, str]
    lambda_keys: Mapping[str, str]

    @classmethod
    def of(cls, values: tuple[str, ...], oldest: Record) -> Partition:
        return cls(values, oldest.arrival_ms, oldest.query_keys, oldest.lambda_keys)


class FlushObjects:
    """Stores what becomes of a flush: data, then errors, then the backup. What is half done is done again."""

    def __init__(
        self, flush: Flush, delivery: DeliverySettings, store: ObjectStore, progress: Progress
    ) -> None:
        self._flush = flush
        self._delivery = delivery
        self._store = store
        self._progress = progress
        self.target = Target.of(delivery.config)
        self.whole = Partition((), flush.planned_ms, {}, {})

    @property
    def partitioned(self) -> bool:
        """Records go to different objects by their keys."""
        return bool(self.target.prefix.namespaces & PARTITION_NAMESPACES)

    @property
    def backup_target(self) -> Target | None:
        """Where every record goes as it was put, if somebody wants that."""
        config = self._delivery.config
        if config.get("S3BackupMode") != "Enabled":
            return None
        block = config.get("S3BackupDescription") or config.get("S3BackupConfiguration")
        return Target.of(block) if block else None

    # -- names --------------------------------------------------------------------------------------

    def data_key(self, partition: Partition, number: int = 0, converted: str = "") -> str:
        """`number` tells several objects of one partition apart; `converted` is the extension of converted data."""
        target = self.target
        role = _role("data", *partition.values, str(number))
        prefix = target.prefix.evaluate(
            partition.arrival_ms,
            target.zone,
            seed=self._seed(role),
            query_keys=partition.query_keys,
            lambda_keys=partition.lambda_keys,
        )
        extension = target.file_extension or converted or target.compression.extension
        return prefix + self._name(role, partition.arrival_ms, target.zone) + extension

    def longest_data_key(self, partition: Partition) -> str:
        """As long as the name of its object can become."""
        converts = self._delivery.config.get("DataFormatConversionConfiguration")
        return self.data_key(partition, converted=LONGEST_EXTENSION if converts else "")

    def error_key(self, output_type: str) -> str:
        target, arrival_ms = self.target, self._flush.planned_ms
        role = _role("error", output_type)
        prefix = target.error_prefix.evaluate(
            arrival_ms, target.zone, seed=self._seed(role), error_output_type=output_type
        )
        return prefix + self._name(role, arrival_ms, target.zone)

    def backup_key(self, target: Target) -> str:
        arrival_ms = self._flush.planned_ms
        prefix = target.prefix.evaluate(arrival_ms, target.zone, seed=self._seed("backup"))
        return prefix + self._name("backup", arrival_ms, target.zone) + target.compression.extension

    def _name(self, role: str, arrival_ms: int, zone: tzinfo) -> str:
        time_text = format_timestamp(SUFFIX_PATTERN, Instant.from_epoch_ms(arrival_ms, zone))
        delivery = self._delivery
        return f"{delivery.name}-{delivery.version}-{time_text}-{self._uuid(role)}"

    def _uuid(self, role: str) -> UUID:
        """Looks random, as those of AWS; follows from the flush alone."""
        digest = blake2b(self._seed(role).encode(), digest_size=16).digest()
        return UUID(bytes=digest, version=4)

    def _seed(self, role: str) -> str:
        return f"{self._flush.nonce}/{role}"

    # -- objects ------------------------------------------------------------------------------------

    def put_data(
        self, chunks: Iterable[Buffer], partition: Partition, number: int = 0, converted: str = ""
    ) -> None:
        """Compressed, unless it is a file of a converted format."""
        key = self.data_key(partition, number, converted)
        compression = compression_named(UNCOMPRESSED) if converted else self.target.compression
        self._put(self.target, key, chunks, compression)

    def put_backup(self, chunks: Iterable[Buffer], target: Target) -> None:
        self._put(target, self.backup_key(target), chunks, target.compression)

    def put_errors(self, failures: Iterable[Failed]) -> set[str]:
        """An object for each type of failure, a line for each record as it was put. Returns the types."""
        types = set()
        ordered = sorted(failures, key=lambda failed: failed.output_type)  # keeps the order within each type
        for output_type, group in groupby(ordered, key=lambda failed: failed.output_type):
            key = self.error_key(output_type)
            lines = self._error_lines(once_each(group))
            self._put(self.target, key, lines, compression_named(UNCOMPRESSED))
            types.add(output_type)
        return types

    def _error_lines(self, failures: Iterable[Failed]) -> Iterator[bytes]:
        ended_ms = time.time_ns() // 1_000_000
        return (error_line(failed, ended_ms, self._delivery) for failed in failures)

    def withdraw(self, key: str) -> None:
        """Remove what an earlier attempt may have stored and this one has not."""
        try:
            self._store.delete(self.target.bucket, key)
        except ObjectRefused as error:
            logger.info("flush %d: an object may be left of an earlier attempt: %s", self._flush.id, error)
        except ObjectError as error:
            raise _delivery_failed(error) from error

    def _put(self, target: Target, key: str, chunks: Iterable[Buffer], compression: Compression) -> None:
        body: Body = compression.stream(chunks, str(self._uuid(f"{key}/entry")))
        headers = ObjectHeaders(CONTENT_TYPE, compression.content_encoding, target.kms_key)
        try:
            self._store.put(target.bucket, key, body, headers=headers)
        except ObjectRefused as error:
            raise _delivery_failed(error) from error
        except ObjectError as error:
            self._progress.stored()  # who knows
            raise _delivery_failed(error) from error
        self._progress.stored()


def once_each(failures: Iterable[Failed]) -> Iterator[Failed]:
    """A record that was many may fail many times, and each line holds all of it: the first of a type tells enough."""
    seen: set[tuple[int, str]] = set()
    for failed in failures:
        key = (failed.record.sequence, failed.output_type)
        if key not in seen:
            seen.add(key)
            yield failed


def _role(*parts: str) -> str:
    return "/".join(f"{len(part)}:{part}" for part in parts)


def _delivery_failed(error: ObjectError) -> DeliveryFailed:
    """Also what S3 refuses is tried again for a day: buckets and permissions come and go."""
    return DeliveryFailed(f"S3.{error.code}: {error}" if error.code else str(error))
