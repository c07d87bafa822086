"""penstock server"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from penstock.errors import ConfigError

# name, what is shown as its value, default, meaning
FLAGS = (
    ("data_dir", "DIR", "./penstock-data", "Where all state is kept."),
    ("host", "ADDRESS", "127.0.0.1", "Address to listen on; any but loopback needs client tokens."),
    ("stream_manager_port", "PORT", "8088", "Port of the Stream Manager protocol; 0 = any free one."),
    ("http_port", "PORT", "8080", "Port of the HTTP interface; 0 = any free one."),
    ("client_tokens_file", "FILE", None, "Tokens of the clients, one a line; turns authentication on."),
    ("message_size_max_bytes", "SIZE", "64MiB", "Larger messages are refused."),
    ("free_space_floor_bytes", "SIZE", "64MiB", "Appends are refused while less disk space is free."),
    ("memory_streams_size_max_bytes", "SIZE", "1GiB", "What all Memory streams may hold together."),
    ("journal_size_bytes", "SIZE", "32MiB", "Size of the journal that synced appends share."),
    ("background_sync_interval_ms", "MS", "500", "How soon unsynced appends are synced."),
    ("input_buffer_max_bytes", "SIZE", "256MiB", "What unanswered requests may hold in memory."),
    ("read_soft_limit_bytes", "SIZE", "4MiB", "A read stops here once its minimum is met."),
    ("exporter_max_bandwidth_kbps", "KBPS", None, "Kilobits per second for all exports."),
    ("exporter_thread_pool_size", "N", "5", "Exports at a time."),
    ("s3_min_part_size_bytes", "SIZE", "5MiB", "Smallest part of a multipart upload."),
    ("kinesis_inter_call_delay_ms", "MS", "1000", "Pause between calls to Kinesis."),
    ("read_only_dirs", "DIR,...", None, "Directories that S3 file tasks may read from."),
    ("log_level", "LEVEL", "INFO", "TRACE, DEBUG, INFO, WARN or ERROR."),
)

Command = Callable[..., Any]


def _setting_flags(command: Command) -> Command:
    for name, metavar, default, meaning in reversed(FLAGS):
        shown = f"{meaning}  [default: {default}]" if default else meaning
        command = click.option(f"--{name.replace('_', '-')}", name, metavar=metavar, help=shown)(command)
    return command


@click.command()
@click.option("--config", metavar="FILE", help="Configuration file.  [default: ./penstock.toml if there]")
@_setting_flags
@click.option(
    "--authenticate-client/--no-authenticate-client", default=None, help="Ask every client for a token."
)
def server(**flags: object) -> int:
    """Serve streams until SIGTERM or Ctrl-C.

    Every flag can also be set as PENSTOCK_<NAME> in the environment or as <name> in penstock.toml.
    """
    from penstock.config import load_settings

    settings = load_settings(flags, os.environ, Path.cwd())
    for warning in settings.warnings():
        click.echo(f"penstock: warning: {warning}", err=True)

    from penstock.server import run

    try:
        return run(settings)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise
        raise ConfigError(
            f"{error.strerror}; set another with --host, --stream-manager-port or --http-port (0 = any free)"
        ) from error
