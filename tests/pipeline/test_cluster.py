"""The pipeline on a Spark that is not its own: a standalone cluster that loses a worker, and Spark Connect."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pyspark
import pytest

from harness import FOREIGN_SETTINGS, ServerProcess
from penstock.flush import LeaseRequest
from penstock.pipeline.server_client import ServerClient
from pipeline.conftest import Site, http_export, http_exports, wait_until
from pipeline.pipeline_process import PipelineProcess, processes_of_session
from pipeline.sink import Sink

SPARK_HOME = Path(pyspark.__file__).parent
START_S = 60
BATCH = 20
STREAMS = 4
MESSAGES = 400

pytestmark = pytest.mark.timeout(240)


class SparkProcess:
    """A part of Spark that is started by its own script, in a session of its own."""

    def __init__(self, script: str, arguments: list[str], log_path: Path, heap: str = "256m") -> None:
        foreign = (*FOREIGN_SETTINGS, "AWS_", "SPARK_", "PYSPARK_")
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        env = {
            **inherited,
            "SPARK_HOME": str(SPARK_HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": heap,
            "PYSPARK_PYTHON": sys.executable,
        }
        self.log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                cwd=log_path.parent,
                start_new_session=True,
            )

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        wait_until(
            lambda: re.search(pattern, self.log_text) or self._process.poll() is not None,
            lambda: self.log_text,
            START_S,
        )
        match = re.search(pattern, self.log_text)
        assert match is not None, self.log_text
        return match

    @property
    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def kill(self) -> None:
        """As a machine that loses power: the process and all it has started."""
        for pid in processes_of_session(self._process.pid):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()


class Cluster:
    """A standalone master and two workers of one core each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        arguments = ["org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0"]
        self.master = SparkProcess("spark-class", [*arguments, "--webui-port", "0"], folder / "master.log")
        self.url = self.master.wait_for_line(r"Starting Spark master at (spark://127\.0\.0\.1:\d+)")[1]
        self.workers = [self._start_worker(number) for number in range(2)]
        for worker in self.workers:
            worker.wait_for_line("Successfully registered with master")

    def _start_worker(self, number: int) -> SparkProcess:
        arguments = ["org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0"]
        arguments += ["--cores", "1", "--memory", "512M", "--work-dir", str(self._folder / f"work-{number}")]
        return SparkProcess("spark-class", [*arguments, self.url], self._folder / f"worker-{number}.log")

    def kill(self) -> None:
        for process in (*self.workers, self.master):
            process.kill()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def site_of(server: ServerProcess) -> Iterator[Callable[[PipelineProcess], Site]]:
    made: list[Site] = []

    def make(pipeline: PipelineProcess) -> Site:
        made.append(Site(server, pipeline))
        return made[-1]

    yield make
    for site in made:
        site.close()


def test_a_cluster_delivers_a_backlog_while_it_loses_a_worker(
    server: ServerProcess,
    cluster: Cluster,
    sink: Sink,
    start_pipeline: Callable[..., PipelineProcess],
    site_of: Callable[[PipelineProcess], Site],
) -> None:
    flags = ["--master", cluster.url, "--conf", "spark.executor.memory=512m", "--parallelism", "2"]
    site = site_of(start_pipeline(server, flags=flags))
    names = [f"cluster-{number}" for number in range(STREAMS)]
    for name in names:
        sink.pauses_s[name] = 0.03
        exports = http_exports(http_export(sink.url(name), batch_size=BATCH, disabled=True))
        site.create(name, exports)
    payloads = {name: site.append(name, MESSAGES) for name in names}
    for name in names:
        site.update(name, lambda d: setattr(d.export_definition.http[0], "disabled", False))

    def arrived() -> int:
        return sum(len(sink.messages(name)) for name in names)

    wait_until(lambda: arrived() >= STREAMS * MESSAGES // 4, site.pipeline.log_tail)
    cluster.workers[0].kill()
    assert arrived() < STREAMS * MESSAGES, "the worker was killed too late"
    for name in names:
        wait_until(lambda: set(sink.messages(name)) == set(payloads[name]), site.pipeline.log_tail, 60)  # noqa: B023
        repeats = sum(Counter(sink.messages(name)).values()) - MESSAGES
        assert repeats <= BATCH, f"{name}: {repeats} messages came again"
        assert list(dict.fromkeys(sink.messages(name))) == payloads[name]
        wait_until(lambda: site.status(name).last_exported_sequence_number == MESSAGES - 1)  # noqa: B023
    more = site.append(names[0], 5, start=MESSAGES)
    wait_until(lambda: sink.messages(names[0])[-5:] == more, site.pipeline.log_tail)
    stop_in_the_middle(site, sink, names[1])


def stop_in_the_middle(site: Site, sink: Sink, name: str) -> None:
    """A pipeline that is told to stop does so soon, and what it had can be had by the next one at once."""
    sink.pauses_s[name] = 0.2
    site.append(name, MESSAGES, start=MESSAGES)
    wait_until(lambda: len(sink.messages(name)) > MESSAGES + BATCH, site.pipeline.log_tail)
    started_s = time.monotonic()
    site.pipeline.stop()
    assert time.monotonic() - started_s < 15
    token = (site.server.data_dir / "http-token").read_text().strip()
    with closing(ServerClient(f"http://127.0.0.1:{site.server.http_port}", token)) as other:
        [flush] = other.lease(LeaseRequest("other", wait_ms=2000)).flushes
    assert MESSAGES < flush.first < 2 * MESSAGES


@pytest.fixture
def connect_url(tmp_path: Path) -> Iterator[str]:
    arguments = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    arguments += ["--master", "local[2]"]
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }.items():
        arguments += ["--conf", f"{name}={value}"]
    process = SparkProcess("spark-submit", [*arguments, "spark-internal"], tmp_path / "connect.log", "512m")
    match = process.wait_for_line(r"Spark Connect server started at: (\S+:\d+)")
    yield f"sc://127.0.0.1:{match[1].rpartition(':')[2]}"
    process.kill()


def test_spark_connect(
    server: ServerProcess,
    connect_url: str,
    sink: Sink,
    start_pipeline: Callable[..., PipelineProcess],
    site_of: Callable[[PipelineProcess], Site],
) -> None:
    pipeline = start_pipeline(server, flags=["--remote", connect_url])
    site = site_of(pipeline)
    site.create("connect", http_exports(http_export(sink.url("connect"))))
    payloads = site.append("connect", 50)
    wait_until(lambda: len(sink.messages("connect")) >= 50, pipeline.log_tail, 60)
    assert sink.messages("connect") == payloads
    wait_until(lambda: site.status("connect").exported_messages_count == 50)
    started_s = time.monotonic()
    pipeline.stop()
    assert time.monotonic() - started_s < 15
