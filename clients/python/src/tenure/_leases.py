"""Leases, slots and elections as programs."""

import contextlib
import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import _clock, errors
from ._servers import Servers, ask
from ._tenure import Grant, Tenure
from ._timing import backoff
from ._wire import Duration, Program, Request, Sleep, given, millis, to_seconds
from .model import Contention, LeaseInfo, Orphan, SlotHolder, SlotsInfo, Waiter

RESOLVE = 15.0
"""For so long a lease is asked for again if a reply got lost, however short the wait."""
RELEASES = 4
"""So often a release is tried; after that the lease ends by itself."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is asked for, and on what terms."""

    what: Mapping[str, Any]
    path: str
    owner: str
    wait: float
    ttl: Duration | None = None
    metadata: Mapping[str, str] | None = None
    reapable: bool = False

    def request(self, wait: float) -> Request:
        """Asking for it, with this much patience left. The same owner gets the same lease again."""
        forever = math.isinf(wait)
        terms = given(
            owner=self.owner,
            ttl_ms=None if self.ttl is None else millis(self.ttl),
            wait_ms=None if forever or wait <= 0 else millis(wait),
            wait_forever=forever or None,
            metadata=dict(self.metadata) if self.metadata else None,
            reapable=self.reapable or None,
        )
        return Request("POST", self.path, body={**self.what, **terms}, waits=wait, repeatable=True)


def owner(name: str) -> str:
    """An owner that nobody has been yet, so that nobody else's lease can be mistaken for its own."""
    return f"{name}#{secrets.token_hex(8)}"


def scope_of(scope: str, key: str | None) -> str:
    """A namespace and a key, or the whole scope."""
    if key is None:
        return scope
    if "/" in scope:
        raise ValueError(f"{scope!r} has a key already; leave key={key!r} out")
    return f"{scope}/{key}"


def lease_wanted(
    name: str,
    scope: str,
    *,
    ttl: Duration | None,
    wait: Duration,
    metadata: Mapping[str, str] | None,
    reapable: bool,
) -> Wanted:
    """A scope, for an owner of this name."""
    what = {"scope": scope}
    return Wanted(what, "/v1/leases/acquire", owner(name), to_seconds(wait), ttl, metadata, reapable)


def slot_wanted(
    name: str,
    group: str,
    count: int,
    *,
    ttl: Duration | None,
    wait: Duration,
    metadata: Mapping[str, str] | None,
    reapable: bool,
) -> Wanted:
    """A slot of a group, for an owner of this name."""
    what = {"group": group, "count": count}
    return Wanted(what, "/v1/slots/acquire", owner(name), to_seconds(wait), ttl, metadata, reapable)


class Acquisition:
    """The way to a lease. ``unsettled`` while a request is out of which nobody has heard the end."""

    def __init__(self, servers: Servers, wanted: Wanted) -> None:
        self.servers = servers
        self.wanted = wanted
        self.unsettled = False
        self._began = _clock.now()
        self._until = self._began + max(0.0, wanted.wait)
        self._reached = False

    def run(self) -> Program[Grant]:
        """Asks until it is granted or refused, or the wait is over."""
        failures = 0
        while True:
            try:
                grant = yield from self._attempt()
                if grant is not None:
                    return grant
            except (errors.Unavailable, errors.UnknownOutcome, errors.Overloaded) as error:
                failures += 1
                pause = self._pause(error, failures)
                if pause is None:
                    raise
                yield Sleep(pause)

    def _attempt(self) -> Program[Grant | None]:
        sent = _clock.now()
        request = self.wanted.request(max(0.0, self._until - sent))
        before, self.unsettled = self.unsettled, True
        try:
            content = yield from ask(self.servers, request)
        except errors.UnknownOutcome:
            raise
        except errors.TenureError as error:
            # It was understood and nothing was granted, though an earlier request may still be.
            self.unsettled = before
            self._reached = self._reached or not isinstance(error, errors.NoServer)
            raise
        grant = Grant(content["grant"], sent, content["remaining_ms"] / 1000, content.get("index", 0))
        now = _clock.now()
        if now < grant.due and not grant.timing.soon_over(now, grant.valid_until):
            self.unsettled = False
            return grant
        return (yield from self._in_time(grant))

    def _in_time(self, grant: Grant) -> Program[Grant | None]:
        """Renews what was granted long ago: nobody is handed a lease that is about to be over."""
        sent = _clock.now()
        (result,) = (yield from renew(self.servers, [grant.grant]))["renewed"]
        if "error" in result:
            error = errors.from_wire(result["error"])
            if isinstance(error, errors.Lost) and _clock.now() < self._until:
                return None
            raise error
        wire = {**grant.grant, "revision": result["revision"], "ttl_ms": result["ttl_ms"]}
        grant = Grant(wire, sent, result["remaining_ms"] / 1000, grant.index)
        if _clock.now() >= grant.valid_until:
            raise errors.Unavailable(
                "the server answers later than the lease would live; ask for a longer life"
            )
        self.unsettled = False
        return grant

    def _pause(self, error: errors.TenureError, failures: int) -> float | None:
        """How long to wait before asking again, or None to give up."""
        now = _clock.now()
        self._reached = self._reached or isinstance(error, errors.UnknownOutcome)
        if not self._reached:
            return None
        until = max(self._until, self._began + RESOLVE) if self.unsettled else self._until
        pause = backoff(failures, 0.05, 2.0) * (0.75 + secrets.randbelow(256) / 1024)
        if isinstance(error, errors.Overloaded):
            pause = max(pause, error.retry_after)
        return pause if now + pause < until else None


