"""The operations of Firehose that are not puts: from a checked request to what the service does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from penstock.delivery import tags
from penstock.delivery.describe import describe
from penstock.delivery.destinations import converts
from penstock.delivery.errors import ApiError
from penstock.delivery.quota import ControlQuota
from penstock.delivery.service import DeliveryStreams
from penstock.delivery.stored import StoredDelivery
from penstock.doors.firehose import rules
from penstock.doors.firehose.protocol import decode, unknown_operation
from penstock.doors.firehose.sigv4 import Caller
from penstock.doors.firehose.validation import Validator
from penstock.schemas import SchemaError, TableName, describe_schema, is_at_hand

NAMES_DEFAULT = 10
CONVERSION = "DataFormatConversionConfiguration"

Body = dict[str, Any]
Answer = dict[str, Any]


class Operations:
    def __init__(
        self,
        deliveries: DeliveryStreams,
        validator: Validator,
        quota: ControlQuota,
        *,
        schema_source: str,
        lenient: bool = False,
    ) -> None:
        self._deliveries = deliveries
        self._validator = validator
        self._quota = quota
        self._schema_source = schema_source
        self._lenient = lenient
        self._operations: dict[str, Callable[[Caller, Body], Awaitable[Answer]]] = {
            "CreateDeliveryStream": self._create,
            "DeleteDeliveryStream": self._delete,
            "DescribeDeliveryStream": self._describe,
            "ListDeliveryStreams": self._list,
            "ListTagsForDeliveryStream": self._list_tags,
            "StartDeliveryStreamEncryption": self._start_encryption,
            "StopDeliveryStreamEncryption": self._stop_encryption,
            "TagDeliveryStream": self._tag,
            "UntagDeliveryStream": self._untag,
            "UpdateDestination": self._update,
        }

    async def run(self, operation: str, caller: Caller, body: bytes) -> Answer:
        """Raises ApiError."""
        handler = self._operations.get(operation)
        if handler is None:
            raise unknown_operation()
        self._quota.check(caller.account, operation)
        return await handler(caller, self._validator.check(operation, decode(body)))

    async def _create(self, caller: Caller, body: Body) -> Answer:
        rules.check_create(body, lenient=self._lenient)
        await self._check_table(caller.region, body.get("ExtendedS3DestinationConfiguration") or {})
        return {"DeliveryStreamARN": await self._deliveries.create(*caller, body)}

    async def _delete(self, caller: Caller, body: Body) -> Answer:
        await self._deliveries.delete(*caller, body["DeliveryStreamName"])
        return {}

    async def _describe(self, caller: Caller, body: Body) -> Answer:
        delivery = self._deliveries.find(*caller, body["DeliveryStreamName"])
        return {"DeliveryStreamDescription": describe(delivery.record)}

    async def _list(self, caller: Caller, body: Body) -> Answer:
        names, more = self._deliveries.names(
            *caller,
            body.get("DeliveryStreamType"),
            body.get("ExclusiveStartDeliveryStreamName"),
            body.get("Limit", NAMES_DEFAULT),
        )
        return {"DeliveryStreamNames": names, "HasMoreDeliveryStreams": more}

    async def _list_tags(self, caller: Caller, body: Body) -> Answer:
        delivery = self._deliveries.find(*caller, body["DeliveryStreamName"])
        page, more = tags.page(
            delivery.record.tags, body.get("ExclusiveStartTagKey"), body.get("Limit", tags.TAGS_MAX)
        )
        return {"Tags": page, "HasMoreTags": more}

    async def _tag(self, caller: Caller, body: Body) -> Answer:
        await self._deliveries.tag(*caller, body["DeliveryStreamName"], tags.tags_from(body["Tags"]))
        return {}

    async def _untag(self, caller: Caller, body: Body) -> Answer:
        await self._deliveries.untag(*caller, body["DeliveryStreamName"], body["TagKeys"])
        return {}

    async def _start_encryption(self, caller: Caller, body: Body) -> Answer:
        key = body.get("DeliveryStreamEncryptionConfigurationInput", {"KeyType": "AWS_OWNED_CMK"})
        rules.check_encryption_input(key)
        await self._deliveries.start_encryption(
            *caller, body["DeliveryStreamName"], key["KeyType"], key.get("KeyARN")
        )
        return {}

    async def _stop_encryption(self, caller: Caller, body: Body) -> Answer:
        await self._deliveries.stop_encryption(*caller, body["DeliveryStreamName"])
        return {}

    async def _update(self, caller: Caller, body: Body) -> Answer:
        rules.one_destination(body, "DestinationUpdate")
        await self._deliveries.update_destination(*caller, body, self._check_update)
        return {}

    async def _check_table(self, region: str, config: Body) -> None:
        """Records can be converted only to a table that is there; better said now than of every record."""
        if not converts(config):
            return
        name = TableName.of(config[CONVERSION]["SchemaConfiguration"], region)
        try:
            await asyncio.to_thread(_look_for_table, self._schema_source, name)
        except SchemaError as error:
            raise ApiError("InvalidArgumentException", str(error)) from error

    async def _check_update(self, record: StoredDelivery, kind: str, config: Body) -> None:
        if kind == record.destination:
            rules.check_immutable(kind, record.config, config)
        rules.check_merged(
            kind, config, creating=False, source_type=record.source_type, lenient=self._lenient
        )
        # Otherwise a catalog that is out of reach would stand in the way of changes that have nothing to do with it.
        if config.get(CONVERSION) != record.config.get(CONVERSION):
            await self._check_table(record.region, config)


def _look_for_table(source: str, name: TableName) -> None:
    if is_at_hand(source):
        describe_schema(source, name)
