"""The Python SDK under test: PyPI `stream-manager`, or `greengrasssdk` in a virtualenv of its own."""

from __future__ import annotations

import importlib
import os
from typing import Any

SDK_MODULE = os.environ.get("PENSTOCK_TEST_SDK", "stream_manager")
sdk: Any = importlib.import_module(SDK_MODULE)
EXPECTED_SDK_VERSION = {"stream_manager": "1.1.2", "greengrasssdk.stream_manager": "1.1.1"}[SDK_MODULE]
