"""An HTTP server that keeps what it gets, and that a test can take away, make refuse, or make hang."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Post(NamedTuple):
    path: str
    content_type: str
    request_id: str
    body: bytes


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Sink:
    """Each test posts to a path of its own."""

    def __init__(self) -> None:
        self.posts: dict[str, list[Post]] = defaultdict(list)
        self._decoded: dict[str, tuple[int, list[bytes]]] = defaultdict(lambda: (0, []))  # of how many posts
        self.statuses: dict[str, int] = {}  # what to answer by path, in place of 200
        self.pauses_s: dict[str, float] = {}  # how long to think before an answer, by path
        self._held: dict[str, threading.Event] = {}
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._server: _Server | None = None
        self.port = 0
        self.open()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def open(self) -> None:
        """Listen, after the first time on the same port."""
        self._server = _Server(("127.0.0.1", self.port), self._handler())
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        """Gone: new connections are refused, old ones end."""
        for held in self._held.values():
            held.set()
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def hold(self, path: str) -> threading.Event:
        """Take requests for the path and do not answer them until the event is set."""
        return self._held.setdefault(path, threading.Event())

    def bodies(self, path: str) -> list[bytes]:
        with self._lock:
            return [post.body for post in self.posts[path]]

    def messages(self, path: str) -> list[bytes]:
        """The payloads that came in batches, in order, with repeats."""
        decoded, found = self._decoded[path]
        for body in self.bodies(path)[decoded:]:
            found += [base64.b64decode(message["payload"]) for message in json.loads(body)]
            decoded += 1
        self._decoded[path] = (decoded, found)
        return list(found)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                with sink._lock:
                    sink._connections.add(self.request)

            def finish(self) -> None:
                with sink._lock:
                    sink._connections.discard(self.request)
                super().finish()

            def handle(self) -> None:
                try:
                    super().handle()
                except (OSError, ValueError):  # the other side was killed, or we closed
                    self.close_connection = True

            def do_POST(self) -> None:
                path = self.path.lstrip("/")
                body = self.rfile.read(int(self.headers["Content-Length"]))
                held = sink._held.get(path)
                if held is not None:
                    held.wait()
                time.sleep(sink.pauses_s.get(path, 0))
                status = sink.statuses.get(path, 200)
                if status == 200:
                    post = Post(path, self.headers["Content-Type"], self.headers["Penstock-Request-Id"], body)
                    with sink._lock:
                        sink.posts[path].append(post)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler
