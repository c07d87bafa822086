"""Delivery streams as operators see them over HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.delivery.view import DeliveryView


class DeliveryListing(msgspec.Struct, kw_only=True):
    name: str
    arn: str
    account: str
    region: str
    status: str
    destination: str
    version: int
    encryption: str
    sql: str  # the SparkSQL transform, if there is one
    progress: DeliveryView | None  # of one that is ACTIVE


class DeliveryDescription(msgspec.Struct, kw_only=True):
    listing: DeliveryListing
    description: dict[str, Any]  # as DescribeDeliveryStream has it


class DeliveryRecord(msgspec.Struct):
    sequence: int
    arrival_ms: int
    data: str  # base64


class DeliveryRecords(msgspec.Struct, kw_only=True):
    oldest: int
    next: int  # where to go on
    end: int  # behind the newest record
    records: list[DeliveryRecord]
