"""A jq program in a process of its own, which ends itself when a text takes too long. jq offers no other way.

The process is started when it is first needed, and serves as long as the one that started it.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any, cast

import msgspec

from penstock.pipeline.destinations.base import DeliveryFailed
from penstock.pipeline.records.processors.jq_program import (
    JqProgram,
    Outcome,
    Patience,
    outcome_of,
    program_of,
)

TEXT_CPU_S = 2.0  # of a processor, so that a busy machine makes no difference
MEMORY_BYTES_MAX = 2 * 1024**3
IDLE_MAX = 4
PROGRAMS_MAX = 64
TOO_LONG = f"the MetadataExtractionQuery takes longer than {TEXT_CPU_S:g} s for this record; it may have no end at all"
TOO_MUCH = "the MetadataExtractionQuery breaks jq on this record; it may need too much memory"

# How it ends because of a text: by its timer, or by jq or Python that have no memory or stack left.
_ENDS = {-signal.SIGPROF: TOO_LONG, -signal.SIGABRT: TOO_MUCH, -signal.SIGSEGV: TOO_MUCH, 1: TOO_MUCH}
_LENGTH = struct.Struct("<Q")
_MAIN = f"from {__name__} import main; main()"


class JqApart(JqProgram):
    def __init__(self, query: str) -> None:
        """Raises ValueError if it is none."""
        program_of(query)
        self._query = query

    def run(self, texts: Sequence[str], patience: Patience) -> list[Outcome | None]:
        if texts and patience.left == patience.texts:
            found = list(self._outcomes(texts, one_by_one=False))
            if len(found) == len(texts):
                return cast("list[Outcome | None]", found)
        return self._carefully(texts, patience)

    def _carefully(self, texts: Sequence[str], patience: Patience) -> list[Outcome | None]:
        """One of them ended the process: which, is seen when each outcome comes as soon as it is known."""
        found: list[Outcome | None] = []
        while len(found) < len(texts):
            if not patience.left:
                return found + [None] * (len(texts) - len(found))
            reasons: list[str] = []
            found += self._outcomes(texts[len(found) :], one_by_one=True, reasons=reasons)
            found += reasons
            patience.left -= len(reasons)
        return found

    def _outcomes(
        self, texts: Sequence[str], *, one_by_one: bool, reasons: list[str] | None = None
    ) -> Iterator[Outcome]:
        """Up to the text that ends the process, and then why it did."""
        process = _taken()
        yield from process.outcomes(self._query, texts, one_by_one)
        if process.ended is not None:
            if process.ended not in _ENDS:
                raise DeliveryFailed(f"the process that runs jq has ended by itself ({process.ended})")
            if reasons is not None:
                reasons.append(_ENDS[process.ended])
        elif len(_idle) < IDLE_MAX:
            _idle.append(process)
        else:
            process.close()


class _Process:
    def __init__(self) -> None:
        # In a session of its own: an interrupt from the terminal is not for it.
        self._process = subprocess.Popen(
            [sys.executable, "-c", _MAIN],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests: IO[bytes] = self._process.stdin
        self._answers: IO[bytes] = self._process.stdout
        self.ended: int | None = None

    def outcomes(self, query: str, texts: Sequence[str], one_by_one: bool) -> Iterator[Outcome]:
        """As many as there are before it ends."""
        count = 0
        try:
            _send(self._requests, (query, texts, one_by_one, TEXT_CPU_S))
            while count < len(texts):
                answers: list[Outcome] = _receive(self._answers)
                count += len(answers)
                yield from answers
        except (EOFError, BrokenPipeError):
            self.ended = self._process.wait()
            self.close()

    def close(self) -> None:
        """It ends when there is nothing more to read."""
        for pipe in (self._requests, self._answers):
            with suppress(BrokenPipeError):  # what it has not read is of no use to anybody
                pipe.close()
        self._process.wait()


_idle: list[_Process] = []


def _taken() -> _Process:
    try:
        return _idle.pop()
    except IndexError:
        return _Process()


@atexit.register
def close_idle() -> None:
    while _idle:
        _idle.pop().close()


def main() -> None:
    """The other process."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    programs: dict[str, Any] = {}
    while True:
        try:
            query, texts, one_by_one, text_cpu_s = _receive(requests)
        except EOFError:
            return
        if query not in programs:
            if len(programs) >= PROGRAMS_MAX:
                programs.clear()
            programs[query] = program_of(query)
        size = 1 if one_by_one else len(texts)
        for start in range(0, len(texts), size):
            _send(answers, _timed(programs[query], texts[start : start + size], text_cpu_s))


def _timed(program: Any, texts: Sequence[str], text_cpu_s: float) -> list[Outcome]:
    outcomes = []
    for text in texts:
        signal.setitimer(signal.ITIMER_PROF, text_cpu_s)  # which nobody handles: it ends the process
        outcomes.append(outcome_of(program, text))
    signal.setitimer(signal.ITIMER_PROF, 0)
    return outcomes


def _send(pipe: IO[bytes], value: object) -> None:
    content = msgspec.msgpack.encode(value)
    pipe.write(_LENGTH.pack(len(content)) + content)
    pipe.flush()


def _receive(pipe: IO[bytes]) -> Any:
    """Raises EOFError if the other end has gone."""
    head = pipe.read(_LENGTH.size)
    content = pipe.read(*_LENGTH.unpack(head)) if len(head) == _LENGTH.size else b""
    if not content:
        raise EOFError
    return msgspec.msgpack.decode(content)
