"""Leases for callers that block."""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from . import _leases, errors
from ._held import HeldLease, failure
from ._tenure import Tenure
from .model import SlotsInfo

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("tenure")

OnLost = Callable[[errors.LeaseLost], object]


class Lease(HeldLease):
    """A scope held until a deadline, with a fencing token. A thread of the client renews it."""

    def __init__(self, client: "Client", tenure: Tenure, on_lost: OnLost | None) -> None:
        super().__init__(tenure)
        self._client = client
        self.lost = threading.Event()
        """Set when the lease is lost."""
        self._on_lost = on_lost
        tenure.on_loss(self._tell)

    def _tell(self, loss: errors.LeaseLost) -> None:
        log.warning("%s", loss)
        self.lost.set()
        if self._on_lost is not None:
            # On a thread of its own: what the callback does must not hold up the other leases.
            threading.Thread(target=self._on_lost, args=(loss,), name="tenure-on-lost", daemon=True).start()

    def release(self, ok: str | None = None, *, fail: str | None = None) -> None:
        """Lets go, after the work has stopped: with a result, or with what went wrong.

        Raises :class:`tenure.LeaseLost` if it was lost before; does nothing if it was let go before.
        """
        if not self._tenure.over:
            self._tenure.check()
        if self._tenure.end():
            self._client._keeper.drop(self._tenure)
            try:
                self._client._run(
                    _leases.release(self._client._servers, self._tenure.grant, ok=ok, fail=fail)
                )
            except errors.Lost as error:
                raise errors.LeaseLost(self.scope, self.token, error.message) from error

    def hand_over(self, successor: str) -> None:
        """Passes it on to somebody who waits for it (``name`` or ``name#start``), without a gap.

        To be called after the work has stopped: from here on it is not valid. If it cannot be passed on it is
        still held; if nobody knows whether it was (:class:`tenure.UnknownOutcome`) it is not.
        """
        # Nobody renews what may be the successor's.
        self._client._keeper.drop(self._tenure)
        passing = _leases.hand_over(self._client._servers, self._tenure, successor)
        try:
            self._client._run(passing)
        finally:
            passing.close()
            if not self._tenure.ended:
                self._client._keeper.add(self._tenure)

    def proclaim(self, metadata: Mapping[str, str]) -> None:
        """Tells everybody something else about the holder."""
        self.check()
        self._client._run(_leases.proclaim(self._client._servers, self._tenure, metadata))


class Slot(Lease):
    """One of a group of slots."""

    @property
    def index(self) -> int:
        """Which of them."""
        return self._tenure.index


L = TypeVar("L", bound=Lease)


class Taking(Generic[L]):
    """``with`` takes the lease, renews it while the body runs, and releases it."""

    def __init__(
        self,
        client: "Client",
        wanted: Callable[[], _leases.Wanted],
        make: Callable[["Client", Tenure, OnLost | None], L],
        on_lost: OnLost | None,
    ) -> None:
        self._client = client
        self._wanted = wanted
        self._make = make
        self._on_lost = on_lost
        # One object may be used by many threads at once, and by one of them within itself.
        self._inside: dict[int, list[L]] = {}

    def acquire(self) -> L:
        """Takes it without ``with``; to be released by hand."""
        client = self._client
        acquisition = _leases.Acquisition(client._servers, self._wanted())
        try:
            tenure = Tenure(client._run(acquisition.run()))
            lease = self._make(client, tenure, self._on_lost)
        except BaseException:
            if acquisition.unsettled:
                # Best effort: if the client was closed meanwhile, it ends by itself.
                with contextlib.suppress(RuntimeError):
                    client._keeper.tidy(_leases.tidy(acquisition))
            raise
        client._keeper.add(tenure)
        log.debug("acquired %s, token %d", lease.scope, lease.token)
        return lease

    def __enter__(self) -> L:
        lease = self.acquire()
        self._inside.setdefault(threading.get_ident(), []).append(lease)
        return lease

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        thread = threading.get_ident()
        lease = self._inside[thread].pop()
        if not self._inside[thread]:
            del self._inside[thread]
        try:
            lease.release(fail=failure(error))
        except errors.Lost:
            # Work that ended well under a lease that was lost may have been done twice.
            if error is None:
                raise
        except errors.TenureError as trouble:
            log.warning("%s could not be released and ends by itself: %s", lease.scope, trouble)
        return False


class Slots:
    """A group of slots."""

    def __init__(self, client: "Client", group: str) -> None:
        self._client = client
        self.group = group

    def show(self) -> SlotsInfo:
        """How many there are, who holds which, who waits."""
        return self._client._run(_leases.show_slots(self._client._servers, self.group))

    def resize(self, count: int, *, expect_version: int | None = None) -> None:
        """Changes how many there are, while they are held. Shrinking evicts nobody.

        With the ``version`` that was shown, only if nobody has changed it since, or :class:`tenure.Conflict`.
        """
        self._client._run(_leases.resize(self._client._servers, self.group, count, expect_version))
