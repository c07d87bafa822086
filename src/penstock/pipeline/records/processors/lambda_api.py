"""A function behind Lambda's own API: AWS, or an emulator that AWS_ENDPOINT_URL_LAMBDA names."""

from __future__ import annotations

import msgspec

from penstock.pipeline import aws
from penstock.pipeline.destinations.base import DeliveryFailed, PipelineSettings
from penstock.pipeline.records.processors.lambda_event import (
    PAYLOAD_BYTES_MAX,
    AnswerTooLarge,
    Event,
    Function,
    InvocationFailed,
    decoded,
    error_text,
)

RESPONSE_TOO_LARGE = "Function.ResponseSizeTooLarge"


class LambdaApi(Function):
    def __init__(self, lambda_arn: str, settings: PipelineSettings) -> None:
        self._arn = lambda_arn
        self._settings = msgspec.structs.replace(settings, read_timeout_s=settings.lambda_timeout_s)
        # A function can be called in its own region only.
        parts = lambda_arn.split(":")
        self._region = parts[3] if len(parts) > 3 else None

    def invoke(self, event: Event) -> object:
        payload = msgspec.json.encode(event)
        try:
            # One attempt: how many there are is for the stream's NumberOfRetries to say.
            client = aws.client("lambda", self._settings, region=self._region, attempts_max=1)
            with aws.failures("cannot invoke the function"):
                response = client.invoke(FunctionName=self._arn, Payload=payload)
                with response["Payload"] as stream:
                    body = stream.read(PAYLOAD_BYTES_MAX + 1)
        except DeliveryFailed as error:
            raise InvocationFailed(str(error)) from error
        if len(body) > PAYLOAD_BYTES_MAX:
            raise AnswerTooLarge(f"the answer is larger than {PAYLOAD_BYTES_MAX} bytes")
        answer = decoded(body)
        if response.get("FunctionError"):
            failure = AnswerTooLarge if RESPONSE_TOO_LARGE in error_text(answer) else InvocationFailed
            raise failure(error_text(answer))
        return answer
