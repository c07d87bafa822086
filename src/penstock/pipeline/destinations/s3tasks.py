"""S3 file tasks: each message names a local file of the server's machine and the object it is to become."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator

import msgspec

from penstock.errors import PenstockError
from penstock.pipeline.destinations.base import DeliveryFailed, Destination, Progress, Record
from penstock.pipeline.objects import (
    ObjectRefused,
    ObjectStore,
    StoreUnavailable,
    Upload,
    check_metadata,
    store_for,
)
from penstock.pipeline.s3_keys import InvalidKey, resolve_key
from penstock.pipeline.server_client import FILE_CHUNK_BYTES, FileRefused
from penstock.s3_status import Status, StatusLevel, status_message, task_as_sent, wants_status

logger = logging.getLogger(__name__)

MULTIPART_THRESHOLD_BYTES = 5 * 1024 * 1024
PUT_BYTES_MAX = 5 * 1024**3  # what S3 takes in one request
PARTS_MAX = 10_000
RESERVED_METADATA_PREFIX = "$aws-gg-"
METADATA_HEADER_PREFIX = "x-amz-meta-"

_BUCKET = re.compile(
    r"(?=.{3,63}\Z)(?!(\d+\.)+\d+\Z)(([a-z0-9]|[a-z0-9][a-z0-9\-]*[a-z0-9])\.)*([a-z0-9]|[a-z0-9][a-z0-9\-]*[a-z0-9])"
)


class BadTask(PenstockError):
    """The message is not a task that can ever be done."""


class FileTask(msgspec.Struct, rename="camel"):
    """What a message says: which file, and which object it becomes."""

    input_url: str
    bucket: str
    key: str
    user_metadata: dict[str, str] | None = None


class S3Tasks(Destination):
    """One task after the other, in the order they were appended."""

    def deliver(self, records: Iterator[Record], progress: Progress) -> None:
        store = store_for(self.settings)
        for record in records:
            _TaskRun(self, store, record, progress).run()


class _TaskRun:
    """One attempt at one task, which it finishes, gives up, or leaves for a later attempt."""

    def __init__(self, export: S3Tasks, store: ObjectStore, record: Record, progress: Progress) -> None:
        self._export = export
        self._config = export.config
        self._server = export.server
        self._store = store
        self._record = record
        self._progress = progress
        self._task_as_sent = task_as_sent(record.payload)

    def run(self) -> None:
        behind = self._record.sequence_number + 1
        try:
            where = self._upload()
        except (BadTask, InvalidKey, FileRefused, ObjectRefused) as error:
            self._tell(Status.FAILURE, StatusLevel.ERROR, str(error))
            self._progress.skipped(behind, str(error))
        except StoreUnavailable as error:
            self._tell(Status.IN_PROGRESS, StatusLevel.DEBUG, f"{error}; the task will be tried again")
            raise DeliveryFailed(str(error)) from error
        else:
            self._succeed(behind, where)

    def _succeed(self, behind: int, where: str) -> None:
        # Told first: if we are killed in between, the client hears of the success twice rather than never.
        try:
            self._tell(Status.SUCCESS, StatusLevel.INFO, f"uploaded to {where}")
        finally:
            self._progress.delivered(behind, 1, len(self._record.payload))

    def _upload(self) -> str:
        task = decode_task(self._record.payload)
        key = resolve_key(task.key, self._export.flush.planned_ms)
        metadata = checked_metadata(task)
        size_bytes = self._server.file_size(task.input_url)
        where = f"s3://{task.bucket}/{key}"
        self._tell(Status.IN_PROGRESS, StatusLevel.INFO, f"uploading {size_bytes} bytes to {where}")
        if size_bytes <= self._threshold_bytes():
            body = self._file_chunks(task.input_url, 0, size_bytes)
            self._store.put(task.bucket, key, body, metadata)
        else:
            upload = self._store.multipart(task.bucket, key, metadata)
            self._upload_parts(upload, task.input_url, size_bytes)
        return where

    def _threshold_bytes(self) -> int:
        configured = self._config.get("sizeThresholdForMultipartUploadBytes", MULTIPART_THRESHOLD_BYTES)
        return min(max(int(configured), self._export.settings.s3_min_part_size_bytes), PUT_BYTES_MAX)

    def _upload_parts(self, upload: Upload, url: str, size_bytes: int) -> None:
        part_bytes = part_size_bytes(size_bytes, self._export.settings.s3_min_part_size_bytes)
        count = -(-size_bytes // part_bytes)
        try:
            for number, offset in enumerate(range(0, size_bytes, part_bytes), 1):
                part_end = min(offset + part_bytes, size_bytes)
                upload.upload_part(self._file_chunks(url, offset, part_end))
                self._progress.uploading(part_end, size_bytes)
                self._tell(Status.IN_PROGRESS, StatusLevel.TRACE, f"uploaded part {number} of {count}")
            upload.complete()
        except BaseException:
            self._abort(upload)
            raise
        finally:
            self._progress.uploading(0, 0)

    def _abort(self, upload: Upload) -> None:
        try:
            upload.abort()
        except (ObjectRefused, StoreUnavailable) as error:
            logger.warning("an upload could not be aborted, its parts stay in the bucket: %s", error)
            self._tell(
                Status.WARNING, StatusLevel.WARN, f"the upload could not be aborted, its parts stay: {error}"
            )

    def _file_chunks(self, url: str, offset: int, end: int) -> Iterator[bytes]:
        while offset < end:
            # Confirms nothing new: this is where a long upload hears that nobody wants it any more.
            self._progress.delivered(self._record.sequence_number, 0, 0)
            chunk = self._server.file_part(url, offset, min(FILE_CHUNK_BYTES, end - offset))
            if not chunk:
                raise BadTask(f"{url} became shorter while it was read: it ends at byte {offset}")
            yield chunk
            offset += len(chunk)

    def _tell(self, status: Status, level: StatusLevel, text: str) -> None:
        if wants_status(self._config, level):
            self._progress.status(
                status_message(
                    status=status,
                    level=level,
                    text=text,
                    task=self._task_as_sent,
                    export_identifier=self._export.flush.identifier,
                    stream=self._export.flush.stream,
                    sequence_number=self._record.sequence_number,
                )
            )


def decode_task(payload: bytes) -> FileTask:
    try:
        task = msgspec.json.decode(payload, type=FileTask)
    except (ValueError, RecursionError) as error:
        raise BadTask(f"the message is not an S3 export task: {error}") from error
    if _BUCKET.fullmatch(task.bucket) is None:
        raise BadTask(f"{task.bucket[:80]!r} is not a name for a bucket")
    return task


def checked_metadata(task: FileTask) -> dict[str, str]:
    """User metadata as S3 keeps it: names in lower case, without the prefix of the header."""
    metadata: dict[str, str] = {}
    for name, value in (task.user_metadata or {}).items():
        name = name.lower().removeprefix(METADATA_HEADER_PREFIX)
        if name.startswith(RESERVED_METADATA_PREFIX):
            raise BadTask(f"the user metadata {name!r} is reserved: names may not begin with $aws-gg-")
        metadata[name] = value
    check_metadata(metadata)
    return metadata


def part_size_bytes(size_bytes: int, part_min_bytes: int) -> int:
    """As small as allowed, and as large as it must be for S3's limit on the number of parts."""
    return max(part_min_bytes, -(-size_bytes // PARTS_MAX))