def renew(servers: Servers, grants: Sequence[Mapping[str, Any]]) -> Program[Any]:
    """Starts the lives of leases anew, many at once."""
    body = {"grants": list(grants)}
    return (yield from ask(servers, Request("POST", "/v1/leases/renew", body=body, repeatable=True)))


def release(
    servers: Servers, grant: Mapping[str, Any], *, ok: str | None = None, fail: str | None = None
) -> Program[None]:
    """Lets go, after the work has stopped."""
    request = Request("POST", "/v1/leases/release", body={"grant": grant, **given(ok=ok, fail=fail)})
    unclear = False
    for attempt in range(1, RELEASES + 1):
        try:
            yield from ask(servers, request)
        except errors.Lost:
            # If the answer to an earlier attempt got lost, that one is why it is gone.
            if not unclear:
                raise
        except (errors.Unavailable, errors.UnknownOutcome) as error:
            unclear = unclear or isinstance(error, errors.UnknownOutcome)
            if attempt == RELEASES:
                raise
            yield Sleep(backoff(attempt, 0.1, 1.0))
            continue
        return


def tidy(acquisition: Acquisition, looks: int = 4) -> Program[None]:
    """Looks for a lease that may have been granted after its owner had given up, and lets go of it."""
    servers, wanted = acquisition.servers, acquisition.wanted
    for look in range(looks):
        yield Sleep(0.1 * look * look)
        try:
            if not (yield from _holds(servers, wanted)):
                continue
            content = yield from ask(servers, wanted.request(0))
            yield from release(servers, content["grant"], fail="nobody waited for it any more")
        except errors.TenureError:
            continue
        return


def _holds(servers: Servers, wanted: Wanted) -> Program[bool]:
    if "scope" in wanted.what:
        seen = yield from show(servers, wanted.what["scope"])
        return seen.holder is not None and seen.holder.holder == wanted.owner
    slots = yield from show_slots(servers, wanted.what["group"])
    return any(holder.lease.holder == wanted.owner for holder in slots.holders)


def hand_over(servers: Servers, tenure: Tenure, successor: str) -> Program[None]:
    """Passes a lease on to somebody who waits for it. If it fails it is still held, unless nobody knows."""
    tenure.pass_on()
    kept = False
    try:
        yield from _hand_over(servers, tenure.grant, successor)
    except (errors.UnknownOutcome, errors.ProtocolError):
        raise
    except errors.TenureError as error:
        kept = True
        tenure.keep()
        if isinstance(error, errors.Lost):
            tenure.lose(error.message)
        raise
    finally:
        # Also if it was interrupted: it may be the successor's already.
        if not kept:
            tenure.end()


def _hand_over(servers: Servers, grant: Mapping[str, Any], successor: str) -> Program[None]:
    body = {"grant": grant, "successor": successor}
    try:
        yield from ask(servers, Request("POST", "/v1/leases/hand-over", body=body))
    except errors.UnknownOutcome:
        with contextlib.suppress(errors.TenureError):
            holder = (yield from show(servers, grant["scope"])).holder
            if holder is not None and holder.token > grant["token"] and _is_called(holder.holder, successor):
                return
            # It may still arrive, at any time: nobody can hold what may be passed on behind its back.
            yield from ask(servers, Request("POST", "/v1/leases/release", body={"grant": grant}))
        raise


def _is_called(owner: str, called: str) -> bool:
    return called in (owner, owner.split("#")[0])


