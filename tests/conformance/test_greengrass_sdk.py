"""test_python_sdk.py once more, under greengrasssdk and the dependencies that it pins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
GREENGRASS_PYTHON = REPOSITORY / ".venvs/greengrass/bin/python"


@pytest.mark.timeout(180)
def test_python_sdk_tests_pass_under_greengrasssdk() -> None:
    assert GREENGRASS_PYTHON.exists(), "run scripts/setup-tests.sh first"
    run = subprocess.run(
        [GREENGRASS_PYTHON, "-m", "pytest", "-q", "-p", "no:cacheprovider", HERE / "test_python_sdk.py"],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PENSTOCK_TEST_SDK": "greengrasssdk.stream_manager",
            "PENSTOCK_TEST_PYTHON": sys.executable,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=170,
        check=False,
    )
    assert run.returncode == 0, run.stdout
