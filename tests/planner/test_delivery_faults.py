"""Delivery streams under everything at once: what is acknowledged is in exactly one object, whatever happened."""

from __future__ import annotations

import asyncio
import random
from copy import copy
from pathlib import Path

import pytest

from penstock.failures import BACKOFF_MAX_S
from penstock.flush import Flush, LeaseRequest
from penstock.model import Export, ExportKind
from planner.rig import ARN, MIB, DeliveryRig, delivered, failed, settings

STEPS = 150


class World:
    """A server, a pipeline and an object store. Objects are named as the pipeline names them: by nonce and version."""

    def __init__(self, rig: DeliveryRig, rng: random.Random) -> None:
        self.rig = rig
        self.rng = rng
        self.objects: dict[tuple[str, str], list[bytes]] = {}
        self.acknowledged: list[bytes] = []
        self.held: list[Flush] = []
        self.version = 1
        self.count = 0

    def put(self) -> None:
        payloads = []
        for _ in range(self.rng.randrange(1, 5)):
            payloads.append(b"%08d" % self.count + bytes(self.rng.choice([0, 1000, 300_000])))
            self.count += 1
        sink = self.rig.append(ARN, *payloads)
        assert sink.errors == []
        self.acknowledged += payloads

    def lease(self) -> None:
        leased = self.rig.lease(probing=self.rng.random() < 0.4, flushes_max=self.rng.choice([1, 3, 256]))
        frozen = {row.id for row in self.rig.store.catalog.flushes() if row.settings is not None}
        assert {flush.id for flush in leased} <= frozen, "a restart would find other names for them"
        self.held += leased

    def hang_up(self) -> None:
        async def lease_and_leave() -> None:
            leasing = asyncio.ensure_future(self.rig.planner.lease(LeaseRequest("p", wait_ms=10_000)))
            await asyncio.sleep(self.rng.choice([0, 0.0005, 0.002]))  # anywhere: that is the point
            if leasing.done():
                self.held += map(copy, leasing.result().flushes)
            leasing.cancel()
            await asyncio.wait({leasing})

        self.rig.run(lease_and_leave())

    def store(self, flush: Flush) -> None:
        stream = self.rig.delivery.stream
        if stream.oldest_sequence > flush.first:
            return  # delivered by another attempt: the pipeline notices
        found = [m for m in stream.read(flush.first, 2**31, 2**31).messages if m.sequence_number < flush.next]
        self.objects[flush.nonce, flush.settings["version"]] = [bytes(m.payload[:8]) for m in found]

    def deliver(self) -> None:
        if self.held:
            flush = self.held.pop(self.rng.randrange(len(self.held)))
            self.store(flush)
            if self.rng.random() < 0.8:
                self.rig.report(delivered(flush, done=True, objects=1))

    def fail(self) -> None:
        if self.held:
            flush = self.held.pop(self.rng.randrange(len(self.held)))
            touched = self.rng.random() < 0.5
            if touched:
                self.store(flush)
            self.rig.report(failed(flush, objects=int(touched)))

    def update(self) -> None:
        self.version += 1
        changed = settings(str(self.version), self.rng.choice([MIB, 2 * MIB]), self.rng.choice([0, 60_000]))
        self.rig.update(ARN, Export(ExportKind.DELIVERY, changed))

    def wait(self) -> None:
        self.rig.clock.advance(self.rng.choice([0.5, 5, 61, BACKOFF_MAX_S]))

    def trim(self) -> None:
        self.rig.trim()

    def flush_now(self) -> None:
        self.rig.run(self.rig.planner.flush_now(ARN, 0))

    def end(self) -> None:
        how = self.rng.randrange(3)
        if how == 0:
            self.rig.restart()
        elif how == 1:
            self.rig.kill()
        else:
            self.rig.power_cut(self.rng)

    def finish(self) -> None:
        for _ in range(100):
            self.flush_now()
            self.rig.clock.advance(2 * BACKOFF_MAX_S)
            for probing in (False, True):
                for flush in self.rig.lease("last", probing=probing):
                    self.store(flush)
                    self.rig.report(delivered(flush, done=True, objects=1), pipeline="last")
            if not self.rig.delivery.waiting_messages:
                return
        raise AssertionError("records are left behind")


@pytest.mark.parametrize("seed", range(6))
def test_every_acknowledged_record_is_in_exactly_one_object(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    rig = DeliveryRig(tmp_path / "data")
    world = World(rig, rng)
    rig.create_delivery(buffer_bytes=MIB, interval_ms=60_000, segment_size_bytes=MIB)
    steps = [world.put] * 6 + [world.lease, world.deliver] * 4
    steps += [world.fail, world.wait, world.trim, world.hang_up] * 2 + [
        world.update,
        world.flush_now,
        world.end,
    ]
    for _ in range(STEPS):
        rng.choice(steps)()
    world.finish()
    names = [name for payloads in world.objects.values() for name in payloads]
    assert sorted(names) == [payload[:8] for payload in world.acknowledged]
    rig.dispose()
