from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stream_manager import data as sdk

from penstock import errors
from penstock.doors.streammanager.codec import (
    DEPTH_MAX,
    ITEMS_MAX,
    MalformedPayload,
    decode_map,
    encode_frame,
    encode_response,
    salvage_request_id,
)
from penstock.doors.streammanager.protocol import (
    FRAME_LENGTH_MAX,
    RESPONSE_OP,
    Op,
    Status,
    status_for_version,
    status_of,
)

ID = b"\x69requestId\x62r1"


def text(value: str) -> bytes:
    return cbor2.dumps(value)


def refused(payload: bytes) -> MalformedPayload:
    with pytest.raises(MalformedPayload) as caught:
        decode_map(payload)
    return caught.value


# --- protocol numbers ---


def upper_snake(camel: str) -> str:
    return "".join(f"_{c}" if c.isupper() else c.upper() for c in camel).lstrip("_")


@pytest.mark.parametrize(("ours", "theirs"), [(Op, sdk.Operation), (Status, sdk.ResponseStatusCode)])
def test_numbers_and_names_are_those_of_the_sdk(ours: Any, theirs: Any) -> None:
    assert {m.name: m.value for m in ours} == {upper_snake(m.name): m.value for m in theirs}


def test_every_request_has_its_response() -> None:
    for request, response in RESPONSE_OP.items():
        assert response.name == f"{request.name}_RESPONSE"
    not_requests = {op for op in Op if op.name.endswith("_RESPONSE")} | {
        Op.UNKNOWN,
        Op.UNKNOWN_OPERATION_ERROR,
    }
    assert set(RESPONSE_OP) == set(Op) - not_requests


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.StreamNotFound(), Status.RESOURCE_NOT_FOUND),
        (errors.InvalidRequest(), Status.INVALID_REQUEST),
        (errors.StreamExists(), Status.INVALID_REQUEST),
        (errors.StreamFull(), Status.INVALID_REQUEST),
        (errors.DiskFull(), Status.INVALID_REQUEST),
        (errors.UpdateNotAllowed(), Status.UPDATE_NOT_ALLOWED),
        (errors.MessageTooLarge(), Status.REQUEST_PAYLOAD_TOO_LARGE),
        (errors.NotEnoughMessages(), Status.NOT_ENOUGH_MESSAGES),
        (errors.CorruptMessages(1, 2), Status.MESSAGE_STORE_READ_ERROR),
        (errors.ResponseTooLarge(), Status.RESPONSE_PAYLOAD_TOO_LARGE),
        (errors.MemoryExhausted(), Status.OUT_OF_MEMORY_ERROR),
        (errors.StorageFailed(), Status.UNKNOWN_FAILURE),
        (errors.UpdateFailed(), Status.UPDATE_FAILED),
        (errors.PenstockError(), Status.UNKNOWN_FAILURE),
        (ZeroDivisionError(), Status.UNKNOWN_FAILURE),
        (KeyboardInterrupt(), Status.UNKNOWN_FAILURE),
    ],
)
def test_status_of_each_error(error: BaseException, status: Status) -> None:
    assert status_of(error) is status


def test_first_generation_clients_never_see_the_codes_they_do_not_know() -> None:
    assert all(status_for_version(status, "1.1.0") is status for status in Status)
    old = {status: status_for_version(status, "1.0.0") for status in Status}
    assert max(old.values()) <= 14
    assert all(old[status] is status for status in Status if status <= 14)
    assert [old[Status(code)] for code in (15, 16, 17, 18)] == [1, 1, 3, 3]


# --- what is accepted ---


def test_append_of_the_reference() -> None:
    frame = bytes.fromhex("0000002104a369726571756573744964627231646e616d656173677061796c6f6164426869")
    assert decode_map(frame[5:]) == {"requestId": "r1", "name": "s", "payload": b"hi"}
    assert decode_map(memoryview(frame)[5:]) == {"requestId": "r1", "name": "s", "payload": b"hi"}


