"""AWS clients: made once per process from the standard variables, and what their errors mean for an export."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
)

from penstock.pipeline.destinations.base import DeliveryFailed, PipelineSettings

# Services that botocore no longer ships, in its own format.
MODELS = Path(__file__).parent / "models"
POOLED_CONNECTIONS_MAX = 32
# The planner retries. The one attempt more is for a pooled connection that was closed at the other end.
ATTEMPTS_MAX = 2

_CREDENTIALS_REFUSED = {
    "AccessDenied",
    "AccessDeniedException",
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "MissingAuthenticationToken",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
}

_BODY = "PenstockBody"

_lock = threading.RLock()  # making a client may find the credentials wanting, and forget
_clients: dict[tuple[object, ...], Any] = {}


def client(
    service: str, settings: PipelineSettings, *, region: str | None = None, attempts_max: int = ATTEMPTS_MAX
) -> Any:
    """The client of a service. Variables that change get a new one, so do credentials that were refused."""
    variables = tuple(sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_")))
    key = (service, region, attempts_max, settings.connect_timeout_s, settings.read_timeout_s, variables)
    with _lock:
        found = _clients.get(key)
        if found is None:
            with failures(f"cannot use {service}"):
                found = _clients[key] = _new_client(service, settings, region, attempts_max)
        return found


def endpoint(service: str) -> str | None:
    """The address that the environment sets for a service in place of AWS's own."""
    if os.environ.get("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "").lower() == "true":
        return None
    return os.environ.get(f"AWS_ENDPOINT_URL_{service.upper()}") or os.environ.get("AWS_ENDPOINT_URL") or None


def call_with_body(operation: Any, body: bytes, **parameters: Any) -> Any:
    """Call with a body that is ready made, and may so hold members that botocore's model does not know yet."""
    return operation(**parameters, **{_BODY: body})


def error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


@contextmanager
def failures(doing: str) -> Iterator[None]:
    """What goes wrong inside is a failed delivery, told in words that lead to the cure."""
    try:
        yield
    except ClientError as error:
        raise _refused(error, doing) from error
    except BotoCoreError as error:
        raise _unsent(error, doing) from error


def forget_clients() -> None:
    """Clients keep the credentials they began with; the next ones read them anew."""
    with _lock:
        _clients.clear()


def _new_client(service: str, settings: PipelineSettings, region: str | None, attempts_max: int) -> Any:
    own_address = endpoint(service) is not None
    core = botocore.session.get_session()
    core.get_component("data_loader").search_paths.append(str(MODELS))
    region = region or os.environ.get("AWS_REGION") or None
    session = boto3.session.Session(botocore_session=core, region_name=region)
    config = Config(
        connect_timeout=settings.connect_timeout_s,
        read_timeout=settings.read_timeout_s,
        retries={"mode": "standard", "total_max_attempts": attempts_max},
        max_pool_connections=POOLED_CONNECTIONS_MAX,
        tcp_keepalive=True,
        # Host names of AWS's own only: data.127.0.0.1 leads nowhere.
        inject_host_prefix=not own_address,
        s3={"addressing_style": "path"} if own_address else None,
    )
    made = session.client(service, config=config)
    made.meta.events.register("before-parameter-build", _take_body)
    made.meta.events.register("before-call", _put_body)
    return made


def _take_body(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    context[_BODY] = params.pop(_BODY, None)


def _put_body(params: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
    if context.get(_BODY) is not None:
        params["body"] = context[_BODY]


def _refused(error: ClientError, doing: str) -> DeliveryFailed:
    code = error_code(error)
    text = str(error.response.get("Error", {}).get("Message", "")).strip()
    if code in _CREDENTIALS_REFUSED:
        forget_clients()
        text = f"{text} (check the credentials and the permissions of the export)".strip()
    return DeliveryFailed(f"{doing}: {code}" + (f": {text}" if text else ""))


def _unsent(error: BotoCoreError, doing: str) -> DeliveryFailed:
    if isinstance(error, NoRegionError):
        text = "no AWS region is set; set AWS_REGION or AWS_DEFAULT_REGION for the pipeline"
        return DeliveryFailed(f"{doing}: {text}", permanent=True)
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError)):
        forget_clients()
        return DeliveryFailed(f"{doing}: no usable AWS credentials were found: {error}")
    return DeliveryFailed(f"{doing}: {error}", permanent=isinstance(error, ParamValidationError))
