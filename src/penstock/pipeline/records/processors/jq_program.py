"""A jq program over JSON texts, in this process. jq cannot be interrupted: only for what certainly ends."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import jq

RESULTS_MAX = 1000  # of one text: a program may well go on forever

# Every input gives its results and then null. Queries see nothing of the process they run in, and no clock:
# a flush that is tried again must make the same keys.
_PROGRAM = """
def env: {};
{} as $ENV
| .[0] as $arrival
| .[1]
| def now: $arrival;
(try ((
%s
) | tojson) catch ["\\(.)"]), null
"""

# The first two results of a text, each as JSON, or in a list what the program raised; or why there are none.
Outcome: TypeAlias = "list[Any] | str"

SEVERAL_RESULTS = "the MetadataExtractionQuery gives more than one result"


class Patience:
    """How many texts of a flush may still take too long."""

    def __init__(self, texts: int = 5) -> None:
        self.texts = self.left = texts


class JqProgram(ABC):
    @abstractmethod
    def run(self, texts: Sequence[str], patience: Patience) -> list[Outcome | None]:
        """What becomes of each text; None if it was not tried, because others took too long."""


class JqHere(JqProgram):
    def __init__(self, query: str) -> None:
        """Raises ValueError if it is none."""
        self._program = program_of(query)

    def run(self, texts: Sequence[str], patience: Patience) -> list[Outcome | None]:
        outcomes: list[Outcome | None] = []
        try:
            outcomes.extend(_results(self._program.input_text("\n".join(texts))))
        except (ValueError, _Endless):
            outcomes = []
        if len(outcomes) != len(texts):  # one of them broke it, or halted it
            return [outcome_of(self._program, text) for text in texts]
        return outcomes


def program_of(query: str) -> Any:
    """Compiled. Raises ValueError."""
    jq.compile(query)  # by itself, so that it cannot end what is around it
    return jq.compile(_PROGRAM % query)


def outcome_of(program: Any, text: str) -> Outcome:
    try:
        return next(_results(program.input_text(text)), [])
    except ValueError as error:
        return f"the record is not JSON for jq: {first_line(error)}"
    except _Endless:
        return SEVERAL_RESULTS


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip()


class _Endless(Exception):
    """A text has so many results that there may be no end to them."""


def _results(outputs: Iterable[Any]) -> Iterator[list[Any]]:
    """What each input gave; of many results the first two, which tell enough."""
    results: list[Any] = []
    count = 0
    for output in outputs:
        if output is None:
            yield results
            results, count = [], 0
            continue
        count += 1
        if count <= 2:
            results.append(output)
        elif count > RESULTS_MAX:
            raise _Endless
