"""A figure that Penstock alone is held to."""

from __future__ import annotations

from typing import NamedTuple


class Figure(NamedTuple):
    """One number, and the bar it is held to where there is one."""

    label: str
    value: float
    unit: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def passes(self) -> bool | None:
        if self.at_least is not None:
            return self.value >= self.at_least
        if self.at_most is not None:
            return self.value <= self.at_most
        return None
