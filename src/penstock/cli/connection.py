"""The options by which a command finds its server, and the connection they make."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock.client import StreamManagerClient

Command = Callable[..., Any]

# How long one request of a command waits that goes on until Ctrl-C. An interrupt that comes just before Python
# calls the kernel is heard only when that call is over, so the wait must be one that people bear.
POLL_MS = 1000

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")


def connection_options(command: Command) -> Command:
    command = click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        help="File with the client token; else PENSTOCK_CLIENT_TOKEN or AWS_CONTAINER_AUTHORIZATION_TOKEN.",
    )(command)
    return click.option(
        "--server",
        metavar="HOST:PORT",
        help="Where the server listens.  [default: as configured for the server, else 127.0.0.1:8088]",
    )(command)


def connect(server: str | None, token_file: Path | None) -> StreamManagerClient:
    from penstock.client import StreamManagerClient, load_token
    from penstock.config import load_server_address

    host, port = load_server_address(server, os.environ, Path.cwd())
    return StreamManagerClient(host, port, load_token(token_file, os.environ))
