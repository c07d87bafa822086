"""Files that hold secrets: read only if no other user of the machine can read them too."""

from __future__ import annotations

import stat
from pathlib import Path

from penstock.errors import ConfigError


def read_secret_file(path: Path, what: str) -> bytes:
    """`what` names the file in errors: 'the access keys file'."""
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{what} {path} cannot be read ({error.strerror}); correct its path, or let the server's user read it"
        ) from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise ConfigError(f"{what} {path} is open to every user of this machine; run: chmod o-rwx {path}")
    return content
