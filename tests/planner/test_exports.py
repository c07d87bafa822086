"""Exports as their definitions change: paused, removed, moved, with other settings."""

from __future__ import annotations

import msgspec

from penstock.failures import BACKOFF_MAX_S
from penstock.flush import Outcome
from penstock.model import (
    ExportKind,
)
from planner.rig import (
    PlannerRig,
    delivered,
    export,
    ranges,
)


def test_a_disabled_export_pauses_and_goes_on_from_where_it_was(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    rig.deliver(rig.lease_one())
    rig.update("s", export(disabled=True))
    rig.append_many("s", 2)
    assert rig.lease() == []
    rig.update("s", export(disabled=False))
    assert ranges(rig.lease()) == [("e", 3, 5)]


def test_disabling_stops_the_flush_under_way_and_keeps_what_it_did(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    flush = rig.lease_one()
    rig.update("s", export(disabled=True))
    assert rig.report(delivered(flush, 4)).cancelled == [flush.id]
    rig.report(Outcome(flush.id, flush.attempt, 4, done=True))
    assert rig.lease() == []
    rig.update("s", export())
    again = rig.lease_one()
    assert (again.first, again.next, again.nonce) == (4, 10, flush.nonce)
    assert rig.status("s").last_exported_sequence_number == 3


def test_removing_an_export_cancels_its_flush(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()
    rig.update("s")
    assert rig.report(delivered(flush, 1)).cancelled == [flush.id]
    rig.update("s", export())
    assert rig.status("s").last_exported_sequence_number == -1
    assert ranges(rig.lease()) == [("e", 0, 3)]
    assert rig.report(delivered(flush)).cancelled == [flush.id]


def test_removing_an_export_tells_of_the_tasks_it_cancels(rig: PlannerRig) -> None:
    rig.create("told")
    status_config = {"statusStreamName": "told", "statusLevel": 1}
    rig.create("s", exports=(export(kind=ExportKind.S3_TASK_EXECUTOR, statusConfig=status_config),))
    rig.append("s", b'{"inputUrl": "file:/x", "bucket": "bbb", "key": "k"}', b"no task")
    rig.lease_one()
    rig.update("s")
    messages = [msgspec.json.decode(payload) for payload in rig.payloads("told")]
    assert [(m["status"], m["statusContext"]["sequenceNumber"]) for m in messages] == [(4, 0), (4, 1)]
    assert messages[0]["statusContext"]["s3ExportTaskDefinition"]["bucket"] == "bbb"


def test_deleting_a_stream_cancels_its_flushes(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()
    rig.run(rig.streams.delete("s"))
    assert rig.report(delivered(flush)).cancelled == [flush.id]
    assert rig.planner.runs() == []
    rig.create_exported("s", export(), messages=1)
    assert ranges(rig.lease()) == [("e", 0, 1)]


def test_another_start_sequence_number_moves_the_export(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=10)
    rig.deliver(rig.lease_one())
    rig.append_many("s", 2)
    flush = rig.lease_one()
    rig.update("s", export(startSequenceNumber=4), moved={"e": 4})
    assert rig.report(delivered(flush)).cancelled == [flush.id]
    again = rig.lease_one()
    assert (again.first, again.next) == (4, 12)
    assert again.nonce != flush.nonce


def test_the_next_attempt_has_the_settings_of_the_update(rig: PlannerRig) -> None:
    rig.create_exported("s", export(), messages=3)
    flush = rig.lease_one()
    rig.update("s", export(uri="http://127.0.0.1:2/"))
    rig.fail(flush)
    rig.clock.advance(BACKOFF_MAX_S)
    assert rig.lease_one(probing=True).settings["uri"] == "http://127.0.0.1:2/"
