"""The thread beside the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref

import pytest

from penstock.worker import Worker


def test_work_is_done_in_order_in_one_named_thread() -> None:
    async def work() -> None:
        done: list[int] = []
        worker = Worker("penstock-test")
        futures = [
            worker.run(lambda n=n: done.append(n) or threading.current_thread().name) for n in range(100)
        ]  # type: ignore[misc]
        assert set(await asyncio.gather(*futures)) == {"penstock-test"}
        assert done == list(range(100))
        worker.close()

    asyncio.run(work())


def test_failures_reach_the_one_who_asked_and_nobody_else() -> None:
    async def work() -> None:
        worker = Worker("penstock-test")
        failing, next_one = worker.run(lambda: 1 / 0), worker.run(lambda: "fine")
        with pytest.raises(ZeroDivisionError):
            await failing
        assert await next_one == "fine"
        worker.close()

    asyncio.run(work())


def test_what_is_done_is_let_go() -> None:
    """A batch of records must not stay in memory until the next one comes."""

    class Load:
        def work(self) -> None: ...

    async def work() -> None:
        worker = Worker("penstock-test")
        load = Load()
        gone = weakref.ref(load)
        await worker.run(load.work)
        del load
        deadline_s = time.monotonic() + 10
        while gone() is not None:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.001)  # the thread has told us, and ends its call beside us
        worker.close()

    asyncio.run(work())


def test_close_waits_for_what_was_asked_for() -> None:
    async def work() -> None:
        release = threading.Event()
        done: list[str] = []
        worker = Worker("penstock-test")
        worker.run(release.wait)
        worker.run(lambda: done.append("behind"))
        threading.Timer(0.05, release.set).start()
        worker.close()
        assert done == ["behind"]

    asyncio.run(work())


def test_nobody_is_told_who_has_given_up_or_whose_loop_is_closed() -> None:
    problems: list[object] = []
    release = threading.Event()

    async def work() -> Worker:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        worker = Worker("penstock-test")
        worker.run(lambda: None).cancel()
        await worker.run(lambda: None)
        worker.run(release.wait)
        return worker

    worker = asyncio.run(work())
    release.set()
    worker.close()
    assert problems == []
