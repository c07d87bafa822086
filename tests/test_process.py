"""What the long-running processes have in common."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
from penstock.process import keep_freed_memory

if {kept}:
    keep_freed_memory()

def use_memory():
    blocks = [bytearray(4_000_000) for _ in range(4)]
    for block in blocks:
        block[:] = bytes(len(block))

use_memory()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    use_memory()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(*, kept: bool) -> int:
    run = subprocess.run(
        [sys.executable, "-c", FAULTS.format(kept=kept)], capture_output=True, text=True, check=True
    )
    return int(run.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="malloc of glibc")
def test_freed_memory_is_used_again() -> None:
    assert page_faults(kept=True) * 10 < page_faults(kept=False)
