"""One client of the Stream Manager door: requests in, answers out, nothing lost in between.

Appends of one chunk of input go to the log together; other requests run as tasks, so that a read that waits holds
up nobody. We never reset a connection: clients cannot cope with that.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import select
from typing import TYPE_CHECKING, Any, cast

from penstock.doors.streammanager.append import (
    Shape,
    encode_append_answers,
    frame_length,
    only_name_characters,
)
from penstock.doors.streammanager.codec import (
    MalformedPayload,
    decode_map,
    encode_response,
    salvage_request_id,
)
from penstock.doors.streammanager.handshake import (
    CONNECT_VERSION,
    HandshakeRefused,
    connect_frame,
    connect_response,
    negotiate,
)
from penstock.doors.streammanager.input import SHARED_REQUEST_ID, SMALL_FRAME_BYTES, Input
from penstock.doors.streammanager.operations import Operations
from penstock.doors.streammanager.protocol import (
    FRAME_LENGTH_MAX,
    RESPONSE_OP,
    Op,
    Status,
    status_for_version,
    status_of,
)
from penstock.doors.streammanager.requests import parse_append_message, request_id_problem
from penstock.errors import InvalidRequest, MessageTooLarge, PenstockError
from penstock.log.files import Buffer

if TYPE_CHECKING:
    from penstock.doors.streammanager.door import Door

logger = logging.getLogger(__name__)

LINGER_S = 2.0
TASKS_MAX = 4096
OUTPUT_HIGH_BYTES = 1024 * 1024
APPENDS_HIGH_BYTES = 4 * 1024 * 1024  # of appends not yet answered, before we read no more for a while

_connection_numbers = itertools.count(1)
_request_ops = frozenset(RESPONSE_OP)
_looking_ops = frozenset((Op.LIST_STREAMS, Op.DESCRIBE_MESSAGE_STREAM))


class _Appends:
    """Appends of one stream that came in one piece, waiting for their answers."""

    __slots__ = ("_connection", "_id_bytes", "_ids", "_size_bytes")

    def __init__(self, connection: Connection, ids: bytes, id_bytes: int, size_bytes: int) -> None:
        self._connection = connection
        self._ids = ids  # one after the other, of equal length; cut off in front as they are answered
        self._id_bytes = id_bytes
        self._size_bytes = size_bytes  # of the input they came in, which is held until all are answered

    def _next(self, count: int) -> bytes:
        cut = count * self._id_bytes
        if cut == len(self._ids):
            self._connection.let_go(self._size_bytes)
            return self._ids
        ids, self._ids = self._ids[:cut], self._ids[cut:]
        return ids

    def appended(self, first_sequence: int, count: int) -> None:
        answers = encode_append_answers(self._next(count), self._id_bytes, first_sequence)
        self._connection.answer_appends(answers, count)

    def append_failed(self, count: int, error: PenstockError) -> None:
        ids = self._next(count)
        for start in range(0, len(ids), self._id_bytes):
            request_id = ids[start : start + self._id_bytes].decode()
            self._connection.respond_error(Op.APPEND_MESSAGE, request_id, error)
        self._connection.answer_appends(b"", count)


class Connection(Input):
    def __init__(self, door: Door) -> None:
        super().__init__(door)
        self._streams = door.streams
        self._operations = Operations(door.streams)
        self._identifier = f"penstock-{next(_connection_numbers)}"
        self._last_request = False  # no more requests will be taken; close when all are answered
        self._client_done = False
        self._hung_up = False
        self._waiting_reads: set[asyncio.Task[None]] = set()
        self._unanswered_appends = 0
        self._held_append_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads: set[asyncio.Task[None]] = set()
        self._writable = asyncio.Event()
        self._writable.set()
        self._answering_turn = asyncio.Lock()

    # -- the transport's side -----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=OUTPUT_HIGH_BYTES)
        self._door.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        for task in self._reads:  # what changes streams goes on: others may wait for it
            task.cancel()
        self._writable.set()
        self._large = None
        self._door.closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()
        self._pause("output")

    def resume_writing(self) -> None:
        self._writable.set()
        self._resume("output")

    def eof_received(self) -> bool:
        """The client sends no more. It may still want the answers to what it has sent."""
        self._client_done = True
        if self._hung_up:
            self._transport.close()
        else:
            self._take_no_more()
        return True

    # -- handshake ----------------------------------------------------------------------------------

    def _handshake(self, data: bytes) -> None:
        if data[0] != CONNECT_VERSION:
            self._refuse("", Status.UNSUPPORTED_CONNECT_VERSION, f"connect version must be {CONNECT_VERSION}")
            return
        length = frame_length(data, 1) if len(data) >= 5 else 2
        if not 2 <= length <= FRAME_LENGTH_MAX:
            self._refuse("", Status.FAILED_TO_CONNECT, f"a frame length of {length} is refused")
        elif len(data) < 6:
            self._tail = data
        elif data[5] != Op.CONNECT:
            self._refuse("", Status.UNEXPECTED_OPERATION, "the first request must be Connect")
        elif length > SMALL_FRAME_BYTES:
            self._refuse("", Status.FAILED_TO_CONNECT, f"a Connect request of {length} bytes is refused")
        elif len(data) < 5 + length:
            self._tail = data
        else:
            self._connect(data[6 : 5 + length])
            if self._version is not None and len(data) > 5 + length:
                self._parse(data, 5 + length)

    def _connect(self, payload: bytes) -> None:
        request_id = ""
        try:
            body = decode_map(payload)
            candidate = body.get("requestId")
            problem = request_id_problem(candidate)
            request_id = candidate if isinstance(candidate, str) else ""
            if problem is not None:
                raise HandshakeRefused(Status.FAILED_TO_CONNECT, problem)
            if not self._door.authorized(body.get("authToken")):
                raise HandshakeRefused(
                    Status.UNAUTHORIZED, "the client's token is missing or not in the server's list of tokens"
                )
            self._version = negotiate(body.get("protocolVersion"), body.get("otherSupportedProtocolVersions"))
        except MalformedPayload as error:
            self._refuse(error.request_id or "", Status.FAILED_TO_CONNECT, str(error))
        except HandshakeRefused as error:
            self._refuse(request_id, error.status, str(error))
        else:
            self._transport.write(
                connect_response(request_id, self._identifier, protocol_version=self._version)
            )

    def _refuse(self, request_id: str, status: Status, message: str) -> None:
        logger.info("%s: connection refused: %s", self._identifier, message)
        self._transport.write(connect_response(request_id, self._identifier, status, message))
        self._hang_up()

    def _refuse_oversized(self, beginning: bytes, need_bytes: int) -> None:
        op = beginning[4]
        request_id = salvage_request_id(beginning[5:])
        if request_id is None or op not in _request_ops or request_id_problem(request_id):
            self._protocol_error("an oversized frame without a readable requestId")
            return
        limit_bytes = self._door.frame_size_max_bytes
        error = MessageTooLarge(
            f"a request of {need_bytes} bytes is refused, the limit is {limit_bytes}: split the message, "
            "or raise PENSTOCK_MESSAGE_SIZE_MAX_BYTES"
        )
        self.respond_error(Op(op), request_id, error)

    def _protocol_error(self, problem: str) -> None:
        logger.warning("%s: closing the connection because of %s", self._identifier, problem)
        self._take_no_more()

    # -- requests -----------------------------------------------------------------------------------

    def _stage(self, shape: Shape | None, ids: list[bytes], payloads: list[Buffer], size_bytes: int) -> None:
        if not payloads:
            return
        assert shape is not None
        joined = ids[0] if len(ids) == 1 else b"".join(ids)
        if only_name_characters(joined):
            self._hold(len(payloads), size_bytes)
            self._streams.append(shape.name, payloads, _Appends(self, joined, shape.id_bytes, size_bytes))
            return
        for index, payload in enumerate(payloads):
            request_id = joined[index * shape.id_bytes : (index + 1) * shape.id_bytes]
            try:
                self._append_message(request_id.decode(), {"name": shape.name, "payload": bytes(payload)})
            except UnicodeDecodeError:
                self._protocol_error("a requestId that is not UTF-8")
                return

    def _append_message(self, request_id: str, body: dict[str, Any]) -> None:
        problem = request_id_problem(request_id)
        try:
            if problem is not None:
                raise InvalidRequest(problem)
            append = parse_append_message(body)
        except InvalidRequest as error:
            self.respond_error(Op.APPEND_MESSAGE, request_id, error)
            return
        size_bytes = len(append.payload)
        self._hold(1, size_bytes)
        sink = _Appends(self, request_id.encode(), len(request_id), size_bytes)
        self._streams.append(append.name, [append.payload], sink)

    def _hold(self, count: int, size_bytes: int) -> None:
        """Appends wait for their answers; when they are too many for the disk, the client has to wait too."""
        self._unanswered_appends += count
        self._held_append_bytes += size_bytes
        self._door.hold(size_bytes)
        if self._held_append_bytes > APPENDS_HIGH_BYTES or self._door.crowded:
            self._pause("appends")

    def let_go(self, size_bytes: int) -> None:
        self._held_append_bytes -= size_bytes
        self._door.let_go(size_bytes)
        self.relieve()

    def relieve(self) -> None:
        if self._held_append_bytes <= APPENDS_HIGH_BYTES // 2 and not self._door.crowded:
            self._resume("appends")

    def _dispatch(self, op: int, payload: bytes) -> None:
        try:
            body = decode_map(payload)
            request_id = body.get("requestId")
        except MalformedPayload as error:
            if error.request_id is None:
                self._protocol_error(f"a payload that cannot be decoded ({error})")
            else:
                self._respond_unusable(op, error.request_id, InvalidRequest(str(error)))
            return
        if not isinstance(request_id, str):
            self._protocol_error("a request without requestId")
            return
        problem = request_id_problem(request_id)
        self._ordered = self._ordered or request_id == SHARED_REQUEST_ID
        if op not in _request_ops or problem is not None or self._is_too_new(op):
            self._respond_unusable(op, request_id, InvalidRequest(problem or ""))
        elif op == Op.APPEND_MESSAGE:
            self._append_message(request_id, body)
        elif op == Op.CONNECT:
            self._refuse_second_connect(request_id)
        else:
            self._start(Op(op), request_id, body)

    def _respond_unusable(self, op: int, request_id: str, error: InvalidRequest) -> None:
        if op == Op.CONNECT:
            self._refuse_second_connect(request_id)
        elif op in _request_ops and not self._is_too_new(op):
            self.respond_error(Op(op), request_id, error)
        else:
            self._send_response(
                Op.UNKNOWN_OPERATION_ERROR, request_id, Status.UNKNOWN_OPERATION, f"operation {op} is unknown"
            )

    def _refuse_second_connect(self, request_id: str) -> None:
        self._send_response(
            Op.CONNECT_RESPONSE, request_id, Status.UNEXPECTED_OPERATION, "the connection is open already"
        )

    def _is_too_new(self, op: int) -> bool:
        return op == Op.UPDATE_MESSAGE_STREAM and self._version == "1.0.0"

    def _start(self, op: Op, request_id: str, body: dict[str, Any]) -> None:
        task = self._loop.create_task(self._run(op, request_id, body))
        self._tasks.add(task)
        if op is Op.READ_MESSAGES:
            self._reads.add(task)
        task.add_done_callback(self._task_done)
        if len(self._tasks) >= TASKS_MAX:
            self._pause("tasks")

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._reads.discard(task)
        if len(self._tasks) < TASKS_MAX // 2:
            self._resume("tasks")
        self._answered()

    async def _run(self, op: Op, request_id: str, body: dict[str, Any]) -> None:
        try:
            if op is Op.READ_MESSAGES:
                await self._read(request_id, body)
            elif op in _looking_ops:
                async with self._answering_turn:
                    await self._writable.wait()
                    await self._operate(op, request_id, body)
            else:
                await self._operate(op, request_id, body)
        except PenstockError as error:
            self.respond_error(op, request_id, error)
        except Exception as error:
            logger.exception("%s: %s failed", self._identifier, op.name)
            self.respond_error(op, request_id, error)

    async def _operate(self, op: Op, request_id: str, body: dict[str, Any]) -> None:
        extra = await self._operations.run(op, body)
        self.send(encode_response(RESPONSE_OP[op], request_id, Status.SUCCESS, **extra))

    async def _read(self, request_id: str, body: dict[str, Any]) -> None:
        """Wait for the messages beside other reads, but hold only one answer at a time in memory."""
        request = self._operations.parse_read(body)
        task = asyncio.current_task()
        assert task is not None
        self._waiting_reads.add(task)
        try:
            await self._operations.wait_for_messages(request)
        finally:
            self._waiting_reads.discard(task)
        async with self._answering_turn:
            await self._writable.wait()
            self.send(await self._operations.read(request, request_id))

    # -- answers ------------------------------------------------------------------------------------

    def send(self, frame: bytes) -> None:
        if not self._hung_up and not self._transport.is_closing():
            self._transport.write(frame)

    def answer_appends(self, frames: bytes, count: int) -> None:
        self._unanswered_appends -= count
        if frames and not self._closed and not self._hung_up:
            self._transport.write(frames)
        if self._last_request or self._ordered:
            self._answered()

    def _answered(self) -> None:
        if self._last_request:
            self._close_when_answered()
        elif self._ordered and not self.busy:
            self._loop.call_soon(self._continue_ordered)

    def respond_error(self, op: Op, request_id: str, error: BaseException) -> None:
        message = str(error) or type(error).__name__
        self._send_response(RESPONSE_OP[op], request_id, status_of(error), message)

    def _send_response(self, op: Op, request_id: str, status: Status, message: str) -> None:
        version = self._version or ""
        shown = status_for_version(status, version)
        if op is Op.UNKNOWN_OPERATION_ERROR and version == "1.0.0":
            # That generation knows no such answer and no code 18; an answer it cannot decode would wedge it.
            self._protocol_error("an unknown operation on a connection of protocol 1.0.0")
            return
        if op is Op.CONNECT_RESPONSE:  # which has more keys than others, also when it refuses
            self.send(connect_frame(request_id, self._identifier, shown, message, version))
        else:
            self.send(encode_response(op, request_id, shown, message))

    # -- the end ------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return bool(self._tasks) or self._unanswered_appends > 0

    def finish(self) -> None:
        """The server stops: take no more requests, close when what is under way is answered, reads included."""
        self._discarding = self._last_request = True
        self._close_when_answered()

    @property
    def left_unseen(self) -> bool:
        """The client has gone, which we cannot have noticed because we do not read, and reads wait for ever."""
        if not self._paused or not self._waiting_reads or self._closed:
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    def abort(self) -> None:
        self._transport.abort()

    def _take_no_more(self) -> None:
        """No more requests; what was asked before is answered, except for reads that still wait."""
        self._discarding = self._last_request = True
        self._large = None
        self.drop_waiting_reads()
        self._close_when_answered()

    def drop_waiting_reads(self) -> None:
        for task in self._waiting_reads:
            task.cancel()

    def _close_when_answered(self) -> None:
        if not self.busy:
            self._hang_up()

    def _hang_up(self) -> None:
        """Close with FIN: swallow for a moment what is still on its way, or the kernel would send a reset."""
        if self._hung_up:
            return
        self._hung_up = self._discarding = True
        self._paused.clear()
        if self._client_done:
            self._transport.close()
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(LINGER_S, self._transport.close)
