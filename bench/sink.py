"""An HTTP server that only counts what it gets, as a process of its own: `python -m bench.sink`."""

from __future__ import annotations

import asyncio
import json
import re
import time

import uvloop

_LENGTH = re.compile(rb"content-length:\s*(\d+)", re.IGNORECASE)
_ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
STAMP_DIGITS = 20  # a message may begin with the wall clock in ns, so many digits: then its age is noted


class Sink:
    def __init__(self) -> None:
        self.messages = 0
        self.body_bytes = 0
        self.ages_s: list[float] = []

    def take(self, body: bytes) -> None:
        self.body_bytes += len(body)
        if body.startswith(b"[{"):
            self.messages += body.count(b'"payload"')
            return
        self.messages += 1
        stamp = body[:STAMP_DIGITS]
        if stamp.isdigit() and len(stamp) == STAMP_DIGITS:
            self.ages_s.append((time.time_ns() - int(stamp)) / 1e9)

    def figures(self) -> bytes:
        figures = {"messages": self.messages, "body_bytes": self.body_bytes, "ages_s": self.ages_s}
        body = json.dumps(figures).encode()
        return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _LENGTH.search(head)
                self_asked = head.startswith(b"GET")
                if found is not None and not self_asked:
                    self.take(await reader.readexactly(int(found[1])))
                writer.write(self.figures() if self_asked else _ANSWER)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


async def main() -> None:
    sink = Sink()
    server = await asyncio.start_server(sink.serve, "127.0.0.1", 0, limit=64 * 1024 * 1024)
    print(f"sink ready {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