def test_reads_of_the_reference_python_and_java_shape() -> None:
    python = (
        "a3697265717565737449646272326a73747265616d4e616d65617373726561644d657373616765734f7074696f6e73"
        "a26f6d696e4d657373616765436f756e7401717265616454696d656f75744d696c6c697300"
    )
    java = (
        "bf6972657175657374496461726a73747265616d4e616d65617373726561644d657373616765734f7074696f6e73"
        "bf6f6d696e4d657373616765436f756e7401717265616454696d656f75744d696c6c697300ffff"
    )
    options = {"minMessageCount": 1, "readTimeoutMillis": 0}
    expected = {"streamName": "s", "readMessagesOptions": options}
    assert decode_map(bytes.fromhex(python)) == {"requestId": "r2", **expected}
    assert decode_map(bytes.fromhex(java)) == {"requestId": "r", **expected}


@pytest.mark.parametrize("length", [3997, 3996 * 3 + 1, 100_000])
def test_java_text_in_chunks(length: int) -> None:
    value = "é" * length
    chunks = b"".join(text(value[at : at + 3996]) for at in range(0, length, 3996))
    assert decode_map(b"\xbf" + text("name") + b"\x7f" + chunks + b"\xff\xff") == {"name": value}


@pytest.mark.parametrize(
    ("item", "value"),
    [
        ("17", 23),
        ("1817", 23),
        ("190017", 23),
        ("1a00000017", 23),
        ("1b0000000000000017", 23),
        ("1bffffffffffffffff", 2**64 - 1),
        ("3903e7", -1000),
        ("fa5f000000", 2.0**63),
        ("f93c00", 1.0),
        ("fb43e0000000000000", 2.0**63),
        ("f4", False),
        ("f5", True),
        ("5f420102410340ff", b"\x01\x02\x03"),
        ("7f61616162ff", "ab"),
        ("5fff", b""),
        ("9f0102ff", [1, 2]),
        ("820102", [1, 2]),
        ("bf616101ff", {"a": 1}),
        ("78026162", "ab"),
        ("80", []),
        ("a0", {}),
    ],
)
def test_values_in_every_encoding(item: str, value: object) -> None:
    decoded = decode_map(b"\xa1\x61k" + bytes.fromhex(item))["k"]
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize("null", [b"\xf6", b"\xf7"])
def test_null_and_undefined_are_absent_from_maps(null: bytes) -> None:
    inner = b"\xa2\x61x" + null + b"\x61y\x01"
    payload = b"\xa4" + ID + b"\x61a" + null + b"\x61b" + inner + b"\x61c\x82" + null + inner
    assert decode_map(payload) == {"requestId": "r1", "b": {"y": 1}, "c": [None, {"y": 1}]}


def test_last_of_equal_keys_counts() -> None:
    assert decode_map(bytes.fromhex("a2616101616102")) == {"a": 2}
    assert decode_map(bytes.fromhex("a26161016161f6")) == {}


def test_long_message_is_stepped_over() -> None:
    payload = cbor2.dumps({"payload": bytes(8 << 20)})
    assert len(decode_map(payload)["payload"]) == 8 << 20


# --- what is not ---


@pytest.mark.parametrize(
    "payload",
    [
        "",
        "00",
        "80",
        "f6",
        "ff",
        "617a",
        "d9d9f7a0",  # a tag is not a map either
        "a1",
        "a16161",
        "bf",
        "bf6161ff",
        "bf616101",
        "a161611c",
        "a16161fc",
        "a16161ff",
        "a1616181ff",
        "a16161df00",
        "a161611f",
        "a161615f6161ff",  # text chunk in bytes
        "a161615f5f4100ffff",  # indefinite chunk
        "a161615f",
        "a161619bffffffffffffffff",
        "a161619b000000007fffffff00000000",
        "a16161bb00000000ffffffff",
        "bbffffffffffffffff",
        "a161615b7fffffffffffffff",
        "a161617b000000004000000061",
        "a1616119",
    ],
)
def test_what_is_not_one_whole_map_cannot_be_answered(payload: str) -> None:
    assert refused(bytes.fromhex(payload)).request_id is None


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x1c",
        b"\xff",
        b"\xbf\x61a\xff",  # ends between key and value
        b"\x5f\x61a\xff",
        b"\x7f\x41a\xff",
        b"\x5f\x5f\x41a\xff\xff",
        b"\x9b\x7f\xff\xff\xff\xff\xff\xff\xff",
    ],
)
def test_broken_after_the_request_id_cannot_be_answered(value: bytes) -> None:
    assert refused(b"\xa2" + ID + b"\x61a" + value).request_id is None


