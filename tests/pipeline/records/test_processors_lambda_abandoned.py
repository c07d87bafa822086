"""Functions that hang while nobody waits for their answers any more: the attempt ends, and they are left behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from penstock.pipeline.destinations.base import Cancelled, PipelineSettings
from penstock.pipeline.records.processors import lambda_calls, lambda_function
from penstock.pipeline.records.processors.lambda_function import LambdaFunction
from pipeline.records.functions import (
    ARN,
    Event,
    Functions,
    LambdaApi,
    delivery_settings,
    function_error,
    records_of,
    upper,
)

HANG_S = 30.0
SOON_S = 5.0

released = threading.Event()
called = threading.Semaphore(0)


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever hangs ends with the test."""
    monkeypatch.setattr(lambda_calls, "WATCH_INTERVAL_S", 0.05)
    released.clear()
    while called.acquire(blocking=False):
        pass
    yield
    released.set()


def hanging(event: Event, context: object = None) -> dict[str, Any]:
    called.release()
    released.wait(HANG_S)
    return upper(event)


def no_more() -> None:
    raise Cancelled("the export was deleted")


def soon_cancelled() -> None:
    """As soon as the function has been called."""
    if called.acquire(blocking=False):
        no_more()


def processor(
    settings: PipelineSettings, still_wanted: Callable[[], None], **parameters: str
) -> LambdaFunction:
    return LambdaFunction(
        {"LambdaArn": ARN, **parameters}, delivery_settings(), settings, still_wanted=still_wanted
    )


def ends_soon(made: LambdaFunction, *payloads: bytes) -> None:
    began_s = time.monotonic()
    with pytest.raises(Cancelled):
        made.process(records_of(*payloads))
    assert time.monotonic() - began_s < SOON_S


@pytest.mark.parametrize("way", ["address", "api", "python"])
def test_waiting_ends_when_nobody_wants_the_answer(
    way: str, functions: Functions, lambda_api: LambdaApi
) -> None:
    functions.handlers["/f"] = lambda_api.handlers["upper"] = hanging
    targets = {"address": f"{functions.url}/f", "python": f"python:{__name__}:hanging"}
    lambdas = {ARN: targets[way]} if way in targets else {}
    ends_soon(processor(PipelineSettings(lambdas=lambdas, lambda_timeout_s=HANG_S), soon_cancelled), b"a")


def test_pauses_between_attempts_end_too(functions: Functions) -> None:
    failures = iter(range(300))

    def failing(event: Event) -> Any:
        if next(failures) == 1:
            called.release()
        return function_error("not now")

    functions.handlers["/f"] = failing
    settings = PipelineSettings(lambdas={ARN: f"{functions.url}/f"})
    ends_soon(processor(settings, soon_cancelled, NumberOfRetries="300"), b"a")
    assert len(functions.events) == 2, "it pauses for two seconds, and is not called again"


def test_what_was_not_called_yet_is_not_called_any_more(functions: Functions) -> None:
    functions.handlers["/f"] = hanging
    settings = PipelineSettings(lambdas={ARN: f"{functions.url}/f"}, lambda_timeout_s=HANG_S)
    most = lambda_function.CONCURRENT_INVOCATIONS_MAX
    made = processor(settings, soon_cancelled, BufferSizeInMBs="0.2")
    ends_soon(made, *[bytes(200_000)] * (3 * most))
    released.set()
    for thread in threading.enumerate():
        if thread.name == "penstock-lambda":
            thread.join(SOON_S)
    assert len(functions.events) <= most


def test_another_function_need_not_wait_for_those_left_behind(functions: Functions) -> None:
    """Which is how a function that hangs is replaced."""
    functions.handlers |= {"/f": hanging, "/g": upper}
    other = ARN.replace("upper", "other")
    lambdas = {ARN: f"{functions.url}/f", other: f"{functions.url}/g"}
    settings = PipelineSettings(lambdas=lambdas, lambda_timeout_s=HANG_S)
    made = processor(settings, soon_cancelled, BufferSizeInMBs="0.2")
    ends_soon(made, *[bytes(200_000)] * lambda_function.CONCURRENT_INVOCATIONS_MAX)
    replaced = LambdaFunction({"LambdaArn": other}, delivery_settings(), settings)
    done, failed = replaced.process(records_of(b"a"))
    assert ([record.data for record in done], failed) == ([b"A"], [])
