"""S3 file tasks, with a real HTTP door to read files through and object stores of three kinds to put them in."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from stream_manager import Status, StatusLevel, StatusMessage
from stream_manager.util import Util

from file_door import client_of, file_door
from harness import ServerProcess
from object_stores import (
    FaultyS3,
    TestStore,
    faulty_s3,
    folder_store,
    free_port,
    moto_store,
    s3_at,
)
from penstock.flush import Flush, LeaseRequest
from penstock.model import ExportKind
from penstock.pipeline.delivery import Task, deliver_flush
from penstock.pipeline.destinations import destination_for
from penstock.pipeline.destinations.base import Cancelled, DeliveryFailed, PipelineSettings, Progress, Record
from penstock.pipeline.destinations.s3tasks import part_size_bytes
from penstock.pipeline.server_client import ServerClient, ServerLost

MIB = 1024 * 1024
PLANNED_MS = 1_700_000_000_000  # 2023-11-14T22:13:20Z
FIRST = 40


class Notes(Progress):
    """What a destination told, in order; `on_status` may play a trick on it meanwhile."""

    def __init__(self) -> None:
        self.next = FIRST
        self.messages = 0
        self.payload_bytes = 0
        self.skips: dict[int, str] = {}
        self.statuses: list[StatusMessage] = []
        self.on_status: Callable[[StatusMessage], None] = lambda status: None
        self.cancel_at_call: int | None = None
        self.calls = 0

    def delivered(self, next_sequence: int, messages: int, payload_bytes: int) -> None:
        assert next_sequence == self.next + messages
        self.calls += 1
        if self.calls == self.cancel_at_call:
            raise Cancelled("the test has seen enough")
        self.next = next_sequence
        self.messages += messages
        self.payload_bytes += payload_bytes

    def skipped(self, next_sequence: int, reason: str) -> None:
        assert next_sequence == self.next + 1
        self.next = next_sequence
        self.skips[next_sequence - 1] = reason

    def status(self, message: str) -> None:
        status = Util.deserialize_json_bytes_to_obj(message.encode(), StatusMessage)
        self.statuses.append(status)
        self.on_status(status)

    def told(self) -> list[tuple[int, Status, StatusLevel]]:
        return [(s.status_context.sequence_number, s.status, s.status_level) for s in self.statuses]


class Export(NamedTuple):
    """An s3TaskExecutor export and the files that its tasks may read."""

    server: ServerClient
    files: Path
    stores: TestStore
    bucket: str

    def file(self, name: str, content: bytes) -> str:
        (self.files / name).write_bytes(content)
        return f"file:{self.files / name}"

    def task(self, input_url: str, key: str, **fields: Any) -> bytes:
        return json.dumps({"inputUrl": input_url, "bucket": self.bucket, "key": key, **fields}).encode()

    def deliver(
        self, *tasks: bytes, notes: Notes | None = None, level: int | None = 2, **config: Any
    ) -> Notes:
        """One attempt at a flush of these tasks, or at what an earlier attempt left of it."""
        notes = notes or Notes()
        if level is not None:
            config["statusConfig"] = {"statusStreamName": "statuses", "statusLevel": level}
        flush = Flush(
            id=1,
            stream="tasks",
            identifier="to-s3",
            kind=ExportKind.S3_TASK_EXECUTOR,
            settings={"identifier": "to-s3", **config},
            first=notes.next,
            next=FIRST + len(tasks),
            planned_ms=PLANNED_MS,
            nonce="0123456789abcdef",
        )
        records = [Record(FIRST + number, PLANNED_MS, task) for number, task in enumerate(tasks)]
        destination = destination_for(flush, self.stores.settings, self.server)
        destination.deliver(iter(records[notes.next - FIRST :]), notes)
        return notes

    def objects(self) -> dict[str, bytes]:
        store = self.stores.store
        return {key: store.get(self.bucket, key).body for key in store.keys(self.bucket)}


@pytest.fixture(autouse=True)
def aws_environment() -> None:
    """Each store brings its own."""


@pytest.fixture(scope="module")
def files_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerClient, Path]]:
    files = tmp_path_factory.mktemp("task-files")
    with file_door([files]) as url, client_of(url) as client:
        yield client, files


@pytest.fixture
def export(stores: TestStore, files_server: tuple[ServerClient, Path]) -> Export:
    return Export(*files_server, stores, stores.new_bucket())


# -- in every store ---------------------------------------------------------------------------------


def test_tasks_run_in_order_and_tell_of_it(export: Export) -> None:
    first = export.task(
        export.file("a", b"first"), "out/a", userMetadata={"Device": "Pump", "x-amz-meta-Site": "9"}
    )
    second = export.task(export.file("b", b""), "out/b")
    notes = export.deliver(first, second)
    assert export.objects() == {"out/a": b"first", "out/b": b""}
    assert export.stores.store.get(export.bucket, "out/a").metadata == {"device": "Pump", "site": "9"}
    assert notes.told() == [
        (40, Status.InProgress, StatusLevel.INFO),
        (40, Status.Success, StatusLevel.INFO),
        (41, Status.InProgress, StatusLevel.INFO),
        (41, Status.Success, StatusLevel.INFO),
    ]
    assert (notes.next, notes.messages, notes.payload_bytes) == (42, 2, len(first) + len(second))


def test_large_files_go_in_parts(export: Export) -> None:
    content = os.urandom(11 * MIB)
    notes = export.deliver(export.task(export.file("large", content), "large"), level=4)
    assert export.objects() == {"large": content}
    parts = [status.message for status in notes.statuses if status.status_level == StatusLevel.TRACE]
    assert parts == [f"uploaded part {number} of 3" for number in (1, 2, 3)]
    assert notes.told()[-1] == (40, Status.Success, StatusLevel.INFO)


def test_keys_come_from_the_flush(export: Export) -> None:
    """Whoever tries the task again, whenever that is, makes the same object of it."""
    task = export.task(export.file("a", b"x"), "log/!{timestamp:yyyy/MM/dd/HHmmss}.txt")
    export.deliver(task)
    export.deliver(task)
    assert list(export.objects()) == ["log/2023/11/14/221320.txt"]


def test_without_a_bucket(export: Export) -> None:
    elsewhere = export._replace(bucket="not-there-yet")
    task = elsewhere.task(export.file("a", b"x"), "k")
    notes = elsewhere.deliver(task)
    if export.stores.kind == "folder":  # made on first use
        assert elsewhere.objects() == {"k": b"x"}
    else:
        assert notes.told()[-1] == (40, Status.Failure, StatusLevel.ERROR)
        assert "NoSuchBucket" in notes.skips[40]
    assert notes.next == 41


# -- tasks that can never be done -------------------------------------------------------------------


@pytest.fixture(scope="module")
def in_folder(
    tmp_path_factory: pytest.TempPathFactory, files_server: tuple[ServerClient, Path]
) -> Iterator[Export]:
    with folder_store(tmp_path_factory.mktemp("store")) as store:
        yield Export(*files_server, store, "some-bucket")


@pytest.mark.parametrize(
    "payload",
    [
        b"not json",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b"{}",
        b'{"inputUrl": 5, "bucket": null, "key": ["x"], "userMetadata": "x"}',
        b'{"inputUrl": "file:{files}/good", "bucket": "some-bucket"}',
        b'{"inputUrl": "file:{files}/good", "bucket": "..", "key": "k"}',
        b'{"inputUrl": "file:{files}/good", "bucket": "192.168.0.1", "key": "k"}',
        b'{"inputUrl": "file:{files}/good", "bucket": "some-bucket", "key": ""}',
        b'{"inputUrl": "file:{files}/good", "bucket": "some-bucket", "key": "a b"}',
        b'{"inputUrl": "file:{files}/good", "bucket": "some-bucket", "key": "!{date:yyyy}"}',
        b'{"inputUrl": "file:{files}/good", "bucket": "some-bucket", "key": "!{timestamp:f}"}',
        b'{"inputUrl": "file:{files}/good", "bucket": "some-bucket", "key": "k", "userMetadata": {"$AWS-gg-x": "1"}}',
        b'{"inputUrl": "file:{files}/good", "bucket": "some-bucket", "key": "k", "userMetadata": {"a": 1}}',
        b'{"inputUrl": "file:{files}/good", "bucket": "some-bucket", "key": "k", "userMetadata": {"a": "\\n"}}',
        b'{"inputUrl": "file:{files}/missing", "bucket": "some-bucket", "key": "k"}',
        b'{"inputUrl": "file:{files}", "bucket": "some-bucket", "key": "k"}',
        b'{"inputUrl": "file:/etc/passwd", "bucket": "some-bucket", "key": "k"}',
        b'{"inputUrl": "/etc/passwd", "bucket": "some-bucket", "key": "k"}',
        b'{"inputUrl": "file://{files}/../../../../../../etc/passwd", "bucket": "some-bucket", "key": "k"}',
        b'{"inputUrl": "file://{files}/%2e%2e/secret", "bucket": "some-bucket", "key": "k"}',
        b'{"inputUrl": "file:{files}/link", "bucket": "some-bucket", "key": "k"}',
        b'{"inputUrl": "https://example.com/", "bucket": "some-bucket", "key": "k"}',
        b'{"inputUrl": "", "bucket": "some-bucket", "key": "k"}',
    ],
    ids=lambda payload: payload[:110].decode(errors="replace"),
)
def test_bad_tasks_and_forbidden_files_fail_and_the_next_goes_on(in_folder: Export, payload: bytes) -> None:
    link = in_folder.files / "link"
    if not link.is_symlink():
        link.symlink_to("/etc/passwd")
    good = in_folder.file("good", b"good")
    bad = payload.replace(b"{files}", str(in_folder.files).encode())
    notes = in_folder.deliver(bad, in_folder.task(good, "good"))
    assert in_folder.objects() == {"good": b"good"}
    assert notes.told() == [
        (40, Status.Failure, StatusLevel.ERROR),
        (41, Status.InProgress, StatusLevel.INFO),
        (41, Status.Success, StatusLevel.INFO),
    ]
    assert (list(notes.skips), notes.messages) == ([40], 1)
    assert notes.statuses[0].message == notes.skips[40]
    assert "root:" not in notes.skips[40]


def test_a_file_that_becomes_shorter_fails(in_folder: Export) -> None:
    notes = Notes()
    notes.on_status = lambda status: os.truncate(in_folder.files / "shrinking", 10 * MIB)
    url = in_folder.file("shrinking", bytes(12 * MIB))
    in_folder.deliver(in_folder.task(url, "shrinking"), notes=notes)
    assert notes.told()[-1] == (40, Status.Failure, StatusLevel.ERROR)
    assert "became shorter" in notes.skips[40]
    assert "shrinking" not in in_folder.objects()
    uploads = (
        Path(in_folder.stores.settings.object_store.removeprefix("file://")) / "some-bucket" / ".%uploads"
    )
    assert list(uploads.iterdir()) == []


def test_a_status_has_every_field_and_repeats_the_task(in_folder: Export) -> None:
    task = in_folder.task(in_folder.file("a", b"x"), "k!{timestamp:yyyy}", userMetadata={"A": "1"})
    messages: list[str] = []
    notes = Notes()
    notes.status = messages.append  # type: ignore[method-assign]
    in_folder.deliver(task, notes=notes)
    success = json.loads(messages[-1])
    assert success.pop("timestampEpochMs") > PLANNED_MS
    assert success == {
        "eventType": 0,
        "statusLevel": 2,
        "status": 0,
        "statusContext": {
            "s3ExportTaskDefinition": json.loads(task),
            "exportIdentifier": "to-s3",
            "streamName": "tasks",
            "sequenceNumber": 40,
        },
        "message": "uploaded to s3://some-bucket/k2023",
    }


@pytest.mark.parametrize(("level", "count"), [(0, 1), (1, 1), (2, 3), (3, 3), (4, 3), (None, 0)])
def test_levels(in_folder: Export, level: int | None, count: int) -> None:
    good = in_folder.task(in_folder.file("a", b"x"), "k")
    assert len(in_folder.deliver(b"bad", good, level=level).statuses) == count


def test_info_is_the_usual_level(in_folder: Export) -> None:
    good = in_folder.task(in_folder.file("a", b"x"), "k")
    notes = in_folder.deliver(good, level=None, statusConfig={"statusStreamName": "statuses"})
    assert [status.status for status in notes.statuses] == [Status.InProgress, Status.Success]
    assert in_folder.deliver(good, level=None, statusConfig={"statusLevel": 4}).statuses == []


# -- stores that fail -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty_server() -> Iterator[tuple[FaultyS3, TestStore]]:
    with (
        moto_store(),
        faulty_s3(os.environ["AWS_ENDPOINT_URL_S3"]) as (server, url),
        s3_at(url, "faulty") as store,
    ):
        yield server, store


@pytest.fixture
def faulty(
    faulty_server: tuple[FaultyS3, TestStore], files_server: tuple[ServerClient, Path]
) -> tuple[FaultyS3, Export]:
    server, store = faulty_server
    server.heal()
    bucket = store.new_bucket()
    server.requests.clear()
    return server, Export(*files_server, store, bucket)


def unfinished_uploads(bucket: str) -> list[Any]:
    client = boto3.client("s3")
    uploads = client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])
    client.close()
    return list(uploads)


@pytest.mark.parametrize(("status", "code"), [(403, "AccessDenied"), (400, "InvalidArgument")])
def test_what_s3_refuses_fails(faulty: tuple[FaultyS3, Export], status: int, code: str) -> None:
    server, export = faulty
    server.fail("PutObject", status, code)
    notes = export.deliver(export.task(export.file("a", b"x"), "k"))
    assert notes.told()[-1] == (40, Status.Failure, StatusLevel.ERROR)
    assert code in notes.skips[40]


@pytest.mark.parametrize(
    ("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (400, "ExpiredToken")]
)
def test_what_passes_is_tried_again(faulty: tuple[FaultyS3, Export], status: int, code: str) -> None:
    """And what was finished before is not."""
    server, export = faulty
    tasks = [export.task(export.file(name, name.encode()), name) for name in "abc"]
    server.fail("PutObject", status, code, after=1)
    notes = Notes()
    with pytest.raises(DeliveryFailed, match=code):
        export.deliver(*tasks, notes=notes, level=3)
    assert notes.told()[-1] == (41, Status.InProgress, StatusLevel.DEBUG)
    assert (notes.next, notes.messages, notes.skips) == (41, 1, {})
    server.heal()
    export.deliver(*tasks, notes=notes, level=3)
    assert [request.path.split("/")[-1] for request in server.requests] == ["b", "c"]
    assert (notes.next, notes.messages) == (43, 3)
    assert export.objects() == {"a": b"a", "b": b"b", "c": b"c"}


def test_nobody_at_home(faulty: tuple[FaultyS3, Export]) -> None:
    _, export = faulty
    with s3_at(f"http://127.0.0.1:{free_port()}", "nobody") as store, pytest.raises(DeliveryFailed):
        export._replace(stores=store).deliver(export.task(export.file("a", b"x"), "k"))


def test_the_threshold(faulty: tuple[FaultyS3, Export]) -> None:
    """Up to it one request, beyond it parts; and never more in one request than S3 takes."""
    server, export = faulty
    export.deliver(export.task(export.file("at", bytes(5 * MIB)), "at"))
    assert server.operations() == ["PutObject"]
    server.heal()
    export.deliver(export.task(export.file("beyond", bytes(5 * MIB + 1)), "beyond"))
    parts = ["UploadPart", "UploadPart"]
    assert server.operations() == ["CreateMultipartUpload", *parts, "CompleteMultipartUpload"]
    sizes = [r.headers["content-length"] for r in server.requests if r.operation == "UploadPart"]
    assert sizes == [str(5 * MIB), "1"]
    server.heal()
    export.deliver(
        export.task(export.file("set", bytes(6 * MIB)), "set"), sizeThresholdForMultipartUploadBytes=6 * MIB
    )
    assert server.operations() == ["PutObject"]


def test_the_least_size_of_parts(faulty: tuple[FaultyS3, Export]) -> None:
    server, export = faulty
    larger = PipelineSettings(object_store="s3", s3_min_part_size_bytes=6 * MIB)
    export = export._replace(stores=export.stores._replace(settings=larger))
    export.deliver(export.task(export.file("a", bytes(6 * MIB)), "a"))
    export.deliver(export.task(export.file("b", bytes(7 * MIB)), "b"))
    sizes = [r.headers["content-length"] for r in server.requests if r.method == "PUT"]
    assert sizes == [str(6 * MIB), str(6 * MIB), str(MIB)]


def test_parts_are_never_too_many() -> None:
    tib = 1024**4
    assert part_size_bytes(MIB, 5 * MIB) == 5 * MIB
    for size_bytes in (48 * 1024 * MIB, 50 * 1024 * MIB + 1, 5 * tib, 5 * tib - 1):
        part_bytes = part_size_bytes(size_bytes, 5 * MIB)
        assert -(-size_bytes // part_bytes) <= 10_000
        assert part_bytes >= 5 * MIB


def test_a_failed_upload_is_aborted(faulty: tuple[FaultyS3, Export]) -> None:
    server, export = faulty
    server.fail("UploadPart", 503, "SlowDown", after=1)
    task = export.task(export.file("large", bytes(11 * MIB)), "large")
    notes = Notes()
    with pytest.raises(DeliveryFailed, match="SlowDown"):
        export.deliver(task, notes=notes)
    assert server.operations()[-1] == "AbortMultipartUpload"
    server.heal()
    assert unfinished_uploads(export.bucket) == []
    export.deliver(task, notes=notes)
    assert notes.told()[-1] == (40, Status.Success, StatusLevel.INFO)


def test_an_upload_that_cannot_be_aborted_is_warned_of(faulty: tuple[FaultyS3, Export]) -> None:
    server, export = faulty
    server.fail("UploadPart", 403, "AccessDenied")
    refuse_part = server.fault_of
    server.fail("AbortMultipartUpload", 403, "AccessDenied")
    refuse_abort = server.fault_of
    server.fault_of = lambda request: refuse_part(request) or refuse_abort(request)
    notes = export.deliver(export.task(export.file("large", bytes(6 * MIB)), "large"))
    assert notes.told() == [
        (40, Status.InProgress, StatusLevel.INFO),
        (40, Status.Warning, StatusLevel.WARN),
        (40, Status.Failure, StatusLevel.ERROR),
    ]


def test_a_cancelled_upload_is_aborted(faulty: tuple[FaultyS3, Export]) -> None:
    server, export = faulty
    notes = Notes()
    notes.cancel_at_call = 2  # which is before the second part
    with pytest.raises(Cancelled):
        export.deliver(export.task(export.file("large", bytes(11 * MIB)), "large"), notes=notes)
    assert server.operations() == ["CreateMultipartUpload", "UploadPart", "AbortMultipartUpload"]
    assert unfinished_uploads(export.bucket) == []


def test_when_the_server_is_lost_the_upload_is_aborted(
    faulty: tuple[FaultyS3, Export], tmp_path: Path
) -> None:
    server, export = faulty
    notes = Notes()
    with file_door([tmp_path]) as url, client_of(url) as client:
        lost = export._replace(files=tmp_path, server=client)
        task = lost.task(lost.file("large", bytes(11 * MIB)), "large")

        def lose(status: StatusMessage) -> None:
            if status.status_level == StatusLevel.TRACE:
                client._port = free_port()
                client.close()
                client._local.connection = None

        notes.on_status = lose
        with pytest.raises(ServerLost):
            lost.deliver(task, notes=notes, level=4)
    assert server.operations()[-1] == "AbortMultipartUpload"
    assert notes.next == FIRST


def test_an_object_that_is_there_counts_even_if_nobody_hears_of_it(in_folder: Export) -> None:
    """The report of the success brings the news that the export is paused: the task is done all the same."""
    notes = Notes()

    def pause(status: StatusMessage) -> None:
        if status.status == Status.Success:
            raise Cancelled("paused")

    notes.on_status = pause
    with pytest.raises(Cancelled):
        in_folder.deliver(in_folder.task(in_folder.file("a", b"x"), "paused"), notes=notes)
    assert (notes.next, notes.messages) == (41, 1)


# -- the page ---------------------------------------------------------------------------------------


def deliver_until(stop: threading.Event, url: str, token: str, settings: PipelineSettings) -> None:
    """What the pipeline does, without Spark."""
    server = ServerClient(url, token)
    task = Task(server_url=url, token=token, pipeline="test", threads=1, settings=settings)
    while not stop.is_set():
        for flush in server.lease(LeaseRequest("test", wait_ms=200)).flushes:
            deliver_flush(flush, task, server)
    server.close()


def test_the_documented_example(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "destinations" / "s3-file-tasks.md").read_text()
    [program] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    images = tmp_path / "images"
    images.mkdir()
    (images / "image 1.jpg").write_bytes(b"jpeg")
    server = ServerProcess(tmp_path / "data", env={"PENSTOCK_READ_ONLY_DIRS": str(images)}).start()
    token = (server.data_dir / "http-token").read_text().strip()
    stop = threading.Event()
    with folder_store(tmp_path / "objects") as stores:
        url = f"http://127.0.0.1:{server.http_port}"
        pipeline = threading.Thread(target=deliver_until, args=(stop, url, token, stores.settings))
        pipeline.start()
        try:
            ran = subprocess.run(
                [sys.executable, "-c", program, str(images / "image 1.jpg").replace(" ", "%20"), "photos"],
                env={**os.environ, "STREAM_MANAGER_SERVER_PORT": str(server.port)},
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
        finally:
            stop.set()
            pipeline.join()
            server.stop()
        [key] = stores.store.keys("photos")
        assert re.fullmatch(r"camera/\d{4}/\d\d/\d\d/image\.jpg", key)
        assert stores.store.get("photos", key)[:2] == (b"jpeg", {"camera": "north"})
    assert ran.stdout.splitlines() == [
        f"InProgress uploading 4 bytes to s3://photos/{key}",
        f"Success uploaded to s3://photos/{key}",
    ]
