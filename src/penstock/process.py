"""What the long-running processes have in common: how they log, and that they end with their supervisor."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def configure_logging(level: str) -> None:
    levels = {"TRACE": "DEBUG", "WARN": "WARNING"}
    logging.basicConfig(
        stream=sys.stderr,
        level=levels.get(level, level),
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )


def end_with(supervisor_pid: int | None, death_signal: signal.Signals) -> None:
    """Have the kernel send `death_signal` when the supervisor is gone, even if it was killed."""
    if supervisor_pid is None or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    if os.getppid() != supervisor_pid:  # it was gone before it could be asked for
        sys.exit(0)
