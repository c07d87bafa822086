"""Reading files for tasks: what the allow-list allows, and nothing else, whatever tricks are played with links."""

from __future__ import annotations

import http.client
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import pytest

from file_door import TOKEN, client_of, file_door
from penstock.bandwidth import Bandwidth
from penstock.doors.http.files import CHUNK_BYTES, SIZE_MAX_BYTES, open_below
from penstock.errors import PenstockError
from penstock.pipeline.server_client import FileRefused, ServerClient

SECRET = b"nobody may read this"


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


class Place(NamedTuple):
    url: str
    read_only_dirs: list[Path]
    allowed: Path
    outside: Path

    def ask(self, method: str = "GET", token: str = TOKEN, **query: object) -> Answer:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=15)
        headers = {"Authorization": f"Bearer {token}"}
        connection.request(method, f"/v1/files?{urlencode(query)}", headers=headers)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, body)


@pytest.fixture(scope="module")
def door() -> Iterator[tuple[str, list[Path]]]:
    read_only_dirs: list[Path] = []
    with file_door(read_only_dirs) as url:
        yield url, read_only_dirs


@pytest.fixture
def place(door: tuple[str, list[Path]], tmp_path: Path) -> Place:
    url, read_only_dirs = door
    allowed, outside = tmp_path / "allowed", tmp_path / "outside"
    (allowed / "below").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret.txt").write_bytes(SECRET)
    (allowed / "below" / "data.bin").write_bytes(b"0123456789")
    read_only_dirs[:] = [tmp_path / "not-there", allowed]
    return Place(url, read_only_dirs, allowed, outside)


# -- what may be read -------------------------------------------------------------------------------


def test_a_file_its_size_and_ranges(place: Place) -> None:
    path = str(place.allowed / "below" / "data.bin")
    whole = place.ask(url=path)
    assert (whole.status, whole.body, whole.headers["penstock-file-size"]) == (200, b"0123456789", "10")
    ranges = [(0, 4), (4, 3), (8, 100), (10, 1), (99, 5), (3, 0)]
    bodies = [place.ask(url=path, offset=offset, size=size).body for offset, size in ranges]
    assert bodies == [b"0123", b"456", b"89", b"", b"", b""]
    head = place.ask("HEAD", url=path)
    assert (head.status, head.body, head.headers["penstock-file-size"]) == (200, b"", "10")


def test_the_client_of_the_pipeline_reads_large_files_in_parts(place: Place) -> None:
    content = os.urandom(3 * CHUNK_BYTES + 17)
    (place.allowed / "large").write_bytes(content)
    url = f"file://{place.allowed}/large"
    half = 2 * CHUNK_BYTES + 1
    with client_of(place.url) as client:
        assert client.file_size(url) == len(content)
        assert client.file_part(url, 0, half) + client.file_part(url, half, SIZE_MAX_BYTES) == content
        with pytest.raises(FileRefused, match="not below a directory that may be read"):
            client.file_size("/etc/passwd")


@pytest.mark.parametrize(
    "form", ["{}", "file:{}", "file://{}", "file://localhost{}", "FILE://{}", "file:///{}"]
)
@pytest.mark.parametrize("name", ["plain", "with space & +", "100%", "naïve #1?x"])
def test_forms_of_urls(place: Place, form: str, name: str) -> None:
    (place.allowed / name).write_bytes(b"found")
    path = str(place.allowed / name)
    url = form.format(path if form == "{}" else quote(path))
    assert place.ask(url=url).body == b"found"


def test_names_that_are_not_utf8(place: Place) -> None:
    path = os.fsencode(place.allowed) + b"/\xff\xfe"
    Path(os.fsdecode(path)).write_bytes(b"found")
    assert place.ask(url=f"file://{quote(path)}").body == b"found"
    missing = place.ask(url=f"file://{quote(path)}x")
    assert (missing.status, "no file" in missing.error) == (404, True)


