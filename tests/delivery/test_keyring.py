from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import msgspec
import pytest
from moto.server import ThreadedMotoServer

from penstock.delivery.errors import ApiError
from penstock.delivery.keyring import AWS_OWNED, CUSTOMER_MANAGED, KeyRing, KeyUnavailable
from penstock.delivery.stored import WrappedKey
from penstock.errors import ConfigError

ARN = "arn:aws:kms:eu-west-1:000000000000:key/0b1c2d3e-0000-4000-8000-000000000001"
OTHER_ARN = ARN[:-1] + "2"


def keys_file(path: Path, keys: dict[str, bytes]) -> Path:
    path.touch(0o600)
    path.write_text(json.dumps({arn: base64.b64encode(key).decode() for arn, key in keys.items()}))
    return path


def stored_and_read_back(wrapped: WrappedKey) -> WrappedKey:
    return msgspec.json.decode(msgspec.json.encode(wrapped), type=WrappedKey)


def test_a_key_of_our_own_outlives_the_process(tmp_path: Path) -> None:
    wrapped = KeyRing(tmp_path).new_data_key(AWS_OWNED, None)
    key = KeyRing(tmp_path).unwrap(stored_and_read_back(wrapped))
    assert len(key) == 32
    assert key not in wrapped.wrapped
    assert KeyRing(tmp_path).unwrap(wrapped) == key


def test_each_data_key_is_another(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    assert len({ring.unwrap(ring.new_data_key(AWS_OWNED, None)) for _ in range(5)}) == 5


def test_the_master_key_file_is_for_its_owner_only_and_made_when_needed(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    assert not list(tmp_path.iterdir())
    ring.new_data_key(AWS_OWNED, None)
    assert [path.name for path in tmp_path.iterdir()] == ["master.key"]
    assert stat.S_IMODE((tmp_path / "master.key").stat().st_mode) == 0o600


def test_the_master_key_is_never_overwritten(tmp_path: Path) -> None:
    KeyRing(tmp_path).new_data_key(AWS_OWNED, None)
    content = (tmp_path / "master.key").read_bytes()
    KeyRing(tmp_path).new_data_key(AWS_OWNED, None)
    assert (tmp_path / "master.key").read_bytes() == content


def test_many_threads_make_one_master_key(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    with ThreadPoolExecutor(8) as threads:
        wrapped = list(threads.map(lambda _: ring.new_data_key(AWS_OWNED, None), range(16)))
    assert len({KeyRing(tmp_path).unwrap(each) for each in wrapped}) == 16


def test_a_lost_master_key_is_not_replaced_by_a_server_that_has_used_it(tmp_path: Path) -> None:
    ring = KeyRing(tmp_path)
    wrapped = ring.new_data_key(AWS_OWNED, None)
    (tmp_path / "master.key").rename(tmp_path / "elsewhere")
    with pytest.raises(KeyUnavailable, match=r"master\.key is gone.*restore it from a backup"):
        ring.new_data_key(AWS_OWNED, None)
    (tmp_path / "elsewhere").rename(tmp_path / "master.key")
    another = ring.new_data_key(AWS_OWNED, None)
    assert len({KeyRing(tmp_path).unwrap(each) for each in (wrapped, another)}) == 2


def test_a_lost_master_key_is_not_replaced_by_reading(tmp_path: Path) -> None:
    wrapped = KeyRing(tmp_path).new_data_key(AWS_OWNED, None)
    (tmp_path / "master.key").unlink()
    with pytest.raises(KeyUnavailable, match=r"master\.key.*restore it from a backup"):
        KeyRing(tmp_path).unwrap(wrapped)
    assert not (tmp_path / "master.key").exists()


def test_another_master_key_is_told_from_damage(tmp_path: Path) -> None:
    wrapped = KeyRing(tmp_path).new_data_key(AWS_OWNED, None)
    (tmp_path / "other").mkdir()
    KeyRing(tmp_path / "other").new_data_key(AWS_OWNED, None)
    with pytest.raises(KeyUnavailable, match="another master key"):
        KeyRing(tmp_path / "other").unwrap(wrapped)


@pytest.mark.parametrize("position", [0, 9, 21, -1])
def test_a_changed_wrapped_key_is_refused(tmp_path: Path, position: int) -> None:
    ring = KeyRing(tmp_path)
    wrapped = ring.new_data_key(AWS_OWNED, None)
    changed = bytearray(wrapped.wrapped)
    changed[position] ^= 0x40
    with pytest.raises(KeyUnavailable, match="damaged"):
        ring.unwrap(msgspec.structs.replace(wrapped, wrapped=bytes(changed)))


def test_an_open_master_key_file_is_refused(tmp_path: Path) -> None:
    wrapped = KeyRing(tmp_path).new_data_key(AWS_OWNED, None)
    (tmp_path / "master.key").chmod(0o644)
    with pytest.raises(KeyUnavailable, match="chmod"):
        KeyRing(tmp_path).unwrap(wrapped)


def test_keys_of_the_file(tmp_path: Path) -> None:
    path = keys_file(tmp_path / "keys", {ARN: os.urandom(32), OTHER_ARN: os.urandom(32)})
    wrapped = KeyRing(tmp_path, path).new_data_key(CUSTOMER_MANAGED, ARN)
    assert len(KeyRing(tmp_path, path).unwrap(wrapped)) == 32
    assert not (tmp_path / "master.key").exists()


def test_a_wrapped_key_belongs_to_its_master_key_only(tmp_path: Path) -> None:
    same = os.urandom(32)
    path = keys_file(tmp_path / "keys", {ARN: same, OTHER_ARN: same})
    ring = KeyRing(tmp_path, path)
    moved = msgspec.structs.replace(ring.new_data_key(CUSTOMER_MANAGED, ARN), key_arn=OTHER_ARN)
    with pytest.raises(KeyUnavailable, match="damaged"):
        ring.unwrap(moved)


def test_a_key_that_is_nowhere(tmp_path: Path) -> None:
    path = keys_file(tmp_path / "keys", {ARN: os.urandom(32)})
    wrapped = KeyRing(tmp_path, path).new_data_key(CUSTOMER_MANAGED, ARN)
    with pytest.raises(KeyUnavailable, match=r"PENSTOCK_MASTER_KEYS_FILE"):
        KeyRing(tmp_path).unwrap(wrapped)
    for ring in (KeyRing(tmp_path), KeyRing(tmp_path, path)):
        with pytest.raises(ApiError) as caught:
            ring.new_data_key(CUSTOMER_MANAGED, OTHER_ARN)
        assert caught.value.code == "InvalidKMSResourceException"
        assert caught.value.members == {"code": "KMS_KEY_NOT_FOUND"}


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"a": 1}', b'{"a": "c2hvcnQ="}', b'{"a": "not base64!"}', b"\xff"],
)
def test_a_master_keys_file_that_is_wrong(tmp_path: Path, content: bytes) -> None:
    path = keys_file(tmp_path / "keys", {})
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="keys"):
        KeyRing(tmp_path, path)


