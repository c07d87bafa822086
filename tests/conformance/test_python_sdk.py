"""Every operation through an unmodified Python SDK; test_greengrass_sdk.py runs it under the other one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from conformance.sdk import EXPECTED_SDK_VERSION, sdk
from harness import ServerProcess

# The SDK leaves its sockets to the garbage collector when it reconnects or is refused.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
# Nothing outside the SDK shows that a request has left it, so tests that need it to wait give it this long.
REQUEST_LEAVES_S = 0.3


@pytest.fixture
def client(shared_server: ServerProcess) -> Iterator[Any]:
    with sdk.StreamManagerClient(port=shared_server.port) as client:
        yield client


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as pool:
        yield pool


def definition(name: str, **fields: Any) -> Any:
    fields.setdefault("strategy_on_full", sdk.StrategyOnFull.RejectNewData)
    return sdk.MessageStreamDefinition(name=name, **fields)


def all_exports(status_stream: str | None = None) -> Any:
    """One export of each kind, every field set, disabled so that nothing is ever sent."""
    common = {"batch_interval_millis": 60000, "priority": 3, "start_sequence_number": 0, "disabled": True}
    return sdk.ExportDefinition(
        http=[
            sdk.HTTPConfig(
                identifier="http-1",
                uri="http://127.0.0.1:1/x",
                batch_size=500,
                export_format=sdk.ExportFormat.JSON_BATCHED,
                **common,
            )
        ],
        iot_analytics=[
            sdk.IoTAnalyticsConfig(
                identifier="analytics-1", iot_channel="c", iot_msg_id_prefix="p", batch_size=100, **common
            )
        ],
        kinesis=[
            sdk.KinesisConfig(identifier="kinesis-1", kinesis_stream_name="k", batch_size=500, **common)
        ],
        iot_sitewise=[sdk.IoTSiteWiseConfig(identifier="sitewise-1", batch_size=10, **common)],
        s3_task_executor=[
            sdk.S3ExportTaskExecutorConfig(
                identifier="s3-1",
                size_threshold_for_multipart_upload_bytes=5242880,
                priority=1,
                disabled=True,
                status_config=sdk.StatusConfig(
                    status_level=sdk.StatusLevel.TRACE, status_stream_name=status_stream
                )
                if status_stream
                else None,
            )
        ],
    )


def wait_for_messages(client: Any, name: str, timeout_ms: int, **options: int) -> Any:
    return client.read_messages(name, sdk.ReadMessagesOptions(read_timeout_millis=timeout_ms, **options))


def fill(client: Any, name: str) -> tuple[int, str]:
    """Appends 1,000 bytes at a time: how many went in, and what the refusal said."""
    for appended in range(70):
        try:
            client.append_message(name, bytes(1000))
        except sdk.InvalidRequestException as error:
            return appended, str(error)
    raise AssertionError("the stream was never full")


def test_the_sdk_is_the_pinned_one() -> None:
    assert sdk.SDK_VERSION == EXPECTED_SDK_VERSION


def test_life_of_a_stream(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    assert name in client.list_streams()
    before_ms = int(time.time() * 1000)
    assert [client.append_message(name, f"m{i}".encode()) for i in range(3)] == [0, 1, 2]

    [first] = client.read_messages(name)
    assert (first.stream_name, first.sequence_number, first.payload) == (name, 0, b"m0")
    assert before_ms - 5 <= first.ingest_time <= int(time.time() * 1000) + 5

    info = client.describe_message_stream(name)
    assert info.storage_status.oldest_sequence_number == 0
    assert info.storage_status.newest_sequence_number == 2
    assert info.storage_status.total_bytes >= 6

    client.delete_message_stream(name)
    assert name not in client.list_streams()
    client.create_message_stream(definition(name))
    assert client.append_message(name, b"again") == 0


def test_list_of_no_streams_is_an_empty_list(server: ServerProcess) -> None:
    with sdk.StreamManagerClient(port=server.port) as client:
        assert client.list_streams() == []


def test_list_is_sorted(client: Any, name: str) -> None:
    for suffix in ("b", "c", "a"):
        client.create_message_stream(definition(f"{name}-{suffix}"))
    listed = [stream for stream in client.list_streams() if stream.startswith(f"{name}-")]
    assert listed == [f"{name}-a", f"{name}-b", f"{name}-c"]


def test_duplicate_create_has_the_text_that_user_code_compares(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    with pytest.raises(sdk.InvalidRequestException) as caught:
        client.create_message_stream(definition(name))
    assert str(caught.value) == "the message stream already exists"


def test_operations_on_an_unknown_stream(client: Any, name: str) -> None:
    calls = [
        lambda: client.append_message(name, b"x"),
        lambda: client.read_messages(name),
        lambda: client.describe_message_stream(name),
        lambda: client.update_message_stream(definition(name)),
        lambda: client.delete_message_stream(name),
    ]
    for call in calls:
        with pytest.raises(sdk.ResourceNotFoundException):
            call()


def test_empty_stream_describes_itself_so_that_arithmetic_works(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    info = client.describe_message_stream(name)
    status = info.storage_status
    assert (status.oldest_sequence_number, status.newest_sequence_number, status.total_bytes) == (0, -1, 0)
    assert info.export_statuses == []


def test_describe_shows_the_defaults(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    described = client.describe_message_stream(name).definition
    assert described.name == name
    assert described.max_size == 268435456
    assert described.stream_segment_size == 16777216
    assert described.time_to_live_millis is None
    assert described.strategy_on_full == sdk.StrategyOnFull.RejectNewData
    assert described.persistence == sdk.Persistence.File
    assert described.flush_on_write is False
    exports = described.export_definition
    assert exports.http == exports.iot_analytics == exports.kinesis == []
    assert exports.iot_sitewise == exports.s3_task_executor == []


def test_describe_shows_what_was_set(client: Any, name: str) -> None:
    client.create_message_stream(
        definition(
            name,
            max_size=2**63 - 1,
            stream_segment_size=2**31 - 1,
            time_to_live_millis=9223372036854,
            strategy_on_full=sdk.StrategyOnFull.OverwriteOldestData,
            persistence=sdk.Persistence.Memory,
            flush_on_write=True,
        )
    )
    described = client.describe_message_stream(name).definition
    assert described.max_size == 2**63 - 1
    assert described.stream_segment_size == 2**31 - 1
    assert described.time_to_live_millis == 9223372036854
    assert described.strategy_on_full == sdk.StrategyOnFull.OverwriteOldestData
    assert described.persistence == sdk.Persistence.Memory
    assert described.flush_on_write is True


def test_default_maximum_is_the_minimum(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    for i in range(5):
        client.append_message(name, b"%d" % i)
    assert len(client.read_messages(name)) == 1
    assert len(client.read_messages(name, sdk.ReadMessagesOptions())) == 1
    assert len(client.read_messages(name, sdk.ReadMessagesOptions(min_message_count=2))) == 2
    options = sdk.ReadMessagesOptions(min_message_count=2, max_message_count=100)
    assert [message.payload for message in client.read_messages(name, options)] == [
        b"0",
        b"1",
        b"2",
        b"3",
        b"4",
    ]
    options = sdk.ReadMessagesOptions(desired_start_sequence_number=3, max_message_count=1)
    assert [message.sequence_number for message in client.read_messages(name, options)] == [3]


def test_too_few_messages(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    with pytest.raises(sdk.NotEnoughMessagesException, match="greater than the last sequence number"):
        client.read_messages(name)
    client.append_message(name, b"x")
    with pytest.raises(sdk.NotEnoughMessagesException):
        client.read_messages(name, sdk.ReadMessagesOptions(min_message_count=2))
    with pytest.raises(sdk.NotEnoughMessagesException, match="greater than the last sequence number"):
        client.read_messages(name, sdk.ReadMessagesOptions(desired_start_sequence_number=1))


def test_a_large_message_comes_back_whole(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    payload = bytes(range(256)) * (80 * 1024)  # 20 MiB: larger than a segment
    client.append_message(name, payload)
    client.append_message(name, b"after")
    assert client.read_messages(name)[0].payload == payload
    assert (
        client.read_messages(name, sdk.ReadMessagesOptions(desired_start_sequence_number=1))[0].payload
        == b"after"
    )


def test_a_message_larger_than_the_stream_is_refused(client: Any, name: str) -> None:
    client.create_message_stream(definition(name, max_size=2048, stream_segment_size=1024))
    with pytest.raises(sdk.RequestPayloadTooLargeException):
        client.append_message(name, bytes(4096))
    assert client.append_message(name, b"fits") == 0


@pytest.mark.parametrize("persistence", ["File", "Memory"])
def test_full_stream_rejects(client: Any, name: str, persistence: str) -> None:
    fields = {"max_size": 65536, "stream_segment_size": 16384, "persistence": sdk.Persistence[persistence]}
    client.create_message_stream(definition(name, **fields))
    appended, refusal = fill(client, name)
    assert appended > 40
    assert "full" in refusal
    status = client.describe_message_stream(name).storage_status
    assert status.newest_sequence_number == appended - 1
    assert 1000 * appended <= status.total_bytes <= 65536
    options = sdk.ReadMessagesOptions(min_message_count=appended)
    assert len(client.read_messages(name, options)) == appended

    client.update_message_stream(definition(name, **{**fields, "max_size": 131072}))
    assert client.append_message(name, bytes(1000)) == appended


@pytest.mark.parametrize("persistence", ["File", "Memory"])
@pytest.mark.parametrize("segment_size", [1024, 16384, 16777216])
def test_full_stream_overwrites_its_oldest(
    client: Any, name: str, persistence: str, segment_size: int
) -> None:
    client.create_message_stream(
        definition(
            name,
            max_size=65536,
            stream_segment_size=segment_size,
            strategy_on_full=sdk.StrategyOnFull.OverwriteOldestData,
            persistence=sdk.Persistence[persistence],
        )
    )
    payloads = [f"{i:04}".encode() * 250 for i in range(200)]
    assert [client.append_message(name, payload) for payload in payloads] == list(range(200))
    status = client.describe_message_stream(name).storage_status
    assert status.newest_sequence_number == 199
    assert 199 - 65 <= status.oldest_sequence_number <= 199
    assert 0 < status.total_bytes <= 65536
    messages = client.read_messages(name, sdk.ReadMessagesOptions(max_message_count=1000))
    numbers = list(range(status.oldest_sequence_number, 200))
    assert [message.sequence_number for message in messages] == numbers
    assert [message.payload for message in messages] == payloads[numbers[0] :]


def test_waiting_read_wakes_on_append(client: Any, name: str, pool: ThreadPoolExecutor) -> None:
    client.create_message_stream(definition(name))
    waiting: Future[Any] = pool.submit(wait_for_messages, client, name, 30000, min_message_count=2)
    time.sleep(REQUEST_LEAVES_S)
    client.append_message(name, b"a")
    assert not wait([waiting], REQUEST_LEAVES_S).done
    client.append_message(name, b"b")
    assert [message.payload for message in waiting.result(2)] == [b"a", b"b"]


def test_waiting_read_does_not_block_the_connection(client: Any, name: str, pool: ThreadPoolExecutor) -> None:
    client.create_message_stream(definition(name))
    waiting = [
        pool.submit(wait_for_messages, client, name, 30000, desired_start_sequence_number=i)
        for i in range(20)
    ]
    time.sleep(REQUEST_LEAVES_S)
    assert name in client.list_streams()
    assert client.describe_message_stream(name).storage_status.newest_sequence_number == -1
    for i in range(20):
        client.append_message(name, b"%d" % i)
    assert [one.result(5)[0].payload for one in waiting] == [b"%d" % i for i in range(20)]


def test_timeout_is_answered_before_the_client_gives_up(
    shared_server: ServerProcess, name: str, pool: ThreadPoolExecutor
) -> None:
    """A late answer would kill the SDK's read loop for good."""
    with sdk.StreamManagerClient(port=shared_server.port, request_timeout=2) as client:
        client.create_message_stream(definition(name))
        started = time.monotonic()
        waiting = [pool.submit(wait_for_messages, client, name, 2000) for _ in range(10)]
        for one in waiting:
            with pytest.raises(sdk.NotEnoughMessagesException, match="greater than the last sequence number"):
                one.result(10)
        assert 1.7 < time.monotonic() - started < 2
        time.sleep(0.2)  # for a late answer to come, if there is one
        assert client.append_message(name, b"still usable") == 0