def test_links_inside_are_followed(place: Place) -> None:
    (place.allowed / "link").symlink_to(place.allowed / "below" / "data.bin")
    (place.allowed / "folder-link").symlink_to("below")
    assert place.ask(url=place.allowed / "link").status == 200
    assert place.ask(url=place.allowed / "folder-link" / "data.bin").status == 200
    assert place.ask(url=f"{place.allowed}/below/../below/data.bin").status == 200


def test_an_allowed_directory_may_itself_be_a_link(place: Place, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(place.allowed)
    place.read_only_dirs[:] = [tmp_path / "alias"]
    assert place.ask(url=tmp_path / "alias" / "below" / "data.bin").status == 200
    assert place.ask(url=place.allowed / "below" / "data.bin").status == 200


# -- what may not -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd",
        "file:///etc/passwd",
        "{allowed}/../outside/secret.txt",
        "file://{allowed}/%2e%2e/outside/secret.txt",
        "{allowed}/below/../../outside/secret.txt",
        "{allowed}/link-to-file",
        "{allowed}/link-to-folder/secret.txt",
        "{allowed}/chain",
        "{allowed}-beside/secret.txt",
        "{allowed}",
        "/",
        "/nonexistent/file",
        "/proc/self/environ",
        "{allowed}/proc/self/environ",
    ],
)
def test_what_is_outside_is_never_read(place: Place, url: str) -> None:
    beside = place.allowed.with_name("allowed-beside")
    beside.mkdir()
    (beside / "secret.txt").write_bytes(SECRET)
    (place.allowed / "link-to-file").symlink_to(place.outside / "secret.txt")
    (place.allowed / "link-to-folder").symlink_to("../outside")
    (place.allowed / "chain").symlink_to("link-to-file")
    (place.allowed / "proc").symlink_to("/proc")
    for method in ("GET", "HEAD"):
        answer = place.ask(method, url=url.format(allowed=place.allowed))
        assert answer.status == 403
        assert SECRET not in answer.body
    assert "PENSTOCK_READ_ONLY_DIRS" in place.ask(url=url.format(allowed=place.allowed)).error


def test_with_an_empty_list_nothing_is_read(place: Place) -> None:
    place.read_only_dirs.clear()
    answer = place.ask(url=place.allowed / "below" / "data.bin")
    assert answer.status == 403
    assert "PENSTOCK_READ_ONLY_DIRS" in answer.error
    assert "STREAM_MANAGER_READ_ONLY_DIRS" in answer.error


def test_only_regular_files(place: Place) -> None:
    os.mkfifo(place.allowed / "pipe")
    started_s = time.monotonic()
    for name in ("pipe", "below"):
        answer = place.ask(url=place.allowed / name)
        assert (answer.status, answer.error) == (403, f"{str(place.allowed / name)!r} is not a regular file")
    assert time.monotonic() - started_s < 5


def test_a_missing_file_and_a_circle_of_links(place: Place) -> None:
    (place.allowed / "circle").symlink_to("circle")
    for name in ("missing", "below/data.bin/x", "x" * 300):
        assert place.ask(url=place.allowed / name).status == 404
    assert place.ask(url=place.allowed / "circle").status == 403


@pytest.mark.parametrize(
    "query",
    [
        {},
        {"url": ""},
        {"url": "relative/path"},
        {"url": "file:relative"},
        {"url": "http://127.0.0.1/x"},
        {"url": "file://elsewhere/x"},
        {"url": "file:///x%00y"},
        {"url": "file://[bad/x"},
        {"url": "/x", "offset": "-1"},
        {"url": "/x", "size": "many"},
        {"url": "/x", "size": str(SIZE_MAX_BYTES + 1)},
        {"url": "/x", "offset": str(2**63)},
    ],
    ids=repr,
)
def test_bad_requests(place: Place, query: dict[str, str]) -> None:
    answer = place.ask(**query)
    assert (answer.status, bool(answer.error)) == (400, True)


