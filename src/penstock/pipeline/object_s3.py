"""S3, or anything that speaks its protocol, through boto3."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from boto3.s3.transfer import TransferConfig
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
)

from penstock.pipeline import aws
from penstock.pipeline.destinations.base import DeliveryFailed, PipelineSettings
from penstock.pipeline.objects import (
    NO_HEADERS,
    NO_METADATA,
    Body,
    ObjectHeaders,
    ObjectRefused,
    ObjectStore,
    StoredObject,
    StoreUnavailable,
    Upload,
    check_key,
    check_metadata,
)

PUT_BYTES_MAX = 1024 * 1024 * 1024  # S3 takes up to 5 GiB at a time; what is far less is sooner sent again
PART_BYTES = 64 * 1024 * 1024
SPOOL_BYTES = 16 * 1024 * 1024  # a larger body waits on disk, not in memory

# Credentials that somebody can renew, and what is broken on the way: everything else below 500 is final.
CREDENTIAL_CODES = frozenset(
    {
        "ExpiredToken",
        "ExpiredTokenException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidToken",
        "RequestExpired",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
RETRIED_CODES = frozenset(
    {
        "BadDigest",
        "BandwidthLimitExceeded",
        "IncompleteBody",
        "InvalidPart",
        "InvalidPartOrder",
        "NoSuchUpload",
        "OperationAborted",
        "PriorRequestNotComplete",
        "RequestLimitExceeded",
        "RequestTimeout",
        "RequestTimeoutException",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "RequestThrottled",
        "TooManyRequests",
        "TooManyRequestsException",
        "XAmzContentSHA256Mismatch",
    }
)
RETRIED_STATUSES = frozenset({408, 409, 425, 429})


class S3Store(ObjectStore):
    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings

    def put(
        self,
        bucket: str,
        key: str,
        body: Body,
        metadata: Mapping[str, str] = NO_METADATA,
        headers: ObjectHeaders = NO_HEADERS,
    ) -> None:
        check_key(key)
        check_metadata(metadata)
        arguments: dict[str, Any] = {"Metadata": dict(metadata), **_header_arguments(headers)}
        with _seekable(body) as content, _errors(bucket, key):
            if isinstance(content, bytes) or _size_bytes(content) <= PUT_BYTES_MAX:
                self.client().put_object(Bucket=bucket, Key=key, Body=content, **arguments)
            else:
                config = TransferConfig(PUT_BYTES_MAX, multipart_chunksize=PART_BYTES, use_threads=False)
                self.client().upload_fileobj(content, bucket, key, arguments, Config=config)

    def multipart(self, bucket: str, key: str, metadata: Mapping[str, str] = NO_METADATA) -> Upload:
        check_key(key)
        check_metadata(metadata)
        with _errors(bucket, key):
            answer = self.client().create_multipart_upload(Bucket=bucket, Key=key, Metadata=dict(metadata))
        return _S3Upload(self, bucket, key, answer["UploadId"])

    def get(self, bucket: str, key: str) -> StoredObject:
        with _errors(bucket, key):
            answer = self.client().get_object(Bucket=bucket, Key=key)
            with answer["Body"] as body:
                metadata = {name.lower(): value for name, value in answer["Metadata"].items()}
                return StoredObject(body.read(), metadata, _headers_of(answer))

    def delete(self, bucket: str, key: str) -> None:
        with _errors(bucket, key):
            self.client().delete_object(Bucket=bucket, Key=key)

    def keys(self, bucket: str) -> list[str]:
        with _errors(bucket, ""):
            pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket)
            return sorted(entry["Key"] for page in pages for entry in page.get("Contents", ()))

    def client(self) -> Any:
        """Asked for anew each time: credentials that were refused are read again."""
        client = aws.client("s3", self._settings)
        # Many servers other than S3 itself refuse the checksums that boto3 adds of its own accord.
        if "AWS_REQUEST_CHECKSUM_CALCULATION" not in os.environ:
            client.meta.config.request_checksum_calculation = "when_required"
        if "AWS_RESPONSE_CHECKSUM_VALIDATION" not in os.environ:
            client.meta.config.response_checksum_validation = "when_required"
        return client


def _header_arguments(headers: ObjectHeaders) -> dict[str, str]:
    given = {
        "ContentType": headers.content_type,
        "ContentEncoding": headers.content_encoding,
        "ServerSideEncryption": "aws:kms" if headers.kms_key else None,
        "SSEKMSKeyId": headers.kms_key,
    }
    return {name: value for name, value in given.items() if value is not None}


def _headers_of(answer: Mapping[str, Any]) -> ObjectHeaders:
    return ObjectHeaders(answer.get("ContentType"), answer.get("ContentEncoding"), answer.get("SSEKMSKeyId"))


class _S3Upload(Upload):
    def __init__(self, store: S3Store, bucket: str, key: str, upload_id: str) -> None:
        self._store = store
        self._bucket = bucket
        self._key = key
        self._where = {"Bucket": bucket, "Key": key, "UploadId": upload_id}
        self._parts: list[dict[str, object]] = []

    def upload_part(self, body: Body) -> None:
        number = len(self._parts) + 1
        with _seekable(body) as content, _errors(self._bucket, self._key):
            answer = self._store.client().upload_part(**self._where, PartNumber=number, Body=content)
        self._parts.append({"PartNumber": number, "ETag": answer["ETag"]})

    def complete(self) -> None:
        with _errors(self._bucket, self._key):
            self._store.client().complete_multipart_upload(
                **self._where, MultipartUpload={"Parts": self._parts}
            )

    def abort(self) -> None:
        with _errors(self._bucket, self._key):
            try:
                self._store.client().abort_multipart_upload(**self._where)
            except ClientError as error:
                if aws.error_code(error) != "NoSuchUpload":  # which is what we want
                    raise


@contextmanager
def _seekable(body: Body) -> Iterator[bytes | IO[bytes]]:
    """A body that can be read again: for the signature, and when a request is repeated."""
    if isinstance(body, bytes):
        yield body
        return
    with SpooledTemporaryFile(SPOOL_BYTES) as file:
        for chunk in body:
            file.write(chunk)
        file.seek(0)
        yield file


def _size_bytes(content: IO[bytes]) -> int:
    content.seek(0, os.SEEK_END)
    size_bytes = content.tell()
    content.seek(0)
    return size_bytes


@contextmanager
def _errors(bucket: str, key: str) -> Iterator[None]:
    where = f"s3://{bucket}/{key}"
    try:
        yield
    except ClientError as error:
        if aws.error_code(error) in CREDENTIAL_CODES:
            aws.forget_clients()
        raise _translated(where, error) from error
    except ParamValidationError as error:
        raise ObjectRefused(f"{where}: {error}") from error
    except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
        aws.forget_clients()
        raise StoreUnavailable(f"{where}: no usable AWS credentials were found: {error}") from error
    except (BotoCoreError, DeliveryFailed) as error:
        raise StoreUnavailable(f"{where}: {error}") from error


def _translated(where: str, error: ClientError) -> ObjectRefused | StoreUnavailable:
    code = aws.error_code(error)
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    text = f"{where}: {code}: {error.response.get('Error', {}).get('Message', '')}"
    passing = code in RETRIED_CODES or code in CREDENTIAL_CODES or status in RETRIED_STATUSES or status >= 500
    return StoreUnavailable(text, code) if passing else ObjectRefused(text, code)
