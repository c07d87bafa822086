"""What functions need: an environment that holds nothing of the developer's own, and connections that are closed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from penstock.pipeline import aws
from penstock.pipeline.records.processors import lambda_http
from penstock.pipeline.records.sql_job import SESSION
from pipeline.records.functions import Functions, LambdaApi, serving


@pytest.fixture
def functions() -> Iterator[Functions]:
    made = Functions()
    with serving(made):
        yield made
        lambda_http._pools().clear()


@pytest.fixture
def lambda_api(monkeypatch: pytest.MonkeyPatch) -> Iterator[LambdaApi]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    made = LambdaApi()
    with serving(made) as url:
        for name, value in {
            "AWS_ENDPOINT_URL_LAMBDA": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }.items():
            monkeypatch.setenv(name, value)
        yield made
        for client in aws._clients.values():
            client.close()
        aws.forget_clients()


@pytest.fixture(scope="package")
def spark() -> Iterator[SparkSession]:
    """A session as the pipeline has it, for all tests here that need one: it takes long to start."""
    from penstock.pipeline.session import build_session

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = build_session("local[2]", None, "512m", {})
        for name, value in SESSION.items():
            session.conf.set(name, value)
        yield session
        session.stop()
