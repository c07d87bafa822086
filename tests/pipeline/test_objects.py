"""The object store: the same calls do the same in a folder, in moto and in a real S3 server."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from object_stores import (
    FaultyS3,
    TestStore,
    faulty_s3,
    free_port,
    moto_store,
    s3_at,
)
from penstock.errors import ConfigError
from penstock.pipeline import object_folder, object_s3
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.object_folder import FolderStore
from penstock.pipeline.objects import ObjectHeaders, ObjectRefused, StoreUnavailable, store_for

MIB = 1024 * 1024
ODD_KEYS = [
    "plain.txt",
    "a/b/c.gz",
    "spaces and +plus",
    "100%25 %",
    "naïve/日本語",
    "colon:at@tilde~",
    "x" * 200,
]
# Legal in S3, but not in rclone, which keeps objects as files of the same name.
ANY_KEY = pytest.mark.parametrize("stores", ["folder", "moto"], indirect=True)
VERY_ODD_KEYS = [
    "x" * 1024,
    "long/" + "é" * 500,
    "../up",
    "../../etc/passwd",
    "..",
    ".",
    "a/./b",
    "a/../../b",
    "/leading",
    "//",
    "trailing/",
    "a//b",
    "control\x01character",
    ".%uploads/x",
    ".%metadata-x",
    "%empty",
    "x%",
    "x%+",
]


# -- everywhere -------------------------------------------------------------------------------------


def test_what_is_put_is_there(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    store.put(bucket, "a/b.txt", b"hello", {"device": "Pump 7"})
    assert store.get(bucket, "a/b.txt")[:2] == (b"hello", {"device": "Pump 7"})
    assert store.keys(bucket) == ["a/b.txt"]


def test_headers_are_kept(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    headers = ObjectHeaders("application/octet-stream", "gzip")
    store.put(bucket, "a/b.gz", b"hello", {"device": "Pump 7"}, headers)
    kept = store.get(bucket, "a/b.gz")
    assert (kept.metadata, kept.headers.content_type) == ({"device": "Pump 7"}, "application/octet-stream")
    if stores.kind != "rclone":  # which keeps the type only
        assert kept.headers == headers
    assert store.keys(bucket) == ["a/b.gz"]
    store.put(bucket, "a/b.gz", b"hello")
    assert store.get(bucket, "a/b.gz").headers.content_encoding is None


@ANY_KEY
def test_the_key_that_encrypts_is_kept(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    headers = ObjectHeaders("text/plain", None, "arn:aws:kms:us-east-1:123456789012:key/k")
    store.put(bucket, "k", b"hello", headers=headers)
    assert store.get(bucket, "k").headers == headers


def test_deleted_objects_are_gone(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    for key in ("a/b", "a/c"):
        store.put(bucket, key, b"x", {"a": "1"}, ObjectHeaders("text/plain"))
    store.delete(bucket, "a/b")
    store.delete(bucket, "never/there")
    assert store.keys(bucket) == ["a/c"]


def test_a_body_may_come_in_pieces(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    store.put(bucket, "k", (bytes([number]) * MIB for number in range(3)))
    assert store.get(bucket, "k").body == b"\0" * MIB + b"\1" * MIB + b"\2" * MIB


def test_an_empty_object(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    store.put(bucket, "empty", iter(()))
    assert store.get(bucket, "empty").body == b""


def test_the_same_key_again_replaces_object_and_metadata(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    store.put(bucket, "k", b"first and longer", {"a": "1"})
    store.put(bucket, "k", b"second")
    assert store.get(bucket, "k")[:2] == (b"second", {})
    assert store.keys(bucket) == ["k"]


def test_parts_make_one_object(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    upload = store.multipart(bucket, "k/large", {"a": "1"})
    upload.upload_part(b"1" * 5 * MIB)
    upload.upload_part(iter([b"2" * 4 * MIB, b"3" * MIB]))
    upload.upload_part(b"end")
    assert store.keys(bucket) == []
    upload.complete()
    assert store.get(bucket, "k/large")[:2] == (
        b"1" * 5 * MIB + b"2" * 4 * MIB + b"3" * MIB + b"end",
        {"a": "1"},
    )


def test_an_aborted_upload_leaves_nothing(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    upload = store.multipart(bucket, "k")
    upload.upload_part(b"1" * 5 * MIB)
    upload.abort()
    assert store.keys(bucket) == []
    with pytest.raises(ObjectRefused):
        store.get(bucket, "k")


@pytest.mark.parametrize("key", ODD_KEYS, ids=lambda key: repr(key[:20]))
def test_odd_keys(stores: TestStore, key: str) -> None:
    bucket, store = stores.new_bucket(), stores.store
    store.put(bucket, key, key.encode())
    assert store.get(bucket, key).body == key.encode()
    assert store.keys(bucket) == [key]


@ANY_KEY
@pytest.mark.parametrize("key", VERY_ODD_KEYS, ids=lambda key: repr(key[:20]))
def test_very_odd_keys(stores: TestStore, key: str) -> None:
    bucket, store = stores.new_bucket(), stores.store
    store.put(bucket, key, key.encode(), {"a": "1"})
    assert store.get(bucket, key)[:2] == (key.encode(), {"a": "1"})
    if key != "control\x01character":  # XML has no way to list this one
        assert store.keys(bucket) == [key]


@ANY_KEY
def test_an_object_may_have_the_name_of_a_folder(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    store.put(bucket, "a", b"object first", {"a": "1"})
    store.put(bucket, "a/b", b"below")
    store.put(bucket, "c/d/e", b"folder first")
    store.put(bucket, "c/d", b"then object")
    assert store.keys(bucket) == ["a", "a/b", "c/d", "c/d/e"]
    assert store.get(bucket, "a")[:2] == (b"object first", {"a": "1"})
    store.put(bucket, "a", b"again")
    bodies = [store.get(bucket, key).body for key in ("a", "a/b", "c/d", "c/d/e")]
    assert bodies == [b"again", b"below", b"then object", b"folder first"]


@pytest.mark.parametrize("bucket", ["..", "Upper", "x", "a..b", "a/b", ""])
def test_bad_buckets_are_refused(stores: TestStore, bucket: str) -> None:
    with pytest.raises(ObjectRefused):
        stores.store.put(bucket, "k", b"x")


@pytest.mark.parametrize(
    "metadata", [{"a\nb": "1"}, {"a": "1\r\nx: y"}, {"a": "é"}, {"": "1"}, {"a": "x" * 3000}], ids=repr
)
def test_bad_metadata_is_refused(stores: TestStore, metadata: dict[str, str]) -> None:
    bucket, store = stores.new_bucket(), stores.store
    with pytest.raises(ObjectRefused, match="metadata"):
        store.put(bucket, "k", b"x", metadata)
    with pytest.raises(ObjectRefused, match="metadata"):
        store.multipart(bucket, "k", metadata)


def test_keys_that_are_empty_or_too_long_are_refused(stores: TestStore) -> None:
    bucket, store = stores.new_bucket(), stores.store
    with pytest.raises(ObjectRefused):
        store.put(bucket, "", b"x")
    with pytest.raises(ObjectRefused, match="1026 bytes"):
        store.put(bucket, "é" * 513, b"x")
    with pytest.raises(ObjectRefused, match="Unicode"):
        store.put(bucket, "\ud800", b"x")


def test_a_body_that_breaks_leaves_nothing(stores: TestStore) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * MIB
        raise ZeroDivisionError

    bucket, store = stores.new_bucket(), stores.store
    with pytest.raises(ZeroDivisionError):
        store.put(bucket, "k", broken())
    assert store.keys(bucket) == []


def test_names_of_stores() -> None:
    for name in ("", "file://", "gs://bucket", "S3"):
        with pytest.raises(ConfigError, match="PENSTOCK_OBJECT_STORE"):
            store_for(PipelineSettings(object_store=name))


# -- in a folder ------------------------------------------------------------------------------------


def files_in(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def test_usual_keys_are_paths(tmp_path: Path) -> None:
    FolderStore(tmp_path).put("some-bucket", "2024/01/31/readings 1.json.gz", b"x")
    assert files_in(tmp_path) == {"some-bucket/2024/01/31/readings 1.json.gz"}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    keys=st.lists(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=300), min_size=1, max_size=4, unique=True
    )
)
def test_any_keys_stay_in_their_bucket_and_apart(tmp_path: Path, keys: list[str]) -> None:
    keys = [key for key in keys if len(key.encode()) <= 1024]
    root = tmp_path / os.urandom(8).hex() / "objects"
    store = FolderStore(root)
    for key in keys:
        store.put("bucket", key, key.encode(), {"a": "1"})
    assert store.keys("bucket") == sorted(keys)
    assert [store.get("bucket", key).body for key in keys] == [key.encode() for key in keys]
    assert all(name.startswith("objects/bucket/") for name in files_in(root.parent))


def test_an_object_is_on_disk_before_put_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File and metadata are synced before they get their names; then each folder that has a new name in it."""
    events: list[str] = []

    def name_of(descriptor: int) -> str:
        return os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(tmp_path))

    real_fsync, real_replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file"
        events.append(f"sync {name_of(descriptor)}" if kind == "folder" else "sync file")
        real_fsync(descriptor)

    def replace(self: Path, target: Path) -> Path:
        events.append(f"name {str(target).removeprefix(str(tmp_path))}")
        return real_replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", replace)
    FolderStore(tmp_path).put("bucket", "a/b", b"x", {"m": "1"})
    named = events.index("name /bucket/a/b")
    assert events[named - 2 : named] == ["sync file", "name /bucket/a/.%metadata-b%"]
    assert events.count("sync file") == 2
    assert "sync /bucket" in events[:named]
    assert events[named + 1 :] == ["sync /bucket/a"]


