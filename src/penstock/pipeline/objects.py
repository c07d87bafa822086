"""The object store: buckets, keys and bytes, in S3 or in a folder. Both are used through the same few calls."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

from penstock.errors import ConfigError, PenstockError
from penstock.pipeline.destinations.base import PipelineSettings

Body: TypeAlias = bytes | Iterable[bytes]

KEY_BYTES_MAX = 1024
METADATA_BYTES_MAX = 2048
FOLDER_SCHEME = "file://"
NO_METADATA: Mapping[str, str] = {}

_METADATA_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-zA-Z]+")
_METADATA_VALUE = re.compile(r"[ -~\t]*")


class ObjectError(PenstockError):
    """The store did not do what it was asked."""

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code  # what S3 calls it, if S3 has said something


class ObjectRefused(ObjectError):
    """The store will not take this object, now or later: bucket, key, metadata or permission is wrong."""


class StoreUnavailable(ObjectError):
    """The store could not do it now. The same call may succeed later."""


class ObjectHeaders(NamedTuple):
    """What a store keeps of an object besides its bytes, and gives back when it is read."""

    content_type: str | None = None
    content_encoding: str | None = None
    kms_key: str | None = None  # S3 encrypts the object with this key


NO_HEADERS = ObjectHeaders()


class StoredObject(NamedTuple):
    body: bytes
    metadata: dict[str, str]
    headers: ObjectHeaders = NO_HEADERS


class Upload(ABC):
    """An object that is made of parts, given in order. It is there after `complete`, and not before."""

    @abstractmethod
    def upload_part(self, body: Body) -> None: ...

    @abstractmethod
    def complete(self) -> None: ...

    @abstractmethod
    def abort(self) -> None:
        """Leave nothing behind. Raises when something may have been left."""


class ObjectStore(ABC):
    """Calls raise ObjectRefused or StoreUnavailable; what iterating over a body raises passes through."""

    @abstractmethod
    def put(
        self,
        bucket: str,
        key: str,
        body: Body,
        metadata: Mapping[str, str] = NO_METADATA,
        headers: ObjectHeaders = NO_HEADERS,
    ) -> None:
        """Store an object whole, or not at all. One of the same key is replaced."""

    @abstractmethod
    def multipart(self, bucket: str, key: str, metadata: Mapping[str, str] = NO_METADATA) -> Upload: ...

    @abstractmethod
    def get(self, bucket: str, key: str) -> StoredObject: ...

    @abstractmethod
    def delete(self, bucket: str, key: str) -> None:
        """Remove an object, if it is there."""

    @abstractmethod
    def keys(self, bucket: str) -> list[str]:
        """All keys of a bucket, sorted."""


def store_for(settings: PipelineSettings) -> ObjectStore:
    """The store that the settings name."""
    name = settings.object_store
    if name == "s3":
        from penstock.pipeline.object_s3 import S3Store  # needs boto3

        return S3Store(settings)
    if name.startswith(FOLDER_SCHEME) and name != FOLDER_SCHEME:
        from penstock.pipeline.object_folder import FolderStore

        return FolderStore(Path(name.removeprefix(FOLDER_SCHEME)).absolute())
    raise ConfigError(
        f"PENSTOCK_OBJECT_STORE: {name!r} is not an object store; use 's3' or 'file://<folder>'"
    )


def check_key(key: str) -> None:
    """What S3 takes as a key, so that other stores take no more than that."""
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError as error:
        raise ObjectRefused(f"the key {key!r} is not valid Unicode") from error
    if not 1 <= size_bytes <= KEY_BYTES_MAX:
        raise ObjectRefused(f"the key has {size_bytes} bytes; it must have 1 to {KEY_BYTES_MAX}")


def check_metadata(metadata: Mapping[str, str]) -> None:
    """The same for user metadata."""
    for name, value in metadata.items():
        if _METADATA_NAME.fullmatch(name) is None:
            raise ObjectRefused(f"{name!r} is not a name for user metadata; use letters, digits, - and _")
        if _METADATA_VALUE.fullmatch(value) is None:
            raise ObjectRefused(f"the user metadata {name!r} has a value that is not printable ASCII")
    size_bytes = sum(len(name) + len(value) for name, value in metadata.items())
    if size_bytes > METADATA_BYTES_MAX:
        raise ObjectRefused(
            f"the user metadata has {size_bytes} bytes; at most {METADATA_BYTES_MAX} are allowed"
        )
