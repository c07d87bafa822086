"""The embedded object store: a folder per bucket, a file per object. No path that a key makes leaves its bucket.

Names on disk are those of the key, with a few exceptions. `%` never stands alone in an escaped name, so names
with a lone `%` are free for our own use:

    %41            a character that cannot be in a file name (or is % itself)
    %2E  %2E%2E    the segments . and ..
    %empty         an empty segment, as in a//b, /a and a/
    name%+         a folder that holds the rest of a segment too long for a file name
    name%          the object `name`, where `name/` is a folder because there is an object `name/...` too
    .%metadata-…%  user metadata of an object, as JSON
    .%headers-…%   its content type and encoding and the like, as JSON
    .%uploads/     objects that are being written
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote

import msgspec

from penstock.pipeline.objects import (
    NO_HEADERS,
    NO_METADATA,
    Body,
    ObjectHeaders,
    ObjectRefused,
    ObjectStore,
    StoredObject,
    StoreUnavailable,
    Upload,
    check_key,
    check_metadata,
)

NAME_BYTES_MAX = 200  # file systems allow 255; the rest is for what we put around a name
LEFTOVER_AGE_S = 24 * 3600
CONFLICTS_MAX = 8

_BUCKET = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_NOT_IN_NAMES = re.compile(r"[\x00-\x1f\x7f%]")
_UPLOADS = ".%uploads"
_METADATA = ".%metadata-"
_HEADERS = ".%headers-"
_BESIDE_FOLDER = "%"
_CONTINUED = "%+"
_EMPTY = "%empty"


class FolderStore(ObjectStore):
    """Buckets are made on first use. Any number of processes may write to the folder at the same time."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(
        self,
        bucket: str,
        key: str,
        body: Body,
        metadata: Mapping[str, str] = NO_METADATA,
        headers: ObjectHeaders = NO_HEADERS,
    ) -> None:
        upload = self._upload(bucket, key, metadata, headers)
        try:
            upload.upload_part(body)
            upload.complete()
        except BaseException:
            upload.abort()
            raise

    def multipart(self, bucket: str, key: str, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        return self._upload(bucket, key, metadata, NO_HEADERS)

    def _upload(
        self, bucket: str, key: str, metadata: Mapping[str, str], headers: ObjectHeaders
    ) -> _FolderUpload:
        path = self._path(bucket, key)
        check_metadata(metadata)
        folder = self._root / bucket
        uploads = folder / _UPLOADS
        with _errors(self._root):
            _make_folder(uploads, folder)
            _remove_leftovers(uploads)
            sidecars = {_METADATA: dict(metadata), _HEADERS: _kept(headers)}
            return _FolderUpload(folder, path, uploads / secrets.token_hex(16), sidecars)

    def get(self, bucket: str, key: str) -> StoredObject:
        path = self._path(bucket, key)
        with _errors(self._root):
            found = next((p for p in (path, _beside_folder(path)) if p.is_file()), None)
            if found is None:
                raise ObjectRefused(f"there is no object {key!r} in bucket {bucket!r}")
            headers = ObjectHeaders(**_read_sidecar(path, _HEADERS))
            return StoredObject(found.read_bytes(), _read_sidecar(path, _METADATA), headers)

    def delete(self, bucket: str, key: str) -> None:
        path = self._path(bucket, key)
        with _errors(self._root):
            for found in (path, _beside_folder(path), _sidecar(path, _METADATA), _sidecar(path, _HEADERS)):
                if found.is_file():
                    found.unlink(missing_ok=True)

    def keys(self, bucket: str) -> list[str]:
        root = self._bucket_folder(bucket)
        found = set()
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name != _UPLOADS]
            relative = Path(folder).relative_to(root).parts
            found |= {
                _key_of((*relative, name)) for name in files if not name.startswith((_METADATA, _HEADERS))
            }
        return sorted(found)

    def _bucket_folder(self, bucket: str) -> Path:
        if _BUCKET.fullmatch(bucket) is None:
            raise ObjectRefused(f"{bucket!r} is not a name for a bucket; use 3 to 63 of a-z, 0-9, - and .")
        return self._root / bucket

    def _path(self, bucket: str, key: str) -> Path:
        check_key(key)
        return self._bucket_folder(bucket).joinpath(*_names_of(key))


