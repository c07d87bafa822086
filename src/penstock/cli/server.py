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
    """Serve streams without delivering them.

    Until SIGTERM or Ctrl-C; 'penstock up' also delivers.

    Every flag can also be set as PENSTOCK_<NAME> in the environment or as <name> in penstock.toml.
    """
    from penstock.config import load_settings, misspelt_variables

    settings = load_settings(flags, os.environ, Path.cwd())
    check_data_dir(settings.data_dir)
    for warning in (*settings.warnings(), *misspelt_variables(os.environ)):
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


def check_data_dir(data_dir: Path) -> None:
    """Makes it if it is not there."""
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(data_dir, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"the data directory {data_dir} cannot be used ({error.strerror}); name one with --data-dir or "
            "PENSTOCK_DATA_DIR that this user may write to"
        ) from error