def test_a_master_keys_file_that_everybody_can_read(tmp_path: Path) -> None:
    path = keys_file(tmp_path / "keys", {ARN: os.urandom(32)})
    path.chmod(0o604)
    with pytest.raises(ConfigError, match="chmod o-rwx"):
        KeyRing(tmp_path, path)


def test_no_key_is_shown(tmp_path: Path) -> None:
    secret = os.urandom(32)
    path = keys_file(tmp_path / "keys", {ARN: secret})
    ring = KeyRing(tmp_path, path)
    shown = repr(ring) + repr(vars(ring))
    assert repr(secret)[2:-1] not in shown
    assert base64.b64encode(secret).decode() not in shown


# -- KMS ----------------------------------------------------------------------------------------------


@pytest.fixture
def kms_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    host, port = server.get_host_and_port()
    for name, value in {
        "AWS_ENDPOINT_URL_KMS": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    client = boto3.session.Session().client("kms", region_name="eu-west-1")
    yield client.create_key()["KeyMetadata"]["Arn"]
    server.stop()


def test_kms_wraps_data_keys(tmp_path: Path, kms_key: str) -> None:
    wrapped = KeyRing(tmp_path, kms=True).new_data_key(CUSTOMER_MANAGED, kms_key)
    key = KeyRing(tmp_path, kms=True).unwrap(stored_and_read_back(wrapped))
    assert len(key) == 32
    assert key not in wrapped.wrapped
    with pytest.raises(KeyUnavailable, match="PENSTOCK_KMS=on"):
        KeyRing(tmp_path).unwrap(wrapped)


def test_kms_does_not_know_the_key(tmp_path: Path, kms_key: str) -> None:
    with pytest.raises(ApiError) as caught:
        KeyRing(tmp_path, kms=True).new_data_key(CUSTOMER_MANAGED, ARN)
    assert (caught.value.code, caught.value.members) == (
        "InvalidKMSResourceException",
        {"code": "KMS_KEY_NOT_FOUND"},
    )


def test_kms_answers_with_another_blob(tmp_path: Path, kms_key: str) -> None:
    ring = KeyRing(tmp_path, kms=True)
    wrapped = ring.new_data_key(CUSTOMER_MANAGED, kms_key)
    damaged = msgspec.structs.replace(wrapped, wrapped=wrapped.wrapped[:-1] + b"\0")
    with pytest.raises(KeyUnavailable, match="KMS did not unwrap"):
        ring.unwrap(damaged)


def test_kms_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with pytest.raises(ApiError) as caught:
        KeyRing(tmp_path, kms=True).new_data_key(CUSTOMER_MANAGED, ARN)
    assert caught.value.members == {"code": "UNKNOWN_ERROR"}
