"""What the driver decides without Spark: how flushes become jobs, and how many threads deliver."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from penstock.flush import Flush
from penstock.model import ExportKind
from penstock.pipeline.driver import ThreadBudget, pack


def flush(number: int, messages: int) -> Flush:
    return Flush(number, "s", "e", ExportKind.HTTP, {}, 0, messages, 0, "")


@given(st.lists(st.integers(1, 200_000), max_size=40), st.integers(1, 8))
def test_every_flush_is_in_exactly_one_group_and_keeps_its_place(sizes: list[int], groups_max: int) -> None:
    groups = pack([flush(number, size) for number, size in enumerate(sizes)], groups_max)
    assert len(groups) <= groups_max
    assert all(groups)
    assert sorted(f.id for group in groups for f in group) == list(range(len(sizes)))
    assert all([f.id for f in group] == sorted(f.id for f in group) for group in groups)


def test_little_work_is_one_job() -> None:
    assert len(pack([flush(n, 1) for n in range(5)], 4)) == 1


def test_threads_of_all_jobs_together_stay_within_the_limit() -> None:
    budget, limit = ThreadBudget(), 3
    together, most = 0, 0
    lock = threading.Lock()
    all_in = threading.Barrier(2, timeout=10)

    def job(wanted: int) -> None:
        nonlocal together, most
        taken = budget.take(wanted, limit)
        with lock:
            together += taken
            most = max(most, together)
        if wanted == 1:
            all_in.wait()  # two of these are in at the same time: the limit is not one job
        with lock:
            together -= taken
        budget.give_back(taken)

    with ThreadPoolExecutor(8) as jobs:
        list(jobs.map(job, [1, 1, 5, 2, 5, 2, 5]))
    assert most == limit


def test_a_job_gets_one_thread_when_it_asks_for_more_than_are_free() -> None:
    budget = ThreadBudget()
    assert budget.take(4, 5) == 4
    assert budget.take(4, 5) == 1
    budget.give_back(4)
    assert budget.take(4, 5) == 4
