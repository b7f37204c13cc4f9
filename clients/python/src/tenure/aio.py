"""The client for asyncio."""

import os
import ssl
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from . import _leases, _objects, _streams
from ._alease import AsyncLease, AsyncOnLost, AsyncSlot, AsyncSlots, AsyncTaking
from ._io import AsyncIo
from ._keeper import Keeper
from ._objects import AsyncChange, Check, Delete, Expect, Payload, Put
from ._settings import Settings
from ._wire import Duration, Program
from .client import FOREVER
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

T = TypeVar("T")


class AsyncClient:
    """Like :class:`tenure.Client`, for asyncio. Make it and use it in one event loop."""

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
        self._io = AsyncIo(self._settings)
        self._keeper: Keeper | None = None
        self.objects = AsyncObjects(self)
        self.leases = AsyncLeases(self)

    def lease(
        self,
        scope: str,
        *,
        key: str | None = None,
        ttl: Duration | None = None,
        wait: Duration = 0,
        metadata: Mapping[str, str] | None = None,
        reapable: bool = False,
        on_lost: AsyncOnLost | None = None,
    ) -> AsyncTaking[AsyncLease]:
        """A lease, for ``async with``: on ``namespace/key``, or on a namespace and a ``key``.

        It is renewed while the body runs and released after it. If it is held by somebody else for longer
        than ``wait``, :class:`tenure.Held` is raised. If the lease is lost, the body is cancelled where it
        awaits and the statement raises :class:`tenure.LeaseLost`; ``on_lost`` (a function, or a coroutine
        function) is called once.
        """
        full = _leases.scope_of(scope, key)

        def wanted() -> _leases.Wanted:
            return _leases.lease_wanted(
                self._settings.name, full, ttl=ttl, wait=wait, metadata=metadata, reapable=reapable
            )

        return AsyncTaking(self, wanted, AsyncLease, on_lost)

    def slot(
        self,
        group: str,
        *,
        count: int,
        ttl: Duration | None = None,
        wait: Duration = 0,
        metadata: Mapping[str, str] | None = None,
        reapable: bool = False,
        on_lost: AsyncOnLost | None = None,
    ) -> AsyncTaking[AsyncSlot]:
        """One of ``count`` slots of a group, for ``async with``. A group that was resized has that count."""

        def wanted() -> _leases.Wanted:
            return _leases.slot_wanted(
                self._settings.name, group, count, ttl=ttl, wait=wait, metadata=metadata, reapable=reapable
            )

        return AsyncTaking(self, wanted, AsyncSlot, on_lost)

    def slots(self, group: str) -> AsyncSlots:
        """A group of slots, to look at and to resize."""
        return AsyncSlots(self, group)

    def elect(
        self,
        scope: str,
        *,
        metadata: Mapping[str, str] | None = None,
        ttl: Duration | None = None,
        wait: Duration = FOREVER,
        on_lost: AsyncOnLost | None = None,
    ) -> AsyncTaking[AsyncLease]:
        """Leads, for ``async with``: the body runs once this client leads, however long that takes."""
        return self.lease(scope, ttl=ttl, wait=wait, metadata=metadata, on_lost=on_lost)

    async def leader(self, scope: str) -> LeaseInfo | None:
        """Who leads."""
        return await self._run(_leases.leader(self._servers, scope))

    def observe(self, scope: str) -> AsyncGenerator[LeaseInfo | None, None]:
        """Who leads now, then every change. Goes on by itself after a break."""
        return self._io.follow(_streams.observe(self._servers, scope))

    async def capabilities(self) -> Mapping[str, Any]:
        """What the server's store promises, and its limits."""
        return await self._run(_leases.capabilities(self._servers))

    async def close(self) -> None:
        """Closes all connections. Leases that are still held are not renewed any more, and lost."""
        if self._keeper is not None:
            await self._keeper.close()
        await self._io.close()

    def _keep(self) -> Keeper:
        if self._keeper is None:
            self._keeper = Keeper(self._io, self._settings)
        return self._keeper

    async def _run(self, program: Program[T]) -> T:
        return await self._io.run(program)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return self._settings.describe(type(self))


class AsyncLeases:
    """Everybody's leases."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def show(self, scope: str, *, key: str | None = None) -> Contention:
        """Who holds a scope, and who waits for it since when."""
        return await self._client._run(_leases.show(self._client._servers, _leases.scope_of(scope, key)))

    async def list(self, namespace: str | None = None, *, children: bool = False) -> tuple[LeaseInfo, ...]:
        """Every lease of a namespace, and of those below it if asked; all without a namespace."""
        return await self._client._run(_leases.list_leases(self._client._servers, namespace, children))

    async def revoke(
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
        return await self._client._run(_leases.revoke(self._client._servers, full, reason, expect_token))

    async def ask_to_hand_over(
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
        return await self._client._run(asking)

    async def orphans(self, namespace: str | None = None, *, children: bool = False) -> tuple[Orphan, ...]:
        """What is left to reap: of leases that were reapable and ended without a release."""
        return await self._client._run(_leases.list_orphans(self._client._servers, namespace, children))

    async def reap(
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
        return await self._client._run(_leases.reap(self._client._servers, orphan, commit))

    def watch(self, prefix: str | None = None) -> AsyncGenerator[LeaseEvent, None]:
        """What happens to leases whose scopes start with this."""
        return self._client._io.follow(_streams.watch_leases(self._client._servers, prefix))


class AsyncObjects:
    """Versioned objects."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client

    async def get(self, kind: str, id: str) -> Object:
        """One object. Raises :class:`tenure.NotFound`."""
        return await self._client._run(_objects.get(self._client._servers, kind, id))

    async def list(
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
        return await self._client._run(
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

    async def put(
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
        return await self._client._run(_objects.put(self._client._servers, put, fence))

    async def delete(
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
        return await self._client._run(_objects.delete(self._client._servers, delete, fence))

    async def commit(
        self, *writes: Put | Delete, checks: Iterable[Check] = (), fences: Iterable[Fenced] = ()
    ) -> Committed:
        """Checks and writes, all or nothing."""
        return await self._client._run(_objects.commit(self._client._servers, writes, checks, fences))

    async def touch(self, kind: str, id: str, *, revision: int, ttl: Duration) -> int:
        """Starts the life of an object anew; returns the revision to give with the next touch."""
        return await self._client._run(_objects.touch(self._client._servers, kind, id, revision, ttl))

    async def update(
        self, kind: str, id: str, fn: AsyncChange, *, attempts: int = 5, fence: Fenced | None = None
    ) -> Stored:
        """Reads an object, writes what ``fn`` makes of it, and begins again if somebody was faster.

        ``fn`` (a function, or a coroutine function) returns the new payload, or None to leave it as it is.
        Name, labels and life stay.
        """
        return await self._client._run(_objects.update(self._client._servers, kind, id, fn, attempts, fence))

    def watch(
        self, kind: str | None = None, *, prefix: str | None = None, after: int | None = None
    ) -> AsyncGenerator[Batch, None]:
        """What happens from a revision on (from now on, without): in order, nothing missed, nothing twice.

        Goes on by itself after a break, from the last revision that it told.
        """
        return self._client._io.follow(_streams.watch(self._client._servers, kind, prefix, after))
