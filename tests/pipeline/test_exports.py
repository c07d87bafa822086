"""Exports from end to end: the official SDK appends, Spark delivers, and the destination is the judge."""

from __future__ import annotations

import base64
import calendar
import json
import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from stream_manager import (
    AssetPropertyValue,
    ExportDefinition,
    IoTAnalyticsConfig,
    IoTSiteWiseConfig,
    KinesisConfig,
    MessageStreamDefinition,
    PutAssetPropertyValueEntry,
    Quality,
    ReadMessagesOptions,
    S3ExportTaskDefinition,
    S3ExportTaskExecutorConfig,
    Status,
    StatusConfig,
    StatusLevel,
    StatusMessage,
    TimeInNanos,
    Variant,
)
from stream_manager.util import Util

from pipeline.conftest import Aws, Site, http_export, http_exports, wait_until
from pipeline.sink import Sink

TRUE_WITHIN_S = 1.0


def wait_for_status(site: Site, stream: str, identifier: str | None = None, **wanted: Any) -> Any:
    """Wait until describe says so; what was delivered must show within a second."""

    def shown() -> bool:
        status = site.status(stream, identifier)
        return all(getattr(status, name) == value for name, value in wanted.items())

    wait_until(shown, lambda: vars(site.status(stream, identifier)), TRUE_WITHIN_S)
    return site.status(stream, identifier)


# -- HTTP -------------------------------------------------------------------------------------------


def test_http_raw(site: Site, sink: Sink) -> None:
    site.create("raw", http_exports(http_export(sink.url("raw"), batched=False)))
    payloads = site.append("raw", 20)
    wait_until(lambda: len(sink.bodies("raw")) >= 20, site.pipeline.log_tail)
    status = wait_for_status(site, "raw", exported_messages_count=20)
    assert sink.bodies("raw") == payloads
    assert {post.content_type for post in sink.posts["raw"]} == {"application/octet-stream"}
    assert status.last_exported_sequence_number == 19
    assert status.exported_bytes_from_stream == sum(map(len, payloads))
    assert abs(status.last_export_time - time.time() * 1000) < 60_000
    assert status.error_message == ""


def test_http_batched(site: Site, sink: Sink) -> None:
    """What waits is sent in batches of the configured size, as the SDKs serialise messages."""
    site.create("batched", http_exports(http_export(sink.url("batched"), batch_size=8, disabled=True)))
    payloads = site.append("batched", 20)
    site.update("batched", enable)
    wait_until(lambda: len(sink.messages("batched")) >= 20, site.pipeline.log_tail)
    batches = [json.loads(body) for body in sink.bodies("batched")]
    assert [len(batch) for batch in batches] == [8, 8, 4]
    messages = [message for batch in batches for message in batch]
    assert [base64.b64decode(message["payload"]) for message in messages] == payloads
    assert [message["sequenceNumber"] for message in messages] == list(range(20))
    assert {message["streamName"] for message in messages} == {"batched"}
    stored = site.client.read_messages("batched", ReadMessagesOptions(min_message_count=20))
    assert [message["ingestTime"] for message in messages] == [m.ingest_time for m in stored]
    wait_for_status(site, "batched", last_exported_sequence_number=19)


def test_several_exports_of_a_stream(site: Site, sink: Sink) -> None:
    exports = [
        http_export(sink.url("several-a"), "a"),
        http_export(sink.url("several-b"), "b", start_sequence_number=5),
        http_export(sink.url("several-c"), "c", disabled=True),
    ]
    site.create("several", http_exports(*exports))
    payloads = site.append("several", 10)
    wait_until(lambda: len(sink.messages("several-a")) >= 10)
    wait_until(lambda: len(sink.messages("several-b")) >= 5)
    assert sink.messages("several-a") == payloads
    assert sink.messages("several-b") == payloads[5:]
    assert sink.messages("several-c") == []
    wait_for_status(site, "several", "a", exported_messages_count=10)
    wait_for_status(site, "several", "b", exported_messages_count=5)
    wait_for_status(site, "several", "c", last_exported_sequence_number=-1, last_export_time=0)


# -- a destination that goes away, refuses, or hangs ------------------------------------------------


@pytest.fixture
def own_sink() -> Iterator[Sink]:
    """For a test that takes its destination away."""
    made = Sink()
    yield made
    made.close()


