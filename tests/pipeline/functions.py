"""Functions that tests put in place of Lambda functions. Imported by workers of Spark."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

WAIT_S_MAX = 120


def shout(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Upper case; 'drop' is dropped, 'bad' fails."""
    answers = []
    for record in event["records"]:
        data = base64.b64decode(record["data"])
        result = {b"drop": "Dropped", b"bad": "ProcessingFailed"}.get(data.strip(), "Ok")
        answers.append(
            {
                "recordId": record["recordId"],
                "result": result,
                "data": base64.b64encode(data.upper()).decode(),
            }
        )
    return {"records": answers}


def wait(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Returns everything as it is, once there is a file of the name that the first record says."""
    path = Path(base64.b64decode(event["records"][0]["data"]).decode())
    deadline_s = time.monotonic() + WAIT_S_MAX
    while not path.exists() and time.monotonic() < deadline_s:
        time.sleep(0.05)  # another process makes the file
    return {"records": [{**record, "result": "Ok"} for record in event["records"]]}
