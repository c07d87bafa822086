from __future__ import annotations

import pytest

from penstock.delivery.errors import ApiError
from penstock.delivery.quota import ControlQuota


def test_five_calls_a_second_for_each_operation_and_account() -> None:
    now_s = [100.0]
    quota = ControlQuota(5, lambda: now_s[0])
    for _ in range(5):
        quota.check("1", "ListDeliveryStreams")
        now_s[0] += 0.1
    with pytest.raises(ApiError) as refused:
        quota.check("1", "ListDeliveryStreams")
    assert refused.value.code == "ThrottlingException"
    assert refused.value.message.startswith("Please slow down. Max limit of 5 RPS has breached for")
    quota.check("1", "DescribeDeliveryStream")
    quota.check("2", "ListDeliveryStreams")
    now_s[0] = 101.0  # the first of them is a second old
    quota.check("1", "ListDeliveryStreams")
    with pytest.raises(ApiError):
        quota.check("1", "ListDeliveryStreams")


def test_no_quota() -> None:
    quota = ControlQuota(None)
    for _ in range(1000):
        quota.check("1", "ListDeliveryStreams")
