"""Private servers of the real binary, one for most tests and more where they are stopped or frozen."""

import os
import re
import select
import signal
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

import tenure

PATIENCE = 20.0


def binary() -> str:
    """The program that is tested. Without it nothing is tested, and that is a failure."""
    found = os.environ.get("TENURE_BIN")
    if not found:
        pytest.fail("set TENURE_BIN to the tenure binary; clients/python/test says how")
    return found


class Server:
    """A server on a SQLite file. It keeps its port when it is started again."""

    def __init__(self, folder: Path, store: Path | None = None, *extra: str) -> None:
        self.folder = folder
        self.store = store or folder / "store.db"
        self.extra = extra
        self.scheme = "https" if "--tls-cert" in extra else "http"
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"

    def start(self) -> None:
        arguments = ["serve", "--listen", f"127.0.0.1:{self.port}", "--store", f"sqlite:{self.store}"]
        with (self.folder / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary(), *arguments, *self.extra], stdout=subprocess.PIPE, stderr=log
            )
        self.port = self._port()

    def _port(self) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], PATIENCE)
        line = self.process.stdout.readline().decode() if readable else ""
        found = re.search(r"listening on https?://127\.0\.0\.1:(\d+)", line)
        if found is None:
            pytest.fail(f"the server does not start: {line} {(self.folder / 'server.log').read_text()}")
        return int(found[1])

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def freeze(self) -> None:
        self.send(signal.SIGSTOP)

    def thaw(self) -> None:
        self.send(signal.SIGCONT)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.send(number)
        self.thaw()
        self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.process = None

    def restart(self) -> None:
        self.end()
        self.start()


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that nobody stops."""
    server = Server(tmp_path_factory.mktemp("shared"))
    yield server
    server.end()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Callable[[], Server]]:
    """Servers on one store, to be treated badly."""
    started: list[Server] = []

    def start() -> Server:
        folder = tmp_path / str(len(started))
        folder.mkdir()
        started.append(Server(folder, tmp_path / "store.db"))
        return started[-1]

    yield start
    for server in started:
        server.end(signal.SIGKILL)


@pytest.fixture
def client(shared: Server) -> Iterator[tenure.Client]:
    with tenure.Client(shared.url, name="one") as client:
        yield client


@pytest.fixture
def other(shared: Server) -> Iterator[tenure.Client]:
    with tenure.Client(shared.url, name="two") as client:
        yield client


@pytest_asyncio.fixture
async def aclient(shared: Server) -> AsyncIterator[tenure.AsyncClient]:
    async with tenure.AsyncClient(shared.url, name="async-one") as client:
        yield client


@pytest_asyncio.fixture
async def aother(shared: Server) -> AsyncIterator[tenure.AsyncClient]:
    async with tenure.AsyncClient(shared.url, name="async-two") as client:
        yield client


@pytest.fixture
def unique() -> str:
    """A word that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def scope(unique: str) -> str:
    return f"{unique}.work/main"


def eventually(condition: Callable[[], object], what: str = "it") -> None:
    """Waits for a condition rather than for a time."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, f"{what} did not happen within {PATIENCE} s"
        time.sleep(0.02)
