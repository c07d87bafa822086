"""Where a function is: at an address of our own, in Python, or where AWS's Lambda is."""

from __future__ import annotations

import re
from importlib import import_module
from urllib.parse import urlsplit

from penstock.errors import ConfigError
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.records.processors.lambda_event import Function

PYTHON = "python:"

_ARN = re.compile(r"(arn:[^:]*:lambda:[^:]*:[^:]*:function:([^:]+))(?::(.+))?")
_PYTHON_TARGET = re.compile(r"python:[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def function_for(lambda_arn: str, settings: PipelineSettings) -> Function:
    function: Function
    target = find_target(lambda_arn, settings.lambdas)
    if target is None:
        module = import_module("penstock.pipeline.records.processors.lambda_api")
        function = module.LambdaApi(lambda_arn, settings)
    elif target.startswith(PYTHON):
        module = import_module("penstock.pipeline.records.processors.lambda_python")
        function = module.PythonFunction(target, lambda_arn, settings)
    else:
        module = import_module("penstock.pipeline.records.processors.lambda_http")
        function = module.HttpFunction(target, settings)
    return function


def find_target(lambda_arn: str, table: dict[str, str]) -> str | None:
    """By the ARN as configured, else without version or alias, else by the name of the function."""
    match = _ARN.fullmatch(lambda_arn)
    names = [lambda_arn, match[1], match[2]] if match else [lambda_arn]
    return next((table[name] for name in names if name in table), None)


def check_target(name: str, target: str) -> None:
    """Raises ConfigError. That a Python function can be imported is seen where it runs."""
    if target.startswith(PYTHON):
        valid = _PYTHON_TARGET.fullmatch(target) is not None
    else:
        try:
            parts = urlsplit(target)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
    if not valid:
        # The target itself is not shown: an address may hold a password.
        raise ConfigError(
            f"the function for {name} is neither an address nor a Python function; "
            "write https://host/path or python:package.module:function"
        )
