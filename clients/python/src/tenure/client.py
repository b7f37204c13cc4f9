"""The client for callers that block."""

import os
import ssl
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import _leases, _objects, _streams
from ._io import Io
from ._keeper import KeeperThread
from ._lease import Lease, OnLost, Slot, Slots, Taking
from ._objects import Change, Check, Delete, Expect, Payload, Put
from ._settings import Settings
from ._wire import Duration, Program
from .model import (
    Batch,
    Committed,
    Contention,
    Fenced,
    LeaseEvent,
    LeaseInfo,
    Object,
    Orphan,
    Page,
    Removed,
    Stored,
)

FOREVER = float("inf")
"""As ``wait``: as long as it takes."""

T = TypeVar("T")


class Client:
    """Leases, slots, elections and objects of a Tenure server.

    ``url`` is one address or several (replicas): the next one is tried when one cannot be reached. Without
    it the variable ``TENURE_SERVER`` is used, else ``http://127.0.0.1:8368``. ``token`` is sent as bearer
    token (or ``TENURE_BEARER``); a function is asked for it before each request. ``name`` is what others
    see as the holder (or ``TENURE_NAME``, or the host's name), ``ca`` is a file of certificates to trust,
    ``cert`` a pair of files to show. Use it from any number of threads; make one in each process.
    """

    def __init__(
        self,
        url: str | Sequence[str] | None = None,
        *,
        token: str | Callable[[], str] | None = None,
        name: str | None = None,
        ca: str | os.PathLike[str] | ssl.SSLContext | None = None,
        cert: tuple[str, str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        self._settings = Settings.find(url, token, name, ca, cert, timeout)
        self._servers = self._settings.servers
        self._io = Io(self._settings)
        self._keeper = KeeperThread(self._settings)
        self.objects = Objects(self)
        self.leases = Leases(self)

    def lease(
        self,
        scope: str,
        *,
        key: str | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0,
        metadata: Mapping[str, str] | None = None,
        reapable: bool = False,
        on_lost: OnLost | None = None,
    ) -> Taking[Lease]:
        """A lease, for ``with``: on ``namespace/key``, or on a namespace and a ``key``.

        It is renewed while the body runs and released after it. If it is held by somebody else for longer
        than ``wait``, :class:`tenure.Held` is raised. A thread cannot be stopped from outside: if the lease
        is lost, ``on_lost`` is called (on another thread, once), ``lease.lost`` is set, ``lease.check()``
        raises, and so does the end of the ``with`` statement.
        """
        full = _leases.scope_of(scope, key)

        def wanted() -> _leases.Wanted:
            return _leases.lease_wanted(
                self._settings.name, full, ttl=ttl, wait=wait, metadata=metadata, reapable=reapable
            )

        return Taking(self, wanted, Lease, on_lost)

    def slot(
        self,
        group: str,
        *,
        count: int,
        ttl: Duration | None = None,
        wait: Duration = 0,
        metadata: Mapping[str, str] | None = None,
        reapable: bool = False,
        on_lost: OnLost | None = None,
    ) -> Taking[Slot]:
        """One of ``count`` slots of a group, for ``with``. A group that was resized has that count."""

        def wanted() -> _leases.Wanted:
            return _leases.slot_wanted(
                self._settings.name, group, count, ttl=ttl, wait=wait, metadata=metadata, reapable=reapable
            )

        return Taking(self, wanted, Slot, on_lost)

    def slots(self, group: str) -> Slots:
        """A group of slots, to look at and to resize."""
        return Slots(self, group)

    def elect(
        self,
        scope: str,
        *,
        metadata: Mapping[str, str] | None = None,
        ttl: Duration | None = None,
        wait: Duration = FOREVER,
        on_lost: OnLost | None = None,
    ) -> Taking[Lease]:
        """Leads, for ``with``: the body runs once this client leads, however long that takes."""
        return self.lease(scope, ttl=ttl, wait=wait, metadata=metadata, on_lost=on_lost)

    def leader(self, scope: str) -> LeaseInfo | None:
        """Who leads."""
        return self._run(_leases.leader(self._servers, scope))

    def observe(self, scope: str) -> Generator[LeaseInfo | None, None, None]:
        """Who leads now, then every change. Goes on by itself after a break."""
        return self._io.follow(_streams.observe(self._servers, scope))

    def capabilities(self) -> Mapping[str, Any]:
        """What the server's store promises, and its limits."""
        return self._run(_leases.capabilities(self._servers))

    def close(self) -> None:
        """Closes all connections. Leases that are still held are not renewed any more, and lost."""
        self._keeper.close()
        self._io.close()

    def _run(self, program: Program[T]) -> T:
        return self._io.run(program)

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return self._settings.describe(type(self))


class Leases:
    """Everybody's leases."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def show(self, scope: str, *, key: str | None = None) -> Contention:
        """Who holds a scope, and who waits for it since when."""
        return self._client._run(_leases.show(self._client._servers, _leases.scope_of(scope, key)))

    def list(self, namespace: str | None = None, *, children: bool = False) -> tuple[LeaseInfo, ...]:
        """Every lease of a namespace, and of those below it if asked; all without a namespace."""
        return self._client._run(_leases.list_leases(self._client._servers, namespace, children))

    def revoke(
        self,
        scope: str,
        *,
        key: str | None = None,
        reason: str | None = None,
        expect_token: int | None = None,
    ) -> bool:
        """Ends somebody's tenure, or only that under this token. False if there was none.

        Raises :class:`tenure.Lost` if another token holds it by now; that one is left alone.
        """
        full = _leases.scope_of(scope, key)
        return self._client._run(_leases.revoke(self._client._servers, full, reason, expect_token))

    def ask_to_hand_over(
        self,
        scope: str,
        *,
        key: str | None = None,
        to: str | None = None,
        expect_token: int | None = None,
        wait: Duration = 60.0,
    ) -> LeaseInfo:
        """Asks the holder to stop its work and to hand over: to whoever is named, or to the first in line.

        Returns who holds it then. Raises :class:`tenure.Held` if the holder does not listen, and then it
        goes on as if nobody had asked: ``tenure run`` listens, leases of this client do not.
        """
        full = _leases.scope_of(scope, key)
        asking = _leases.ask_to_hand_over(self._client._servers, full, to, expect_token, wait)
        return self._client._run(asking)

    def orphans(self, namespace: str | None = None, *, children: bool = False) -> tuple[Orphan, ...]:
        """What is left to reap: of leases that were reapable and ended without a release."""
        return self._client._run(_leases.list_orphans(self._client._servers, namespace, children))

    def reap(
        self,
        orphan: Orphan,
        *writes: Put | Delete,
        checks: Iterable[Check] = (),
        fences: Iterable[Fenced] = (),
    ) -> bool:
        """Reaps one of them together with a commit, all or nothing: it applies once, however many reap.

        False if it was gone: reaped by somebody else, or by an earlier attempt whose outcome was unknown.
        After :class:`tenure.UnknownOutcome`, ask again. Raises :class:`tenure.Held` if it has not ended.
        """
        commit = _objects.commit_wire(writes, checks, fences)
        return self._client._run(_leases.reap(self._client._servers, orphan, commit))

    def watch(self, prefix: str | None = None) -> Generator[LeaseEvent, None, None]:
        """What happens to leases whose scopes start with this."""
        return self._client._io.follow(_streams.watch_leases(self._client._servers, prefix))


class Objects:
    """Versioned objects."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, kind: str, id: str) -> Object:
        """One object. Raises :class:`tenure.NotFound`."""
        return self._client._run(_objects.get(self._client._servers, kind, id))

    def list(
        self,
        kind: str,
        *,
        prefix: str | None = None,
        name: str | None = None,
        selector: str | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> Page:
        """A page of objects in order of id. ``after`` is the ``next`` of the page before."""
        return self._client._run(
            _objects.list_page(
                self._client._servers,
                kind,
                prefix=prefix,
                name=name,
                selector=selector,
                after=after,
                limit=limit,
            )
        )

    def put(
        self,
        kind: str,
        id: str,
        payload: Payload,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        ttl: Duration | None = None,
        expect_version: int | None = None,
        expect: Expect | None = None,
        fence: Fenced | None = None,
    ) -> Stored:
        """Writes an object, whole: if it is as expected, and only while the lease is held that fences it."""
        put = Put(kind, id, payload, name, labels, ttl, _objects.expectation(expect, expect_version))
        return self._client._run(_objects.put(self._client._servers, put, fence))

    def delete(
        self,
        kind: str,
        id: str,
        *,
        expect_version: int | None = None,
        expect: Expect | None = None,
        fence: Fenced | None = None,
    ) -> Removed:
        """Deletes an object."""
        delete = Delete(kind, id, _objects.expectation(expect, expect_version))
        return self._client._run(_objects.delete(self._client._servers, delete, fence))

    def commit(
        self, *writes: Put | Delete, checks: Iterable[Check] = (), fences: Iterable[Fenced] = ()
    ) -> Committed:
        """Checks and writes, all or nothing."""
        return self._client._run(_objects.commit(self._client._servers, writes, checks, fences))

    def touch(self, kind: str, id: str, *, revision: int, ttl: Duration) -> int:
        """Starts the life of an object anew; returns the revision to give with the next touch."""
        return self._client._run(_objects.touch(self._client._servers, kind, id, revision, ttl))

    def update(
        self, kind: str, id: str, fn: Change, *, attempts: int = 5, fence: Fenced | None = None
    ) -> Stored:
        """Reads an object, writes what ``fn`` makes of it, and begins again if somebody was faster.

        ``fn`` returns the new payload, or None to leave it as it is. Name, labels and life stay.
        """
        return self._client._run(_objects.update(self._client._servers, kind, id, fn, attempts, fence))

    def watch(
        self, kind: str | None = None, *, prefix: str | None = None, after: int | None = None
    ) -> Generator[Batch, None, None]:
        """What happens from a revision on (from now on, without): in order, nothing missed, nothing twice.

        Goes on by itself after a break, from the last revision that it told.
        """
        return self._client._io.follow(_streams.watch(self._client._servers, kind, prefix, after))
