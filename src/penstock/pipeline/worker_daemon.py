"""The process that Spark forks its Python workers from: PySpark's, without its tracebacks for workers that were let go.

Spark closes the connection of a worker that was idle for a minute. PySpark prints that as an error, each time.
"""

from __future__ import annotations

import socket

from pyspark import daemon

_worker = daemon.worker


def _worker_until_let_go(sock: socket.socket, authenticated: bool) -> int:
    try:
        return _worker(sock, authenticated)
    except BrokenPipeError:
        return 1


def main() -> None:
    daemon.worker = _worker_until_let_go
    daemon.manager()


if __name__ == "__main__":
    main()
