"""Delivery streams as the Firehose door sees them: every operation on them, with its rules."""

from __future__ import annotations

from penstock.delivery.delivery import Delivery
from penstock.delivery.errors import ApiError
from penstock.streams import Streams


def not_found(account: str, name: str) -> ApiError:
    return ApiError("ResourceNotFoundException", f"Firehose {name} under account {account} not found.")


class DeliveryStreams:
    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._deliveries: dict[tuple[str, str, str], Delivery] = {}

    def find(self, account: str, region: str, name: str) -> Delivery:
        delivery = self._deliveries.get((account, region, name))
        if delivery is None:
            raise not_found(account, name)
        return delivery
