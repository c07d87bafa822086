"""What the long-running processes have in common: how they log, and that they end with their supervisor."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h>
KEPT_MEMORY_BYTES = 32 * 1024 * 1024
KEPT_BLOCK_BYTES = 8 * 1024 * 1024  # larger ones go back to the kernel one by one


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


def keep_freed_memory() -> None:
    """Have the C library keep what is freed, up to a bound, for the next request.

    It would give back every large body and ask for it again, and the kernel would clear each page anew: an eighth
    of the processor time of a server that takes batches of records, or more.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc has it
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_MEMORY_BYTES)
