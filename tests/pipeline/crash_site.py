"""A server that tests kill, and pipelines that find it again on the same ports."""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path
from urllib.request import Request, urlopen

from harness import ServerProcess
from penstock.client import StreamManagerClient
from penstock.pipeline.server_client import ServerClient
from pipeline.conftest import Aws
from pipeline.pipeline_process import PipelineProcess
from pipeline.sink import Sink

SOAK = os.environ.get("PENSTOCK_SOAK") == "1"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


class CrashSite:
    """A server that comes back on the same ports, with pipelines that find it there again."""

    def __init__(self, folder: Path, aws: Aws, sink: Sink) -> None:
        self.files = folder / "files"
        self.files.mkdir()
        flags = ["--data-dir", str(folder / "data"), "--host", "127.0.0.1"]
        flags += ["--stream-manager-port", str(free_port()), "--http-port", str(free_port())]
        env = {"STREAM_MANAGER_READ_ONLY_DIRS": str(self.files)}
        self.server = ServerProcess(folder / "data", env=env, flags=flags).start()
        self.sink = sink
        self.aws = aws
        self._folder = folder
        self.pipelines: list[PipelineProcess] = []
        self._streams = 0
        self.random = random.Random(7)

    def pipeline(self) -> PipelineProcess:
        """One that runs; started now only if there is none."""
        running = [pipeline for pipeline in self.pipelines if pipeline.is_running]
        return running[-1] if running else self.launch_pipeline().wait_until_ready()

    def launch_pipeline(self) -> PipelineProcess:
        log_path = self._folder / f"pipeline-{len(self.pipelines)}.log"
        flags = ("--object-store", "s3")
        self.pipelines.append(PipelineProcess(self.server, log_path, flags=flags, env=self.aws.env))
        return self.pipelines[-1].launch()

    def kill_server(self) -> None:
        self.server.kill()
        self.server.start()

    def client(self) -> StreamManagerClient:
        return StreamManagerClient(self.server.host, self.server.port)

    def post(self, path: str) -> None:
        token = (self.server.data_dir / "http-token").read_text().strip()
        request = Request(f"http://127.0.0.1:{self.server.http_port}{path}", method="POST")
        request.add_header("Authorization", f"Bearer {token}")
        with urlopen(request) as answer:
            answer.read()

    def log_tails(self) -> str:
        token = (self.server.data_dir / "http-token").read_text().strip()
        exports = ServerClient(f"http://127.0.0.1:{self.server.http_port}", token).get("/v1/exports", list)
        tails = [str(export) for export in exports]
        tails += [pipeline.log_tail() for pipeline in self.pipelines[-2:]]
        return "\n".join([*tails, *self.server.log_text.splitlines()[-40:]])

    def close(self) -> None:
        for pipeline in self.pipelines:
            pipeline.sweep()
        self.server.stop()
