"""Access by token, on the wire."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.raw_client import RawClient
from conformance.wire import Status
from harness import ServerDidNotStart, ServerProcess


@pytest.mark.parametrize("token", ["first-token", "second token"])
def test_listed_token(server_with_tokens: ServerProcess, token: str) -> None:
    with RawClient(server_with_tokens.port, authToken=token) as client:
        client.list()


@pytest.mark.parametrize(
    "token",
    [None, "", " ", "first-toke", "first-token2", "first-token\n", "FIRST-TOKEN", "ü", 7, ["first-token"]],
)
def test_anything_else_is_unauthorized(server_with_tokens: ServerProcess, token: object) -> None:
    with RawClient(server_with_tokens.port, connect=False) as client:
        response = client.handshake(authToken=token)
        assert response["status"] == Status.UNAUTHORIZED
        assert "first-token" not in response["errorMessage"]
        client.assert_closed_cleanly()


def test_any_token_is_welcome_where_none_is_needed(shared_server: ServerProcess) -> None:
    with RawClient(shared_server.port, authToken="whatever") as client:
        client.list()


def test_authentication_switched_on_by_the_official_setting(
    start_server: Callable[..., ServerProcess], tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("listed\n")
    env = {"STREAM_MANAGER_AUTHENTICATE_CLIENT": "true", "PENSTOCK_CLIENT_TOKENS_FILE": str(tokens)}
    server = start_server(env=env)
    with RawClient(server.port, authToken="listed") as client:
        client.list()
    with RawClient(server.port, connect=False) as client:
        assert client.handshake()["status"] == Status.UNAUTHORIZED


def test_other_addresses_need_tokens(start_server: Callable[..., ServerProcess], tmp_path: Path) -> None:
    flags = ["--data-dir", str(tmp_path / "data"), "--host", "0.0.0.0"]
    flags += ["--stream-manager-port", "0", "--http-port", "0"]
    with pytest.raises(ServerDidNotStart, match="token"):
        start_server(flags=flags)
