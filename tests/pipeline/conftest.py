"""One server with one pipeline for all tests that never stop them: Spark takes long to start."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import boto3
import pytest
from moto.server import ThreadedMotoServer
from stream_manager import (
    ExportDefinition,
    ExportFormat,
    HTTPConfig,
    MessageStreamDefinition,
    StrategyOnFull,
    StreamManagerClient,
)

from harness import ServerProcess
from object_stores import TestStore, folder_store, moto_store, rclone_store
from pipeline.destinations.aws_endpoint import SiteWiseEndpoint, serving
from pipeline.pipeline_process import PipelineProcess
from pipeline.sink import Sink

if TYPE_CHECKING:
    from pipeline.crash_site import CrashSite

DEADLINE_S = 30

AWS_ENV = {
    "AWS_REGION": "eu-west-1",
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


def wait_until(
    happened: Callable[[], Any], why: Callable[[], object] = str, deadline_s: float = DEADLINE_S
) -> None:
    end_s = time.monotonic() + deadline_s
    while not happened():
        assert time.monotonic() < end_s, f"not within {deadline_s} s: {why()}"
        time.sleep(0.02)  # it happens in other processes, in whatever way the caller looks at


class Aws(NamedTuple):
    moto_url: str
    sitewise_url: str
    sitewise: SiteWiseEndpoint

    @property
    def env(self) -> dict[str, str]:
        return {
            **AWS_ENV,
            "AWS_ENDPOINT_URL_KINESIS": self.moto_url,
            "AWS_ENDPOINT_URL_S3": self.moto_url,
            "AWS_ENDPOINT_URL_IOTSITEWISE": self.sitewise_url,
        }

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            endpoint_url=self.moto_url,
            region_name=AWS_ENV["AWS_REGION"],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",
        )


@pytest.fixture(scope="session")
def aws() -> Iterator[Aws]:
    moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    sitewise = SiteWiseEndpoint()
    with serving(sitewise) as sitewise_url:
        yield Aws(f"http://{host}:{port}", sitewise_url, sitewise)
    moto.stop()


@pytest.fixture(scope="session")
def sink() -> Iterator[Sink]:
    made = Sink()
    yield made
    made.close()


@pytest.fixture(scope="module", params=["folder", "moto", "rclone"])
def stores(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestStore]:
    """A test that uses it runs with an object store of each kind."""
    root = tmp_path_factory.mktemp("stores")
    opened = {"folder": lambda: folder_store(root), "moto": moto_store, "rclone": lambda: rclone_store(root)}
    with opened[request.param]() as store:
        yield store


class Site:
    """A server whose exports are delivered, as a device that uses the official SDK sees it."""

    def __init__(self, server: ServerProcess, pipeline: PipelineProcess) -> None:
        self.server = server
        self.pipeline = pipeline
        self.client = StreamManagerClient(port=server.port)

    def create(self, name: str, exports: ExportDefinition | None = None, **fields: Any) -> None:
        self.client.create_message_stream(definition(name, exports, **fields))

    def update(self, name: str, change: Callable[[MessageStreamDefinition], None]) -> None:
        """As the guides do it: describe, change, send back."""
        described = self.client.describe_message_stream(name).definition
        change(described)
        self.client.update_message_stream(described)

    def append(self, name: str, count: int, start: int = 0) -> list[bytes]:
        payloads = [b"%s %d" % (name.encode(), number) for number in range(start, start + count)]
        for payload in payloads:
            self.client.append_message(name, payload)
        return payloads

    def status(self, name: str, identifier: str | None = None) -> Any:
        statuses = self.client.describe_message_stream(name).export_statuses
        return next(s for s in statuses if identifier in (None, s.export_config_identifier))

    def close(self) -> None:
        self.client.close()


def definition(name: str, exports: ExportDefinition | None = None, **fields: Any) -> MessageStreamDefinition:
    fields.setdefault("strategy_on_full", StrategyOnFull.RejectNewData)
    return MessageStreamDefinition(name=name, export_definition=exports, **fields)


def http_export(uri: str, identifier: str = "e", *, batched: bool = True, **fields: Any) -> HTTPConfig:
    form = ExportFormat.JSON_BATCHED if batched else ExportFormat.RAW_NOT_BATCHED
    return HTTPConfig(identifier=identifier, uri=uri, export_format=form, **fields)


def http_exports(*configs: HTTPConfig) -> ExportDefinition:
    return ExportDefinition(http=list(configs))


@pytest.fixture(scope="session")
def delivering(
    tmp_path_factory: pytest.TempPathFactory, aws: Aws
) -> Iterator[tuple[ServerProcess, PipelineProcess]]:
    folder = tmp_path_factory.mktemp("delivering")
    (folder / "files").mkdir()
    server = ServerProcess(
        folder / "data", env={"STREAM_MANAGER_READ_ONLY_DIRS": str(folder / "files")}
    ).start()
    flags = ("--object-store", "s3", "--kinesis-inter-call-delay-ms", "0")
    env = {
        **aws.env,
        "PYTHONPATH": str(Path(__file__).parent.parent),
        "PENSTOCK_LAMBDAS": json.dumps(
            {name: f"python:pipeline.functions:{name}" for name in ("shout", "wait")}
        ),
    }
    pipeline = PipelineProcess(server, folder / "pipeline.log", flags=flags, env=env).start()
    yield server, pipeline
    try:
        pipeline.stop()
    finally:
        pipeline.sweep()
        server.stop()
    assert "Traceback" not in server.log_text, server.log_text


@pytest.fixture
def site(delivering: tuple[ServerProcess, PipelineProcess]) -> Iterator[Site]:
    made = Site(*delivering)
    yield made
    # Or exports to what the test took away would be tried for the rest of the session.
    for name in made.client.list_streams():
        made.client.delete_message_stream(name)
    made.close()


@pytest.fixture
def files(delivering: tuple[ServerProcess, PipelineProcess]) -> Path:
    """The folder whose files S3 tasks may send."""
    return delivering[0].data_dir.parent / "files"


@pytest.fixture(scope="module")
def crash_site(tmp_path_factory: pytest.TempPathFactory, aws: Aws, sink: Sink) -> Iterator[CrashSite]:
    from pipeline.crash_site import CrashSite  # which needs this module

    site = CrashSite(tmp_path_factory.mktemp("crashes"), aws, sink)
    yield site
    site.close()


@pytest.fixture
def start_pipeline(tmp_path: Path) -> Iterator[Callable[..., PipelineProcess]]:
    """Starts pipelines of the test's own."""
    started: list[PipelineProcess] = []

    def start(server: ServerProcess, *, ready: bool = True, **settings: Any) -> PipelineProcess:
        pipeline = PipelineProcess(server, tmp_path / f"pipeline-{len(started)}.log", **settings)
        started.append(pipeline)
        return pipeline.start() if ready else pipeline.launch()

    yield start
    for pipeline in started:
        pipeline.sweep()
