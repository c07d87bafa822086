"""penstock streams append, read, tail"""

from __future__ import annotations

import base64
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli.conftest import CommandLine
from penstock.cli import exits
from penstock.cli.streams.append import split_messages
from penstock.cli.streams.messages import compile_format
from penstock.model import Message

BINARY = bytes(range(256))


def test_arguments(penstock: CommandLine, stream: str) -> None:
    finished = penstock.ok("streams", "append", stream, "one", "zwölf")
    assert finished.stdout == b""
    assert finished.stderr == f"appended 2 messages to {stream} (sequence numbers 0 to 1)\n"
    assert penstock.ok("streams", "read", stream).stdout == "one\nzwölf\n".encode()


def test_stdin_by_line(penstock: CommandLine, stream: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(5000))
    finished = penstock.ok("streams", "append", stream, stdin=lines)
    assert "appended 5,000 messages" in finished.stderr
    assert penstock.ok("streams", "read", stream).stdout == lines


def test_a_last_line_without_newline_and_empty_lines(penstock: CommandLine, stream: str) -> None:
    penstock.ok("streams", "append", stream, "-", stdin=b"\na\n\nb")
    assert penstock.ok("streams", "read", stream).stdout == b"a\nb\n"


def test_delimiter(penstock: CommandLine, stream: str) -> None:
    penstock.ok("streams", "append", stream, "-d", r"\0", stdin=b"a\nb\0c\0")
    assert penstock.ok("streams", "read", stream, "-F", r"%p|").stdout == b"a\nb|c|"


def test_binary_in_binary_out(penstock: CommandLine, stream: str) -> None:
    penstock.ok("streams", "append", stream, "--raw", stdin=BINARY)
    assert penstock.ok("streams", "read", stream, "--format", "%p").stdout == BINARY
    message = penstock.ok("streams", "read", stream, "--json").json
    assert message["encoding"] == "base64"
    assert base64.b64decode(message["payload"]) == BINARY


def test_a_message_larger_than_the_socket_buffers(penstock: CommandLine, stream: str) -> None:
    payload = os.urandom(20_000_000)
    penstock.ok("streams", "append", stream, "--raw", stdin=payload)
    assert penstock.ok("streams", "read", stream, "--format", "%p").stdout == payload


def test_numbers(penstock: CommandLine, stream: str) -> None:
    finished = penstock.ok("streams", "append", stream, "-n", "-q", "a", "b", "c")
    assert finished.stdout == b"0\n1\n2\n"
    assert finished.stderr == ""


def test_append_as_json(penstock: CommandLine, stream: str) -> None:
    finished = penstock.ok("streams", "append", stream, "--json", "a", "b")
    assert finished.json_lines == [{"sequenceNumber": 0}, {"sequenceNumber": 1}]


def test_a_refused_message_ends_the_command(penstock: CommandLine, stream: str) -> None:
    finished = penstock.run("streams", "append", stream, "a", "", "b")
    assert finished.code == exits.REFUSED
    assert "payload" in finished.stderr


def test_raw_with_arguments(penstock: CommandLine, stream: str) -> None:
    assert penstock.run("streams", "append", stream, "--raw", "a").code == exits.USAGE


def test_a_message_is_appended_while_the_input_is_still_open(penstock: CommandLine, stream: str) -> None:
    process = penstock.start("streams", "append", stream, "-n")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"0\n"
    assert penstock.ok("streams", "read", stream).stdout == b"first\n"
    process.communicate(b"second\n", timeout=30)
    assert process.returncode == 0


def test_a_refusal_ends_the_command_while_the_input_is_still_open(penstock: CommandLine, stream: str) -> None:
    penstock.ok("streams", "delete", stream)
    process = penstock.start("streams", "append", stream)
    assert process.stdin is not None
    process.stdin.write(b"first\n")
    process.stdin.flush()
    assert process.wait(30) == exits.NOT_FOUND
    process.communicate()


@pytest.fixture
def hundred(penstock: CommandLine, stream: str) -> str:
    penstock.ok("streams", "append", stream, stdin=b"".join(b"m%d\n" % number for number in range(100)))
    return stream


@pytest.mark.parametrize(
    ("arguments", "first", "last"),
    [
        (["read"], 0, 99),
        (["read", "--from", "95"], 95, 99),
        (["read", "--from", "10", "--count", "5"], 10, 14),
        (["read", "--from", "-10"], 90, 99),
        (["read", "--from", "-10", "--count", "2"], 90, 91),
        (["read", "--from", "-1000"], 0, 99),
        (["read", "--from", "100"], 0, -1),
        (["read", "--follow", "--count", "100"], 0, 99),
        (["tail"], 90, 99),
        (["tail", "-n", "3"], 97, 99),
        (["tail", "-n", "0"], 0, -1),
    ],
)
def test_ranges(penstock: CommandLine, hundred: str, arguments: list[str], first: int, last: int) -> None:
    read = penstock.ok("streams", *arguments, hundred).stdout
    assert read == b"".join(b"m%d\n" % number for number in range(first, last + 1))


