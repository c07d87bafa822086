"""AWS on loopback, and an environment that holds nothing of the developer's own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from moto.server import ThreadedMotoServer

from penstock.pipeline import aws
from penstock.pipeline.destinations import http as http_destination


@pytest.fixture(autouse=True)
def aws_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_REGION": "eu-west-1",
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }.items():
        monkeypatch.setenv(name, value)
    yield
    http_destination._idle_connections.close()


@pytest.fixture(scope="package", autouse=True)
def close_clients() -> Iterator[None]:
    yield
    for client in aws._clients.values():
        client.close()
    aws.forget_clients()


@pytest.fixture(scope="package")
def moto_url() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()