class _FolderUpload(Upload):
    def __init__(
        self, bucket: Path, path: Path, temporary: Path, sidecars: Mapping[str, dict[str, str]]
    ) -> None:
        self._bucket = bucket
        self._path = path
        self._temporary = temporary
        self._sidecars = sidecars
        self._descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)

    def upload_part(self, body: Body) -> None:
        for chunk in _chunks(body):
            with _errors(self._bucket):
                _write(self._descriptor, chunk)

    def complete(self) -> None:
        with _errors(self._bucket):
            os.fsync(self._descriptor)
            _make_folder(self._path.parent, self._bucket)
            for kind, content in self._sidecars.items():
                self._keep(kind, content)
            _move_into_place(self._temporary, self._path)
        self._close()

    def abort(self) -> None:
        self._close()
        with _errors(self._bucket):
            self._temporary.unlink(missing_ok=True)

    def _keep(self, kind: str, content: dict[str, str]) -> None:
        """Before the object: one that is there is never without its metadata."""
        sidecar = _sidecar(self._path, kind)
        if content:
            temporary = self._temporary.with_suffix(".json")
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            try:
                _write(descriptor, msgspec.json.encode(content))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            temporary.replace(sidecar)
        else:
            sidecar.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# -- names ------------------------------------------------------------------------------------------


def _names_of(key: str) -> list[str]:
    return [name for segment in key.split("/") for name in _names_of_segment(segment)]


def _names_of_segment(segment: str) -> Iterator[str]:
    if segment in ("", ".", ".."):
        yield segment.replace(".", "%2E") or _EMPTY
        return
    name, size_bytes = "", 0
    for character in segment:
        escaped = _NOT_IN_NAMES.sub(lambda found: f"%{ord(found[0]):02X}", character)
        if size_bytes + len(escaped.encode()) > NAME_BYTES_MAX:
            yield name + _CONTINUED
            name, size_bytes = "", 0
        name += escaped
        size_bytes += len(escaped.encode())
    yield name


def _key_of(names: Iterable[str]) -> str:
    segments = [""]
    *folders, last = names
    for name in folders:
        if name.endswith(_CONTINUED):
            segments[-1] += unquote(name.removesuffix(_CONTINUED))
        else:
            segments[-1] += _segment_of(name)
            segments.append("")
    segments[-1] += _segment_of(last.removesuffix(_BESIDE_FOLDER))
    return "/".join(segments)


def _segment_of(name: str) -> str:
    return "" if name == _EMPTY else unquote(name)


def _beside_folder(path: Path) -> Path:
    return path.with_name(path.name + _BESIDE_FOLDER)


def _sidecar(path: Path, kind: str) -> Path:
    # The end too is not that of the object, or a reader of all *.parquet would find it.
    return path.with_name(f"{kind}{path.name}%")


def _read_sidecar(path: Path, kind: str) -> dict[str, str]:
    sidecar = _sidecar(path, kind)
    return msgspec.json.decode(sidecar.read_bytes(), type=dict[str, str]) if sidecar.exists() else {}


def _kept(headers: ObjectHeaders) -> dict[str, str]:
    return {name: value for name, value in headers._asdict().items() if value is not None}


# -- files ------------------------------------------------------------------------------------------


@contextmanager
def _errors(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise ObjectRefused(f"the key is too long for the folder {root}") from error
        raise StoreUnavailable(
            f"the object store in {root} failed: {error}; check the disk and its permissions"
        ) from error


def _chunks(body: Body) -> Iterable[bytes]:
    return (body,) if isinstance(body, bytes) else body


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _make_folder(path: Path, bucket: Path) -> None:
    """Make a folder and those above it, durably. In the bucket, an object of the same name makes room for it."""
    for _ in range(CONFLICTS_MAX):
        if path.is_dir():
            return
        _make_folder(path.parent, bucket)
        try:
            path.mkdir()
        except FileExistsError:
            if path.is_file() and bucket in path.parents:
                _step_aside(path)
            continue
        _sync_folder(path.parent)
        return
    raise FileExistsError(errno.EEXIST, "something is in the way that is not a folder", str(path))


def _step_aside(path: Path) -> None:
    try:
        path.rename(_beside_folder(path))
    except FileNotFoundError:
        return  # another writer was faster
    _sync_folder(path.parent)


def _move_into_place(temporary: Path, path: Path) -> None:
    try:
        temporary.replace(path)
    except IsADirectoryError:
        temporary.replace(_beside_folder(path))
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@lru_cache(maxsize=1024)
def _remove_leftovers(uploads: Path) -> None:
    """Uploads of processes that were killed; looked for once in a process."""
    oldest_s = time.time() - LEFTOVER_AGE_S
    for path in list(uploads.iterdir()):
        try:
            if path.stat().st_mtime < oldest_s:
                path.unlink()
        except FileNotFoundError:
            continue  # finished, or removed by another process
