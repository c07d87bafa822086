"""A function at an address of our own: the event is posted, the answer is JSON."""

from __future__ import annotations

import time
from functools import cache

import msgspec
import urllib3

from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.destinations.http import parse_uri
from penstock.pipeline.records.processors.lambda_event import (
    PAYLOAD_BYTES_MAX,
    AnswerTooLarge,
    Event,
    Function,
    InvocationFailed,
    decoded,
    error_text,
)

CHUNK_BYTES = 64 * 1024


class HttpFunction(Function):
    def __init__(self, url: str, settings: PipelineSettings) -> None:
        self._target = parse_uri(url)
        self._timeout_s = settings.lambda_timeout_s
        self._timeout = urllib3.Timeout(connect=settings.connect_timeout_s, read=settings.lambda_timeout_s)
        self._headers = {"Content-Type": "application/json", "User-Agent": "penstock"}
        if self._target.authorization is not None:
            self._headers["Authorization"] = self._target.authorization

    def invoke(self, event: Event) -> object:
        deadline_s = time.monotonic() + self._timeout_s
        try:
            response = self._post(msgspec.json.encode(event))
            try:
                body = self._body(response, deadline_s)
            except BaseException:
                response.close()  # there is more to come: the connection is of no use to others
                raise
            response.release_conn()
        except urllib3.exceptions.HTTPError as error:
            # The texts of urllib3 hold the address, and with it what may be secret.
            raise InvocationFailed(f"cannot post to {self._target}: {type(error).__name__}") from error
        return self._answer(response, decoded(body))

    def _post(self, payload: bytes) -> urllib3.BaseHTTPResponse:
        secure, host, port = self._target.address
        pool = _pools().connection_from_host(host, port, "https" if secure else "http")
        return pool.urlopen(
            "POST",
            self._target.path,
            payload,
            self._headers,
            retries=False,
            timeout=self._timeout,
            preload_content=False,
        )

    def _body(self, response: urllib3.BaseHTTPResponse, deadline_s: float) -> bytes:
        body = bytearray()
        while chunk := response.read1(CHUNK_BYTES):
            body += chunk
            if len(body) > PAYLOAD_BYTES_MAX:
                raise AnswerTooLarge(f"the answer of {self._target} is larger than {PAYLOAD_BYTES_MAX} bytes")
            if time.monotonic() > deadline_s:
                raise InvocationFailed(f"{self._target} took longer than {self._timeout_s:g} s")
        return bytes(body)

    def _answer(self, response: urllib3.BaseHTTPResponse, answer: object) -> object:
        if not 200 <= response.status <= 299:
            text = f"{self._target} answered {response.status} {response.reason or ''}".rstrip()
            raise InvocationFailed(f"{text}: {error_text(answer)}".rstrip(": "))
        # Emulators of Lambda answer a failure with 200, not all of them with the header.
        is_error = isinstance(answer, dict) and "errorMessage" in answer and "records" not in answer
        if "X-Amz-Function-Error" in response.headers or is_error:
            raise InvocationFailed(error_text(answer))
        return answer


@cache
def _pools() -> urllib3.PoolManager:
    return urllib3.PoolManager(num_pools=64, maxsize=32)