TAGGED = [
    "c074323031332d30332d32315432303a30343a30305a",  # date
    "c24105",  # bignum
    "c34105",
    "c4821a3b9aca0001",  # decimal with a huge exponent
    "c5820101",
    "d81c80",  # shareable
    "d81d00",
    "d823632861 2b",  # regular expression
    "d82440",  # MIME
    "d81e820100",  # rational
    "d9010281a0",  # set
    "d9d9f700",
    "c6c6c600",
]


@pytest.mark.parametrize("tagged", TAGGED)
@pytest.mark.parametrize("id_first", [True, False])
def test_tags_are_refused(tagged: str, id_first: bool) -> None:
    value = b"\x61a" + bytes.fromhex(tagged)
    payload = b"\xa2" + (ID + value if id_first else value + ID)
    error = refused(payload)
    assert error.request_id == "r1"
    assert "tag" in str(error)


@pytest.mark.parametrize(
    "entry",
    [
        b"\x01\x00",
        b"\x41a\x00",
        b"\x80\x00",
        b"\xa0\x00",
        b"\xf4\x00",
        b"\xf6\x00",
        b"\xf9\x7e\x00\x00",
        b"\x61a\xa1\x01\x00",
        b"\x61a\xbf\x61b\x00\x01\x00\xff",
        b"\x61a\x81\xa1\x01\x00",
    ],
)
def test_keys_that_are_not_text_are_refused(entry: bytes) -> None:
    for payload in (b"\xa2" + ID + entry, b"\xbf" + entry + ID + b"\xff"):
        error = refused(payload)
        assert error.request_id == "r1"
        assert "key" in str(error)


@pytest.mark.parametrize("simple", [b"\xe0", b"\xf3", b"\xf8\x20", b"\xf8\xff"])
def test_simple_values_without_meaning_are_refused(simple: bytes) -> None:
    assert refused(b"\xa2\x61a" + simple + ID).request_id == "r1"


@pytest.mark.parametrize(
    "bad", [b"\x61\xff", b"\x62\xc3\x28", b"\x63\xed\xa0\x80", b"\x7f\x61\xc3\x61\xa9\xff"]
)
def test_text_that_is_not_utf8_is_refused(bad: bytes) -> None:
    assert refused(b"\xa2" + ID + b"\x61a" + bad).request_id == "r1"
    assert refused(b"\xa2" + bad + b"\x00" + ID).request_id == "r1"
    assert refused(b"\xa1\x69requestId" + bad).request_id is None


@pytest.mark.parametrize("garbage", [b"\x00", b"\xff", b"\xa0", b"\x1c" * 100])
def test_bytes_after_the_map_are_refused(garbage: bytes) -> None:
    error = refused(b"\xa1" + ID + garbage)
    assert error.request_id == "r1"
    assert f"{len(garbage)} bytes follow" in str(error)
    assert refused(b"\xa0" + garbage).request_id is None


@pytest.mark.parametrize("opening", ["list", "map", "open list", "open map"])
def test_depth(opening: str) -> None:
    start, end = {
        "list": (b"\x81", b""),
        "map": (b"\xa1\x61a", b""),
        "open list": (b"\x9f", b"\xff"),
        "open map": (b"\xbf\x61a", b"\xff"),
    }[opening]

    def nested(levels: int) -> bytes:
        below_top = levels - 1
        return b"\xa2\x61a" + start * below_top + b"\x00" + end * below_top + ID

    assert decode_map(nested(DEPTH_MAX))["requestId"] == "r1"
    error = refused(nested(DEPTH_MAX + 1))
    assert error.request_id == "r1"
    assert "deeper" in str(error)
    assert refused(nested(5000)).request_id == "r1"


