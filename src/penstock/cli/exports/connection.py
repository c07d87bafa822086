"""The options by which a command finds the HTTP door of its server, and the arguments that name an export."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from penstock.http_client import HttpClient

Command = Callable[..., Any]


def export_arguments(command: Command) -> Command:
    return click.argument("stream")(click.argument("export")(command))


def http_options(command: Command) -> Command:
    for option in (
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path),
            metavar="DIR",
            help="The server's data directory, for its token.  [default: as configured for the server]",
        ),
        click.option(
            "--token-file",
            type=click.Path(path_type=Path),
            help="File with a client token or the server's; else PENSTOCK_HTTP_TOKEN or <data-dir>/http-token.",
        ),
        click.option(
            "--http",
            metavar="URL",
            help="Where the server is.  [default: as configured for the server, else http://127.0.0.1:8080]",
        ),
    ):
        command = option(command)
    return command


def connect_http(http: str | None, token_file: Path | None, data_dir: Path | None) -> HttpClient:
    from penstock.config import load_http_token, load_http_url
    from penstock.http_client import HttpClient

    cwd = Path.cwd()
    url = load_http_url(http, "--http", os.environ, cwd)
    return HttpClient(url, load_http_token(token_file, data_dir, os.environ, cwd))
