"""Files that S3 file tasks upload: ranges of regular files below the configured directories, and nothing else."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from penstock.bandwidth import Bandwidth
from penstock.doors.http.access import Access, Guarded
from penstock.doors.http.bulk import SENDFILE_EXTENSION, STALL_S
from penstock.errors import PenstockError
from penstock.model import INT64_MAX

logger = logging.getLogger(__name__)

SIZE_MAX_BYTES = 64 * 1024 * 1024
CHUNK_BYTES = 1024 * 1024
PACED_PIECES_MAX = 8  # in one answer: a task must come to hear soon that nobody wants it any more
LOCAL_HOSTS = ("", "localhost", "127.0.0.1")
HOW_TO_ALLOW = (
    "name its directory in PENSTOCK_READ_ONLY_DIRS (or STREAM_MANAGER_READ_ONLY_DIRS) "
    "and start the server again"
)

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class _Refused(PenstockError):
    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _OpenFile(NamedTuple):
    descriptor: int
    size_bytes: int


def files_route(
    access: Access,
    read_only_dirs: Sequence[Path],
    threads: ThreadPoolExecutor,
    bandwidth: Bandwidth | None = None,
) -> Route:
    """GET and HEAD /v1/files?url=…&offset=…&size=…

    What is read here is uploaded elsewhere: pacing the one paces the other, for all executors together.
    """

    async def files(request: Request) -> Response:
        loop = asyncio.get_running_loop()
        try:
            path = path_of(request.query_params.get("url"))
            offset = _number(request, "offset", 0, INT64_MAX)
            size_bytes = _number(request, "size", SIZE_MAX_BYTES, SIZE_MAX_BYTES)
            opened = await loop.run_in_executor(threads, open_below, path, read_only_dirs)
        except _Refused as error:
            return JSONResponse({"error": str(error)}, status_code=error.status)
        return _FileResponse(opened, offset, size_bytes, threads, bandwidth)

    return Route("/v1/files", Guarded(access)(files), methods=["GET", "HEAD"])


class _FileResponse(Response):
    """An ASGI response that owns an open file, and reads it in threads."""

    def __init__(
        self,
        file: _OpenFile,
        offset: int,
        size_bytes: int,
        threads: ThreadPoolExecutor,
        bandwidth: Bandwidth | None,
    ) -> None:
        super().__init__(status_code=200)
        self._chunk_bytes = CHUNK_BYTES
        if bandwidth is not None:
            self._chunk_bytes = min(CHUNK_BYTES, bandwidth.piece_bytes)
            size_bytes = min(size_bytes, PACED_PIECES_MAX * self._chunk_bytes)
        self._file = file
        self._end = min(offset + size_bytes, file.size_bytes)
        self._begin = min(offset, self._end)
        self._threads = threads
        self._bandwidth = bandwidth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self._fields()})
            if scope["method"] != "HEAD":
                await self._send_body(scope["extensions"][SENDFILE_EXTENSION], send)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            os.close(self._file.descriptor)

    def _fields(self) -> list[tuple[bytes, bytes]]:
        return [
            (b"content-type", b"application/octet-stream"),
            (b"content-length", b"%d" % (self._end - self._begin)),
            (b"penstock-file-size", b"%d" % self._file.size_bytes),
        ]

    async def _send_body(self, cycle: Any, send: Send) -> None:
        try:
            await self._send_range(send)
        except (OSError, asyncio.TimeoutError) as error:
            # Less than the promised length: the reader sees a broken connection, not a shorter file.
            logger.info("reading a file for a task ended early: %s", error or "the client does not read")
            cycle.transport.abort()
            cycle.expected_content_length = 0
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            cycle.transport.abort()
            cycle.expected_content_length = 0

    async def _send_range(self, send: Send) -> None:
        loop = asyncio.get_running_loop()
        offset = self._begin
        while offset < self._end:
            size_bytes = min(self._chunk_bytes, self._end - offset)
            if self._bandwidth is not None:
                await self._bandwidth.spend_piece(size_bytes)
            chunk = await loop.run_in_executor(
                self._threads, os.pread, self._file.descriptor, size_bytes, offset
            )
            if not chunk:
                raise OSError(errno.ENODATA, "the file became shorter")
            body = {"type": "http.response.body", "body": chunk, "more_body": True}
            await asyncio.wait_for(send(body), STALL_S)
            offset += len(chunk)


# -- which file -------------------------------------------------------------------------------------


def path_of(url: str | None) -> str:
    """The path that file:/p, file:///p, file://localhost/p or a plain /p names."""
    if not url:
        raise _Refused(HTTPStatus.BAD_REQUEST, "the parameter 'url' is missing: give the URL of a file")
    path = url
    if url[:5].lower() == "file:":
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise _Refused(HTTPStatus.BAD_REQUEST, f"{url!r} is not a URL: {error}") from error
        if parts.netloc.lower() not in LOCAL_HOSTS:
            raise _Refused(
                HTTPStatus.BAD_REQUEST, f"{url!r} names the host {parts.netloc!r}; only local files are read"
            )
        path = unquote(url[5:].removeprefix(f"//{parts.netloc}"), errors="surrogateescape")
    if not path.startswith("/") or "\0" in path:
        raise _Refused(
            HTTPStatus.BAD_REQUEST,
            f"{url!r} is not a file: give file:///path or an absolute path of the server's machine",
        )
    return path