def test_delete_wakes_waiting_reads(client: Any, name: str, pool: ThreadPoolExecutor) -> None:
    client.create_message_stream(definition(name))
    waiting = pool.submit(wait_for_messages, client, name, 30000)
    time.sleep(REQUEST_LEAVES_S)
    client.delete_message_stream(name)
    with pytest.raises(sdk.ResourceNotFoundException):
        waiting.result(5)


def test_stopping_server_answers_waiting_reads(
    server: ServerProcess, name: str, pool: ThreadPoolExecutor
) -> None:
    with sdk.StreamManagerClient(port=server.port) as client:
        client.create_message_stream(definition(name))
        waiting = pool.submit(wait_for_messages, client, name, 60000)
        time.sleep(REQUEST_LEAVES_S)
        started = time.monotonic()
        server.stop()
        assert time.monotonic() - started < 5
        with pytest.raises(sdk.NotEnoughMessagesException):
            waiting.result(5)


def test_client_reconnects_after_a_restart(
    start_server: Callable[..., ServerProcess], tmp_path: Path, name: str, free_port: int
) -> None:
    flags = [
        "--data-dir",
        str(tmp_path / "data"),
        "--stream-manager-port",
        str(free_port),
        "--http-port",
        "0",
    ]
    server = start_server(flags=flags)
    with sdk.StreamManagerClient(port=free_port) as client:
        client.create_message_stream(definition(name))
        assert client.append_message(name, b"before") == 0
        server.restart()
        assert client.append_message(name, b"after") == 1
        messages = client.read_messages(name, sdk.ReadMessagesOptions(min_message_count=2))
        assert [message.payload for message in messages] == [b"before", b"after"]


