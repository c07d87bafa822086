"""Layer 2 refuses with InvalidArgumentException, and stops at the first rule that is broken."""

from __future__ import annotations

from typing import NoReturn

from penstock.delivery.errors import ApiError


def refuse(message: str) -> NoReturn:
    raise ApiError("InvalidArgumentException", message)
