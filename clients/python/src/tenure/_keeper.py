"""Keeps leases alive: one task renews all of a client's leases, many with one request.

The asyncio client runs it in its own loop, the blocking one in the loop of a thread, so that a request
that hangs delays neither the other renewals nor the news that a deadline has passed.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from . import _clock
from ._book import Batch, Book
from ._io import AsyncIo
from ._leases import renew
from ._servers import place
from ._settings import Settings
from ._tenure import Tenure
from ._wire import Program

log = logging.getLogger("tenure")

LOOK = 1.0
"""Timers stand still while a machine sleeps, deadlines do not: so often the clock is looked at."""
CLOSED = "its client was closed, so nobody renews it any more"
TIDYING = 2.0
"""For so long closing a client waits for what it still has to tidy up."""


class Keeper:
    """Renews leases until it is closed."""

    def __init__(self, io: AsyncIo, settings: Settings) -> None:
        self._io = io
        self._settings = settings
        self._book = Book()
        self._wake = asyncio.Event()
        self._renewals: set[asyncio.Task[Any]] = set()
        self._chores: set[asyncio.Task[Any]] = set()
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._run(), name="tenure-keeper")

    def add(self, tenure: Tenure) -> None:
        """Keeps this lease from now on."""
        self._book.add(tenure)
        self._wake.set()

    def drop(self, tenure: Tenure) -> None:
        """Keeps it no longer."""
        self._book.drop(tenure)

    def chore(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Something that is to be done even if nobody waits for it."""
        return _start(work, self._chores)

    def tidy(self, program: Program[None]) -> None:
        """Runs a program of which nobody waits for the result."""
        self.chore(self._io.run(program))

    async def _run(self) -> None:
        # Not only until it is cancelled: before 3.12, `wait_for` may swallow that.
        while not self._closed:
            now = _clock.now()
            self._book.expire(now)
            for batch in self._book.due(now):
                _start(self._renew(batch), self._renewals)
            wake_at = self._book.wake_at()
            pause = None if wake_at is None else min(LOOK, max(0.0, wake_at - _clock.now()))
            self._wake.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._wake.wait(), pause)

    async def _renew(self, batch: Batch) -> None:
        servers = self._settings.servers
        server = servers.first
        try:
            program = renew(servers, batch.grants)
            content = await asyncio.wait_for(self._io.run(program), batch.timeout)
            self._book.answered(batch, _clock.now(), content["renewed"])
        except asyncio.TimeoutError:
            if servers.first == server:
                servers.leave(server)
            # How long it was waited for says nothing: towards the deadline that is less each time.
            self._failed(batch, TimeoutError(f"{place(server)} did not answer in time"))
        except Exception as error:
            self._failed(batch, error)
        self._wake.set()

    def _failed(self, batch: Batch, error: Exception) -> None:
        log.debug("renewing %d leases failed: %s", len(batch.tenures), error)
        self._book.failed(batch, _clock.now(), error)

    async def close(self) -> None:
        """Finishes what is to be tidied up, and gives up what is still kept."""
        self._closed = True
        await _end({self._task, *self._renewals})
        self._book.close(CLOSED)
        if self._chores:
            await asyncio.wait(self._chores, timeout=TIDYING)
        await _end(self._chores)


def _start(work: Coroutine[Any, Any, Any], among: "set[asyncio.Task[Any]]") -> "asyncio.Task[Any]":
    task = asyncio.get_running_loop().create_task(work)
    among.add(task)
    task.add_done_callback(among.discard)
    return task


async def _end(tasks: "set[asyncio.Task[Any]]") -> None:
    tasks = set(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


class KeeperThread:
    """A keeper in a thread of its own, for callers that block."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: Keeper | None = None
        self._stop: asyncio.Event | None = None
        self._closed = False

    def add(self, tenure: Tenure) -> None:
        """Keeps this lease from now on."""
        self._call(lambda keeper: keeper.add(tenure))

    def drop(self, tenure: Tenure) -> None:
        """Keeps it no longer."""
        if self._thread is not None:
            self._call(lambda keeper: keeper.drop(tenure))

    def tidy(self, program: Program[None]) -> None:
        """Runs a program of which nobody waits for the result."""
        self._call(lambda keeper: keeper.tidy(program))

    def close(self) -> None:
        """Ends the thread."""
        with self._lock:
            self._closed = True
            thread, loop, stop = self._thread, self._loop, self._stop
        if thread is not None and loop is not None and stop is not None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(stop.set)
            thread.join(TIDYING + 2)

    def _call(self, work: Callable[[Keeper], None]) -> None:
        with self._lock:
            if self._closed:
                raise RuntimeError("the client is closed; make another one")
            if self._thread is None or not self._thread.is_alive():
                self._start()
            keeper, loop = self._keeper, self._loop
        if keeper is not None and loop is not None:
            loop.call_soon_threadsafe(work, keeper)

    def _start(self) -> None:
        ready = threading.Event()

        def body() -> None:
            try:
                asyncio.run(self._main(ready))
            finally:
                ready.set()

        self._thread = threading.Thread(target=body, name="tenure-keeper", daemon=True)
        self._thread.start()
        ready.wait()

    async def _main(self, ready: threading.Event) -> None:
        io = AsyncIo(self._settings)
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._keeper = Keeper(io, self._settings)
        ready.set()
        await self._stop.wait()
        await self._keeper.close()
        await io.close()
