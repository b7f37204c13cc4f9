"""Leases for asyncio: when one is lost, the task that runs under it is cancelled."""

import asyncio
import inspect
import logging
import sys
from collections.abc import Callable, Generator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

from . import _leases, errors
from ._held import HeldLease, failure
from ._tenure import Tenure
from .model import SlotsInfo

if TYPE_CHECKING:
    from .aio import AsyncClient

log = logging.getLogger("tenure")

AsyncOnLost = Callable[[errors.LeaseLost], Any]


class AsyncLease(HeldLease):
    """A scope held until a deadline, with a fencing token. A task of the client renews it."""

    def __init__(self, client: "AsyncClient", tenure: Tenure, on_lost: AsyncOnLost | None) -> None:
        super().__init__(tenure)
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[errors.LeaseLost] = self._loop.create_future()
        """Done when the lease is lost; cancelled when it is let go."""
        self._on_lost = on_lost
        tenure.on_loss(self._tell)

    def _tell(self, loss: errors.LeaseLost) -> None:
        log.warning("%s", loss)
        # By way of the loop: whoever noticed may be a thread that works for the task.
        self._loop.call_soon_threadsafe(self._told, loss)

    def _told(self, loss: errors.LeaseLost) -> None:
        if not self.lost.done():
            self.lost.set_result(loss)
        if self._on_lost is not None:
            result = self._on_lost(loss)
            if inspect.iscoroutine(result):
                self._client._keep().chore(result)

    async def release(self, ok: str | None = None, *, fail: str | None = None) -> None:
        """Lets go, after the work has stopped: with a result, or with what went wrong.

        Raises :class:`tenure.LeaseLost` if it was lost before; does nothing if it was let go before.
        """
        if not self._tenure.over:
            self._tenure.check()
        if self._end():
            client = self._client
            work = client._run(_leases.release(client._servers, self._tenure.grant, ok=ok, fail=fail))
            try:
                # To be done even if whoever waits for it is cancelled.
                await asyncio.shield(client._keep().chore(work))
            except errors.Lost as error:
                raise errors.LeaseLost(self.scope, self.token, error.message) from error

    async def hand_over(self, successor: str) -> None:
        """Passes it on to somebody who waits for it (``name`` or ``name#start``), without a gap.

        To be called after the work has stopped: from here on it is not valid. If it cannot be passed on it is
        still held; if nobody knows whether it was (:class:`tenure.UnknownOutcome`) it is not.
        """
        # To be done even if whoever waits for it is cancelled.
        await asyncio.shield(self._client._keep().chore(self._pass_on(successor)))

    async def _pass_on(self, successor: str) -> None:
        keeper = self._client._keep()
        # Nobody renews what may be the successor's.
        keeper.drop(self._tenure)
        passing = _leases.hand_over(self._client._servers, self._tenure, successor)
        try:
            await self._client._run(passing)
        finally:
            passing.close()
            if not self._tenure.ended:
                keeper.add(self._tenure)
            elif self._tenure.over:
                self.lost.cancel()

    async def proclaim(self, metadata: Mapping[str, str]) -> None:
        """Tells everybody something else about the holder."""
        self.check()
        await self._client._run(_leases.proclaim(self._client._servers, self._tenure, metadata))

    def _end(self) -> bool:
        ended = self._tenure.end()
        self._client._keep().drop(self._tenure)
        self.lost.cancel()
        return ended


class AsyncSlot(AsyncLease):
    """One of a group of slots."""

    @property
    def index(self) -> int:
        """Which of them."""
        return self._tenure.index


L = TypeVar("L", bound=AsyncLease)


class AsyncTaking(Generic[L]):
    """``async with`` takes the lease, renews it while the body runs, and releases it.

    If the lease is lost, the body's task is cancelled where it awaits, and the statement raises
    :class:`tenure.LeaseLost`. A cancellation from elsewhere stays a cancellation. To ``await`` it takes the
    lease without cancelling anything; it is then to be released by hand.
    """

    def __init__(
        self,
        client: "AsyncClient",
        wanted: Callable[[], _leases.Wanted],
        make: Callable[["AsyncClient", Tenure, AsyncOnLost | None], L],
        on_lost: AsyncOnLost | None,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._make = make
        self._on_lost = on_lost
        # One object may be used by many tasks at once, and by one of them within itself.
        self._inside: dict[Any, list[tuple[L, Body]]] = {}

    async def acquire(self) -> L:
        """Takes it without ``async with``; to be released by hand."""
        client = self._client
        keeper = client._keep()
        acquisition = _leases.Acquisition(client._servers, self._wanted())
        try:
            tenure = Tenure(await client._run(acquisition.run()))
        except BaseException:
            if acquisition.unsettled:
                keeper.tidy(_leases.tidy(acquisition))
            raise
        lease = self._make(client, tenure, self._on_lost)
        keeper.add(tenure)
        log.debug("acquired %s, token %d", lease.scope, lease.token)
        return lease

    def __await__(self) -> Generator[Any, None, L]:
        return self.acquire().__await__()

    async def __aenter__(self) -> L:
        lease = await self.acquire()
        self._inside.setdefault(asyncio.current_task(), []).append((lease, Body(lease._tenure)))
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        task = asyncio.current_task()
        lease, body = self._inside[task].pop()
        if not self._inside[task]:
            del self._inside[task]
        ours = body.leave(error)
        try:
            await lease.release(fail=failure(error))
        except errors.Lost as lost:
            # Work that ended well under a lease that was lost may have been done twice.
            if error is None:
                raise
            if ours:
                raise lost from error
        except errors.TenureError as trouble:
            log.warning("%s could not be released and ends by itself: %s", lease.scope, trouble)
        return False


class Body:
    """The task that runs under a lease, cancelled when that is lost."""

    def __init__(self, tenure: Tenure) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("`async with` on a lease needs a task to cancel")
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._inside = True
        self._cancelled = False
        self._before = _cancelling(task)
        tenure.on_loss(self._lost)

    def _lost(self, _loss: errors.LeaseLost) -> None:
        # Soon, not now: the task itself may have noticed, by a look at the clock, and raises anyway.
        self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._inside:
            self._cancelled = True
            self._task.cancel()

    def leave(self, error: BaseException | None) -> bool:
        """The body has ended. Whether it was ended by us, and by nobody else."""
        self._inside = False
        if not self._cancelled:
            return False
        return _uncancel(self._task) <= self._before and isinstance(error, asyncio.CancelledError)


# Before 3.11 nobody counts who has cancelled a task: there, a cancellation at the instant of the loss is
# taken for ours.
if sys.version_info >= (3, 11):

    def _cancelling(task: "asyncio.Task[Any]") -> int:
        return task.cancelling()

    def _uncancel(task: "asyncio.Task[Any]") -> int:
        return task.uncancel()

else:

    def _cancelling(task: "asyncio.Task[Any]") -> int:
        return 0

    def _uncancel(task: "asyncio.Task[Any]") -> int:
        return 0


class AsyncSlots:
    """A group of slots."""

    def __init__(self, client: "AsyncClient", group: str) -> None:
        self._client = client
        self.group = group

    async def show(self) -> SlotsInfo:
        """How many there are, who holds which, who waits."""
        return await self._client._run(_leases.show_slots(self._client._servers, self.group))

    async def resize(self, count: int, *, expect_version: int | None = None) -> None:
        """Changes how many there are, while they are held. Shrinking evicts nobody.

        With the ``version`` that was shown, only if nobody has changed it since, or :class:`tenure.Conflict`.
        """
        await self._client._run(_leases.resize(self._client._servers, self.group, count, expect_version))
