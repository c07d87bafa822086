from __future__ import annotations

import base64
import itertools
import json
import socket
from collections.abc import Iterator

import pytest

from conformance.raw_client import RawClient
from harness import ServerProcess

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A stream name that no other test uses."""
    return f"stream-{next(_numbers)}"


@pytest.fixture
def raw(shared_server: ServerProcess) -> Iterator[RawClient]:
    with RawClient(shared_server.port) as client:
        yield client


@pytest.fixture
def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture(scope="session")
def server_with_tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its tokens file also has an empty line, which must not let clients without a token in."""
    directory = tmp_path_factory.mktemp("tokens")
    tokens = directory / "tokens"
    tokens.write_text("first-token\n\nsecond token\n")
    process = ServerProcess(directory / "data", env={"PENSTOCK_CLIENT_TOKENS_FILE": str(tokens)}).start()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def firehose_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Delivery streams are there at once, and there is a key that clients can name."""
    # Here, because these tests also run under greengrasssdk, in a virtualenv that has little else.
    from conformance.firehose_configurations import KEY_ARN

    directory = tmp_path_factory.mktemp("firehose")
    keys = directory / "master-keys"
    keys.write_text(json.dumps({KEY_ARN: base64.b64encode(bytes(32)).decode()}))
    keys.chmod(0o600)
    env = {"PENSTOCK_MASTER_KEYS_FILE": str(keys), "PENSTOCK_FIREHOSE_SYNC_CREATE": "on"}
    process = ServerProcess(directory / "data", env=env).start()
    yield process
    process.stop()
    assert "Traceback" not in process.log_text, process.log_text