@pytest.mark.parametrize("token", ["", "wrong", TOKEN + "x"])
def test_only_with_the_token(place: Place, token: str) -> None:
    answer = place.ask(token=token, url=place.allowed / "below" / "data.bin")
    assert answer.status == 401
    assert b"0123" not in answer.body


# -- races ------------------------------------------------------------------------------------------


def test_a_file_swapped_for_a_link_at_any_moment_is_never_followed(place: Place) -> None:
    """One thread keeps swapping a folder and a file for links to the outside while another opens them."""
    stop = threading.Event()
    folder, moving = place.allowed / "swapped", place.allowed / "real"
    moving.mkdir()
    (moving / "secret.txt").write_bytes(b"harmless")
    away, new = place.allowed / "away", place.allowed / "new"

    def swap() -> None:
        while not stop.is_set():
            moving.rename(folder)
            folder.rename(moving)
            new.symlink_to(place.outside)
            new.rename(folder)
            folder.rename(away)
            away.unlink()

    thread = threading.Thread(target=swap)
    thread.start()
    contents, refusals = set(), 0
    deadline_s = time.monotonic() + 2
    try:
        while time.monotonic() < deadline_s:
            try:
                descriptor, _ = open_below(str(folder / "secret.txt"), [place.allowed])
            except PenstockError:
                refusals += 1
                continue
            contents.add(os.read(descriptor, 100))
            os.close(descriptor)
    finally:
        stop.set()
        thread.join()
    assert contents == {b"harmless"}
    assert refusals


def test_a_file_that_shrinks_breaks_the_connection(place: Place) -> None:
    """The reader must not take what it got for the whole range."""
    path = place.allowed / "shrinking"
    with path.open("wb") as file:
        file.truncate(SIZE_MAX_BYTES)
    parts = urlsplit(place.url)
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=15)
    connection.request(
        "GET", f"/v1/files?{urlencode({'url': path})}", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    response = connection.getresponse()
    os.truncate(path, 0)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        response.read()
    connection.close()


def test_under_a_cap_all_readers_together_stay_within_it(tmp_path: Path) -> None:
    contents = [os.urandom(650_000), os.urandom(100_000), os.urandom(50_000)]
    for number, content in enumerate(contents):
        (tmp_path / str(number)).write_bytes(content)

    def read(client: ServerClient, number: int) -> bytes:
        read_bytes = b""
        while len(read_bytes) < len(contents[number]):
            part = client.file_part(str(tmp_path / str(number)), len(read_bytes), SIZE_MAX_BYTES)
            assert 0 < len(part) <= 600_000, "an answer takes too long for anybody to be heard meanwhile"
            read_bytes += part
        return read_bytes

    cap = Bandwidth(2400)  # 300,000 bytes a second
    with file_door([tmp_path], cap) as url, client_of(url) as client, ThreadPoolExecutor(3) as threads:
        started_s = time.monotonic()
        read_contents = list(threads.map(lambda number: read(client, number), range(3)))
        elapsed_s = time.monotonic() - started_s
    assert read_contents == contents
    free_bytes = cap.bytes_per_s + cap.piece_bytes  # the first second's, and the last piece may overdraw
    assert elapsed_s >= (800_000 - free_bytes) / cap.bytes_per_s


def test_descriptors_are_closed(place: Place) -> None:
    def open_files() -> int:
        return sum(
            os.readlink(f"/proc/self/fd/{name}").startswith(str(place.allowed))
            for name in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{name}")
        )

    for _ in range(5):
        place.ask(url=place.allowed / "below" / "data.bin")
        place.ask("HEAD", url=place.allowed / "below" / "data.bin")
        place.ask(url=place.allowed / "below")
    deadline_s = time.monotonic() + 5
    while open_files():
        assert time.monotonic() < deadline_s, "a file stays open"
        time.sleep(0.01)  # the door closes them after its answer, and tells nobody