def test_a_destination_that_is_down_for_a_while(site: Site, own_sink: Sink) -> None:
    site.create("down", http_exports(http_export(own_sink.url("down"), batched=False)))
    before = site.append("down", 5)
    wait_until(lambda: len(own_sink.bodies("down")) >= 5)
    own_sink.close()
    during = site.append("down", 5, start=5)
    wait_until(lambda: site.status("down").error_message)
    status = site.status("down")
    assert f"127.0.0.1:{own_sink.port}" in status.error_message
    assert "refused" in status.error_message
    assert (status.last_exported_sequence_number, status.exported_messages_count) == (4, 5)
    own_sink.open()
    wait_until(lambda: len(own_sink.bodies("down")) >= 10)
    assert own_sink.bodies("down") == before + during
    wait_for_status(site, "down", last_exported_sequence_number=9, error_message="")


def test_a_destination_that_refuses(site: Site, sink: Sink) -> None:
    sink.statuses["refuses"] = 503
    site.create("refuses", http_exports(http_export(sink.url("refuses"))))
    payloads = site.append("refuses", 3)
    wait_until(lambda: "503" in site.status("refuses").error_message)
    del sink.statuses["refuses"]
    wait_until(lambda: sink.messages("refuses") == payloads)
    wait_for_status(site, "refuses", last_exported_sequence_number=2, error_message="")


def test_destinations_that_hang_hold_up_no_other(site: Site, sink: Sink) -> None:
    """More of them than a small machine has cores. They hang for 60 s, which is longer than anybody waits here."""
    held = [sink.hold(f"hangs-{n}") for n in range(4)]
    try:
        for n in range(4):
            site.create(f"hangs-{n}", http_exports(http_export(sink.url(f"hangs-{n}"), priority=1)))
            site.append(f"hangs-{n}", 1)
        site.create("lively", http_exports(http_export(sink.url("lively"))))
        for start in range(5):
            site.append("lively", 1, start=start)
            wait_until(lambda: len(sink.messages("lively")) == start + 1, site.pipeline.log_tail, 20)  # noqa: B023
    finally:
        for event in held:
            event.set()
    for n in range(4):
        wait_until(lambda: sink.messages(f"hangs-{n}") == [b"hangs-%d 0" % n])  # noqa: B023


# -- updates under way ------------------------------------------------------------------------------


def enable(definition: MessageStreamDefinition) -> None:
    for config in definition.export_definition.http:
        config.disabled = False


def disable(definition: MessageStreamDefinition) -> None:
    for config in definition.export_definition.http:
        config.disabled = True


def remove_exports(definition: MessageStreamDefinition) -> None:
    definition.export_definition = None


def move_to(uri: str) -> Callable[[MessageStreamDefinition], None]:
    def change(definition: MessageStreamDefinition) -> None:
        for config in definition.export_definition.http:
            config.uri = uri

    return change


class SlowPath:
    """Answers a path's requests one by one, whenever the test says so."""

    def __init__(self, sink: Sink, path: str, pause_s: float) -> None:
        self._sink, self._path, self._pause_s = sink, path, pause_s

    def __enter__(self) -> SlowPath:
        self._sink.pauses_s[self._path] = self._pause_s
        return self

    def __exit__(self, *_: object) -> None:
        del self._sink.pauses_s[self._path]


def settled(sink: Sink, path: str) -> int:
    """How many messages have come when no more do."""
    count = -1
    while count != (count := len(sink.messages(path))):
        time.sleep(0.5)  # that nothing comes cannot be awaited
    return count


def test_pause_and_resume_under_way(site: Site, sink: Sink) -> None:
    site.create("paused", http_exports(http_export(sink.url("paused"), batch_size=10, disabled=True)))
    payloads = site.append("paused", 500)
    with SlowPath(sink, "paused", 0.05):
        site.update("paused", enable)
        wait_until(lambda: len(sink.messages("paused")) >= 50)
        site.update("paused", disable)
        paused_s = time.monotonic()
        assert settled(sink, "paused") < 300, "it went on"
        assert time.monotonic() - paused_s < 4
    site.update("paused", enable)
    wait_until(lambda: len(sink.messages("paused")) >= 500)
    assert sink.messages("paused") == payloads, "each once, in order"


