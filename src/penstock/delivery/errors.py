"""What Firehose answers when it refuses something."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """An error of the API, by the code that clients look at."""

    def __init__(self, code: str, message: str, /, *, http_status: int = 400, **members: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.http_status = http_status
        self.members = members  # besides __type and message
