"""IoT Analytics: BatchPutMessage. AWS has shut the service down; an endpoint of one's own can still be served."""

from __future__ import annotations

from collections.abc import Iterator

from botocore.exceptions import ClientError

from penstock.pipeline import aws
from penstock.pipeline.destinations.answers import AnsweredBatch
from penstock.pipeline.destinations.base import DeliveryFailed, Destination, Progress, Record, batches

BATCH_SIZE_MAX = 100
BATCH_BYTES_MAX = 5 * 1024 * 1024

_SOON_OVER = {"InternalFailureException", "ServiceUnavailableException", "ThrottlingException"}


class IotAnalytics(Destination):
    def deliver(self, records: Iterator[Record], progress: Progress) -> None:
        if aws.endpoint("iotanalytics") is None:
            raise DeliveryFailed(
                "AWS IoT Analytics was shut down in December 2025; "
                "remove the export, or set AWS_ENDPOINT_URL_IOTANALYTICS to a service that takes BatchPutMessage",
                permanent=True,
            )
        count_max = min(int(self.config.get("batchSize", BATCH_SIZE_MAX)), BATCH_SIZE_MAX)
        for batch in batches(records, count_max, BATCH_BYTES_MAX, lambda record: len(record.payload)):
            AnsweredBatch(batch, progress).deliver(self._put)

    def _put(self, batch: AnsweredBatch) -> str:
        """One call with everything that is open. Returns why some of it still is."""
        channel = str(self.config["iotChannel"])
        by_id = {self._message_id(record): record for record in batch.open}
        messages = [{"messageId": id_, "payload": record.payload} for id_, record in by_id.items()]
        client = aws.client("iotanalytics", self.settings)
        with aws.failures(f"cannot put messages into channel {channel}"):
            try:
                answer = client.batch_put_message(channelName=channel, messages=messages)
            except ClientError as error:
                if aws.error_code(error) in _SOON_OVER:
                    return f"channel {channel}: {error}"
                raise
        problems: dict[str, None] = {}
        for entry in answer.get("batchPutMessageErrorEntries", []):
            failed = by_id.pop(entry["messageId"])
            problem = f"{entry.get('errorCode', '')}: {entry.get('errorMessage', '')}"
            if entry.get("errorCode") == "InvalidRequestException":
                batch.skip(failed, problem)
            else:
                problems[problem] = None
        for record in by_id.values():
            batch.accept(record)
        return f"channel {channel}: " + "; ".join(problems)

    def _message_id(self, record: Record) -> str:
        """The same whenever the message is sent again."""
        return f"{self.config.get('iotMsgIdPrefix', '')}{self.flush.nonce}-{record.sequence_number}"
