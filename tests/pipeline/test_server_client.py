"""The pipeline's client of the server: where it connects to, on whatever machine, and what it leaves behind."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.flush import LeaseRequest
from penstock.pipeline.server_client import ServerClient, ServerLost

DEADLINE_S = 10


class _Counting(ThreadingHTTPServer):
    """Answers everything with the client's own authorization, and counts the connections that are open."""

    daemon_threads = True

    def __init__(self, host: str) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.open = 0
        self.changed = threading.Condition()
        super().__init__((host, 0), _Echo)

    def count(self, difference: int) -> None:
        with self.changed:
            self.open += difference
            self.changed.notify_all()

    def wait_for(self, connections: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.open == connections, DEADLINE_S), self.open


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Counting

    def setup(self) -> None:
        super().setup()
        self.server.count(1)

    def finish(self) -> None:
        super().finish()
        self.server.count(-1)

    def do_GET(self) -> None:
        body = b'{"token": "%s"}' % self.headers["authorization"].encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def listening(host: str) -> Iterator[tuple[_Counting, str]]:
    server = _Counting(host)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    shown = f"[{host}]" if ":" in host else host
    try:
        yield server, f"http://{shown}:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join(DEADLINE_S)
        server.server_close()


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", pytest.param("::1", marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here"))],
)
def test_a_copy_on_another_machine_finds_the_server(host: str) -> None:
    with listening(host) as (_, url):
        copy = pickle.loads(pickle.dumps(ServerClient(url, "secret")))
        assert copy.get("/", dict[str, str]) == {"token": "Bearer secret"}
        copy.close()


def test_closing_closes_the_connections_of_all_threads() -> None:
    with listening("127.0.0.1") as (server, url):
        client = ServerClient(url, "secret")
        together = threading.Barrier(3)

        def ask(_: int) -> None:
            together.wait(DEADLINE_S)
            client.get("/", dict[str, str])

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(ask, range(3)))
            server.wait_for(3)
            client.close()
            server.wait_for(0)
            list(threads.map(ask, range(3)))
            server.wait_for(3)
            client.close()
        server.wait_for(0)


def test_the_error_names_the_address_as_it_was_given() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    client = ServerClient(f"http://127.0.0.1:{port}", "secret")
    with pytest.raises(ServerLost, match=f"http://127.0.0.1:{port} does not answer"):
        client.get("/", dict[str, str])


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get("/", list[int]),
        lambda client: client.lease(LeaseRequest("p")),
        lambda client: client.report("p", []),
        lambda client: client.append("s", [b"m"]),
        lambda client: list(client.frames("s", 0, 1)),
    ],
    ids=["get", "lease", "report", "append", "frames"],
)
def test_an_answer_of_something_else_counts_as_no_server(ask: Callable[[ServerClient], object]) -> None:
    with listening("127.0.0.1") as (_, url):
        client = ServerClient(url, "secret")
        with pytest.raises(ServerLost, match=f"{url} .*is not a server of this version"):
            ask(client)
        client.close()
