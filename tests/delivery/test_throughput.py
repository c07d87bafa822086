from __future__ import annotations

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.delivery.throughput import Quota, Throughput


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Delivery:
    """Whatever is counted apart."""

    arn = "arn:a"


def test_off_unless_set() -> None:
    assert not Throughput(Quota()).is_limited
    assert Throughput(Quota(bytes_per_s=1)).is_limited


def test_requests() -> None:
    clock, stream = Clock(), Delivery()
    throughput = Throughput(Quota(requests_per_s=2), clock)
    assert [throughput.admit(stream, [1, 1, 1]) for _ in range(3)] == [3, 3, 0]
    clock.now_s += 0.5
    assert [throughput.admit(stream, [1]) for _ in range(2)] == [1, 0]


def test_records_of_a_batch_pass_up_to_the_limit() -> None:
    clock, stream = Clock(), Delivery()
    throughput = Throughput(Quota(records_per_s=5), clock)
    assert [throughput.admit(stream, [1] * 3) for _ in range(3)] == [3, 2, 0]
    clock.now_s += 100
    assert throughput.admit(stream, [1] * 500) == 5


def test_throttled_records_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    clock, stream = Clock(), Delivery()
    throughput = Throughput(Quota(records_per_s=10), clock)
    throughput.admit(stream, [1] * 10)
    assert not caplog.messages
    for _ in range(3):
        throughput.admit(stream, [1] * 4)  # the log itself is not flooded
    clock.now_s += 1
    throughput.admit(stream, [1] * 11)
    assert caplog.messages == [
        f"arn:a: {count} records refused by the quota of puts since the server started" for count in (4, 13)
    ]


def test_bytes() -> None:
    clock, stream = Clock(), Delivery()
    throughput = Throughput(Quota(bytes_per_s=1000), clock)
    assert throughput.admit(stream, [600, 400, 1]) == 2
    clock.now_s += 0.25
    assert throughput.admit(stream, [251]) == 0
    assert throughput.admit(stream, [250]) == 1


def test_a_record_larger_than_a_second_s_bytes_passes_and_is_paid_for() -> None:
    clock, stream = Clock(), Delivery()
    throughput = Throughput(Quota(bytes_per_s=100), clock)
    assert throughput.admit(stream, [300, 1]) == 1
    clock.now_s += 2.0
    assert throughput.admit(stream, [1]) == 0
    clock.now_s += 0.5
    assert throughput.admit(stream, [1]) == 1


def test_streams_are_counted_apart() -> None:
    throughput = Throughput(Quota(requests_per_s=1), Clock())
    streams = [Delivery(), Delivery()]
    assert [throughput.admit(stream, [1]) for stream in streams * 2] == [1, 1, 0, 0]


def test_streams_that_are_gone_are_forgotten() -> None:
    throughput = Throughput(Quota(requests_per_s=1), Clock())
    throughput.admit(Delivery(), [1])
    gc.collect()
    assert len(throughput._meters) == 0


@given(
    st.integers(1, 50),
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 80)), max_size=40),
)
def test_never_more_than_a_second_s_worth_ahead(per_s: int, requests: list[tuple[float, int]]) -> None:
    clock, stream = Clock(), Delivery()
    throughput = Throughput(Quota(records_per_s=per_s), clock)
    started_s = clock.now_s
    passed = 0
    for pause_s, count in requests:
        clock.now_s += pause_s
        passed += throughput.admit(stream, [1] * count)
        assert passed <= per_s * (1 + clock.now_s - started_s) + 1e-6
