"""Who calls: the signature of AWS (version 4), checked by hand, and the account and region it stands for."""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote

import msgspec

from penstock.delivery.errors import ApiError
from penstock.errors import ConfigError
from penstock.secret_file import read_secret_file

ALGORITHM = "AWS4-HMAC-SHA256"
SERVICE = "firehose"
SKEW = timedelta(minutes=5)
UNSIGNED_PAYLOAD = b"UNSIGNED-PAYLOAD"

_TIME_FORMAT = "%Y%m%dT%H%M%SZ"
# Headers that decide what a request does: who leaves them out of the signature lets others change them.
_SIGNED_IF_SENT = (b"x-amz-date", b"x-amz-target")
_SCOPE = re.compile(
    r"Credential\s*=\s*(?P<key_id>[^/\s,]{1,256})/(?P<date>[0-9]{8})/(?P<region>[A-Za-z0-9._-]{1,64})"
    r"/(?P<service>[A-Za-z0-9._-]{1,64})/aws4_request(?=[\s,]|$)"
)
_SIGNED_HEADERS = re.compile(r"SignedHeaders\s*=\s*([^\s,=]{1,4096})(?=[\s,]|$)")
_SIGNATURE = re.compile(r"Signature\s*=\s*([0-9a-f]{64})(?=[\s,]|$)")
_SPACES = re.compile(rb" +")
_SIGNING_KEYS_MAX = 1024

Headers = Iterable[tuple[bytes, bytes]]  # as ASGI has them: names in lower case


class Caller(NamedTuple):
    account: str
    region: str


class AccessKey(msgspec.Struct, frozen=True):
    secret: str
    account: str

    def __repr__(self) -> str:
        return f"AccessKey(account={self.account!r})"


class _Scope(NamedTuple):
    key_id: str
    date: str
    region: str
    service: str


class _Authorization(NamedTuple):
    scope: _Scope
    signed_headers: tuple[bytes, ...]
    signature: str


def load_access_keys(path: Path) -> dict[str, AccessKey]:
    """{"<access key id>": {"secret": "...", "account": "<12 digits>"}, ...}"""
    what = f"the access keys file {path}"
    content = read_secret_file(path, "the access keys file")
    try:
        keys = msgspec.json.decode(content, type=dict[str, AccessKey])
    except msgspec.DecodeError as error:
        # Not the error's own text: it may quote what it stumbled over.
        raise ConfigError(
            f'{what} must be JSON like {{"AKIA…": {{"secret": "…", "account": "123456789012"}}}}; correct it'
        ) from error
    for key_id, key in keys.items():
        if re.fullmatch(r"[0-9]{12}", key.account) is None:
            raise ConfigError(f"{what}: the account of {key_id} must have 12 digits; correct it")
        if not key.secret:
            raise ConfigError(f"{what}: {key_id} has no secret; add it")
    return keys