def proclaim(servers: Servers, tenure: Tenure, metadata: Mapping[str, str]) -> Program[None]:
    """Tells everybody something else about the holder. It renews the lease, too."""
    sent = _clock.now()
    body = {"grant": tenure.grant, "metadata": dict(metadata)}
    tenure.renewed(sent, (yield from ask(servers, Request("POST", "/v1/leases/proclaim", body=body))))


def revoke(servers: Servers, scope: str, reason: str | None, expect_token: int | None) -> Program[bool]:
    """Ends somebody's tenure."""
    body = {"scope": scope, **given(reason=reason, expect_token=expect_token)}
    content = yield from ask(servers, Request("POST", "/v1/leases/revoke", body=body))
    return bool(content["revoked"])


def ask_to_hand_over(
    servers: Servers, scope: str, to: str | None, expect_token: int | None, wait: Duration
) -> Program[LeaseInfo]:
    """Has the holder stop its work and hand over."""
    patience = to_seconds(wait)
    terms = given(successor=to, expect_token=expect_token, wait_ms=millis(patience))
    body = {"scope": scope, **terms}
    request = Request("POST", "/v1/leases/ask-to-hand-over", body=body, waits=patience)
    content = yield from ask(servers, request)
    return LeaseInfo.read(content["lease"])


def show(servers: Servers, scope: str) -> Program[Contention]:
    """Who holds a scope, and who waits for it."""
    request = Request("GET", "/v1/leases/show", params={"scope": scope}, repeatable=True)
    content = yield from ask(servers, request)
    return Contention(_lease(content.get("holder")), _waiters(content))


def list_leases(servers: Servers, namespace: str | None, children: bool) -> Program[tuple[LeaseInfo, ...]]:
    """Every lease of a namespace."""
    params = given(namespace=namespace, children="true" if children else None)
    content = yield from ask(servers, Request("GET", "/v1/leases", params=params, repeatable=True))
    return tuple(LeaseInfo.read(lease) for lease in content["leases"])


def list_orphans(servers: Servers, namespace: str | None, children: bool) -> Program[tuple[Orphan, ...]]:
    """What is left to reap of a namespace."""
    params = given(namespace=namespace, children="true" if children else None)
    content = yield from ask(servers, Request("GET", "/v1/leases/orphans", params=params, repeatable=True))
    return tuple(Orphan.read(orphan) for orphan in content["orphans"])


def reap(servers: Servers, orphan: Orphan, commit: Mapping[str, Any]) -> Program[bool]:
    """Reaps one of them, together with a commit."""
    body = {
        "scope": orphan.scope,
        "nonce": orphan.nonce,
        "revision": orphan.revision,
        "commit": commit,
    }
    # It applies once, however often it is sent. But whoever asks again by itself would be told that it was
    # gone, and the caller would take its own reaping for somebody else's.
    content = yield from ask(servers, Request("POST", "/v1/leases/reap", body=body))
    return bool(content["reaped"])


def leader(servers: Servers, scope: str) -> Program[LeaseInfo | None]:
    """Who leads."""
    request = Request("GET", "/v1/elections/leader", params={"scope": scope}, repeatable=True)
    content = yield from ask(servers, request)
    return _lease(content.get("leader"))


def show_slots(servers: Servers, group: str) -> Program[SlotsInfo]:
    """How many slots a group has, who holds which, who waits."""
    request = Request("GET", "/v1/slots/show", params={"group": group}, repeatable=True)
    content = yield from ask(servers, request)
    holders = (SlotHolder(slot["index"], LeaseInfo.read(slot["lease"])) for slot in content["holders"])
    return SlotsInfo(content.get("count"), tuple(holders), _waiters(content), content.get("version"))


def resize(servers: Servers, group: str, count: int, expect_version: int | None) -> Program[None]:
    """Changes how many slots a group has."""
    body = {"group": group, "count": count, **given(expect_version=expect_version)}
    # One that expects a version would meet its own change, and call it a conflict.
    again = expect_version is None
    yield from ask(servers, Request("POST", "/v1/slots/resize", body=body, repeatable=again))


def capabilities(servers: Servers) -> Program[Mapping[str, Any]]:
    """What the server's store promises."""
    content: Mapping[str, Any] = yield from ask(servers, Request("GET", "/v1/capabilities", repeatable=True))
    return content


def _lease(wire: Mapping[str, Any] | None) -> LeaseInfo | None:
    return LeaseInfo.read(wire) if wire else None


def _waiters(content: Mapping[str, Any]) -> tuple[Waiter, ...]:
    return tuple(Waiter.read(waiter) for waiter in content.get("waiters", ()))
