"""penstock server"""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import click

from penstock.cli.settings import (
    COMMON_FLAGS,
    SERVER_FLAGS,
    authenticate_option,
    config_option,
    setting_flags,
    supervisor_option,
)
from penstock.errors import ConfigError


@click.command()
@config_option
@setting_flags(COMMON_FLAGS, SERVER_FLAGS)
@authenticate_option
@supervisor_option
def server(supervisor_pid: int | None, **flags: object) -> int:
    """Serve streams until SIGTERM or Ctrl-C, without delivering exports: 'penstock up' does both.

    Every flag can also be set as PENSTOCK_<NAME> in the environment or as <name> in penstock.toml.
    """
    from penstock.config import load_settings

    settings = load_settings(flags, os.environ, Path.cwd())
    for warning in settings.warnings():
        click.echo(f"penstock: warning: {warning}", err=True)

    from penstock.process import end_with
    from penstock.server import run

    end_with(supervisor_pid, signal.SIGTERM)
    try:
        return run(settings)
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EADDRNOTAVAIL):
            raise
        raise ConfigError(
            f"{error.strerror}; set another with --host, --stream-manager-port or --http-port (0 = any free)"
        ) from error