def open_below(path: str, allowed_dirs: Sequence[Path]) -> _OpenFile:
    """Open a regular file, if after following all links it lies below one of the directories.

    The real path is then walked again from that directory, name by name and following no link at all: whatever
    somebody swaps between the two, nothing outside of the directory can be opened.
    """
    if not allowed_dirs:
        raise _Refused(HTTPStatus.FORBIDDEN, f"no file may be read: for {path!r}, {HOW_TO_ALLOW}")
    try:
        real_path = os.path.realpath(path)
        for allowed in allowed_dirs:
            root = os.path.realpath(allowed)
            if real_path.startswith(root.rstrip("/") + "/"):
                names = real_path[len(root) :].strip("/").split("/")
                return _walk(root, names, path)
    except OSError as error:
        raise _translated(path, error) from error
    raise _Refused(
        HTTPStatus.FORBIDDEN, f"{path!r} is not below a directory that may be read: {HOW_TO_ALLOW}"
    )


def _walk(root: str, names: list[str], path: str) -> _OpenFile:
    # The root itself is the operator's word; links in it are his.
    folder = os.open(root, _FOLDER_FLAGS & ~os.O_NOFOLLOW)
    try:
        for name in names[:-1]:
            below = os.open(name, _FOLDER_FLAGS, dir_fd=folder)
            os.close(folder)
            folder = below
        # Looked at before it is opened: opening a device can have effects.
        _check_regular(os.stat(names[-1], dir_fd=folder, follow_symlinks=False), path)
        descriptor = os.open(names[-1], _FILE_FLAGS, dir_fd=folder)
    finally:
        os.close(folder)
    try:
        found = os.fstat(descriptor)
        _check_regular(found, path)
    except BaseException:
        os.close(descriptor)
        raise
    return _OpenFile(descriptor, found.st_size)


def _check_regular(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise _Refused(HTTPStatus.FORBIDDEN, f"{path!r} is not a regular file")


def _translated(path: str, error: OSError) -> _Refused:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return _Refused(HTTPStatus.NOT_FOUND, f"there is no file {path!r}")
    if error.errno == errno.ELOOP:
        return _Refused(
            HTTPStatus.FORBIDDEN, f"{path!r} has a link that leads in circles or was just put there"
        )
    if isinstance(error, PermissionError):
        return _Refused(
            HTTPStatus.FORBIDDEN, f"the server's user may not read {path!r}; change its permissions"
        )
    return _Refused(HTTPStatus.INTERNAL_SERVER_ERROR, f"{path!r} cannot be read: {error.strerror}")


def _number(request: Request, name: str, default: int, maximum: int) -> int:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > maximum:
        raise _Refused(
            HTTPStatus.BAD_REQUEST,
            f"the parameter '{name}' must be a number from 0 to {maximum}, not {text[:40]!r}",
        )
    return int(text)
