"""AWS JSON 1.1: how requests say what they want, and how answers and errors look."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec
from starlette.types import Scope, Send

from penstock.delivery.errors import ApiError

TARGET_PREFIX = b"Firehose_20150804."
CONTENT_TYPE = b"application/x-amz-json-1.1"

_encoder = msgspec.json.Encoder()


def header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            return bytes(value)
    return None


def operation_of(scope: Scope) -> str:
    """What X-Amz-Target asks for. Whether there is such an operation is not said."""
    target = header(scope, b"x-amz-target") or b""
    if not target.startswith(TARGET_PREFIX):
        raise unknown_operation()
    return target[len(TARGET_PREFIX) :].decode("latin-1")


def unknown_operation() -> ApiError:
    return ApiError(
        "UnknownOperationException",
        f"X-Amz-Target must be {TARGET_PREFIX.decode()} and the name of an operation of Firehose.",
    )


def decode(body: bytes) -> Any:
    """The JSON of a request. An empty body is an empty object."""
    if not body:
        return {}
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ApiError("SerializationException", f"The body of the request is not JSON: {error}") from None


def encode(answer: dict[str, Any]) -> bytes:
    return _encoder.encode(answer)


class Answers:
    """Sends what becomes of one request."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.request_id = str(uuid.uuid4())

    async def succeed(self, body: bytes) -> None:
        await self._answer(200, body, [])

    async def fail(self, error: ApiError, *, hang_up: bool = False) -> None:
        code = error.code.encode()
        body = encode({"__type": error.code, "message": error.message, **error.members})
        extra = [(b"x-amzn-errortype", code)]
        if hang_up:
            extra.append((b"connection", b"close"))
        await self._answer(error.http_status, body, extra)

    async def _answer(self, status: int, body: bytes, extra: list[tuple[bytes, bytes]]) -> None:
        request_id = self.request_id.encode()
        headers = [
            (b"content-type", CONTENT_TYPE),
            (b"content-length", b"%d" % len(body)),
            (b"x-amzn-requestid", request_id),
            (b"x-amz-id-2", request_id),
            *extra,
        ]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})
