"""The Firehose door: `POST /`, as the SDKs of AWS speak to Firehose."""

from __future__ import annotations

import logging

from starlette.types import Receive, Scope, Send

from penstock.delivery.errors import ApiError
from penstock.doors.firehose.body import Bodies, Disconnected, UnreadBody
from penstock.doors.firehose.operations import Operations
from penstock.doors.firehose.protocol import Answers, encode, operation_of
from penstock.doors.firehose.puts import Puts
from penstock.doors.firehose.sigv4 import Signatures

logger = logging.getLogger(__name__)


class FirehoseDoor:
    """An ASGI application."""

    def __init__(self, operations: Operations, puts: Puts, signatures: Signatures, bodies: Bodies) -> None:
        self._operations = operations
        self._puts = {"PutRecord": puts.put_record, "PutRecordBatch": puts.put_record_batch}
        self._signatures = signatures
        self._bodies = bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answers = Answers(send)
        try:
            async with self._bodies.reading(scope, receive) as body:
                await answers.succeed(await self._run(scope, body))
        except ApiError as error:
            await answers.fail(error)
        except UnreadBody as unread:
            await answers.fail(unread.error, hang_up=True)
        except Disconnected:
            return
        except Exception:  # clients crash on an answer that is not JSON
            logger.exception("request %s failed inside", answers.request_id)
            await answers.fail(ApiError("InternalFailure", "The server failed inside.", http_status=500))

    async def _run(self, scope: Scope, body: bytes) -> bytes:
        query = scope["query_string"].decode("latin-1")
        account, region = caller = self._signatures.check(
            "POST", scope["path"], query, scope["headers"], body
        )
        operation = operation_of(scope)
        put = self._puts.get(operation)
        if put is not None:
            return await put(account, region, body)
        return encode(await self._operations.run(operation, caller, body))