class Signatures:
    """Checks signatures if there are keys; without, everybody is let in as `default.account`."""

    def __init__(
        self,
        keys: Mapping[str, AccessKey] | None,
        default: Caller,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._default = default
        self._wall_s = wall_s
        self._signing_keys: dict[tuple[str, str, str], bytes] = {}

    def check(self, method: str, path: str, query: str, headers: Headers, body: bytes) -> Caller:
        """Raises ApiError for who may not come in."""
        if self._keys is None:
            return self._unchecked(headers)
        values = _by_name(headers)
        authorization = _parse(values)
        key = self._keys.get(authorization.scope.key_id)
        if key is None:
            raise ApiError(
                "UnrecognizedClientException", "The security token included in the request is invalid."
            )
        if authorization.scope.service != SERVICE:
            raise _invalid(f"Credential should be scoped to correct service: '{SERVICE}'.")
        signed_at = self._check_time(values, authorization.scope)
        canonical = "\n".join([method, _canonical_path(path), _canonical_query(query)]).encode()
        request = b"\n".join(
            [canonical, *_canonical_headers(values, authorization), _payload_hash(values, body)]
        )
        expected = self._signature(key, authorization.scope, signed_at, request)
        if not hmac.compare_digest(expected, authorization.signature):
            raise _invalid(
                "The request signature we calculated does not match the signature you provided. Check your AWS "
                "Secret Access Key and signing method. Consult the service documentation for details."
            )
        return Caller(key.account, authorization.scope.region)

    def _unchecked(self, headers: Headers) -> Caller:
        for name, value in headers:
            if name == b"authorization":
                scope = _SCOPE.search(value.decode("latin-1"))
                return self._default if scope is None else Caller(self._default.account, scope["region"])
        return self._default

    def _check_time(self, values: Mapping[bytes, list[bytes]], scope: _Scope) -> str:
        text = b"".join(values.get(b"x-amz-date", [])).decode("latin-1")
        try:
            signed_at = datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=timezone.utc)
        except ValueError:
            raise ApiError(
                "IncompleteSignatureException",
                f"Date must be in ISO-8601 'basic format'. Got '{text[:40]}'. See http://en.wikipedia.org/wiki/ISO_8601",
            ) from None
        if text[:8] != scope.date:
            raise _invalid("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date.")
        now = datetime.fromtimestamp(self._wall_s(), timezone.utc)
        if signed_at < now - SKEW:
            limit = (now - SKEW).strftime(_TIME_FORMAT)
            shown = now.strftime(_TIME_FORMAT)
            raise _invalid(f"Signature expired: {text} is now earlier than {limit} ({shown} - 5 min.)")
        if signed_at > now + SKEW:
            limit = (now + SKEW).strftime(_TIME_FORMAT)
            shown = now.strftime(_TIME_FORMAT)
            raise _invalid(
                f"Signature not yet current: {text} is still later than {limit} ({shown} + 5 min.)"
            )
        return text

    def _signature(self, key: AccessKey, scope: _Scope, signed_at: str, request: bytes) -> str:
        scope_text = f"{scope.date}/{scope.region}/{scope.service}/aws4_request"
        digest = hashlib.sha256(request).hexdigest()
        text = f"{ALGORITHM}\n{signed_at}\n{scope_text}\n{digest}"
        return hmac.new(self._signing_key(key, scope), text.encode(), hashlib.sha256).hexdigest()

    def _signing_key(self, key: AccessKey, scope: _Scope) -> bytes:
        cached = self._signing_keys.get((scope.key_id, scope.date, scope.region))
        if cached is not None:
            return cached
        signing_key = f"AWS4{key.secret}".encode()
        for part in (scope.date, scope.region, scope.service, "aws4_request"):
            signing_key = hmac.new(signing_key, part.encode(), hashlib.sha256).digest()
        if len(self._signing_keys) >= _SIGNING_KEYS_MAX:
            self._signing_keys.clear()
        self._signing_keys[scope.key_id, scope.date, scope.region] = signing_key
        return signing_key


def _by_name(headers: Headers) -> dict[bytes, list[bytes]]:
    values: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(value)
    return values


def _parse(values: Mapping[bytes, list[bytes]]) -> _Authorization:
    header = b",".join(values.get(b"authorization", [])).decode("latin-1").strip()
    if not header:
        raise ApiError("MissingAuthenticationTokenException", "Missing Authentication Token")
    if header.partition(" ")[0] != ALGORITHM:
        raise _incomplete(f"Unsupported AWS 'algorithm': use {ALGORITHM}.")
    scope, signed, signature = (
        _SCOPE.search(header),
        _SIGNED_HEADERS.search(header),
        _SIGNATURE.search(header),
    )
    if scope is None or signed is None or signature is None:
        named = (("Credential", scope), ("Signature", signature), ("SignedHeaders", signed))
        missing = [
            f"Authorization header requires '{name}' parameter." for name, found in named if found is None
        ]
        raise _incomplete(" ".join(missing))
    names = tuple(name.encode("latin-1") for name in signed[1].lower().split(";"))
    return _Authorization(_Scope(*scope.group("key_id", "date", "region", "service")), names, signature[1])


def _canonical_headers(values: Mapping[bytes, list[bytes]], authorization: _Authorization) -> list[bytes]:
    """The signed headers, an empty line, and their names."""
    names = authorization.signed_headers
    for name in (b"host", *_SIGNED_IF_SENT):
        if name not in names and (name in values or name == b"host"):
            raise _invalid(f"'{name.decode()}' must be a 'SignedHeader' in the AWS Authorization.")
    lines = [name + b":" + b",".join(map(_trimmed, values.get(name, []))) for name in names]
    return [*lines, b"", b";".join(names)]


def _trimmed(value: bytes) -> bytes:
    return _SPACES.sub(b" ", value.strip())


def _payload_hash(values: Mapping[bytes, list[bytes]], body: bytes) -> bytes:
    claimed = b"".join(values.get(b"x-amz-content-sha256", []))
    if claimed == UNSIGNED_PAYLOAD:
        return claimed
    digest = hashlib.sha256(body).hexdigest().encode()
    if claimed and not hmac.compare_digest(claimed, digest):
        raise _invalid("The x-amz-content-sha256 header does not match the body of the request.")
    return digest


def _canonical_path(path: str) -> str:
    return quote(path or "/", safe="/-_.~")


def _canonical_query(query: str) -> str:
    pairs = parse_qsl(query, keep_blank_values=True)
    return "&".join(
        sorted(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)
    )


def _invalid(message: str) -> ApiError:
    return ApiError("InvalidSignatureException", message)


def _incomplete(message: str) -> ApiError:
    return ApiError("IncompleteSignatureException", message)
