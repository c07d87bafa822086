"""Functions that tests put in place of Lambda functions. Imported by workers of Spark."""

from __future__ import annotations

import base64
from typing import Any


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
