"""A Python callable in place of a Lambda function: the code of one runs here unchanged."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent import futures
from functools import lru_cache
from importlib import import_module

import msgspec

from penstock.pipeline.destinations.base import DeliveryFailed, PipelineSettings
from penstock.pipeline.records.processors.lambda_event import (
    PAYLOAD_BYTES_MAX,
    AnswerTooLarge,
    Event,
    Function,
    InvocationFailed,
    decoded,
    excerpt,
)

Handler = Callable[[object, object], object]


class Context:
    """What handlers use of Lambda's own."""

    function_version = "$LATEST"
    memory_limit_in_mb = "0"
    log_group_name = ""
    log_stream_name = ""

    def __init__(self, function_arn: str, function_name: str, request_id: str, timeout_s: float) -> None:
        self.invoked_function_arn = function_arn
        self.function_name = function_name
        self.aws_request_id = request_id
        self._deadline_s = time.monotonic() + timeout_s

    def get_remaining_time_in_millis(self) -> int:
        return max(0, int((self._deadline_s - time.monotonic()) * 1000))


class PythonFunction(Function):
    def __init__(self, target: str, lambda_arn: str, settings: PipelineSettings) -> None:
        self._target = target
        self._arn = lambda_arn
        self._timeout_s = settings.lambda_timeout_s
        self._handler = _imported(target)

    def invoke(self, event: Event) -> object:
        name = self._arn.partition(":function:")[2].partition(":")[0] or self._arn
        context = Context(self._arn, name, event.invocation_id, self._timeout_s)
        answer: futures.Future[object] = futures.Future()
        arguments = (self._handler, msgspec.to_builtins(event), context, answer)
        # A thread of its own, which can be left behind when it hangs.
        threading.Thread(target=_call, args=arguments, name="penstock-python", daemon=True).start()
        try:
            given = answer.result(self._timeout_s)
        except futures.TimeoutError as error:
            if answer.done():  # the handler's own
                raise InvocationFailed(excerpt(f"{type(error).__name__}: {error}")) from error
            raise InvocationFailed(f"{self._target} took longer than {self._timeout_s:g} s") from error
        except Exception as error:
            raise InvocationFailed(excerpt(f"{type(error).__name__}: {error}")) from error
        return self._through_json(given)

    def _through_json(self, answer: object) -> object:
        """As Lambda's runtime does it: an answer of other things than JSON has would fail later, and worse."""
        try:
            text = json.dumps(answer, ensure_ascii=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise InvocationFailed(excerpt(f"the answer of {self._target} is not JSON: {error}")) from error
        if len(text) > PAYLOAD_BYTES_MAX:
            raise AnswerTooLarge(f"the answer of {self._target} is larger than {PAYLOAD_BYTES_MAX} bytes")
        return decoded(text)


def _call(handler: Handler, event: object, context: Context, answer: futures.Future[object]) -> None:
    try:
        answer.set_result(handler(event, context))
    except BaseException as error:  # whatever the user's code raises, sys.exit too, is its answer
        answer.set_exception(RuntimeError(str(error)) if isinstance(error, SystemExit) else error)


@lru_cache
def _imported(target: str) -> Handler:
    _, module_name, path = target.split(":")
    try:
        found: object = import_module(module_name)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        text = f"{target} cannot be imported where the pipeline runs: {error}"
        raise DeliveryFailed(
            f"{text}; install it there, or correct PENSTOCK_LAMBDAS", permanent=True
        ) from error
    if not callable(found):
        raise DeliveryFailed(f"{target} is not a function; correct PENSTOCK_LAMBDAS", permanent=True)
    return found