def test_removal_under_way(site: Site, sink: Sink) -> None:
    site.create("removed", http_exports(http_export(sink.url("removed"), batch_size=10, disabled=True)))
    payloads = site.append("removed", 500)
    with SlowPath(sink, "removed", 0.05):
        site.update("removed", enable)
        wait_until(lambda: len(sink.messages("removed")) >= 50)
        site.update("removed", remove_exports)
        assert settled(sink, "removed") < 300, "it went on"
    assert site.client.describe_message_stream("removed").export_statuses == []
    site.update(
        "removed", lambda d: setattr(d, "export_definition", http_exports(http_export(sink.url("again"))))
    )
    wait_until(lambda: len(sink.messages("again")) >= 500)
    assert sink.messages("again") == payloads


def test_a_wrong_address_is_mended(site: Site, sink: Sink, own_sink: Sink) -> None:
    own_sink.close()
    site.create("mended", http_exports(http_export(own_sink.url("mended"))))
    payloads = site.append("mended", 3)
    wait_until(lambda: site.status("mended").error_message)
    site.update("mended", move_to(sink.url("mended")))
    wait_until(lambda: sink.messages("mended") == payloads, site.pipeline.log_tail, 5)
    wait_for_status(site, "mended", error_message="", last_exported_sequence_number=2)


def test_a_deleted_stream_is_delivered_no_more(site: Site, sink: Sink) -> None:
    site.create("deleted", http_exports(http_export(sink.url("deleted"), batch_size=10, disabled=True)))
    site.append("deleted", 500)
    with SlowPath(sink, "deleted", 0.05):
        site.update("deleted", enable)
        wait_until(lambda: len(sink.messages("deleted")) >= 20)
        site.client.delete_message_stream("deleted")
        assert settled(sink, "deleted") < 300, "it went on"
    site.create("deleted", http_exports(http_export(sink.url("deleted-2"))))
    payloads = site.append("deleted", 3)
    wait_until(lambda: sink.messages("deleted-2") == payloads)


def test_describe_follows_a_long_delivery(site: Site, sink: Sink) -> None:
    """At any moment describe shows what had been delivered a second ago, and never more than was delivered."""
    site.create("long", http_exports(http_export(sink.url("long"), batch_size=10, disabled=True)))
    site.append("long", 600)
    with SlowPath(sink, "long", 0.05):
        site.update("long", enable)
        wait_until(lambda: sink.bodies("long"))
        for _ in range(4):
            at_least = len(sink.messages("long"))
            wait_until(
                lambda: site.status("long").exported_messages_count >= at_least,  # noqa: B023
                lambda: vars(site.status("long")),
                TRUE_WITHIN_S,
            )
            status = site.status("long")
            assert status.last_exported_sequence_number == status.exported_messages_count - 1
            assert status.exported_messages_count <= len(sink.messages("long"))
            time.sleep(0.3)  # to look at another moment of the same delivery
    wait_until(lambda: len(sink.messages("long")) == 600)
    wait_for_status(site, "long", exported_messages_count=600)


def test_appends_go_on_while_exports_are_delivered(site: Site, sink: Sink) -> None:
    """Writers and the pipeline at the same time: all arrives, in order, once."""
    site.create("busy", http_exports(http_export(sink.url("busy"))))
    payloads: list[bytes] = []
    writer = threading.Thread(target=lambda: payloads.extend(site.append("busy", 2000)))
    writer.start()
    writer.join()
    wait_until(lambda: len(sink.messages("busy")) >= 2000, site.pipeline.log_tail)
    assert sink.messages("busy") == payloads


# -- Kinesis ----------------------------------------------------------------------------------------


def records_of(aws: Aws, stream: str) -> list[dict[str, Any]]:
    kinesis = aws.client("kinesis")
    records = []
    for shard in kinesis.list_shards(StreamName=stream)["Shards"]:
        iterator = kinesis.get_shard_iterator(
            StreamName=stream, ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
        )["ShardIterator"]
        records += kinesis.get_records(ShardIterator=iterator)["Records"]
    return records


