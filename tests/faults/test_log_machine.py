"""The log against a plain list, through crashes, power cuts and failing disks, in any order.

What a client was told is true: acknowledged durable messages are there after anything, relaxed ones after a kill,
in order, once; numbers that were acknowledged never come again; nothing appears that nobody sent.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from faults.rig import Rig, Sink
from penstock.errors import CorruptMessages, PenstockError
from penstock.log.stream import Stream
from penstock.model import Message, Persistence, StrategyOnFull, StreamDefinition

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # the catalog syncs for real
SEGMENT_BYTES = 6000
TTL_MS = 60_000

DEFINITIONS = {
    "durable": StreamDefinition("durable", segment_size_bytes=SEGMENT_BYTES, flush_on_write=True),
    "second": StreamDefinition("second", segment_size_bytes=SEGMENT_BYTES, flush_on_write=True),
    "relaxed": StreamDefinition("relaxed", segment_size_bytes=SEGMENT_BYTES),
    "ring": StreamDefinition(
        "ring",
        max_size_bytes=3 * SEGMENT_BYTES,
        segment_size_bytes=SEGMENT_BYTES,
        strategy_on_full=StrategyOnFull.OVERWRITE_OLDEST_DATA,
        flush_on_write=True,
    ),
    "mortal": StreamDefinition(
        "mortal", segment_size_bytes=SEGMENT_BYTES, ttl_ms=TTL_MS, flush_on_write=True
    ),
    "memory": StreamDefinition("memory", segment_size_bytes=SEGMENT_BYTES, persistence=Persistence.MEMORY),
}
names = st.sampled_from(sorted(DEFINITIONS))
sizes = st.lists(
    st.one_of(st.integers(0, 40), st.integers(0, 5000), st.just(SEGMENT_BYTES + 500)), min_size=1, max_size=6
)
batches = st.lists(st.tuples(names, sizes), min_size=1, max_size=5)
FAULTS = {
    "write": ("*.open", "*/journal-?", "*.tmp"),
    "sync": ("*.open", "*/journal-?", "*.tmp"),
    "create": ("*.open", "*.tmp"),
    "rename": ("*",),
    "truncate": ("*",),
    "remove": ("*",),
    "sync_directory": ("*",),
}
faults = st.sampled_from(
    [(operation, pattern) for operation, patterns in FAULTS.items() for pattern in patterns]
)


class Model:
    """What is known of one stream from the outside."""

    def __init__(self) -> None:
        self.sent: dict[int, list[bytes]] = {}  # everything ever tried under a number
        self.durable: dict[int, bytes] = {}  # acknowledged, or seen after a crash, and on stable storage
        self.relaxed: dict[int, bytes] = {}  # acknowledged, or seen after a crash, in the page cache
        # Nobody owes these any more: a sync of them may have failed, and a later one proves nothing; or they were
        # dropped, and came back because their file could not be removed.
        self.doomed: set[int] = set()
        self.sent_at_s: dict[int, float] = {}
        self.acknowledged_next = 0

    def acknowledge(self, number: int, payload: bytes, *, durable: bool) -> None:
        assert number >= self.acknowledged_next, f"number {number} was acknowledged before"
        self.acknowledged_next = number + 1
        (self.durable if durable else self.relaxed)[number] = payload

    def note_synced(self) -> None:
        for number in self.relaxed.keys() - self.doomed:
            self.durable[number] = self.relaxed.pop(number)

    def note_failed_sync(self) -> None:
        self.doomed.update(self.relaxed)

    def forget_below(self, oldest: int) -> None:
        for known in (self.durable, self.relaxed):
            for number in [n for n in known if n < oldest]:
                del known[number]
                self.doomed.add(number)


class LogMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="penstock-machine-", dir=IN_MEMORY))
        self.rig = Rig(self.folder / "data")
        self.models: dict[str, Model] = {}
        self.payload_count = 0
        self.rng = random.Random(0)

    def teardown(self) -> None:
        self.rig.disk.kill()
        self.rig.abandon()
        self.rig.dispose()
        shutil.rmtree(self.folder)

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.rng.seed(seed)
        for name in DEFINITIONS:
            self._create(name)

    # -- doing --------------------------------------------------------------------------------------

    def _create(self, name: str) -> None:
        self.rig.run(self.rig.streams.create(DEFINITIONS[name]))
        self.models[name] = Model()

    def _payload(self, size_bytes: int) -> bytes:
        """Different from every other payload, and of about this size."""
        self.payload_count += 1
        return b"%d:" % self.payload_count + self.rng.randbytes(size_bytes)

    def _append(self, work: list[tuple[str, list[int]]]) -> None:
        submitted: list[tuple[str, int, list[bytes], Sink]] = []
        for name, payload_sizes in work:
            if name not in self.models:
                continue
            first = self.rig.store.streams[name].next_sequence
            payloads = [self._payload(size) for size in payload_sizes]
            model = self.models[name]
            for number, payload in enumerate(payloads, first):
                model.sent.setdefault(number, []).append(payload)
                model.sent_at_s[number] = self.rig.clock.monotonic
            submitted.append((name, first, payloads, self.rig.submit(name, payloads)))
        self.rig.drain()
        for name, first, payloads, sink in submitted:
            self._note_results(name, first, payloads, sink)

    def _note_results(self, name: str, first: int, payloads: list[bytes], sink: Sink) -> None:
        assert len(sink.results) == len(payloads), "everybody who waits is told, once"
        stream, model = self.rig.store.streams[name], self.models[name]
        for number, (payload, result) in enumerate(zip(payloads, sink.results, strict=True), first):
            if isinstance(result, int):
                assert result == number
                model.acknowledge(number, payload, durable=stream.definition.flush_on_write)

    def _seal(self) -> None:
        self.rig.store.seal_segments()

    def _background_sync(self) -> None:
        self.rig.background_sync()
        self._note_failed_syncs()
        if not self.rig.disk.crashed:
            for model in self.models.values():
                model.note_synced()

    def _note_failed_syncs(self) -> None:
        if self.rig.disk.failures.pop("sync", 0):
            for model in self.models.values():
                model.note_failed_sync()

    def _expire(self) -> None:
        self.rig.run(self.rig.streams.expire())

    def _toggle_flush_on_write(self) -> None:
        """What was relaxed becomes durable for new messages only, and back again."""
        name = "relaxed"
        if name not in self.models:
            return
        definition = self.rig.store.streams[name].definition

        def change(_: object) -> tuple[StreamDefinition, dict[str, int]]:
            changed = StreamDefinition(
                name, segment_size_bytes=SEGMENT_BYTES, flush_on_write=not definition.flush_on_write
            )
            return changed, {}

        self.rig.run(self.rig.streams.update(name, change))

    def _do(self, action: str, work: list[tuple[str, list[int]]]) -> None:
        actions: dict[str, Callable[[], None]] = {
            "append": lambda: self._append(work),
            "seal": self._seal,
            "sync": self._background_sync,
            "expire": self._expire,
            "update": self._toggle_flush_on_write,
        }
        actions[action]()

    # -- rules --------------------------------------------------------------------------------------

    @rule(work=batches)
    def append(self, work: list[tuple[str, list[int]]]) -> None:
        self._append(work)

    @rule()
    def seal(self) -> None:
        self._seal()

    @rule()
    def background_sync(self) -> None:
        self._background_sync()

    @rule(seconds=st.floats(0, 100))
    def time_passes(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)
        self._expire()

    @rule(ms=st.integers(-(10**9), 10**9))
    def somebody_sets_the_clock(self, ms: int) -> None:
        self.rig.clock.wall += ms
        self._expire()
        self.rig.clock.wall -= ms

    @rule()
    def toggle_flush_on_write(self) -> None:
        self._toggle_flush_on_write()

    @rule(name=names)
    def delete_and_create(self, name: str) -> None:
        if name in self.models:
            self.rig.run(self.rig.streams.delete(name))
            del self.models[name]
        else:
            self._create(name)

    @rule(fault=faults, work=batches, after_bytes=st.sampled_from([0, 10, 100, 5000]))
    def fail(self, fault: tuple[str, str], work: list[tuple[str, list[int]]], after_bytes: int) -> None:
        operation, pattern = fault
        with self.rig.disk.failing(operation, pattern, after_bytes=after_bytes):
            self._append(work)
        self._note_failed_syncs()

    @rule(fault=st.sampled_from(["write", "sync", "create", "rename", "remove", "sync_directory"]))
    def fail_upkeep(self, fault: str) -> None:
        with self.rig.disk.failing(fault, "*"):
            self._background_sync()
            self._seal()
        self._note_failed_syncs()

    @rule()
    def restart(self) -> None:
        self.rig.restart()
        for model in self.models.values():
            model.note_synced()
        self._after_crash(lost_cache=False)

    @rule()
    def kill(self) -> None:
        self.rig.kill()
        self._after_crash(lost_cache=False)

    @rule()
    def power_cut(self) -> None:
        self.rig.power_cut(self.rng)
        self._after_crash(lost_cache=True)

    @rule(
        changes=st.integers(0, 40),
        actions=st.lists(
            st.tuples(st.sampled_from(["append", "seal", "sync", "expire"]), batches), max_size=4
        ),
        power=st.booleans(),
        changes_in_recovery=st.integers(0, 60),
    )
    def die_in_the_middle(
        self,
        changes: int,
        actions: list[tuple[str, list[tuple[str, list[int]]]]],
        power: bool,
        changes_in_recovery: int,
    ) -> None:
        self.rig.disk.crash_after(changes)
        for action, work in actions:
            self._do(action, work)
        lost_cache = self._die(power=power)
        self.rig.disk.crash_after(changes_in_recovery)
        try:
            self.rig.open()
        except (OSError, PenstockError):
            assert self.rig.disk.crashed
            lost_cache |= self._cut(power=power)
        else:
            lost_cache |= self._die(power=power)
        self.rig.open()
        self._after_crash(lost_cache=lost_cache)

    def _die(self, *, power: bool) -> bool:
        lost_cache = self._cut(power=power)
        self.rig.abandon()
        return lost_cache

    def _cut(self, *, power: bool) -> bool:
        if power:
            self.rig.disk.power_cut(self.rng)
            self.rig.boot += 1
        else:
            self.rig.disk.kill()
        return power

    # -- judging ------------------------------------------------------------------------------------

    def _after_crash(self, *, lost_cache: bool) -> None:
        """What is there now is the truth, as long as it holds what it must and nothing that nobody sent."""
        for name, model in self.models.items():
            stream = self.rig.store.streams[name]
            if name == "memory":
                assert (stream.next_sequence, read_everything(stream)) == (0, {})
                self.models[name] = Model()
                continue
            found = read_everything(stream)
            self._check(name, stream, model, found, relaxed_too=not lost_cache)
            for number, payload in found.items():
                assert payload in model.sent.get(number, []), f"{name}: nobody sent what is at {number}"
                model.sent[number] = [payload]
            assert stream.next_sequence >= model.acknowledged_next
            model.relaxed = {number: p for number, p in found.items() if number not in model.durable}
            model.acknowledged_next = max([model.acknowledged_next, *(number + 1 for number in found)])

    def _check(
        self, name: str, stream: Stream, model: Model, found: dict[int, bytes], *, relaxed_too: bool
    ) -> None:
        expected = {**model.durable, **model.relaxed} if relaxed_too else dict(model.durable)
        oldest = stream.oldest_sequence
        for number, payload in expected.items():
            if number in found:
                assert found[number] == payload, f"{name}: message {number} has changed"
                continue
            assert number < oldest, f"{name}: message {number} is gone"
            may_go = name == "ring" or (
                name == "mortal" and self.rig.clock.monotonic - model.sent_at_s[number] >= TTL_MS / 1000
            )
            assert may_go, f"{name}: message {number} was dropped"
        model.forget_below(oldest)

    @invariant()
    def shows_exactly_what_was_acknowledged(self) -> None:
        for name, model in self.models.items():
            stream = self.rig.store.streams[name]
            found = read_everything(stream)
            self._check(name, stream, model, found, relaxed_too=True)
            unknown = found.keys() - model.durable.keys() - model.relaxed.keys()
            assert not unknown, f"{name}: {sorted(unknown)} were never acknowledged"
            assert stream.count_from(stream.oldest_sequence) == len(found)
            assert stream.charged_bytes == sum(len(p) + 12 for p in found.values())


def read_everything(stream: Stream) -> dict[int, bytes]:
    """All that can be read, around damage, which a power cut may leave in what was not synced."""
    messages: list[Message] = []
    sequence = 0
    while sequence < stream.visible_next:
        try:
            reading = stream.read(sequence, 1000, 10_000)
        except CorruptMessages as damage:
            sequence = next_behind(damage, max(sequence, stream.oldest_sequence))
            continue
        assert reading.next_sequence > sequence, "reading makes no progress"
        messages += reading.messages
        sequence = reading.next_sequence
    numbers = [message.sequence_number for message in messages]
    assert numbers == sorted(set(numbers))
    return {message.sequence_number: message.payload for message in messages}


def next_behind(damage: CorruptMessages, sequence: int) -> int:
    assert damage.first <= sequence < damage.next_readable
    return damage.next_readable


def run_machine(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        LogMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """The log reports every injected fault; thousands of lines would hide the one that matters."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_log_machine() -> None:
    run_machine(30, 25)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="long: set PENSTOCK_SOAK=1")
@pytest.mark.timeout(7200)
def test_log_machine_for_long() -> None:
    run_machine(5000, 60)
