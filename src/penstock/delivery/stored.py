"""What the catalog keeps of a delivery stream."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

DESTINATION_ID = "destinationId-000000000001"


class Status(str, Enum):
    CREATING = "CREATING"
    CREATING_FAILED = "CREATING_FAILED"
    ACTIVE = "ACTIVE"
    DELETING = "DELETING"
    DELETING_FAILED = "DELETING_FAILED"


class EncryptionStatus(str, Enum):
    ENABLED = "ENABLED"
    ENABLING = "ENABLING"
    ENABLING_FAILED = "ENABLING_FAILED"
    DISABLED = "DISABLED"
    DISABLING = "DISABLING"
    DISABLING_FAILED = "DISABLING_FAILED"


class Failure(msgspec.Struct, frozen=True):
    type: str  # as in FailureDescription
    details: str


class WrappedKey(msgspec.Struct, frozen=True):
    """A data key that only its master key opens."""

    key_type: str  # AWS_OWNED_CMK or CUSTOMER_MANAGED_CMK
    key_arn: str | None
    wrapped: bytes


class KeyRow(msgspec.Struct, frozen=True):
    """Records from `first_sequence` on are sealed with this key; with none if there is none."""

    first_sequence: int
    key: WrappedKey | None


class Encryption(msgspec.Struct, frozen=True):
    status: EncryptionStatus = EncryptionStatus.DISABLED
    key_type: str | None = None  # of the key that is, or is about to be, in force
    key_arn: str | None = None
    failure: Failure | None = None
    keys: tuple[KeyRow, ...] = ()  # by first_sequence; of equal ones the last counts
    calls_ms: tuple[int, ...] = ()  # when Start and Stop were called, within the last 24 hours


class StoredDelivery(msgspec.Struct, frozen=True, kw_only=True):
    account: str
    region: str
    name: str
    status: Status
    source_type: str = "DirectPut"
    source: dict[str, Any] | None = None  # the configuration block that belongs to the source type
    created_ms: int
    updated_ms: int | None = None
    version: int = 1
    destination: str  # ExtendedS3, Redshift, ...: as its description is called
    config: dict[str, Any]  # what the client set, by the names of CreateDeliveryStream, secrets included
    sql: str = ""  # the SparkSQL transform, if there is one
    tags: dict[str, str | None] = {}  # in the order in which they were added
    encryption: Encryption = Encryption()
    failure: Failure | None = None

    @property
    def arn(self) -> str:
        return arn_of(self.account, self.region, self.name)


def arn_of(account: str, region: str, name: str) -> str:
    return f"arn:{partition_of(region)}:firehose:{region}:{account}:deliverystream/{name}"


def partition_of(region: str) -> str:
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def encode(record: StoredDelivery) -> bytes:
    return msgspec.json.encode(record)


def decode(encoded: bytes) -> StoredDelivery:
    return msgspec.json.decode(encoded, type=StoredDelivery)