@pytest.mark.parametrize("item", [b"\xa0", b"\x80", b"\x00", b"\xf6", b"\x60"])
def test_many_small_items_are_refused_in_small_memory(item: bytes) -> None:
    count = 4 << 20
    payload = b"\xa2" + ID + b"\x61a\x9a" + count.to_bytes(4, "big") + item * count
    tracemalloc.start()
    error = refused(payload)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert error.request_id == "r1"
    assert peak < 1 << 20


@pytest.mark.parametrize("chunk", [b"\x60", b"\x61a"])
def test_many_small_chunks_are_refused(chunk: bytes) -> None:
    assert refused(b"\xa2" + ID + b"\x61a\x7f" + chunk * (ITEMS_MAX + 1) + b"\xff").request_id == "r1"


def test_a_big_definition_is_far_below_the_limit_of_items() -> None:
    export = {"identifier": "e", "kinesisStreamName": "k", "batchSize": 1, "priority": 1, "disabled": True}
    body = {"definition": {"exportDefinition": {"kinesis": [export] * 1000}}}
    assert decode_map(cbor2.dumps(body)) == body


# --- any bytes ---

leaves = (
    st.booleans() | st.integers(-(2**64), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary()
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=20
)
bodies = st.dictionaries(st.text(), values)


@settings(deadline=None)
@given(bodies)
def test_round_trip(body: dict[str, Any]) -> None:
    frame = encode_frame(Op.LIST_STREAMS_RESPONSE, body)
    assert int.from_bytes(frame[:4], "big") == len(frame) - 4
    assert frame[4] == Op.LIST_STREAMS_RESPONSE
    assert decode_map(frame[5:]) == body


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_decode_or_are_malformed(payload: bytes) -> None:
    for attempt in (payload, b"\xa1" + payload, b"\xbf" + ID + payload):
        salvage_request_id(attempt)
        with contextlib.suppress(MalformedPayload):
            assert type(decode_map(attempt)) is dict


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    payload = bytearray(cbor2.dumps({"requestId": "r1", **draw(bodies)}))
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(payload) - 1))
        match draw(st.sampled_from(("replace", "insert", "delete"))):
            case "replace":
                payload[at] = draw(st.integers(0, 255))
            case "insert":
                payload[at:at] = draw(st.binary(min_size=1, max_size=9))
            case "delete" if len(payload) > 1:
                del payload[at]
    return bytes(payload)


@settings(deadline=None)
@given(mutated())
def test_mutated_payloads_decode_or_are_malformed(payload: bytes) -> None:
    try:
        decoded = decode_map(payload)
    except MalformedPayload:
        return
    # What the walk accepts is what cbor2 reads, apart from nulls.
    assert set(decoded) <= set(cbor2.loads(payload))
    assert salvage_request_id(payload) == (
        decoded["requestId"] if isinstance(decoded.get("requestId"), str) else None
    )


# --- salvage ---


@pytest.mark.parametrize("opening", [b"\xa3", b"\xbf"])
@pytest.mark.parametrize("before", [b"", text("name") + text("s"), text("x") + b"\x9f\xa1\x61a\x01\xff"])
def test_salvage_from_the_beginning_of_a_large_frame(opening: bytes, before: bytes) -> None:
    prefix = opening + before + ID + text("payload") + b"\x5a\x10\x00\x00\x00" + bytes(1000)
    assert salvage_request_id(prefix) == "r1"
    assert salvage_request_id(memoryview(prefix)) == "r1"


def test_salvage_of_chunked_text() -> None:
    prefix = b"\xbf\x7f\x67request\x62Id\xff\x7f\x61r\x611\xff\x61a"
    assert salvage_request_id(prefix) == "r1"


