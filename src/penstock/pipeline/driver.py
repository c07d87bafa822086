"""The driver: leases flushes, runs each handful as one Spark job, and starts over. Killing it loses nothing."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from penstock.flush import Flush, LeaseRequest, Outcome
from penstock.pipeline.delivery import Heartbeat, Task, deliver_partition
from penstock.pipeline.destinations.base import PipelineSettings
from penstock.pipeline.grouping import Group, grouped
from penstock.pipeline.server_client import ServerClient, ServerLost
from penstock.pipeline.session import DEFAULT_HEAP, DEFAULT_MASTER, build_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

    from penstock.pipeline.records.sql_job import SqlJobs

logger = logging.getLogger(__name__)

LEASE_WAIT_MS = 10_000
HEARTBEAT_S = 3.0
SERVER_RETRY_S = 1.0
STOP_S = 8.0
JOBS_MAX = 5  # jobs of healthy exports under way at the same time
PROBES_MAX = 3  # and of exports that failed: these may hang, and must not take all there is
FUNCTION_JOBS_MAX = 4  # and of those that wait for functions, for the same reason
WARM_UP_ROUNDS = 4
FAILED_JOBS_MAX = 3


Run: TypeAlias = Callable[[list[Flush], int], None]


class DriverSettings(msgspec.Struct, frozen=True):
    server_url: str
    token: str
    master: str | None = None
    remote: str | None = None
    heap: str = DEFAULT_HEAP
    parallelism: int = os.cpu_count() or 1  # tasks that deliver at the same time
    spark: dict[str, str] = {}
    pipeline: PipelineSettings = PipelineSettings()


class Driver:
    def __init__(self, settings: DriverSettings) -> None:
        self._settings = settings
        self._server = ServerClient(settings.server_url, settings.token)
        self._name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._stop = threading.Event()
        self._exit_code = 0
        self._held: set[tuple[int, int]] = set()  # flushes, and which attempt at them
        self._jobs_failed = 0  # since the last one that did not
        self._spark: SparkSession | None = None
        self._sql_jobs: SqlJobs | None = None
        self._sql_used = False  # there is nothing left to warm up
        self._may_hang = threading.Semaphore(FUNCTION_JOBS_MAX + PROBES_MAX)

    def run(self) -> int:
        """Deliver until told to stop. Returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop.set())
        heartbeat = Heartbeat(self._server, self._name, HEARTBEAT_S, self._held_flushes)
        self._start_spark()
        logger.info("pipeline %s ready", self._name)
        print(f"penstock pipeline ready {self._name}", flush=True)
        for probing, jobs in ((False, JOBS_MAX), (True, PROBES_MAX)):
            name = "penstock-probes" if probing else "penstock-lane"
            threading.Thread(target=self._guard_lane, args=(probing, jobs), name=name, daemon=True).start()
        self._stop.wait()
        heartbeat.stop()
        if self._exit_code:
            os._exit(self._exit_code)  # at once: what is broken may never end
        ending = threading.Thread(target=self._end_spark, name="penstock-end", daemon=True)
        ending.start()
        ending.join(STOP_S)
        if ending.is_alive():  # Java hangs, or hung up in the middle; nothing is left to be done
            os._exit(0)
        return 0

    def _end_spark(self) -> None:
        """Java may be gone: systemd and many scripts tell a whole group of processes to end."""
        from py4j.protocol import Py4JError  # type: ignore[import-untyped]

        logging.getLogger().setLevel(logging.CRITICAL)  # what py4j says of that helps nobody
        assert self._spark is not None
        with suppress(Py4JError, OSError):
            self._spark.stop()

    def rehearse(self) -> None:
        """Start Spark and run the jobs of a start, without a server."""
        self._start_spark()
        self._warm_up_sql()
        assert self._spark is not None
        self._spark.stop()

    def _held_flushes(self) -> list[int]:
        return [number for number, _ in list(self._held)]

    def _give_up(self, why: str) -> None:
        """Whoever started us starts us anew; here nothing would ever be delivered again."""
        if not self._stop.is_set():
            logger.error("the pipeline ends: %s", why)
            self._exit_code = 1
            self._stop.set()

    def _guard_lane(self, probing: bool, jobs_max: int) -> None:
        try:
            self._serve_lane(probing, jobs_max)
        finally:
            self._give_up("it has stopped asking for work")

    def _start_spark(self) -> None:
        settings = self._settings
        self._spark = build_session(
            _with_room(settings.master), settings.remote, settings.heap, settings.spark
        )
        if settings.remote is None:  # one place is left for those that do not hang
            slots = self._spark.sparkContext.defaultParallelism
            self._may_hang = threading.Semaphore(min(FUNCTION_JOBS_MAX + PROBES_MAX, max(1, slots - 1)))
        from penstock.pipeline.records.sql_job import SqlJobs

        self._sql_jobs = SqlJobs(self._spark, settings.pipeline.schemas)
        # The first jobs are slow, whatever they do: better now than when somebody waits for them.
        with ThreadPoolExecutor(settings.parallelism) as jobs:
            for _ in range(WARM_UP_ROUNDS):
                list(jobs.map(lambda _: self._run_job([], 1), range(settings.parallelism)))

    def _warm_up_sql(self) -> None:
        """Not everybody needs this, and it takes a while: when there is nothing else to do, and only once."""
        assert self._sql_jobs is not None
        if self._sql_used:
            return
        self._sql_used = True
        try:
            self._sql_jobs.warm_up(self._task(1))
        except Exception:  # whatever is wrong with Spark, the next job will meet it too
            if not self._stop.is_set():
                logger.warning("Spark SQL could not be warmed up", exc_info=True)

    def _serve_lane(self, probing: bool, jobs_max: int) -> None:
        free = threading.Semaphore(jobs_max)
        wait_ms = 0  # at first: whether there is nothing to do must be known soon
        with (
            ThreadPoolExecutor(jobs_max, "penstock-job") as jobs,
            ThreadPoolExecutor(FUNCTION_JOBS_MAX, "penstock-function-job") as function_jobs,
        ):
            while not self._stop.is_set():
                with free:
                    pass  # ask for work only when it can be done
                try:
                    leases = self._server.lease(LeaseRequest(self._name, wait_ms=wait_ms, probing=probing))
                except ServerLost as error:
                    logger.warning("%s", error)
                    self._stop.wait(SERVER_RETRY_S)
                    continue
                wait_ms = LEASE_WAIT_MS
                self._held.update((flush.id, flush.attempt) for flush in leases.flushes)
                if leases.spark_sql and not probing:
                    jobs.submit(self._warm_up_sql)
                for group in grouped(leases.flushes, 1 if probing else self._settings.parallelism):
                    if group.functions and not probing:
                        function_jobs.submit(self._run_slow, group, leases.slots)
                        continue
                    free.acquire()
                    done = jobs.submit(self._run_slow if probing else self._run, group, leases.slots)
                    done.add_done_callback(lambda _: free.release())

    def _run_slow(self, group: Group, threads: int) -> None:
        with self._may_hang:
            self._run(group, threads)

    def _run(self, group: Group, threads: int) -> None:
        (self._run_sql_job if group.spark_sql else self._run_job)(group.flushes, threads)

    def _run_job(self, flushes: list[Flush], threads: int) -> None:
        """One job of one task: an Arrow table is the quickest way to get a few rows into Spark."""
        import pyarrow
        from pyspark.sql.types import BinaryType, StructField, StructType

        # Not as text, which Spark would have to parse for each job.
        schema = StructType([StructField("outcome", BinaryType())])
        spark = self._spark
        assert spark is not None
        # A row of nothing when there is no work: Spark would not run a job over an empty table at all.
        column = pyarrow.array([msgspec.json.encode(flush) for flush in flushes] or [b""], pyarrow.binary())
        try:
            # One task, which Spark would otherwise make as many of as there are rows and cores.
            frame = spark.createDataFrame(pyarrow.table({"flush": column})).coalesce(1)
            deliver = _deliver_with(msgspec.json.encode(self._task(threads)))
            rows = frame.mapInArrow(deliver, schema).collect()
            unheard = [msgspec.json.decode(row.outcome, type=Outcome) for row in rows]
            self._jobs_failed = 0
        except Exception as error:  # whatever Spark met: the flushes must be tried again
            unheard = [self._not_done(flush, error) for flush in flushes]
            self._job_failed(len(flushes))
        self._end(flushes, unheard)

    def _run_sql_job(self, flushes: list[Flush], threads: int) -> None:
        """The same for flushes that need more of Spark than a place to run."""
        assert self._sql_jobs is not None
        self._sql_used = True
        try:
            unheard = self._sql_jobs.run(flushes, self._task(threads))
        except Exception as error:  # as above, but it may be this stream that fails, and no other
            unheard = [self._not_done(flush, error) for flush in flushes]
            self._job_failed(len(flushes), counts=False)
        self._end(flushes, unheard)

    def _task(self, threads: int) -> Task:
        return Task(
            server_url=self._settings.server_url,
            token=self._settings.token,
            pipeline=self._name,
            threads=threads,
            settings=self._settings.pipeline,
        )

    def _end(self, flushes: list[Flush], unheard: list[Outcome]) -> None:
        self._tell(unheard)
        self._held.difference_update((flush.id, flush.attempt) for flush in flushes)

    def _job_failed(self, flushes: int, *, counts: bool = True) -> None:
        if self._stop.is_set():
            return
        logger.exception("a job with %d flushes failed", flushes)
        self._jobs_failed += counts
        if self._jobs_failed >= FAILED_JOBS_MAX or not self._spark_answers():
            self._give_up("Spark does not work any more")

    def _spark_answers(self) -> bool:
        assert self._spark is not None
        try:
            return bool(self._spark.sql("SELECT 1").collect())
        except Exception:  # it has died in one of many ways
            return False

    def _not_done(self, flush: Flush, error: Exception) -> Outcome:
        reason = str(error).strip().partition("\n")[0][:300] or type(error).__name__
        text = "" if self._stop.is_set() else f"the Spark job failed: {reason}"
        # Who knows what it left behind: count that as something.
        return Outcome(flush.id, flush.attempt, flush.first, error=text, done=True, objects=1)

    def _tell(self, outcomes: list[Outcome]) -> None:
        """Our leases last as long as we do: what the executors could not report, nobody else will."""
        while outcomes:
            try:
                self._server.report(self._name, outcomes)
            except ServerLost:
                if self._stop.wait(SERVER_RETRY_S):
                    return
            else:
                return


def _with_room(master: str | None) -> str | None:
    """Tasks mostly wait for the network: here there must be room for all that are to run beside those that hang."""
    if master not in (None, DEFAULT_MASTER):
        return master
    return f"local[{max(os.cpu_count() or 1, JOBS_MAX + FUNCTION_JOBS_MAX + PROBES_MAX)}]"


def _deliver_with(task: bytes):  # type: ignore[no-untyped-def]
    """A function of one argument, which is what Spark wants."""

    def deliver(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return deliver_partition(task, batches)

    return deliver


def run(settings: DriverSettings) -> int:
    return Driver(settings).run()
