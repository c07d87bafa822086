"""A stream on disk (or in memory): its segments in order, and the rules about when they come and go.

One writer at a time calls the methods under "writing"; any thread may read.
"""

from __future__ import annotations

import errno
import logging
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from penstock.errors import CorruptMessages, DiskFull, PenstockError, StorageFailed, StreamNotFound
from penstock.log import frame as frames
from penstock.log.files import Buffer, Files
from penstock.log.frame import OVERHEAD_BYTES_PER_MESSAGE, BadFrame, Frame
from penstock.log.segment import (
    FRAME_DATA_BYTES_MAX,
    OPEN_SUFFIX,
    SEALED_SUFFIX,
    TEMPORARY_SUFFIX,
    FrameRun,
    Gap,
    Scan,
    Segment,
    WrittenFrame,
    base_of,
    file_name,
)
from penstock.model import INT64_MAX, Message, StrategyOnFull, StreamDefinition

logger = logging.getLogger(__name__)

TRANSIENT_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
RUNS_MAX = 256  # of one bulk read: each holds a file open
DISK_FULL_ERRNOS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Written(NamedTuple):
    """What became of a batch: the frames that are written, and the error from which on messages are not."""

    frames: list[WrittenFrame]
    failed_from: int | None
    error: PenstockError | None


class Reading(NamedTuple):
    messages: list[Message]
    next_sequence: int


def charge_of(payload: Buffer) -> int:
    """What one message counts against maxSize."""
    return len(payload) + OVERHEAD_BYTES_PER_MESSAGE