def test_an_empty_stream_reads_as_nothing(penstock: CommandLine, stream: str) -> None:
    for arguments in (["read"], ["read", "--from", "-5"], ["tail"]):
        assert penstock.ok("streams", *arguments, stream).stdout == b""


def test_read_as_json(penstock: CommandLine, hundred: str) -> None:
    messages = penstock.ok("streams", "read", hundred, "--from", "-2", "--json").json_lines
    assert [message.pop("ingestTime") > 1_600_000_000_000 for message in messages] == [True, True]
    assert messages == [
        {"stream": hundred, "sequenceNumber": number, "payload": f"m{number}", "encoding": "utf-8"}
        for number in (98, 99)
    ]


def test_format() -> None:
    render = compile_format("s", r"%n %t %T %s %S %p %%\t\x21%n")
    message = Message(7, 1_700_000_000_000, b"a%nb")
    assert render(message) == b"7 1700000000000 2023-11-14T22:13:20.000Z s 4 a%nb %\t!7"


@pytest.mark.parametrize("template", ["%q", "100%", r"%n\q"])
def test_wrong_format(penstock: CommandLine, hundred: str, template: str) -> None:
    finished = penstock.run("streams", "read", hundred, "--format", template)
    assert finished.code == exits.USAGE
    assert "--format" in finished.stderr
    assert finished.stdout == b""


def test_following(penstock: CommandLine, hundred: str) -> None:
    process = penstock.start("streams", "tail", "-f", "-n", "1", hundred)
    assert process.stdout is not None
    assert process.stdout.readline() == b"m99\n"
    penstock.ok("streams", "append", hundred, "new")
    assert process.stdout.readline() == b"new\n"
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == exits.INTERRUPTED
    assert stderr == b""


UNINTERRUPTED = """
import signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()  # the one that signals reach
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
from penstock.cli.app import main
main()
"""


def test_an_interrupt_that_does_not_end_the_present_wait_is_heard_soon(
    penstock: CommandLine, hundred: str
) -> None:
    """As when it comes just before the wait begins, which happens once in many thousand times."""
    process = penstock.start("streams", "tail", "-f", "-n", "1", hundred, program=["-c", UNINTERRUPTED])
    assert process.stdout is not None
    assert process.stdout.readline() == b"m99\n"
    deadline_s = time.monotonic() + 10
    while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
        assert time.monotonic() < deadline_s, "it does not wait for messages"
        time.sleep(0.01)  # nothing tells that another process has begun to wait
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == exits.INTERRUPTED


def test_following_ends_when_the_stream_is_deleted(penstock: CommandLine, hundred: str) -> None:
    process = penstock.start("streams", "tail", "-f", "-n", "1", hundred)
    assert process.stdout is not None
    assert process.stdout.readline() == b"m99\n"
    penstock.ok("streams", "delete", hundred)
    process.communicate(timeout=30)
    assert process.returncode == exits.NOT_FOUND


def test_a_reader_that_has_seen_enough(penstock: CommandLine, stream: str) -> None:
    penstock.ok("streams", "append", stream, stdin=b"".join(b"%01000d\n" % number for number in range(3000)))
    process = penstock.start("streams", "read", stream)
    assert process.stdout is not None
    assert process.stdout.readline() == b"0" * 1000 + b"\n"
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(30) == exits.OK
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


def on_a_terminal(penstock: CommandLine, *arguments: str, env: dict[str, str] | None = None) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        penstock.command(*arguments), stdin=theirs, stdout=theirs, env=penstock.env | (env or {})
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 4096):
                shown += chunk
        except OSError:
            pass  # Linux reports the end of a terminal as an error
        os.close(ours)
    assert process.returncode == 0
    return shown.decode()


def test_a_payload_cannot_drive_the_terminal(penstock: CommandLine, stream: str) -> None:
    penstock.ok("streams", "append", stream, "--raw", stdin=b"\x1b[2Jred\x07\xff")
    shown = on_a_terminal(penstock, "streams", "read", stream, env={"NO_COLOR": "1"})
    assert r"\x1b[2Jred\x07\xff" in shown
    assert "\x1b" not in shown
    assert "\x1b[2m0 " in on_a_terminal(penstock, "streams", "read", stream, env={"NO_COLOR": ""})


def test_a_table_on_a_terminal(penstock: CommandLine, stream: str) -> None:
    shown = on_a_terminal(
        penstock, "streams", "list", env={"NO_COLOR": "1", "COLUMNS": "200", "TERM": "xterm"}
    )
    assert stream in shown
    assert "\t" not in shown
    assert "─" in shown


@pytest.mark.parametrize("delimiter", [b"\n", b"--", b"<end>"])
def test_messages_split_at_any_place(tmp_path: Path, delimiter: bytes) -> None:
    messages = [b"a" * 10, b"-", b"<end", b"b\0c"]
    path = tmp_path / "input"
    path.write_bytes(delimiter.join(messages) + delimiter)
    for read_bytes in range(1, 12):
        with path.open("rb") as file:
            split = list(split_messages(file.fileno(), delimiter, read_bytes))
        expected = path.read_bytes().split(delimiter)
        assert split == [message for message in expected if message]