def test_many_threads_on_one_client(client: Any, name: str, pool: ThreadPoolExecutor) -> None:
    client.create_message_stream(definition(name))

    def append_some(worker: int) -> list[int]:
        return [client.append_message(name, f"{worker}:{i}".encode()) for i in range(50)]

    numbers_by_worker = list(pool.map(append_some, range(16)))
    assert all(numbers == sorted(numbers) for numbers in numbers_by_worker)
    assert sorted(number for numbers in numbers_by_worker for number in numbers) == list(range(800))

    messages = client.read_messages(name, sdk.ReadMessagesOptions(min_message_count=800))
    expected = {
        number: f"{worker}:{i}".encode()
        for worker, numbers in enumerate(numbers_by_worker)
        for i, number in enumerate(numbers)
    }
    assert {message.sequence_number: message.payload for message in messages} == expected


def test_all_five_exports_are_stored_and_have_statuses(client: Any, name: str) -> None:
    client.create_message_stream(definition(f"{name}-status"))
    exports = all_exports(status_stream=f"{name}-status")
    client.create_message_stream(definition(name, export_definition=exports))
    info = client.describe_message_stream(name)
    assert info.definition.export_definition.as_dict() == exports.as_dict()
    identifiers = [status.export_config_identifier for status in info.export_statuses]
    assert identifiers == ["http-1", "analytics-1", "kinesis-1", "sitewise-1", "s3-1"]
    for status in info.export_statuses:
        assert status.last_exported_sequence_number == -1
        assert status.last_export_time == 0
        assert status.error_message == ""
        assert status.exported_bytes_from_stream == 0
        assert status.exported_messages_count == 0


