"""The Spark session of the pipeline: small, quick for small jobs, bound to loopback unless told otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MASTER = "local[*]"
DEFAULT_HEAP = "512m"
JAVA_OPTIONS = "spark.driver.defaultJavaOptions"  # Java gets those of spark.driver.extraJavaOptions too
LOGGING = Path(__file__).with_name("log4j2.properties")

_LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_QUICK = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "penstock.pipeline.worker_daemon",
    "spark.python.authenticate.socketTimeout": "60s",  # a busy small machine starts a worker that slowly
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.scheduler.mode": "FAIR",  # a long upload must not hold up a small batch
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.task.maxFailures": "4",
}


def build_session(master: str | None, remote: str | None, heap: str, extra: dict[str, str]) -> SparkSession:
    """A session on this machine, on a cluster, or on a Spark Connect server."""
    # Executors on this machine must run the interpreter that has Penstock installed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("penstock")
    if remote is not None:
        builder = builder.remote(remote)
        settings = extra
    else:
        master = master or DEFAULT_MASTER
        local = _LOCAL if master.startswith(("local", "spark://127.", "spark://localhost")) else {}
        if local:  # or Spark looks for another address, and warns of what it found
            os.environ.setdefault("SPARK_LOCAL_IP", _LOCAL["spark.driver.host"])
        settings = {**_QUICK, **local, "spark.driver.memory": heap, **extra}
        settings[JAVA_OPTIONS] = java_options(extra)
        builder = builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    return session


def java_options(extra: dict[str, str]) -> str:
    """For the driver, and what the user has chosen behind it."""
    chosen = extra.get(JAVA_OPTIONS, "")
    options = [f'"-Dlog4j2.configurationFile={LOGGING}"', chosen]
    if (os.cpu_count() or 1) <= 2 and "GC" not in chosen + extra.get("spark.driver.extraJavaOptions", ""):
        options.append(
            "-XX:+UseSerialGC"
        )  # others have threads of their own, which take a core from the work
    return " ".join(filter(None, options))