def test_many_may_write_at_the_same_time(tmp_path: Path) -> None:
    """Also objects that are in each other's way, over and over."""
    keys = ["a", "a/b", "a/b/c", "d/e"]
    store = FolderStore(tmp_path)

    def write(key: str) -> None:
        for number in range(20):
            store.put("bucket", key, f"{key} {number}".encode(), {"n": str(number)})

    with ThreadPoolExecutor(len(keys)) as threads:
        list(threads.map(write, keys))
    assert store.keys("bucket") == keys
    assert [store.get("bucket", key)[:2] for key in keys] == [
        (f"{key} 19".encode(), {"n": "19"}) for key in keys
    ]
    assert list((tmp_path / "bucket" / ".%uploads").iterdir()) == []


def test_leftovers_of_killed_processes_are_removed(tmp_path: Path) -> None:
    uploads = tmp_path / "bucket" / ".%uploads"
    uploads.mkdir(parents=True)
    old, young = uploads / "old", uploads / "young"
    old.touch()
    young.touch()
    long_ago_s = time.time() - object_folder.LEFTOVER_AGE_S - 60
    os.utime(old, (long_ago_s, long_ago_s))
    FolderStore(tmp_path).put("bucket", "k", b"x")
    assert [path.name for path in uploads.iterdir()] == ["young"]