def test_export_fields_that_were_not_set_are_not_invented(client: Any, name: str) -> None:
    exports = sdk.ExportDefinition(
        kinesis=[sdk.KinesisConfig(identifier="k", kinesis_stream_name="k", disabled=True)],
        s3_task_executor=[sdk.S3ExportTaskExecutorConfig(identifier="s", disabled=True)],
    )
    client.create_message_stream(definition(name, export_definition=exports))
    described = client.describe_message_stream(name).definition.export_definition
    assert described.kinesis[0].as_dict() == {"identifier": "k", "kinesisStreamName": "k", "disabled": True}
    assert described.s3_task_executor[0].as_dict() == {"identifier": "s", "disabled": True}


@pytest.mark.parametrize("max_size", [1024, 65536, 268435456, 2**63 - 1])
def test_what_describe_returns_can_be_sent_back(client: Any, name: str, max_size: int) -> None:
    client.create_message_stream(
        definition(name, max_size=max_size, time_to_live_millis=60000, export_definition=all_exports())
    )
    client.append_message(name, b"x")
    before = client.describe_message_stream(name)
    client.update_message_stream(before.definition)
    after = client.describe_message_stream(name)
    assert after.as_dict() == before.as_dict()


def test_update_changes_only_the_edited_field(client: Any, name: str) -> None:
    client.create_message_stream(definition(name, export_definition=all_exports()))
    edited = client.describe_message_stream(name).definition
    edited.strategy_on_full = sdk.StrategyOnFull.OverwriteOldestData
    edited.export_definition.kinesis[0].batch_size = 7
    client.update_message_stream(edited)
    assert client.describe_message_stream(name).definition.as_dict() == edited.as_dict()


