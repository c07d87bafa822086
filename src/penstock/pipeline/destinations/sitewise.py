"""IoT SiteWise: one message is one entry of BatchPutAssetPropertyValue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from botocore.exceptions import ClientError

from penstock.flush import Flush
from penstock.pipeline import aws
from penstock.pipeline.destinations.answers import AnsweredBatch
from penstock.pipeline.destinations.base import (
    DeliveryFailed,
    Destination,
    PipelineSettings,
    Progress,
    Record,
    batches,
)
from penstock.pipeline.server_client import ServerClient
from penstock.pipeline.sitewise_entry import Entry, InvalidEntry, parse_entry

BATCH_SIZE_MAX = 10
BATCH_BYTES_MAX = 1024 * 1024

# The service says that the entry itself is wrong: it will never be taken.
_ENTRY_REFUSED = {"InvalidRequestException", "TimestampOutOfRangeException"}
# It says that somebody must mend something first; entries behind it wait for that, unless they are not to.
_UNTIL_MENDED = {"ResourceNotFoundException", "AccessDeniedException"}
_CALL_REFUSED = {"InvalidRequestException", "SerializationException", "ValidationException"}
_CONFLICT = "ConflictingOperationException"
# The next try of a batch comes within a second. Of everything else the planner takes care, who waits longer.
_SOON_OVER = {
    _CONFLICT,
    "InternalFailureException",
    "LimitExceededException",
    "ServiceUnavailableException",
    "ThrottlingException",
}


class Piece(NamedTuple):
    """A message, or a part of one: an entry that goes into one call."""

    record: Record
    entry: Entry
    last: bool  # of its message

    @property
    def number(self) -> int:
        return self.record.sequence_number


class _Verdicts:
    """What the service said about the messages of a batch, in one round of calls."""

    def __init__(self, refusals: set[str]) -> None:
        self._refusals = refusals  # codes that are the last word on an entry
        self.answered: set[int] = set()  # with all their pieces
        self.refused: dict[int, str] = {}  # for good
        self.failed: dict[int, str] = {}  # for now
        self.soon_over = True

    def note(self, piece: Piece, errors: list[dict[str, Any]]) -> None:
        codes = {error["errorCode"] for error in errors}
        text = "; ".join(f"{error['errorCode']}: {error.get('errorMessage', '')}" for error in errors)
        if codes - self._refusals:
            self.failed[piece.number] = f"entry {piece.entry.id}: {text}"
            self.soon_over = self.soon_over and codes <= _SOON_OVER | self._refusals
        elif codes:
            self.refused[piece.number] = text
        if piece.last:
            self.answered.add(piece.number)

    def pass_on(self, batch: AnsweredBatch) -> None:
        for record in batch.open:
            number = record.sequence_number
            if number not in self.answered or number in self.failed:
                continue
            if number in self.refused:
                batch.skip(record, self.refused[number])
            else:
                batch.accept(record)


class SiteWise(Destination):
    def __init__(self, flush: Flush, settings: PipelineSettings, server: ServerClient) -> None:
        super().__init__(flush, settings, server)
        self._refusals = _ENTRY_REFUSED | (_UNTIL_MENDED if settings.sitewise_skip_refused else set())
        self._conflicted: set[int] = set()  # messages that are sent alone from now on

    def deliver(self, records: Iterator[Record], progress: Progress) -> None:
        count_max = min(int(self.config.get("batchSize", BATCH_SIZE_MAX)), BATCH_SIZE_MAX)
        for batch in batches(records, count_max, BATCH_BYTES_MAX, lambda record: len(record.payload)):
            self._conflicted.clear()
            AnsweredBatch(batch, progress).deliver(self._put)

    def _put(self, batch: AnsweredBatch) -> str:
        """Everything that is open, in as many calls as it takes. Returns why some of it still is."""
        verdicts = _Verdicts(self._refusals)
        try:
            with aws.failures("cannot put values into SiteWise"):
                for call in self._calls(_pieces(batch)):
                    self._call(call, verdicts)
        finally:
            verdicts.pass_on(batch)
        problem = "; ".join(dict.fromkeys(verdicts.failed.values()))
        if not verdicts.soon_over:
            raise DeliveryFailed(problem)
        return problem

    def _calls(self, pieces: list[Piece]) -> Iterator[list[Piece]]:
        """In order. In one call entry ids are unique, and so are instants of a property."""
        call: list[Piece] = []
        taken: set[object] = set()
        for piece in pieces:
            entry = piece.entry
            claims = {entry.id, *((entry.property_key, at) for at in entry.timestamps)}
            alone = piece.number in self._conflicted
            if call and (alone or len(call) == BATCH_SIZE_MAX or taken & claims):
                yield call
                call, taken = [], set()
            call.append(piece)
            taken |= claims
            if alone:
                yield call
                call, taken = [], set()
        if call:
            yield call

    def _call(self, pieces: list[Piece], verdicts: _Verdicts) -> None:
        try:
            errors = self._send([piece.entry for piece in pieces])
        except ClientError as error:
            code, text = aws.error_code(error), str(error)
            if code in _CALL_REFUSED | {_CONFLICT} and len(pieces) > 1:
                for piece in pieces:  # to learn which of them it is about
                    self._call([piece], verdicts)
                return
            if code not in _CALL_REFUSED | _SOON_OVER:
                raise
            known = "InvalidRequestException" if code in _CALL_REFUSED else code
            errors = {piece.entry.id: [{"errorCode": known, "errorMessage": text}] for piece in pieces}
        for piece in pieces:
            of_entry = errors.get(piece.entry.id, [])
            verdicts.note(piece, of_entry)
            if any(error["errorCode"] == _CONFLICT for error in of_entry):
                self._conflicted.add(piece.number)

    def _send(self, entries: list[Entry]) -> dict[str, list[dict[str, Any]]]:
        """One call; what is wrong with which entry."""
        client = aws.client("iotsitewise", self.settings)
        # A value that is out of range does not take the other values of its entry with it.
        request = {"enablePartialEntryProcessing": True, "entries": [entry.fields for entry in entries]}
        answer = aws.call_with_body(
            client.batch_put_asset_property_value, msgspec.json.encode(request), entries=[]
        )
        return {entry["entryId"]: entry["errors"] for entry in answer["errorEntries"]}


def _pieces(batch: AnsweredBatch) -> list[Piece]:
    pieces = []
    for record in batch.open:
        try:
            entries = parse_entry(record.payload).without_conflicts()
        except InvalidEntry as error:
            batch.skip(record, str(error))
            continue
        pieces += [Piece(record, entry, entry is entries[-1]) for entry in entries]
    return pieces
