"""Data keys, and the master keys that wrap them: a key of our own, keys from a file, or AWS's KMS.

Everything here blocks, on the disk or on KMS: not for the event loop.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import threading
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from penstock.delivery.errors import ApiError
from penstock.delivery.sealing import KEY_BYTES, NONCE_BYTES
from penstock.delivery.stored import WrappedKey
from penstock.errors import ConfigError, PenstockError
from penstock.secret_file import read_secret_file

AWS_OWNED = "AWS_OWNED_CMK"
CUSTOMER_MANAGED = "CUSTOMER_MANAGED_CMK"
MASTER_KEY_FILE_NAME = "master.key"

# What a wrapped key begins with: who wrapped it.
_BY_MASTER_KEY = b"\x01"
_BY_KMS = b"\x02"
_FINGERPRINT_BYTES = 8


class KeyUnavailable(PenstockError):
    """A data key cannot be unwrapped, so what it sealed cannot be read."""


class _MasterKey:
    """32 bytes that wrap data keys. Its fingerprint tells whether it is the one that wrapped a key."""

    __slots__ = ("_cipher", "fingerprint")

    def __init__(self, key: bytes) -> None:
        self._cipher = AESGCM(key)
        self.fingerprint = hashlib.sha256(b"penstock master key" + key).digest()[:_FINGERPRINT_BYTES]

    def wrap(self, data_key: bytes, context: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return self.fingerprint + nonce + self._cipher.encrypt(nonce, data_key, context)

    def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        body = wrapped[_FINGERPRINT_BYTES:]
        return self._cipher.decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], context)


class KeyRing:
    def __init__(self, data_dir: Path, master_keys_file: Path | None = None, *, kms: bool = False) -> None:
        self._own_path = data_dir / MASTER_KEY_FILE_NAME
        self._own: _MasterKey | None = None
        self._own_in_use = False
        self._own_lock = threading.Lock()
        self._by_arn = {} if master_keys_file is None else load_master_keys(master_keys_file)
        self._kms = kms

    def new_data_key(self, key_type: str, key_arn: str | None) -> WrappedKey:
        """Raises ApiError if the key that should wrap it is not there."""
        if key_type == AWS_OWNED:
            return self._wrap_new(self._load_or_create_own(), key_type, None)
        if key_arn is None:
            raise ApiError("InvalidArgumentException", "KeyARN is required for a customer managed CMK.")
        if key_arn in self._by_arn:
            return self._wrap_new(self._by_arn[key_arn], key_type, key_arn)
        if not self._kms:
            raise _invalid_key(
                f"The key {key_arn} is not in the master keys file; add it there, or turn KMS on "
                "(PENSTOCK_MASTER_KEYS_FILE, PENSTOCK_KMS).",
                "KMS_KEY_NOT_FOUND",
            )
        return WrappedKey(key_type, key_arn, _BY_KMS + self._generate_with_kms(key_arn))

    def unwrap(self, wrapped: WrappedKey) -> bytes:
        """The data key. Raises KeyUnavailable with what is to be done."""
        by, body = wrapped.wrapped[:1], wrapped.wrapped[1:]
        if by == _BY_KMS:
            return self._decrypt_with_kms(wrapped, body)
        if by != _BY_MASTER_KEY:
            raise KeyUnavailable("a wrapped data key is damaged; restore the catalog from a backup")
        master, where = self._master_of(wrapped)
        if body[:_FINGERPRINT_BYTES] != master.fingerprint:
            raise KeyUnavailable(
                f"a data key was wrapped by another master key than the one in {where}; restore that one from a backup"
            )
        try:
            return master.unwrap(body, _context(wrapped.key_type, wrapped.key_arn))
        except (InvalidTag, ValueError) as error:
            raise KeyUnavailable(
                "a wrapped data key is damaged; restore the catalog from a backup"
            ) from error

    def _master_of(self, wrapped: WrappedKey) -> tuple[_MasterKey, str]:
        if wrapped.key_type == AWS_OWNED:
            return self._load_own(), str(self._own_path)
        master = self._by_arn.get(wrapped.key_arn or "")
        if master is None:
            raise KeyUnavailable(
                f"the key {wrapped.key_arn} is not in the master keys file, and records are sealed with it; "
                "put it back (PENSTOCK_MASTER_KEYS_FILE) and restart the server"
            )
        return master, "the master keys file"

    def _wrap_new(self, master: _MasterKey, key_type: str, key_arn: str | None) -> WrappedKey:
        body = master.wrap(os.urandom(KEY_BYTES), _context(key_type, key_arn))
        return WrappedKey(key_type, key_arn, _BY_MASTER_KEY + body)

    # -- the key of our own -------------------------------------------------------------------------

    def _load_or_create_own(self) -> _MasterKey:
        with self._own_lock:
            if not self._own_path.exists():
                if self._own_in_use:
                    raise KeyUnavailable(
                        f"{self._own_path} is gone, and delivery streams are sealed under it: restore it from a "
                        "backup. If there is none, delete these delivery streams and restart the server"
                    )
                _create_key_file(self._own_path)
            self._own_in_use = True
        return self._load_own()

    def note_in_use(self, wrapped: WrappedKey) -> None:
        """A master key that is gone must not be replaced by a new one: whoever restored it would lose the new one."""
        if wrapped.key_type == AWS_OWNED:
            self._own_in_use = True

    def _load_own(self) -> _MasterKey:
        with self._own_lock:
            if self._own is None:
                try:
                    text = read_secret_file(self._own_path, "the master key file").decode("latin-1")
                    self._own = _MasterKey(_decoded(text, f"{self._own_path}"))
                except ConfigError as error:
                    raise KeyUnavailable(
                        f"{error}; if it was lost, restore it from a backup: nothing else opens the records it protects"
                    ) from error
            return self._own

    # -- KMS ----------------------------------------------------------------------------------------

    def _generate_with_kms(self, key_arn: str) -> bytes:
        from penstock.delivery import kms

        try:
            return kms.generate_data_key(key_arn)
        except kms.KmsFailed as error:
            raise _invalid_key(str(error), error.code) from error

    def _decrypt_with_kms(self, wrapped: WrappedKey, blob: bytes) -> bytes:
        if not self._kms:
            raise KeyUnavailable(
                f"a data key is wrapped by {wrapped.key_arn} in KMS; set PENSTOCK_KMS=on and restart the server"
            )
        from penstock.delivery import kms

        try:
            return kms.decrypt(str(wrapped.key_arn), blob)
        except kms.KmsFailed as error:
            raise KeyUnavailable(str(error)) from error


def load_master_keys(path: Path) -> dict[str, _MasterKey]:
    """{"<KeyARN>": "<32 bytes in base64>", ...}"""
    content = read_secret_file(path, "the master keys file")
    try:
        texts = msgspec.json.decode(content, type=dict[str, str])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f'the master keys file {path} must be JSON like {{"<KeyARN>": "<32 bytes in base64>"}}; correct it'
        ) from error
    return {arn: _MasterKey(_decoded(text, f"{path}: {arn}")) for arn, text in texts.items()}


def _decoded(text: str, where: str) -> bytes:
    try:
        key = base64.b64decode(text.strip(), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{where}: not a key of {KEY_BYTES} bytes in base64; make one with: head -c 32 /dev/urandom | base64"
        )
    return key


def _create_key_file(path: Path) -> None:
    """Synced, and never in place of one that is there: whatever it protects would be lost."""
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(base64.b64encode(os.urandom(KEY_BYTES)) + b"\n")
        file.flush()
        os.fsync(file.fileno())
    os.link(temporary, path)  # fails if there is one
    temporary.unlink()
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _context(key_type: str, key_arn: str | None) -> bytes:
    return f"penstock data key\0{key_type}\0{key_arn or ''}".encode()


def _invalid_key(message: str, code: str) -> ApiError:
    return ApiError("InvalidKMSResourceException", message, code=code)