def test_update_that_is_not_allowed(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    with pytest.raises(sdk.UpdateNotAllowedException):
        client.update_message_stream(definition(name, persistence=sdk.Persistence.Memory))


def test_memory_stream(server: ServerProcess, name: str) -> None:
    with sdk.StreamManagerClient(port=server.port) as client:
        client.create_message_stream(definition(name, persistence=sdk.Persistence.Memory))
        assert [client.append_message(name, b"%d" % i) for i in range(3)] == [0, 1, 2]
        options = sdk.ReadMessagesOptions(min_message_count=3)
        assert [message.payload for message in client.read_messages(name, options)] == [b"0", b"1", b"2"]
    server.restart()
    with sdk.StreamManagerClient(port=server.port) as client:
        assert client.list_streams() == [name]
        info = client.describe_message_stream(name)
        assert info.definition.persistence == sdk.Persistence.Memory
        assert info.storage_status.newest_sequence_number == -1
        assert client.append_message(name, b"anew") == 0


@pytest.mark.parametrize("flush_on_write", [False, True])
def test_flush_on_write(client: Any, name: str, flush_on_write: bool) -> None:
    client.create_message_stream(definition(name, flush_on_write=flush_on_write))
    assert [client.append_message(name, b"x") for _ in range(20)] == list(range(20))


def test_token(server_with_tokens: ServerProcess, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "second token")
    with sdk.StreamManagerClient(port=server_with_tokens.port) as client:
        client.create_message_stream(definition(name))
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN", "wrong")
    with pytest.raises(sdk.ConnectFailedException):
        sdk.StreamManagerClient(port=server_with_tokens.port)
    monkeypatch.delenv("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    with pytest.raises(sdk.ConnectFailedException):
        sdk.StreamManagerClient(port=server_with_tokens.port)


def test_payloads_that_the_sdk_builds_travel_unchanged(client: Any, name: str) -> None:
    client.create_message_stream(definition(name))
    entry = sdk.PutAssetPropertyValueEntry(
        entry_id="e1",
        property_alias="/plant/1",
        property_values=[
            sdk.AssetPropertyValue(
                value=sdk.Variant(double_value=1.5), timestamp=sdk.TimeInNanos(time_in_seconds=1700000000)
            )
        ],
    )
    task = sdk.S3ExportTaskDefinition(input_url="file:/x", bucket="bucket", key="key/!{timestamp:yyyy/MM}")
    for item in (entry, task):
        data = sdk.Util.validate_and_serialize_to_json_bytes(item)
        number = client.append_message(name, data)
        options = sdk.ReadMessagesOptions(desired_start_sequence_number=number)
        back = client.read_messages(name, options)[0].payload
        assert sdk.Util.deserialize_json_bytes_to_obj(back, type(item)).as_dict() == item.as_dict()
