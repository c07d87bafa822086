"""Messages for the status streams of S3 tasks: what pipelines tell of them, and what only the server can know."""

from __future__ import annotations

import asyncio
import logging

from penstock.errors import PenstockError
from penstock.runs import ExportRun, FlushRun
from penstock.s3_status import Status, StatusLevel, status_message, task_as_sent, wants_status
from penstock.streams import Streams

logger = logging.getLogger(__name__)

CANCELLED_BYTES_MAX = 64 * 1024 * 1024


class TaskStatuses:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._loop = asyncio.get_running_loop()
        self.tasks: set[asyncio.Task[None]] = set()

    def append(self, name: str | None, texts: list[str]) -> asyncio.Future[None]:
        """Done when the messages are stored, or are known to be lost."""
        stored = self._loop.create_future()
        if name is None or not texts:
            stored.set_result(None)
        else:
            self._streams.append(name, [text.encode() for text in texts], _Sink(name, len(texts), stored))
        return stored

    def tell_of_cancelled(self, flush_run: FlushRun) -> None:
        """The export is deleted: S3 tasks that a pipeline was busy with end as Canceled."""
        if wants_status(flush_run.run.export.settings, StatusLevel.WARN):
            flush = flush_run.flush
            task = self._loop.create_task(self._append_cancelled(flush_run.run, flush.first, flush.next))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _append_cancelled(self, run: ExportRun, first: int, behind: int) -> None:
        try:
            reading = await asyncio.to_thread(run.stream.read, first, behind - first, CANCELLED_BYTES_MAX)
        except PenstockError as error:
            logger.warning("export %s: cancelled tasks cannot be read: %s", run.key, error)
            return
        texts = [
            status_message(
                status=Status.CANCELED,
                level=StatusLevel.WARN,
                text="the export was deleted before the task was done",
                task=task_as_sent(message.payload),
                export_identifier=run.export.identifier,
                stream=run.stream.definition.name,
                sequence_number=message.sequence_number,
            )
            for message in reading.messages
            if message.sequence_number < behind
        ]
        self.append(run.export.status_stream_name, texts)


class _Sink:
    """Status messages that cannot be stored are lost with a line in the log; they never hold up a delivery."""

    def __init__(self, stream: str, count: int, stored: asyncio.Future[None]) -> None:
        self._stream = stream
        self._left = count
        self._stored = stored

    def appended(self, first_sequence: int, count: int) -> None:
        self._left -= count
        if self._left <= 0 and not self._stored.done():
            self._stored.set_result(None)

    def append_failed(self, count: int, error: PenstockError) -> None:
        logger.warning("%d status messages for stream %s were dropped: %s", count, self._stream, error)
        self.appended(-1, count)