class Stream:
    def __init__(
        self,
        files: Files,
        directory: Path,
        key: int,
        definition: StreamDefinition,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._files = files
        self._monotonic_s = monotonic_s
        self._wall_ms = wall_ms
        self.directory = directory
        self.key = key
        self.definition = definition
        self.segments: list[Segment] = []
        self.charged_bytes = 0
        self.settled_bytes = 0  # charged_bytes when the last write ended, for threads that do not write
        self.room_bytes = 0  # what may be appended before the stream's rules must be looked at again
        self.missing: list[Gap] = []  # numbers between segments that no segment holds
        self.reserved_next = (
            INT64_MAX  # numbers from here on must be reserved in the catalog before they are used
        )
        self.next_sequence = 0  # the next number to be given out
        self.write_next = 0  # the next number to be written
        self.visible_next = 0  # readers see messages before this
        self.visible_bytes = 0  # of payloads that became visible since the server started
        self.watched = False  # somebody wants to hear of new messages,
        self.exported = False  # and so does the planner
        self.to_seal: list[Segment] = []
        self.deleted = False
        self.lost_messages = 0  # dropped by overwrite or expiry since the server started

    # -- opening ------------------------------------------------------------------------------------

    def create(self) -> None:
        self._files.make_directory(self.directory)
        self.segments = [Segment.create(self._files, self.directory, self.key, 0)]

    def open(self, *, clean: bool = False, lost_cache: bool = False) -> None:
        """Recover from what is on disk. The journal must have been replayed before.

        `clean`: the last server synced everything and stopped; `lost_cache`: it did not, and the power went.
        """
        bases: dict[int, set[str]] = {}
        for name in self._files.list_names(self.directory):
            base = base_of(name)
            if base is not None:
                bases.setdefault(base, set()).add(Path(name).suffix)
            elif name.endswith(TEMPORARY_SUFFIX):
                self._files.remove(self.directory / name)
        last = max(bases, default=-1)
        unfinished: list[Segment] = []
        for base in sorted(bases):
            segment, scan = self._open_segment(base, bases[base])
            self.segments.append(segment)
            if clean:
                segment.trust()
            if scan is not None and base == last:
                self._recover_tail(segment, scan, clean=clean, lost_cache=lost_cache)
            elif scan is not None and not segment.sealed and not scan.gaps:
                (unfinished if scan.tail_bytes else self.to_seal).append(segment)
        self._find_missing()
        cut_short = {gap.first for gap in self.missing}
        # Where no message is missing, the bytes behind the last one are of a footer that was not finished.
        self.to_seal += [segment for segment in unfinished if segment.next_sequence not in cut_short]
        self._age_segments()
        self.charged_bytes = sum(segment.charged_bytes for segment in self.segments)
        for gap in self.gaps():
            logger.error(
                "stream %r: messages %d to %d cannot be read; 'penstock log verify' shows where",
                self.definition.name, gap.first, gap.next_readable - 1,
            )  # fmt: skip
        self.next_sequence = self.segments[-1].next_sequence if self.segments else 0
        self.visible_next = self.write_next = self.next_sequence

    def _open_segment(self, base: int, suffixes: set[str]) -> tuple[Segment, Scan | None]:
        """The segment, and what a walk over its frames found if it had no index."""
        sealed_path = self.directory / file_name(base, SEALED_SUFFIX)
        open_path = self.directory / file_name(base, OPEN_SUFFIX)
        if SEALED_SUFFIX in suffixes:
            sealed = Segment.open_sealed(self._files, sealed_path, self.key, base)
            if sealed is not None:
                if OPEN_SUFFIX in suffixes:
                    self._files.remove(open_path)
                return sealed, None
        if OPEN_SUFFIX in suffixes:
            return Segment.open_scanned(self._files, open_path, self.key, base)
        logger.warning(
            "stream %r: segment %d has lost its index; reading all of it", self.definition.name, base
        )
        damaged, scan = Segment.open_scanned(self._files, sealed_path, self.key, base)
        damaged.sealed = True
        return damaged, scan

    def _recover_tail(self, segment: Segment, scan: Scan, *, clean: bool, lost_cache: bool) -> None:
        """Cut an unfinished write; anything else behind the last frame is damage, and stays."""
        if not scan.tail_bytes:
            return
        unfinished = not scan.unreadable and (lost_cache or (scan.tail_is_torn and not clean))
        if segment.sealed or not unfinished:
            segment.quarantine_tail(scan.tail_bytes)
        elif not scan.gaps:
            logger.warning(
                "stream %r: cutting an unfinished write of %d bytes behind message %d",
                self.definition.name, scan.tail_bytes, segment.next_sequence - 1,
            )  # fmt: skip
            segment.truncate_tail()

    def _age_segments(self) -> None:
        """From here on ages are counted by the monotonic clock; a wall clock that ran back counts as no age."""
        now_s, now_ms = self._monotonic_s(), self._wall_ms()
        for segment in self.segments:
            segment.newest_monotonic_s = now_s - max(0, now_ms - segment.newest_arrival_ms) / 1000

    def close(self) -> None:
        for segment in self.segments:
            segment.close()

    # -- figures ------------------------------------------------------------------------------------

    @property
    def oldest_sequence(self) -> int:
        """At most one more than the newest, also while nothing that is stored can be seen."""
        segments = self.segments
        return min(segments[0].base, self.visible_next) if segments else self.visible_next

    @property
    def definition(self) -> StreamDefinition:
        return self._definition

    @definition.setter
    def definition(self, definition: StreamDefinition) -> None:
        self._definition = definition
        self.segment_size_bytes = min(definition.segment_size_bytes, definition.max_size_bytes)
        self._overwrites = definition.strategy_on_full is StrategyOnFull.OVERWRITE_OLDEST_DATA

    def gaps(self) -> list[Gap]:
        """All numbers since the oldest that cannot be read, for whatever reason."""
        return sorted([*self.missing, *(gap for segment in self.segments for gap in segment.gaps)])

    def count_from(self, start: int) -> int:
        """How many readable messages there are from `start` on."""
        count = self.visible_next - start
        for gap in self.gaps():
            count -= max(0, min(gap.next_readable, self.visible_next) - max(gap.first, start))
        return count

    # -- writing ------------------------------------------------------------------------------------

    def write_fitting(
        self, first_sequence: int, payloads: Sequence[Buffer], data_bytes: int, arrival_ms: int
    ) -> Written | None:
        """As `write`, for the usual case: one frame for which the active segment has room. None if it is not."""
        write_next = first_sequence + len(payloads)
        if not self.segments or data_bytes > FRAME_DATA_BYTES_MAX or write_next > self.reserved_next:
            return None
        active = self.segments[-1]
        if active.next_sequence != first_sequence or active.sealed or active.poisoned or active.gaps:
            return None
        header, buffers = frames.encode(self.key, first_sequence, arrival_ms, payloads)
        charged_bytes = self.charged_bytes + data_bytes + len(payloads) * OVERHEAD_BYTES_PER_MESSAGE
        if active.size_bytes + header.frame_bytes > self.segment_size_bytes:
            return None
        if self._overwrites and charged_bytes > self._definition.max_size_bytes:
            return None
        self.write_next = write_next
        try:
            written = active.append(header, buffers)
        except OSError as error:
            self.poison(active, first_sequence)
            return Written([], first_sequence, self._failure(error))
        active.newest_monotonic_s = self._monotonic_s()
        self.charged_bytes = charged_bytes
        return Written([written], None, None)

    def write(self, first_sequence: int, payloads: Sequence[Buffer], arrival_ms: int) -> Written:
        """Write messages whose numbers were given out before; sequence numbers of failures are not used again."""
        if self.deleted:
            gone = StreamNotFound(f"the message stream {self.definition.name} was deleted")
            return Written([], first_sequence, gone)
        written: list[WrittenFrame] = []
        sequence = first_sequence
        self.write_next = first_sequence + len(payloads)
        for chunk in self._chunks(payloads):
            header, buffers = frames.encode(self.key, sequence, arrival_ms, chunk)
            try:
                segment = self._segment_for(header.frame_bytes, header.charged_bytes, sequence)
            except OSError as error:
                return Written(written, sequence, self._failure(error))
            try:
                written.append(segment.append(header, buffers))
            except OSError as error:
                self.poison(segment, sequence)
                return Written(written, sequence, self._failure(error))
            segment.newest_monotonic_s = self._monotonic_s()
            self.charged_bytes += header.charged_bytes
            sequence += len(chunk)
        return Written(written, None, None)

    def poison(self, segment: Segment, sequence: int) -> None:
        """After a failed write or sync: take back what was not acknowledged, and write nothing more here."""
        segment.poisoned = True
        if segment not in self.segments:  # dropped to make room
            return
        self.charged_bytes -= segment.cut(sequence)
        self._find_missing()
        try:
            segment.truncate_tail()
        except OSError as error:
            logger.error("stream %r: segment %d: %s", self.definition.name, segment.base, error)

    def sync(self, segment: Segment) -> None:
        """Sync, with the poisoning that a failure demands. Raises StorageFailed."""
        try:
            segment.sync()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> PenstockError:
        if error.errno in DISK_FULL_ERRNOS:
            return DiskFull("the disk is full: free some space; appends resume by themselves")
        return StorageFailed(
            f"the disk failed ({error.strerror or error}); the message is not stored: "
            "check the disk, then send it again"
        )

    def _chunks(self, payloads: Sequence[Buffer]) -> Iterator[Sequence[Buffer]]:
        """Split so that a frame fits in a segment and in the stream; a larger message stands alone."""
        limit_bytes = min(FRAME_DATA_BYTES_MAX, self.segment_size_bytes - frames.HEADER_BYTES)
        start = charged_bytes = 0
        for position, payload in enumerate(payloads):
            charge = len(payload) + 2 * OVERHEAD_BYTES_PER_MESSAGE
            if position > start and charged_bytes + charge > limit_bytes:
                yield payloads[start:position]
                start, charged_bytes = position, 0
            charged_bytes += charge
        yield payloads[start:]

    def _segment_for(self, frame_bytes: int, charged_bytes: int, sequence: int) -> Segment:
        if self._overwrites:
            self._make_room(charged_bytes, sequence)
        active = self.segments[-1] if self.segments else None
        if active is None or not self._writable(active, sequence):
            return self._roll(sequence)
        if active.size_bytes and active.size_bytes + frame_bytes > self.segment_size_bytes:
            return self._roll(sequence)
        return active

    def _writable(self, active: Segment, sequence: int | None = None) -> bool:
        follows = sequence is None or active.next_sequence == sequence
        return not (active.sealed or active.poisoned or active.gaps) and follows

    def _make_room(self, charged_bytes: int, sequence: int) -> None:
        while self.segments and self.charged_bytes + charged_bytes > self.definition.max_size_bytes:
            if len(self.segments) == 1:
                if self.segments[0].base == sequence:
                    return
                self._roll(sequence)
            self._drop_oldest()

    def _roll(self, sequence: int) -> Segment:
        previous = self.segments[-1] if self.segments else None
        if previous is not None and previous.base == sequence:
            # Nothing was ever stored in it: its name is needed for the successor.
            self.segments = self.segments[:-1]
            self._files.remove(previous.path)
            previous = None
        segment = Segment.create(self._files, self.directory, self.key, sequence)
        segment.newest_monotonic_s = self._monotonic_s()
        self.segments.append(segment)
        if previous is not None:
            self._retire(previous)
            self._find_missing()
        return segment

    def _retire(self, segment: Segment) -> None:
        """The segment has a successor: seal it, or remove it if nothing is in it."""
        if segment.next_sequence == segment.base:
            self.segments = [s for s in self.segments if s is not segment]
            with suppress(OSError):  # an empty file is left behind
                segment.drop()
        elif not (segment.sealed or segment.gaps or segment.sync_failed):
            self.to_seal.append(segment)

    def _find_missing(self) -> None:
        self.missing = [
            Gap(earlier.next_sequence, later.base)
            for earlier, later in pairwise(self.segments)
            if earlier.next_sequence < later.base
        ]

    def _drop_oldest(self, *, lost: bool = True) -> None:
        segment = self.segments[0]
        self.segments = self.segments[1:]  # a new list: readers in other threads may be searching the old one
        with suppress(ValueError):
            self.to_seal.remove(segment)
        self.charged_bytes -= segment.charged_bytes
        if lost:
            self.lost_messages += segment.next_sequence - segment.base
        self._find_missing()
        segment.drop()

    def next_to_seal(self) -> Segment | None:
        try:
            return self.to_seal.pop(0)
        except IndexError:  # also if the stream was deleted in another thread just now
            return None

    def expire(self) -> int:
        """Drop segments whose newest message has outlived the TTL. Returns how many went."""
        if self.definition.ttl_ms is None:
            return 0
        deadline_s = self._monotonic_s() - self.definition.ttl_ms / 1000
        dropped = 0
        while self.segments and self.segments[0].newest_monotonic_s < deadline_s:
            if len(self.segments) == 1:
                if self.segments[0].base == self.write_next:
                    break
                self._roll(self.write_next)
            self._drop_oldest()
            dropped += 1
        return dropped

    def trim(self, sequence: int) -> int:
        """Drop segments that hold nothing but messages before `sequence`: nobody needs them. Returns how many went."""
        dropped = 0
        while len(self.segments) > 1 and self.segments[1].base <= sequence:
            self._drop_oldest(lost=False)
            dropped += 1
        return dropped

    def shrink(self) -> int:
        """Drop oldest segments until the stream fits a lowered maxSize or a new overwrite strategy."""
        dropped = 0
        while len(self.segments) > 1 and self.charged_bytes > self.definition.max_size_bytes:
            self._drop_oldest()
            dropped += 1
        return dropped

    def skip_to(self, sequence: int) -> None:
        """Give out no number below `sequence` any more: they may have been given out before a power cut."""
        if sequence > self.next_sequence:
            self._roll(sequence)
            self.next_sequence = self.write_next = self.visible_next = sequence

    # -- reading ------------------------------------------------------------------------------------

    def read(self, start: int, count_max: int, size_max_bytes: int) -> Reading:
        """Messages from `start` on: at most `count_max`, and no more after `size_max_bytes` are reached.

        Raises CorruptMessages if the first message to return is damaged.
        """
        messages: list[Message] = []
        size_bytes = 0
        sequence = max(start, self.oldest_sequence)
        stop = min(self.visible_next, sequence + count_max)
        while sequence < stop and size_bytes < size_max_bytes:
            segment = self._segment_of(sequence)
            if segment is None or segment.next_sequence <= sequence:
                sequence = self._behind_gap(sequence)
                stop = min(self.visible_next, sequence + count_max - len(messages))
                continue
            before = sequence
            try:
                for frame in segment.read_frames(sequence, min(stop, segment.next_sequence)):
                    if frame.first_sequence > sequence:
                        break
                    taken = _messages_of(frame, sequence, stop)
                    messages += taken
                    size_bytes += frame.header.data_bytes
                    sequence += len(taken)
                    if sequence >= stop or size_bytes >= size_max_bytes:
                        break
            except (BadFrame, OSError) as error:
                if segment not in self.segments:  # dropped since we looked
                    sequence = max(sequence, self.oldest_sequence)
                    continue
                if isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS:
                    raise StorageFailed(
                        f"the messages cannot be read now ({error.strerror}): try again"
                    ) from error
                logger.error("stream %r: message %d: %s", self.definition.name, sequence, error)
                segment.note_damage(sequence)
            else:
                if sequence == before:
                    segment.note_damage(sequence)
            gap = _gap_at(segment, sequence)
            if gap is not None and sequence < stop:
                if messages:
                    break
                raise CorruptMessages(gap.first, gap.next_readable)
        return Reading(messages, sequence)

    def locate(self, start: int, stop: int, size_max_bytes: int) -> tuple[list[FrameRun], int]:
        """The frames of a range as bytes of files, and the number behind the last message they hold."""
        runs: list[FrameRun] = []
        sequence = max(start, self.oldest_sequence)
        stop = min(stop, self.visible_next)
        budget_bytes = size_max_bytes
        while sequence < stop and budget_bytes > 0 and len(runs) < RUNS_MAX:
            segment = self._segment_of(sequence)
            if segment is None or segment.next_sequence <= sequence:
                sequence = self._behind_gap(sequence)
                continue
            gap = _gap_at(segment, sequence)
            if gap is not None:
                sequence = gap.next_readable
                continue
            limit = min([stop, segment.next_sequence, *(g.first for g in segment.gaps if g.first > sequence)])
            try:
                run, following = segment.locate(sequence, limit, budget_bytes)
            except FileNotFoundError:
                if segment in self.segments:
                    raise
                sequence = max(sequence, self.oldest_sequence)  # dropped since we looked
                continue
            if runs and run.end - run.begin > budget_bytes:
                break
            runs.append(run)
            sequence = following
            budget_bytes -= run.end - run.begin
        return runs, sequence

    def measure(self, start: int, stop: int, payload_bytes: int) -> tuple[int, int]:
        """Where so many bytes of payload from `start` on end, at the end of a frame, and how many they are.

        At `stop` if there are not so many.
        """
        sequence = max(start, self.oldest_sequence)
        found_bytes = 0
        while sequence < stop and found_bytes < payload_bytes:
            segment = self._segment_of(sequence)
            if segment is None or segment.next_sequence <= sequence:
                sequence = self._behind_gap(sequence)
                continue
            limit = min(stop, segment.next_sequence)
            try:
                sequence, measured_bytes = segment.measure(sequence, limit, payload_bytes - found_bytes)
            except FileNotFoundError:
                if segment in self.segments:
                    raise
                sequence = max(sequence, self.oldest_sequence)  # dropped since we looked
                continue
            found_bytes += measured_bytes
        return min(sequence, stop), found_bytes

    def arrival_ms(self, sequence: int) -> int | None:
        """When the first message from `sequence` on arrived; None if it cannot be told."""
        try:
            messages = self.read(sequence, 1, 1).messages
        except PenstockError:
            return None
        return messages[0].arrival_ms if messages else None

    def _segment_of(self, sequence: int) -> Segment | None:
        segments = self.segments
        position = bisect_right(segments, sequence, key=lambda segment: segment.base) - 1
        return segments[position] if position >= 0 else None

    def _behind_gap(self, sequence: int) -> int:
        """Where messages begin again behind a number that no segment holds."""
        return min((s.base for s in self.segments if s.base > sequence), default=self.visible_next)


def _messages_of(frame: Frame, start: int, stop: int) -> list[Message]:
    first = start - frame.first_sequence
    last = min(stop - frame.first_sequence, frame.count)
    arrivals = frame.arrivals[first:last].tolist()
    numbers = range(start, start + last - first)
    return [Message(n, a, p) for n, a, p in zip(numbers, arrivals, frame.payloads(first, last), strict=True)]


def _gap_at(segment: Segment, sequence: int) -> Gap | None:
    return next((gap for gap in segment.gaps if gap.first <= sequence < gap.next_readable), None)