def test_the_kinesis_example(site: Site, aws: Aws) -> None:
    """stream_manager_kinesis.py of the SDK, shortened where it goes on for ever."""
    stream_name, kinesis_stream_name = "SomeStream", "MyKinesisStream"
    aws.client("kinesis").create_stream(StreamName=kinesis_stream_name, ShardCount=2)
    exports = ExportDefinition(
        kinesis=[
            KinesisConfig(identifier="KinesisExport" + stream_name, kinesis_stream_name=kinesis_stream_name)
        ]
    )
    site.create(stream_name, exports)
    site.client.append_message(stream_name, b"ABCDEFGHIJKLMNO")
    site.client.append_message(stream_name, b"PQRSTUVWXYZ")
    read = site.client.read_messages(
        stream_name, ReadMessagesOptions(min_message_count=2, read_timeout_millis=1000)
    )
    assert len(read) == 2
    numbers = [random.randint(0, 1000) for _ in range(50)]
    for number in numbers:
        site.client.append_message(stream_name, data=number.to_bytes(4, byteorder="big"))
    wait_until(
        lambda: len(records_of(aws, kinesis_stream_name)) >= 52, lambda: vars(site.status(stream_name))
    )
    sent = [b"ABCDEFGHIJKLMNO", b"PQRSTUVWXYZ", *(number.to_bytes(4, "big") for number in numbers)]
    records = records_of(aws, kinesis_stream_name)
    assert sorted(record["Data"] for record in records) == sorted(sent)
    assert len({record["PartitionKey"] for record in records}) == 52
    wait_for_status(site, stream_name, exported_messages_count=52, error_message="")


def test_a_kinesis_stream_that_is_created_late(site: Site, aws: Aws) -> None:
    exports = ExportDefinition(kinesis=[KinesisConfig(identifier="k", kinesis_stream_name="late")])
    site.create("kinesis-late", exports)
    payloads = site.append("kinesis-late", 3)
    wait_until(lambda: site.status("kinesis-late").error_message == "export stream late doesn't exist")
    aws.client("kinesis").create_stream(StreamName="late", ShardCount=1)
    wait_until(lambda: len(records_of(aws, "late")) >= 3)
    assert [record["Data"] for record in records_of(aws, "late")] == payloads
    wait_for_status(site, "kinesis-late", last_exported_sequence_number=2, error_message="")


# -- S3 ---------------------------------------------------------------------------------------------


def statuses_until_end(site: Site, stream: str) -> list[StatusMessage]:
    """As stream_manager_s3.py of the SDK reads them: one by one until Success or Failure."""
    statuses: list[StatusMessage] = []
    deadline_s = time.monotonic() + 30
    while not statuses or statuses[-1].status not in (Status.Success, Status.Failure):
        options = ReadMessagesOptions(
            desired_start_sequence_number=len(statuses), min_message_count=1, read_timeout_millis=1000
        )
        try:
            messages = site.client.read_messages(stream, options)
        except Exception:
            assert time.monotonic() < deadline_s, [vars(status) for status in statuses]
            continue
        statuses += [Util.deserialize_json_bytes_to_obj(m.payload, StatusMessage) for m in messages]
    return statuses


def s3_exports(status_stream: str | None = None, level: StatusLevel = StatusLevel.INFO) -> ExportDefinition:
    config = S3ExportTaskExecutorConfig(identifier="S3TaskExecutor")
    if status_stream is not None:
        config.status_config = StatusConfig(status_level=level, status_stream_name=status_stream)
    return ExportDefinition(s3_task_executor=[config])


def test_the_s3_example_with_a_status_stream(site: Site, aws: Aws, files: Path) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="my-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    path = files / "sensor data.csv"
    path.write_bytes(b"a,b\n1,2\n")
    site.create("SomeStatusStream")
    site.create("SomeS3Stream", s3_exports("SomeStatusStream"))
    task = S3ExportTaskDefinition(
        input_url=path.as_uri(), bucket="my-bucket", key="data/key.csv", user_metadata={"device": "42"}
    )
    number = site.client.append_message("SomeS3Stream", Util.validate_and_serialize_to_json_bytes(task))
    statuses = statuses_until_end(site, "SomeStatusStream")
    assert [status.status for status in statuses] == [Status.InProgress, Status.Success]
    context = statuses[-1].status_context
    assert (context.stream_name, context.sequence_number) == ("SomeS3Stream", number)
    assert context.export_identifier == "S3TaskExecutor"
    assert context.s3_export_task_definition.key == "data/key.csv"
    found = s3.get_object(Bucket="my-bucket", Key="data/key.csv")
    assert (found["Body"].read(), found["Metadata"]) == (b"a,b\n1,2\n", {"device": "42"})
    wait_for_status(site, "SomeS3Stream", last_exported_sequence_number=0, error_message="")


