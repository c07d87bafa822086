"""The pages of the destinations: their examples run, and what they state is what the code does."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import boto3
import msgspec
import pytest

from conformance.raw_client import RawClient
from harness import ServerProcess
from penstock.flush import Flush
from penstock.model import ExportKind
from penstock.pipeline.delivery import frame_parts
from penstock.pipeline.destinations import destination_for
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.server_client import ServerClient
from pipeline.destinations.aws_endpoint import ModelEndpoint, SiteWiseEndpoint, serving
from pipeline.destinations.recording import NONCE, Recording
from pipeline.destinations.test_http import Sink

PAGES = Path(__file__).parents[3] / "docs" / "destinations"
MESSAGES = 10


def block(page: str, language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", (PAGES / page).read_text(), re.DOTALL)
    return str(found)


def run_example(server: ServerProcess, page: str, *arguments: str) -> None:
    env = {**os.environ, "STREAM_MANAGER_SERVER_PORT": str(server.port)}
    command = [sys.executable, "-c", block(page, "python"), *arguments]
    subprocess.run(command, check=True, capture_output=True, timeout=60, env=env)


def deliver_export(
    server: ServerProcess, stream: str, kind: ExportKind, options: PipelineSettings | None = None
) -> Recording:
    """What the pipeline does with the export that an example has made."""
    with RawClient(server.port) as client:
        [settings] = client.definition(stream)["exportDefinition"][kind.value]
    flush = Flush(1, stream, settings["identifier"], kind, settings, 0, MESSAGES, 0, NONCE)
    token = (server.data_dir / "http-token").read_text().strip()
    source = ServerClient(f"http://127.0.0.1:{server.http_port}", token)
    progress = Recording()
    destination = destination_for(flush, options or PipelineSettings(), source)
    destination.deliver_frames(frame_parts(source, flush, 0, still_wanted=lambda: None), progress)
    source.close()
    assert (progress.next, progress.messages, progress.skips) == (MESSAGES, MESSAGES, {})
    return progress


def test_http(shared_server: ServerProcess) -> None:
    with Sink() as sink:
        run_example(shared_server, "http.md", sink.url)
        deliver_export(shared_server, "web-readings", ExportKind.HTTP)
    [request] = sink.requests
    messages = json.loads(request.body)
    assert [base64.b64decode(m["payload"]) for m in messages] == [b'{"reading": %d}' % n for n in range(10)]
    [documented] = json.loads(block("http.md", "json"))
    assert documented.keys() == messages[0].keys()


def test_kinesis(shared_server: ServerProcess, moto_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto_url)
    client = boto3.client("kinesis", region_name="eu-west-1")
    client.create_stream(StreamName="documented", ShardCount=1)
    run_example(shared_server, "kinesis.md", "documented")
    keys = msgspec.toml.decode(block("kinesis.md", "toml"))["exports"]["partition_keys"]
    options = PipelineSettings(partition_keys=keys)
    deliver_export(shared_server, "kinesis-readings", ExportKind.KINESIS, options)
    [shard] = client.list_shards(StreamName="documented")["Shards"]
    iterator = client.get_shard_iterator(
        StreamName="documented", ShardId=shard["ShardId"], ShardIteratorType="TRIM_HORIZON"
    )
    records = client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    client.close()
    assert [record["PartitionKey"] for record in records] == [f"pump-{n % 3}" for n in range(10)]
    assert all(json.loads(r["Data"])["device"]["id"] == r["PartitionKey"] for r in records)


def test_sitewise(shared_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = SiteWiseEndpoint()
    with serving(endpoint) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_IOTSITEWISE", url)
        run_example(shared_server, "iot-sitewise.md")
        deliver_export(shared_server, "sitewise-readings", ExportKind.IOT_SITEWISE)
    assert not endpoint.problems
    assert sorted(endpoint.values.values()) == [20.5 + number for number in range(10)]


def test_iot_analytics(shared_server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = ModelEndpoint("iotanalytics", "BatchPutMessage")
    with serving(endpoint) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL_IOTANALYTICS", url)
        run_example(shared_server, "iot-analytics.md", "channel_1")
        deliver_export(shared_server, "analytics-readings", ExportKind.IOT_ANALYTICS)
    assert not endpoint.problems
    [request] = endpoint.requests
    assert [message["messageId"] for message in request["messages"]] == [
        f"pump-{NONCE}-{n}" for n in range(10)
    ]


@pytest.mark.parametrize(
    ("page", "actions"),
    [
        ("kinesis.md", {"kinesis:PutRecords", "kinesis:ListShards"}),
        ("iot-sitewise.md", {"iotsitewise:BatchPutAssetPropertyValue"}),
        ("iot-analytics.md", {"iotanalytics:BatchPutMessage"}),
    ],
)
def test_policies(page: str, actions: set[str]) -> None:
    policy: dict[str, Any] = json.loads(block(page, "json"))
    [statement] = policy["Statement"]
    assert set(statement["Action"]) == actions
    assert (policy["Version"], statement["Effect"]) == ("2012-10-17", "Allow")
