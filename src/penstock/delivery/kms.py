"""AWS's KMS, for data keys that it wraps. Imported only when it is used: boto3 is large. Everything here blocks."""

from __future__ import annotations

from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from penstock.errors import PenstockError

_CONFIG = Config(connect_timeout=5, read_timeout=10, retries={"mode": "standard", "total_max_attempts": 3})
_CODES = {
    "NotFoundException": "KMS_KEY_NOT_FOUND",
    "AccessDeniedException": "KMS_ACCESS_DENIED",
    "DisabledException": "DISABLED_KMS_KEY",
    "KMSInvalidStateException": "DISABLED_KMS_KEY",
    "InvalidKeyUsageException": "INVALID_KMS_KEY",
    "OptInRequired": "KMS_OPT_IN_REQUIRED",
}


class KmsFailed(PenstockError):
    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code  # as Firehose calls it


def generate_data_key(key_arn: str) -> bytes:
    """A new data key, wrapped."""
    try:
        answer = _client(key_arn).generate_data_key_without_plaintext(KeyId=key_arn, KeySpec="AES_256")
    except ClientError as error:
        details = error.response.get("Error", {})
        code = _CODES.get(details.get("Code", ""), "UNKNOWN_ERROR")
        raise KmsFailed(f"KMS refused {key_arn}: {details.get('Message', error)}", code) from error
    except BotoCoreError as error:
        raise KmsFailed(f"KMS could not be asked for {key_arn}: {error}", "UNKNOWN_ERROR") from error
    blob: bytes = answer["CiphertextBlob"]
    return blob


def decrypt(key_arn: str, blob: bytes) -> bytes:
    """A data key, unwrapped."""
    try:
        answer = _client(key_arn).decrypt(CiphertextBlob=blob, KeyId=key_arn)
    except (ClientError, BotoCoreError) as error:
        raise KmsFailed(f"KMS did not unwrap a data key of {key_arn}: {error}", "UNKNOWN_ERROR") from error
    key: bytes = answer["Plaintext"]
    return key


def _client(key_arn: str) -> Any:
    # A session of its own: the default one is not made for threads. AWS_ENDPOINT_URL_KMS says where KMS is.
    return boto3.session.Session().client("kms", region_name=key_arn.split(":")[3], config=_CONFIG)
