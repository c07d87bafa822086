"""The flags that set what docs/configuration.md lists, for the commands that serve and deliver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click


class Flag(NamedTuple):
    setting: str
    metavar: str
    default: str | None
    meaning: str


COMMON_FLAGS = (
    Flag("data_dir", "DIR", "./penstock-data", "Where all state is kept."),
    Flag("schemas", "DIR|glue", None, "Tables of format conversion.  [default: <data-dir>/schemas]"),
    Flag("log_level", "LEVEL", "INFO", "TRACE, DEBUG, INFO, WARN or ERROR."),
)
SERVER_FLAGS = (
    Flag("host", "ADDRESS", "127.0.0.1", "Address to listen on; any but loopback needs tokens and keys."),
    Flag("stream_manager_port", "PORT", "8088", "Port of the Stream Manager protocol; 0 = any free one."),
    Flag("http_port", "PORT", "8080", "Port of the HTTP interface; 0 = any free one."),
    Flag("client_tokens_file", "FILE", None, "Tokens of the clients, one a line; turns authentication on."),
    Flag("message_size_max_bytes", "SIZE", "64MiB", "Larger messages are refused."),
    Flag("free_space_floor_bytes", "SIZE", "64MiB", "Appends are refused while less disk space is free."),
    Flag("memory_streams_size_max_bytes", "SIZE", "1GiB", "What all Memory streams may hold together."),
    Flag("journal_size_bytes", "SIZE", "32MiB", "Size of the journal that synced appends share."),
    Flag("background_sync_interval_ms", "MS", "500", "How soon unsynced appends are synced."),
    Flag("input_buffer_max_bytes", "SIZE", "256MiB", "What unanswered requests may hold in memory."),
    Flag("read_soft_limit_bytes", "SIZE", "4MiB", "A read stops here once its minimum is met."),
    Flag("exporter_max_bandwidth_kbps", "KBPS", None, "Kilobits per second for all exports."),
    Flag("exporter_thread_pool_size", "N", "5", "Exports at a time."),
    Flag("access_keys_file", "FILE", None, "Access keys of Firehose clients; turns signature checks on."),
    Flag("master_keys_file", "FILE", None, "Customer managed keys that wrap data keys."),
    Flag("kms", "on|off", "off", "Ask KMS for customer managed keys that are not in the file."),
    Flag("put_requests_per_s", "N", None, "Quota of puts to a delivery stream, in requests."),
    Flag("put_records_per_s", "N", None, "The same in records."),
    Flag("put_bytes_per_s", "SIZE", None, "The same in bytes."),
    Flag("account_id", "ID", "000000000000", "Account of Firehose clients without access keys."),
    Flag("region", "REGION", "us-east-1", "Region of Firehose clients that do not sign."),
    Flag("firehose_lenient", "on|off", "off", "Check Firehose requests as emulators do."),
    Flag("firehose_sync_create", "on|off", "off", "Answer CreateDeliveryStream when the stream is ACTIVE."),
    Flag(
        "firehose_flush_on_delete", "on|off", "off", "Deliver the records of a stream before it is deleted."
    ),
    Flag("firehose_retention_hours", "HOURS", "24", "How long deliveries that fail are tried again."),
    Flag("firehose_streams_max", "N", "5000", "Delivery streams of an account in a region."),
    Flag("firehose_streams_per_key", "N", None, "Delivery streams that a customer managed key encrypts."),
    Flag("firehose_control_calls_per_s", "N", None, "Quota of Firehose calls that are not puts."),
    Flag("firehose_stream_size_max_bytes", "SIZE", "10GiB", "Undelivered records of a delivery stream."),
    Flag("read_only_dirs", "DIR,...", None, "Directories that S3 file tasks may read from."),
)
PIPELINE_FLAGS = (
    Flag("pipeline_master", "URL", "local[*]", "Spark master."),
    Flag("pipeline_remote", "URL", None, "Spark Connect server (sc://...) instead of a master."),
    Flag("pipeline_heap", "SIZE", "512m", "Heap of the Java process that is started here."),
    Flag("pipeline_parallelism", "N", None, "Tasks at a time.  [default: the CPUs of this machine]"),
    Flag("object_store", "URL", None, "file:///DIR or s3.  [default: file://<data-dir>/objects]"),
    Flag("partition_keys", "JSON", None, "Partition keys of Kinesis exports, by export identifier."),
    Flag("lambdas", "JSON", None, "Functions of delivery streams in place of AWS Lambda."),
    Flag("s3_min_part_size_bytes", "SIZE", "5MiB", "Smallest part of a multipart upload."),
    Flag("active_partitions", "N", "500", "Partitions that a buffer of a delivery stream may have."),
    Flag("kinesis_inter_call_delay_ms", "MS", "1000", "Pause between calls to Kinesis."),
    Flag(
        "sitewise_skip_refused", "on|off", "off", "Skip values for properties that are unknown or forbidden."
    ),
)

Command = Callable[..., Any]


def setting_flags(*groups: Sequence[Flag]) -> Callable[[Command], Command]:
    def decorate(command: Command) -> Command:
        for flag in reversed([flag for group in groups for flag in group]):
            shown = f"{flag.meaning}  [default: {flag.default}]" if flag.default else flag.meaning
            # As penstock.config.flag_name, which is too heavy to import for --help.
            name = flag.setting.removeprefix("pipeline_").replace("_", "-")
            option = click.option(f"--{name}", flag.setting, metavar=flag.metavar, help=shown)
            command = option(command)
        return command

    return decorate


config_option = click.option(
    "--config", metavar="FILE", help="Configuration file.  [default: ./penstock.toml if there]"
)
authenticate_option = click.option(
    "--authenticate-client/--no-authenticate-client", default=None, help="Ask every client for a token."
)
spark_conf_option = click.option(
    "--conf", "spark_conf", metavar="KEY=VALUE", multiple=True, help="A property of Spark; may be repeated."
)
supervisor_option = click.option("--supervisor-pid", type=int, hidden=True)
