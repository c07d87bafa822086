"""The server process: the store, its upkeep, and the doors, from start to a clean stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial

import uvloop

from penstock.bandwidth import Bandwidth
from penstock.config import Settings, load_client_tokens
from penstock.delivery.keyring import KeyRing
from penstock.delivery.quota import ControlQuota
from penstock.delivery.service import DeliveryStreams
from penstock.delivery.throughput import Quota, Throughput
from penstock.doors.firehose.body import Bodies
from penstock.doors.firehose.door import FirehoseDoor
from penstock.doors.firehose.operations import Operations
from penstock.doors.firehose.puts import Puts
from penstock.doors.firehose.sigv4 import Caller, Signatures, load_access_keys
from penstock.doors.firehose.validation import Validator
from penstock.doors.http.access import Access, load_or_create_token
from penstock.doors.http.app import App
from penstock.doors.http.delivery import DeliveryRoutes
from penstock.doors.http.door import Door as HttpDoor
from penstock.doors.http.files import files_route
from penstock.doors.http.messages import messages_routes
from penstock.doors.http.pipeline import PipelineRoutes
from penstock.doors.streammanager.door import Door as StreamManagerDoor
from penstock.log.store import Store
from penstock.planner import Planner
from penstock.process import configure_logging, keep_freed_memory
from penstock.streams import Streams

logger = logging.getLogger(__name__)

SWITCH_INTERVAL_S = 0.0005
SEAL_INTERVAL_S = 0.5
BOUNDS_INTERVAL_S = 1.0
GC_THRESHOLD = 50_000
FILE_THREADS = 4
DRAIN_S = 1.0


class Server:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tokens = (
            load_client_tokens(settings.client_tokens_file) if settings.client_tokens_file is not None else ()
        )
        self._access_keys = (
            load_access_keys(settings.access_keys_file) if settings.access_keys_file is not None else None
        )

    async def run(self) -> None:
        settings = self._settings
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        store = Store(
            settings.data_dir,
            journal_size_bytes=settings.journal_size_bytes,
            free_space_floor_bytes=settings.free_space_floor_bytes,
        )
        streams = Streams(
            store,
            message_size_max_bytes=settings.message_size_max_bytes,
            memory_streams_size_max_bytes=settings.memory_streams_size_max_bytes,
            read_soft_limit_bytes=settings.read_soft_limit_bytes,
        )
        upkeep = asyncio.create_task(self._upkeep(streams))
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._close_store, streams, upkeep)
            await self._open_doors(streams, stack)
            # What is there now stays: the collector need not look at it again.
            gc.collect()
            gc.freeze()
            waiting = asyncio.create_task(stop.wait())
            await asyncio.wait({waiting, upkeep}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            logger.info("stopping")
            streams.release_waiters()
        if not stop.is_set():
            raise RuntimeError("the server stopped because its upkeep failed") from upkeep.exception()

    async def _open_doors(self, streams: Streams, stack: AsyncExitStack) -> None:
        settings = self._settings
        stream_manager = StreamManagerDoor(
            streams,
            authenticate=settings.authenticate_client,
            client_tokens=self._tokens,
            message_size_max_bytes=settings.message_size_max_bytes,
            input_buffer_max_bytes=settings.input_buffer_max_bytes,
        )
        http_host, http_port = await self._open_http_door(streams, stack)
        host, port = await stream_manager.open(settings.host, settings.stream_manager_port)
        stack.push_async_callback(stream_manager.close)
        print(f"penstock ready stream-manager={host}:{port} http={http_host}:{http_port}", flush=True)

    async def _open_http_door(self, streams: Streams, stack: AsyncExitStack) -> tuple[str, int]:
        settings = self._settings
        access = Access([*self._tokens, load_or_create_token(settings.data_dir)])
        kbps = settings.exporter_max_bandwidth_kbps
        bandwidth = Bandwidth(kbps) if kbps is not None else None
        planner = Planner(
            streams,
            slots=settings.exporter_thread_pool_size,
            bandwidth=bandwidth,
            retention_s=settings.firehose_retention_hours * 3600,
        )
        stack.push_async_callback(planner.settled)
        file_threads = ThreadPoolExecutor(FILE_THREADS, "penstock-files")
        stack.callback(file_threads.shutdown, cancel_futures=True)
        deliveries = await self._open_deliveries(streams, planner, stack)
        routes = [
            *PipelineRoutes(planner, access).routes,
            *DeliveryRoutes(deliveries, streams, planner, access).routes,
            *messages_routes(streams, access),
            files_route(access, settings.read_only_dirs, file_threads, bandwidth),
        ]
        firehose = self._firehose_door(deliveries, streams)
        door = HttpDoor(App(streams, access, routes, firehose=firehose))
        address = await door.open(settings.host, settings.http_port)
        stack.push_async_callback(door.close)
        stack.callback(planner.close)
        return address

    async def _open_deliveries(
        self, streams: Streams, planner: Planner, stack: AsyncExitStack
    ) -> DeliveryStreams:
        settings = self._settings
        deliveries = DeliveryStreams(
            streams,
            KeyRing(settings.data_dir, settings.master_keys_file, kms=settings.kms),
            streams_max=settings.firehose_streams_max,
            streams_per_key=settings.firehose_streams_per_key,
            size_max_bytes=settings.firehose_stream_size_max_bytes,
            sync_create=settings.firehose_sync_create or settings.firehose_lenient,
        )
        planner.data_keys = deliveries.data_keys
        if settings.firehose_flush_on_delete:
            deliveries.drain_before_delete(partial(_drain, planner))
        stack.push_async_callback(deliveries.close)
        await deliveries.open()
        return deliveries

    def _firehose_door(self, deliveries: DeliveryStreams, streams: Streams) -> FirehoseDoor:
        settings = self._settings
        validator = Validator(lenient=settings.firehose_lenient)
        quota = ControlQuota(settings.firehose_control_calls_per_s)
        operations = Operations(
            deliveries,
            validator,
            quota,
            schema_source=settings.schema_source,
            lenient=settings.firehose_lenient,
        )
        put_quota = Quota(settings.put_requests_per_s, settings.put_records_per_s, settings.put_bytes_per_s)
        puts = Puts(deliveries, streams, validator, Throughput(put_quota))
        signatures = Signatures(self._access_keys, Caller(settings.account_id, settings.region))
        bodies = Bodies(settings.input_buffer_max_bytes)
        return FirehoseDoor(operations, puts, signatures, bodies)

    async def _close_store(self, streams: Streams, upkeep: asyncio.Task[None]) -> None:
        await streams.committer.drain()
        upkeep.cancel()
        await asyncio.wait({upkeep})
        # A thread that syncs or seals is not cancelled with the task; it must not meet closed files.
        await asyncio.get_running_loop().shutdown_default_executor()
        streams.close()
        streams.store.close()
        logger.info("stopped; everything is synced")

    async def _upkeep(self, streams: Streams) -> None:
        """What must happen without anybody asking. Each has its own pace: a long seal must not put off a sync."""
        duties = {
            asyncio.create_task(duty)
            for duty in (
                self._keep_synced(streams),
                self._keep_sealed(streams),
                self._keep_in_bounds(streams),
            )
        }
        try:
            ended, _ = await asyncio.wait(duties, return_when=asyncio.FIRST_COMPLETED)
            for duty in ended:
                duty.result()
        finally:
            for duty in duties:
                duty.cancel()
            await asyncio.wait(duties)

    async def _keep_synced(self, streams: Streams) -> None:
        committer = streams.committer
        while True:
            dirty, committer.dirty = committer.dirty, set()
            await asyncio.to_thread(streams.store.sync_segments, dirty)
            with suppress(asyncio.TimeoutError):
                interval_s = self._settings.background_sync_interval_ms / 1000
                await asyncio.wait_for(committer.sync_wanted.wait(), interval_s)
            committer.sync_wanted.clear()

    async def _keep_sealed(self, streams: Streams) -> None:
        while True:
            await asyncio.to_thread(streams.store.seal_segments)
            await asyncio.sleep(SEAL_INTERVAL_S)

    async def _keep_in_bounds(self, streams: Streams) -> None:
        """The disk's free space and the streams' time to live."""
        while True:
            await asyncio.to_thread(streams.store.check_free_space)
            await streams.expire()
            await asyncio.sleep(BOUNDS_INTERVAL_S)


async def _drain(planner: Planner, arn: str) -> bool:
    """Deliver what is in a delivery stream, for a while; whether nothing is left."""
    run = planner.delivery(arn)
    if run is None or not run.waiting_messages:
        return True
    if run.failures:  # its own wait is longer
        await asyncio.sleep(DRAIN_S)
    else:
        await planner.flush_now(arn, DRAIN_S)
    return not run.waiting_messages


def _raise_descriptor_limit() -> None:
    """Each active segment and each connection needs a descriptor; the usual 1,024 are few for that."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run(settings: Settings) -> int:
    """Serve until a signal. Returns the exit code."""
    configure_logging(settings.log_level)
    _raise_descriptor_limit()
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    uvloop.install()
    asyncio.run(Server(settings).run())
    return 0
