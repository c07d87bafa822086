"""A planner over a real store, whose pipelines are the test itself. No Spark in sight."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from faults.rig import Rig
from penstock.bandwidth import Bandwidth
from penstock.delivery.settings import DeliverySettings
from penstock.delivery_run import DeliveryRun
from penstock.flush import Flush, LeaseRequest, Outcome, ReportAnswer
from penstock.model import (
    Export,
    ExportKind,
    ExportStatus,
    StreamDefinition,
    StreamInfo,
)
from penstock.planner import Planner
from penstock.runs import ExportRun

HTTP = {"uri": "http://127.0.0.1:1/"}
MINUTE_MS = 60_000
MIB = 2**20
ARN = "arn:aws:firehose:eu-west-1:000000000000:deliverystream/d"


def export(identifier: str = "e", kind: ExportKind = ExportKind.HTTP, **settings: Any) -> Export:
    needed = HTTP if kind is ExportKind.HTTP else {}
    return Export(kind, {"identifier": identifier, **needed, **settings})


class PlannerRig(Rig):
    """A rig with a planner on top, whose pipelines are the test itself."""

    bandwidth_kbps: int | None = None
    planner: Planner

    def open(self) -> None:
        super().open()
        self.planner = self.run(self._open_planner())

    async def _open_planner(self) -> Planner:
        kbps = self.bandwidth_kbps
        bandwidth = Bandwidth(kbps, self.clock.monotonic_s) if kbps is not None else None
        return Planner(self.streams, slots=5, bandwidth=bandwidth, monotonic_s=self.clock.monotonic_s)

    def drain(self) -> None:
        super().drain()
        self.run(self.planner.settled())

    def dispose(self) -> None:
        self.drain()
        super().dispose()

    def create_exported(self, name: str, *exports: Export, messages: int = 0, **fields: Any) -> None:
        self.create(name, exports=exports, **fields)
        self.append_many(name, messages)

    def append_many(self, name: str, count: int, payload: bytes = b"x" * 10) -> None:
        if count:
            self.append(name, *[payload] * count)

    def update(self, name: str, *exports: Export, moved: dict[str, int] | None = None) -> None:
        def change(info: StreamInfo) -> tuple[StreamDefinition, dict[str, int]]:
            return msgspec.structs.replace(info.definition, exports=exports), moved or {}

        self.run(self.streams.update(name, change))
        self.drain()

    def lease(self, pipeline: str = "p", *, probing: bool = False, flushes_max: int = 256) -> list[Flush]:
        """What is due right now, as a pipeline would have it: a copy."""
        request = LeaseRequest(pipeline, flushes_max=flushes_max, wait_ms=0, probing=probing)
        leases = self.run(self.planner.lease(request))
        return msgspec.json.decode(msgspec.json.encode(leases.flushes), type=list[Flush])

    def lease_one(self, pipeline: str = "p", *, probing: bool = False) -> Flush:
        [flush] = self.lease(pipeline, probing=probing)
        return flush

    def report(self, *outcomes: Outcome, pipeline: str = "p") -> ReportAnswer:
        answer = self.run(self.planner.report(pipeline, outcomes))
        self.drain()
        return answer

    def deliver(self, flush: Flush, pipeline: str = "p") -> ReportAnswer:
        return self.report(delivered(flush, done=True), pipeline=pipeline)

    def fail(self, flush: Flush, pipeline: str = "p", **fields: Any) -> ReportAnswer:
        return self.report(failed(flush, **fields), pipeline=pipeline)

    def status(self, stream: str, identifier: str = "e") -> ExportStatus:
        statuses = self.streams.describe(stream).export_statuses
        return next(status for status in statuses if status.identifier == identifier)

    def export_run(self, identifier: str = "e") -> ExportRun:
        return next(run for run in self.planner.runs() if run.export.identifier == identifier)

    def payloads(self, name: str) -> list[bytes]:
        return [bytes(message.payload) for message in self.read(name)]


def delivered(flush: Flush, upto: int | None = None, since: int | None = None, **fields: Any) -> Outcome:
    """Ten bytes a message, confirmed up to a number."""
    upto = flush.next if upto is None else upto
    count = upto - (flush.first if since is None else since)
    return Outcome(flush.id, flush.attempt, upto, messages=count, payload_bytes=10 * count, **fields)


def failed(flush: Flush, error: str = "no such host", **fields: Any) -> Outcome:
    return Outcome(flush.id, flush.attempt, flush.first, error=error, done=True, **fields)


def ranges(flushes: Sequence[Flush]) -> list[tuple[str, int, int]]:
    return [(flush.identifier, flush.first, flush.next) for flush in flushes]


def counted(rig: PlannerRig, stream: str = "s", identifier: str = "e") -> tuple[int, int, int]:
    status = rig.status(stream, identifier)
    return status.last_exported_sequence_number, status.exported_messages, status.exported_bytes


def stored_status(rig: PlannerRig, stream: str, identifier: str = "e") -> ExportStatus:
    streams = {stored.definition.name: stored for stored in rig.store.catalog.streams()}
    return streams[stream].statuses[identifier]


def settings(version: str = "1", buffer_bytes: int = 5 * MIB, interval_ms: int = 300_000) -> dict[str, Any]:
    delivery = DeliverySettings(
        arn=ARN,
        name="d",
        account="000000000000",
        region="eu-west-1",
        version=version,
        buffer_bytes=buffer_bytes,
        interval_ms=interval_ms,
        destination="ExtendedS3",
        config={"BucketARN": "arn:aws:s3:::b"},
    )
    built: dict[str, Any] = msgspec.to_builtins(delivery)
    return built


class DeliveryRig(PlannerRig):
    def create_delivery(
        self, max_size_bytes: int = 2**40, segment_size_bytes: int = 16 * MIB, **fields: Any
    ) -> None:
        self.create_exported(
            ARN,
            Export(ExportKind.DELIVERY, settings(**fields)),
            flush_on_write=True,
            max_size_bytes=max_size_bytes,
            segment_size_bytes=segment_size_bytes,
        )

    def put(self, count: int, payload: bytes = b"x" * 100) -> None:
        self.append_many(ARN, count, payload)

    @property
    def delivery(self) -> DeliveryRun:
        run = self.planner.delivery(ARN)
        assert run is not None
        return run

    def trim(self) -> None:
        self.run(self.streams.expire())


def spans(flushes: list[Flush]) -> list[tuple[int, int]]:
    return [(flush.first, flush.next) for flush in flushes]


def request() -> LeaseRequest:
    return LeaseRequest("p", wait_ms=0)