@pytest.mark.parametrize(
    "prefix",
    [
        b"",
        b"\x80",
        b"\xa2",
        b"\xa2\x69requestId\x62r",  # cut inside the value
        b"\xa2\x69requestId\x41r\x61a\x00",  # bytes
        b"\xa2\x69requestId\x01\x61a\x00",
        b"\xa2\x69requestId\xc0\x61r\x61a\x00",  # tagged
        b"\xa2\x69requestId\x61\xff\x61a\x00",  # not UTF-8
        b"\xa2" + text("payload") + b"\x5a\x10\x00\x00\x00" + bytes(1000),  # the id comes after the prefix
        b"\xa2" + text("other") + b"\xa1" + ID,  # somebody else's
    ],
)
def test_salvage_finds_nothing(prefix: bytes) -> None:
    assert salvage_request_id(prefix) is None


# --- responses ---


def test_append_response_of_the_reference() -> None:
    assert encode_response(Op.APPEND_MESSAGE_RESPONSE, "r1", Status.SUCCESS, sequenceNumber=0).hex() == (
        "0000003509a46972657175657374496462723166737461747573006c6572726f724d65737361676560"
        "6e73657175656e63654e756d62657200"
    )


READ_RESPONSE = bytes.fromhex(
    "0000006c0aa469726571756573744964627232686d6573736167657381a46a73747265616d4e616d6561736e73657175656e6365"
    "4e756d626572006a696e6765737454696d651b0000018bcfe56800677061796c6f616442686966737461747573006c6572726f72"
    "4d65737361676560"
)


def test_read_response_of_the_reference() -> None:
    message = {"streamName": "s", "sequenceNumber": 0, "ingestTime": 1700000000000, "payload": b"hi"}
    body = {"requestId": "r2", "messages": [message], "status": 0, "errorMessage": ""}
    assert encode_frame(Op.READ_MESSAGES_RESPONSE, body) == READ_RESPONSE
    ours = encode_response(Op.READ_MESSAGES_RESPONSE, "r2", Status.SUCCESS, messages=[message])
    assert ours[:5] == READ_RESPONSE[:5]
    decoded = sdk.ReadMessagesResponse.from_dict(cbor2.loads(ours[5:]))
    assert (decoded.status, decoded.error_message) == (sdk.ResponseStatusCode.Success, "")
    assert decoded.messages[0].as_dict() == message


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.SUCCESS])
def test_error_responses_are_understood_by_the_sdk(status: Status) -> None:
    frame = encode_response(Op.APPEND_MESSAGE_RESPONSE, " ", status, "why")
    decoded = sdk.AppendMessageResponse.from_dict(cbor2.loads(frame[5:]))
    assert decoded.as_dict() == {"requestId": " ", "status": status, "errorMessage": "why"}


def test_error_responses_carry_nothing_more() -> None:
    with pytest.raises(ValueError, match="sequenceNumber"):
        encode_response(Op.APPEND_MESSAGE_RESPONSE, "r", Status.INVALID_REQUEST, "why", sequenceNumber=1)


@pytest.mark.parametrize(
    "body", [{"a": None}, {"a": [None]}, {"a": {"b": None}}, {"a": [{"b": ({"c": None},)}]}]
)
def test_no_null_ever_leaves(body: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="null"):
        encode_frame(Op.LIST_STREAMS_RESPONSE, body)


def test_enums_leave_as_plain_integers_of_the_smallest_width() -> None:
    body = {"a": Status.UNKNOWN_OPERATION, "b": True, "c": 24, "d": 2**53 - 1, "e": -1}
    assert encode_frame(17, body)[
        5:
    ].hex() == "a561611261 62f5 61631818 61641b001fffffffffffff 616520".replace(" ", "")


def test_a_response_over_the_frame_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.doors.streammanager.codec.FRAME_LENGTH_MAX", 100)
    empty = len(encode_frame(10, {"a": b"x" * 24})) - 4 - 24
    assert len(encode_frame(10, {"a": b"x" * (100 - empty)})) == 104
    with pytest.raises(errors.ResponseTooLarge):
        encode_frame(10, {"a": b"x" * (101 - empty)})
    assert FRAME_LENGTH_MAX == 1_073_741_824
