"""Who may use the HTTP door: holders of a client token, or of the token in the data directory."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

TOKEN_FILE_NAME = "http-token"  # noqa: S105


def load_or_create_token(data_dir: Path) -> bytes:
    """A secret that only those who may read the data directory know; made once."""
    path = data_dir / TOKEN_FILE_NAME
    if path.exists():
        token = path.read_bytes().strip()
        if token:
            return token
    token = secrets.token_hex(32).encode()
    temporary = path.with_suffix(".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(token + b"\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    return token


class Access:
    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._tokens = tuple(tokens)

    def allows(self, authorization: str | None) -> bool:
        """Check an Authorization header, comparing with every token in constant time."""
        scheme, _, given = (authorization or "").partition(" ")
        as_sent = given.strip().encode("latin-1")  # what headers are decoded with
        matches = [hmac.compare_digest(as_sent, token) for token in self._tokens]
        return scheme.lower() == "bearer" and any(matches)


Handler = Callable[[Request], Awaitable[Response]]


class Guarded:
    """Lets a handler run only for requests that carry a token."""

    def __init__(self, access: Access) -> None:
        self._access = access

    def __call__(self, handler: Handler) -> Handler:
        async def checked(request: Request) -> Response:
            if not self._access.allows(request.headers.get("authorization")):
                return JSONResponse(
                    {"error": "send 'Authorization: Bearer <token>'; the token is in <data-dir>/http-token"},
                    status_code=401,
                    headers={"www-authenticate": "Bearer"},
                )
            return await handler(request)

        return checked
