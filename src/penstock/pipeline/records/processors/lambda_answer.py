"""What a function's answer means for each of its records."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence

from penstock.pipeline.records.processors.base import PROCESSING_FAILED, Processed
from penstock.pipeline.records.processors.keys import FAILURE_CODE as BAD_KEYS
from penstock.pipeline.records.processors.keys import BadKeys, checked_keys
from penstock.pipeline.records.record import NO_KEYS, Failed, Record

# Codes and texts as AWS gives them.
FUNCTION_ERROR = "Lambda.FunctionError"
FUNCTION_ERROR_TEXT = "The Lambda function was successfully invoked but it returned an error result."
_MISSING = (
    "Lambda.MissingRecordId",
    "One or more record Ids were not returned. Ensure that the Lambda function returns all received record Ids.",
)
_DUPLICATED = (
    "Lambda.DuplicatedRecordId",
    "Multiple records were returned with the same record Id. "
    "Ensure that the Lambda function returns a unique record Id for each record.",
)
_PROCESSING_FAILED = ("Lambda.ProcessingFailedStatus", "ProcessingFailed status set for record")
_INVALID = "Lambda.InvalidReturnFormat"
_NO_DATA = (
    "The data field cannot be null when the SourceType is DirectPut or KinesisStreamAsSource and processing result "
    "is Ok. The value field cannot be null when the SourceType is MSKAsSource and processing result is Ok."
)

Identified = tuple[str, Record]


class _Refused(Exception):
    """The record goes to the error output."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


class Answers:
    def __init__(self, lambda_arn: str, partitioned: bool) -> None:
        self._lambda_arn = lambda_arn
        self._partitioned = partitioned

    def outcome(self, batch: Sequence[Identified], answer: object, attempts: int) -> Processed:
        """Records of the answer that nobody asked for are ignored."""
        results, duplicated = _by_id(answer)
        done: list[Record] = []
        failed: list[Failed] = []
        for record_id, record in batch:
            try:
                if record_id in duplicated:
                    raise _Refused(*_DUPLICATED)
                transformed = self._transformed(record, results.get(record_id))
            except _Refused as refused:
                failed.append(self.failure(record, refused.code, refused.message, attempts))
            else:
                if transformed is not None:
                    done.append(transformed)
        return done, failed

    def failure(self, record: Record, code: str, message: str, attempts: int) -> Failed:
        return Failed(record, PROCESSING_FAILED, code, message, attempts, self._lambda_arn)

    def _transformed(self, record: Record, result: Mapping[str, object] | None) -> Record | None:
        """None if the function dropped it."""
        if result is None:
            raise _Refused(*_MISSING)
        status = result.get("result")
        if status == "Dropped":
            return None
        if status == "ProcessingFailed":
            raise _Refused(*_PROCESSING_FAILED)
        if status != "Ok":
            raise _Refused(_INVALID, "The result must be Ok, Dropped or ProcessingFailed.")
        data = _data(result.get("data"))
        keys = _partition_keys(result.get("metadata")) if self._partitioned else NO_KEYS
        return Record(record.sequence, record.arrival_ms, data, record.raw, record.query_keys, keys)


def _by_id(answer: object) -> tuple[dict[str, Mapping[str, object]], set[str]]:
    results: dict[str, Mapping[str, object]] = {}
    duplicated = set()
    records = answer.get("records") if isinstance(answer, dict) else None
    listed: Iterable[object] = records if isinstance(records, (list, tuple)) else ()
    for result in listed:
        record_id = result.get("recordId") if isinstance(result, dict) else None
        if not isinstance(record_id, str):
            continue
        if record_id in results:
            duplicated.add(record_id)
        results[record_id] = result  # type: ignore[assignment]
    return results, duplicated


def _data(text: object) -> bytes:
    if text is None:
        raise _Refused(_INVALID, _NO_DATA)
    if not isinstance(text, str):
        raise _Refused(_INVALID, "The data must be text in base64.")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _Refused(_INVALID, f"The data is not base64: {error}") from error


def _partition_keys(metadata: object) -> Mapping[str, str]:
    keys = metadata.get("partitionKeys") if isinstance(metadata, dict) else None
    if keys is None:
        return NO_KEYS
    if not isinstance(keys, dict):
        raise _Refused(BAD_KEYS, "the partitionKeys must be an object")
    try:
        return checked_keys(keys)
    except BadKeys as error:
        raise _Refused(BAD_KEYS, str(error)) from error