def test_a_folder_that_cannot_be_written_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "in-the-way").touch()
    with pytest.raises(StoreUnavailable, match="in-the-way"):
        FolderStore(tmp_path / "in-the-way" / "objects").put("bucket", "k", b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["in-the-way"]


# -- what S3's errors mean --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faulty_server() -> Iterator[tuple[FaultyS3, TestStore]]:
    with (
        moto_store(),
        faulty_s3(os.environ["AWS_ENDPOINT_URL_S3"]) as (server, url),
        s3_at(url, "faulty") as store,
    ):
        yield server, store


@pytest.fixture
def faulty(faulty_server: tuple[FaultyS3, TestStore]) -> tuple[FaultyS3, TestStore]:
    faulty_server[0].heal()
    return faulty_server


def test_an_object_too_large_for_one_request(
    faulty: tuple[FaultyS3, TestStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 takes 5 GiB at a time. What records have swollen to may be more."""
    monkeypatch.setattr(object_s3, "PUT_BYTES_MAX", 8 * MIB)
    s3, stores = faulty
    bucket, store = stores.new_bucket(), stores.store
    body = os.urandom(8 * MIB + 1)
    headers = ObjectHeaders("application/octet-stream", "gzip")
    store.put(bucket, "k", iter([body[:MIB], body[MIB:]]), {"device": "Pump 7"}, headers)
    assert "CompleteMultipartUpload" in s3.operations()
    kept = store.get(bucket, "k")
    assert kept.body == body
    assert (kept.metadata, kept.headers) == ({"device": "Pump 7"}, headers)
    s3.fail("UploadPart", 503, "SlowDown")
    with pytest.raises(StoreUnavailable):
        store.put(bucket, "other", iter([body]))
    assert store.keys(bucket) == ["k"]
    assert "AbortMultipartUpload" in s3.operations()


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"),
        (404, "NoSuchBucket"),
        (400, "InvalidArgument"),
        (400, "EntityTooLarge"),
        (400, "InvalidRequest"),
        (400, "KeyTooLongError"),
    ],
)
def test_final_errors(faulty: tuple[FaultyS3, TestStore], status: int, code: str) -> None:
    server, store = faulty
    server.fail("PutObject", status, code)
    with pytest.raises(ObjectRefused, match=f"s3://bucket/k: {code}: on command"):
        store.store.put("bucket", "k", b"x")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (503, "SlowDown"),
        (500, "InternalError"),
        (503, "ServiceUnavailable"),
        (429, "TooManyRequests"),
        (400, "RequestTimeout"),
        (400, "ExpiredToken"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (403, "RequestTimeTooSkewed"),
        (400, "BadDigest"),
        (404, "NoSuchUpload"),
    ],
)
def test_passing_errors(faulty: tuple[FaultyS3, TestStore], status: int, code: str) -> None:
    server, store = faulty
    server.fail("PutObject", status, code)
    with pytest.raises(StoreUnavailable, match=code):
        store.store.put("bucket", "k", b"x")


def test_nobody_at_home() -> None:
    with s3_at(f"http://127.0.0.1:{free_port()}", "nobody") as store, pytest.raises(StoreUnavailable):
        store.store.put("bucket", "k", b"x")


def test_credentials_that_come_later_are_found(
    faulty: tuple[FaultyS3, TestStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store = faulty
    bucket = store.new_bucket()
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(StoreUnavailable, match="credentials"):
        store.store.put(bucket, "k", b"x")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    store.store.put(bucket, "k", b"x")


def test_requests_suit_other_servers_than_s3(faulty: tuple[FaultyS3, TestStore]) -> None:
    """The bucket in the path, and none of the checksums that many of them do not know."""
    server, store = faulty
    bucket = store.new_bucket()
    server.heal()
    store.store.put(bucket, "k", iter([b"x" * 20 * MIB]))  # more than is kept in memory
    upload = store.store.multipart(bucket, "m")
    upload.upload_part(b"x")
    upload.complete()
    assert server.operations() == [
        "PutObject",
        "CreateMultipartUpload",
        "UploadPart",
        "CompleteMultipartUpload",
    ]
    assert all(request.path.startswith(f"/{bucket}/") for request in server.requests)
    names = {name for request in server.requests for name in request.headers}
    assert not [name for name in names if "checksum" in name or "trailer" in name]


def test_aborting_what_is_gone_is_no_failure(faulty: tuple[FaultyS3, TestStore]) -> None:
    server, store = faulty
    upload = store.store.multipart(store.new_bucket(), "k")
    upload.abort()
    server.fail("AbortMultipartUpload", 404, "NoSuchUpload")
    upload.abort()
    server.fail("AbortMultipartUpload", 403, "AccessDenied")
    with pytest.raises(ObjectRefused):
        upload.abort()