def test_a_task_that_cannot_be_done_does_not_stop_the_next(site: Site, aws: Aws, files: Path) -> None:
    s3 = aws.client("s3")
    s3.create_bucket(Bucket="good-bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    (files / "good").write_bytes(b"good")
    (files / "out").symlink_to("/etc/hostname")
    site.create("bad-statuses")
    site.create("bad-tasks", s3_exports("bad-statuses", StatusLevel.ERROR))
    bad_urls = ["file:///etc/passwd", (files / "missing").as_uri(), (files / "out").as_uri()]
    bad_urls.append((files / ".." / ".." / "etc" / "passwd").as_uri())
    for number, url in enumerate(bad_urls):
        task = S3ExportTaskDefinition(input_url=url, bucket="good-bucket", key=f"bad-{number}")
        site.client.append_message("bad-tasks", Util.validate_and_serialize_to_json_bytes(task))
    site.client.append_message("bad-tasks", b"no task at all")
    good = S3ExportTaskDefinition(input_url=(files / "good").as_uri(), bucket="good-bucket", key="good")
    site.client.append_message("bad-tasks", Util.validate_and_serialize_to_json_bytes(good))
    wait_until(lambda: site.status("bad-tasks").last_exported_sequence_number == 5, site.pipeline.log_tail)
    options = ReadMessagesOptions(min_message_count=5, max_message_count=100, read_timeout_millis=5000)
    messages = site.client.read_messages("bad-statuses", options)
    statuses = [Util.deserialize_json_bytes_to_obj(m.payload, StatusMessage) for m in messages]
    assert [status.status for status in statuses] == [Status.Failure] * 5
    assert [status.status_context.sequence_number for status in statuses] == [0, 1, 2, 3, 4]
    listed = s3.list_objects_v2(Bucket="good-bucket")
    assert [found["Key"] for found in listed["Contents"]] == ["good"]


# -- SiteWise and IoT Analytics ---------------------------------------------------------------------


def random_entry() -> PutAssetPropertyValueEntry:
    """get_random_site_wise_entry() of stream_manager_sitewise.py."""
    time_in_nanos = TimeInNanos(
        time_in_seconds=calendar.timegm(time.gmtime()) - random.randint(0, 60),
        offset_in_nanos=random.randint(0, 10000),
    )
    variant = Variant(double_value=random.random())
    asset = [AssetPropertyValue(value=variant, quality=Quality.GOOD, timestamp=time_in_nanos)]
    return PutAssetPropertyValueEntry(
        entry_id=str(uuid.uuid4()), property_alias="PropertyAlias", property_values=asset
    )


def test_the_sitewise_example(site: Site, aws: Aws) -> None:
    aws.sitewise.reset()
    exports = ExportDefinition(
        iot_sitewise=[IoTSiteWiseConfig(identifier="IoTSiteWiseExportSomeStream", batch_size=5)]
    )
    site.create("SomeSiteWiseStream", exports)
    entries = [random_entry() for _ in range(23)]
    for entry in entries:
        site.client.append_message("SomeSiteWiseStream", Util.validate_and_serialize_to_json_bytes(entry))
    wait_until(
        lambda: len(aws.sitewise.values) >= len(entries), lambda: vars(site.status("SomeSiteWiseStream"))
    )
    assert aws.sitewise.problems == []
    assert all(len(request["entries"]) <= 5 for request in aws.sitewise.requests)
    sent = {entry.property_values[0].value.double_value for entry in entries}
    assert set(aws.sitewise.values.values()) == sent
    wait_for_status(site, "SomeSiteWiseStream", exported_messages_count=23, error_message="")


def test_iot_analytics_without_an_endpoint_says_so(site: Site) -> None:
    exports = ExportDefinition(iot_analytics=[IoTAnalyticsConfig(identifier="a", iot_channel="channel")])
    site.create("analytics", exports)
    site.append("analytics", 1)
    wait_until(lambda: site.status("analytics").error_message)
    assert "AWS_ENDPOINT_URL_IOTANALYTICS" in site.status("analytics").error_message
    assert site.status("analytics").last_exported_sequence_number == -1
