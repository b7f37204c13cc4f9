"""Leases, blocking, against a real server."""

import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import tenure
from conftest import PATIENCE, Server, binary, eventually
from tenure import _keeper, _leases, _lookout

TTL = 1.5
"""Short, for tests that wait for a life to pass; long enough for a machine that is busy with others."""
KEPT = 3.0
"""For leases that have to be kept: a renewal may come late by more than half of it."""


class Waiting:
    """Somebody who takes a lease on a thread of its own and keeps it until told."""

    def __init__(self, taking: tenure.Taking[Any]) -> None:
        self.held = threading.Event()
        self.enough = threading.Event()
        self.lease: Any = None
        self.error: BaseException | None = None
        self._taking = taking
        self._thread = threading.Thread(target=self._body)
        self._thread.start()

    def _body(self) -> None:
        try:
            with self._taking as self.lease:
                self.held.set()
                assert self.enough.wait(PATIENCE)
        except BaseException as error:
            self.error = error
            self.held.set()

    def end(self) -> None:
        self.enough.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        if self.error is not None:
            raise self.error


def waits(client: tenure.Client, scope: str, name: str) -> bool:
    return any(waiter.owner.startswith(f"{name}#") for waiter in client.leases.show(scope).waiters)


def test_a_lease_is_held_within_the_with_statement_and_free_after_it(
    client: tenure.Client, unique: str
) -> None:
    with client.lease(f"{unique}.update", key="42", ttl=30, metadata={"why": "test"}) as lease:
        assert lease.scope == f"{unique}.update/42"
        assert lease.valid
        assert 20 < lease.remaining() <= 27
        assert lease.deadline == pytest.approx(time.monotonic() + lease.remaining(), abs=0.5)
        lease.check()
        holder = client.leases.show(f"{unique}.update", key="42").holder
        assert holder is not None
        assert (holder.holder, holder.token) == (lease.owner, lease.token)
        assert holder.holder.startswith("one#")
        assert holder.metadata == {"why": "test"}
        assert [found.scope for found in client.leases.list(f"{unique}.update")] == [lease.scope]
        assert [found.scope for found in client.leases.list(unique, children=True)] == [lease.scope]
    assert not lease.valid
    assert lease.remaining() == 0
    assert not lease.lost.is_set()
    assert client.leases.show(lease.scope).holder is None
    with pytest.raises(tenure.LeaseLost, match="it was released"):
        lease.check()


def test_two_clients_contend_and_tokens_rise(client: tenure.Client, other: tenure.Client, scope: str) -> None:
    with client.lease(scope) as first:
        with pytest.raises(tenure.Held) as caught, other.lease(scope):
            pytest.fail("held twice")
        assert caught.value.holder == first.owner
        assert caught.value.scope == scope
        waiting = Waiting(other.lease(scope, wait=PATIENCE))
        eventually(lambda: waits(client, scope, "two"), "the other one waits")
        assert not waiting.held.is_set()
    assert waiting.held.wait(PATIENCE)
    assert waiting.lease.token > first.token
    waiting.end()


def test_a_wait_that_is_over_says_who_holds_it(
    client: tenure.Client, other: tenure.Client, scope: str
) -> None:
    with client.lease(scope) as lease:
        began = time.monotonic()
        with pytest.raises(tenure.Held) as caught:
            other.lease(scope, wait=0.3).acquire()
        assert time.monotonic() - began >= 0.3
        assert caught.value.holder == lease.owner


def test_a_lease_is_renewed_beyond_its_life(client: tenure.Client, other: tenure.Client, scope: str) -> None:
    with client.lease(scope, ttl=KEPT) as lease:
        until = time.monotonic() + 1.25 * KEPT
        while time.monotonic() < until:
            lease.check()
            with pytest.raises(tenure.Held):
                other.lease(scope).acquire()
            time.sleep(0.1)
        holder = client.leases.show(scope).holder
        assert holder is not None
        assert holder.token == lease.token


def test_a_lease_that_was_waited_for_lives_long_enough(
    client: tenure.Client, other: tenure.Client, scope: str
) -> None:
    with client.lease(scope, ttl=30):
        waiting = Waiting(other.lease(scope, ttl=KEPT, wait=PATIENCE))
        eventually(lambda: waits(client, scope, "two"))
        time.sleep(KEPT)
    assert waiting.held.wait(PATIENCE)
    assert waiting.lease.remaining() > KEPT / 3
    waiting.end()


def test_many_leases_are_renewed_together(
    client: tenure.Client, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []

    def counting(servers: Any, grants: Any) -> Any:
        sizes.append(len(grants))
        return _leases.renew(servers, grants)

    monkeypatch.setattr(_keeper, "renew", counting)
    leases = [client.lease(f"{unique}.many/{number}", ttl=6).acquire() for number in range(20)]
    eventually(lambda: sum(sizes) >= 20, "all renewals")
    assert max(sizes) >= 10, sizes
    for lease in leases:
        lease.release()
    assert client.leases.list(f"{unique}.many") == ()


def test_a_lease_that_is_revoked_is_lost_and_told_once(
    client: tenure.Client, other: tenure.Client, scope: str
) -> None:
    told: list[tenure.LeaseLost] = []
    taking = client.lease(scope, ttl=TTL, on_lost=told.append)
    with pytest.raises(tenure.LeaseLost) as caught, taking as lease:
        assert other.leases.revoke(scope, reason="maintenance")
        assert lease.lost.wait(PATIENCE)
        assert not lease.valid
        with pytest.raises(tenure.LeaseLost):
            lease.check()
    assert (caught.value.scope, caught.value.token) == (scope, lease.token)
    eventually(lambda: told, "the callback")
    time.sleep(TTL)
    assert len(told) == 1
    assert not other.leases.revoke(scope)


def test_a_holder_that_listens_is_asked_to_hand_over(
    shared: Server, client: tenure.Client, other: tenure.Client, scope: str
) -> None:
    command = [binary(), "run", scope, "--server", shared.url, "--name", "runner", "--", "sleep", "60"]
    with subprocess.Popen(command) as holding:
        eventually(lambda: client.leases.show(scope).holder, "the first holder")
        waiting = Waiting(other.lease(scope, wait=PATIENCE))
        eventually(lambda: waits(client, scope, "two"))
        now = client.leases.ask_to_hand_over(scope, to="two", wait=PATIENCE)
        assert now.holder.startswith("two#")
        assert waiting.held.wait(PATIENCE)
        assert holding.wait(PATIENCE) != 0
    # One that does not listen goes on, and whoever asks is told who it is.
    following = Waiting(client.lease(scope, wait=PATIENCE))
    eventually(lambda: waits(client, scope, "one"))
    with pytest.raises(tenure.Held):
        client.leases.ask_to_hand_over(scope, wait=0.3)
    assert waiting.lease.valid
    waiting.end()
    assert following.held.wait(PATIENCE)
    following.end()


def test_what_the_body_raises_comes_out_and_the_lease_is_free(client: tenure.Client, scope: str) -> None:
    with pytest.raises(ZeroDivisionError), client.lease(scope):
        _ = 1 / 0
    assert client.leases.show(scope).holder is None


def test_what_the_body_raises_is_not_hidden_by_a_loss(client: tenure.Client, scope: str) -> None:
    with pytest.raises(ZeroDivisionError), client.lease(scope, ttl=TTL) as lease:
        client.leases.revoke(scope)
        assert lease.lost.wait(PATIENCE)
        _ = 1 / 0


def test_a_lease_by_hand(client: tenure.Client, scope: str) -> None:
    lease = client.lease(scope).acquire()
    lease.release("all done")
    lease.release()
    assert client.leases.show(scope).holder is None


def test_a_release_of_what_was_revoked_says_so(client: tenure.Client, scope: str) -> None:
    lease = client.lease(scope, ttl=30).acquire()
    client.leases.revoke(scope)
    with pytest.raises(tenure.LeaseLost):
        lease.release()


def test_the_same_owner_gets_the_same_lease_again(client: tenure.Client, scope: str) -> None:
    wanted = _leases.lease_wanted("me", scope, ttl=30, wait=0, metadata=None, reapable=False)
    grants = [client._run(_leases.Acquisition(client._servers, wanted).run()) for _ in range(2)]
    assert grants[0].grant["token"] == grants[1].grant["token"]
    client._run(_leases.release(client._servers, grants[1].grant))


def test_what_nobody_waits_for_any_more_is_let_go(client: tenure.Client, scope: str) -> None:
    wanted = _leases.lease_wanted("me", scope, ttl=30, wait=0, metadata=None, reapable=False)
    acquisition = _leases.Acquisition(client._servers, wanted)
    client._run(acquisition.run())
    client._run(_leases.tidy(acquisition))
    assert client.leases.show(scope).holder is None


def test_a_frozen_server_costs_the_lease_before_anybody_else_can_have_it(
    servers: Callable[[], Server],
) -> None:
    server = servers()
    with tenure.Client(server.url) as client:
        told = threading.Event()
        lease = client.lease("a.b/c", ttl=TTL, on_lost=lambda _loss: told.set()).acquire()
        server.freeze()
        # The store's count of that life began before this, and ends no earlier than a life from now.
        deadline = lease.deadline
        assert deadline < time.monotonic() + TTL
        assert told.wait(PATIENCE), "the deadline passes by the holder's own clock"
        assert time.monotonic() >= deadline
        silent = f"deadline has passed; the last attempt.*failed: 127.0.0.1:{server.port} did not answer"
        with pytest.raises(tenure.LeaseLost, match=silent):
            lease.check()
        server.thaw()
        eventually(lambda: client.leases.show("a.b/c").holder is None, "the end of its life")


def test_a_holder_that_looks_at_the_clock_is_told_before_its_keeper_is(
    client: tenure.Client, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = client.lease(scope, ttl=TTL).acquire()
    client._keeper.drop(lease._tenure)
    eventually(lambda: not lease.valid)
    assert not lease.lost.is_set()
    with pytest.raises(tenure.LeaseLost, match="its deadline has passed"):
        lease.check()
    assert lease.lost.is_set()


def test_a_restart_of_the_server_keeps_leases_and_waits(servers: Callable[[], Server]) -> None:
    server = servers()
    with tenure.Client(server.url, name="one") as client, tenure.Client(server.url, name="two") as other:
        with client.lease("a.b/c", ttl=6) as lease:
            waiting = Waiting(other.lease("a.b/c", wait=tenure.FOREVER))
            eventually(lambda: waits(client, "a.b/c", "two"))
            server.restart()
            before = lease._tenure.valid_until
            eventually(lambda: lease._tenure.valid_until > before, "a renewal at the new server")
            holder = client.leases.show("a.b/c").holder
            assert holder is not None
            assert holder.token == lease.token
            eventually(lambda: waits(client, "a.b/c", "two"), "the wait goes on")
        assert waiting.held.wait(PATIENCE)
        waiting.end()


def test_a_lease_goes_on_at_another_replica(servers: Callable[[], Server]) -> None:
    first, second = servers(), servers()
    with tenure.Client([first.url, second.url]) as client:
        with client.lease("a.b/c", ttl=3) as lease:
            first.end()
            before = lease._tenure.valid_until
            eventually(lambda: lease._tenure.valid_until > before, "a renewal at the other replica")
            lease.check()
        assert client.leases.show("a.b/c").holder is None


def test_a_frozen_replica_is_left_for_another(servers: Callable[[], Server]) -> None:
    first, second = servers(), servers()
    with tenure.Client([first.url, second.url]) as client, client.lease("a.b/c", ttl=6) as lease:
        first.freeze()
        before = lease._tenure.valid_until
        eventually(lambda: lease._tenure.valid_until > before, "a renewal at the other replica")
        lease.check()


def test_a_wait_leaves_a_frozen_replica_for_another(
    servers: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lookout, "EVERY", 0.2)
    first, second = servers(), servers()
    with (
        tenure.Client(second.url, name="one") as client,
        tenure.Client([first.url, second.url], name="two", timeout=1) as other,
    ):
        with client.lease("a.b/c", ttl=30) as lease:
            waiting = Waiting(other.lease("a.b/c", ttl=6, wait=tenure.FOREVER))
            eventually(lambda: waits(client, "a.b/c", "two"))
            first.freeze()
            eventually(lambda: len(client.leases.show("a.b/c").waiters) == 2, "the wait at the other one")
        assert waiting.held.wait(PATIENCE)
        # The one that wakes up finds that its waiter is served, and takes nothing from it.
        first.thaw()
        before = waiting.lease._tenure.valid_until
        eventually(lambda: waiting.lease._tenure.valid_until > before, "a renewal")
        holder = client.leases.show("a.b/c").holder
        assert holder is not None
        assert (holder.holder, holder.token) == (waiting.lease.owner, waiting.lease.token)
        assert holder.token > lease.token
        waiting.end()


def test_a_wait_at_a_frozen_server_is_resolved_when_it_wakes_up(
    servers: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lookout, "EVERY", 0.2)
    server = servers()
    with (
        tenure.Client(server.url, name="one") as client,
        tenure.Client(server.url, name="two", timeout=1) as other,
    ):
        lease = client.lease("a.b/c", ttl=TTL).acquire()
        waiting = Waiting(other.lease("a.b/c", ttl=6, wait=tenure.FOREVER))
        eventually(lambda: waits(client, "a.b/c", "two"))
        server.freeze()
        # By now the server may have granted it to a request that nobody listens to.
        assert lease.lost.wait(PATIENCE)
        server.thaw()
        assert waiting.held.wait(PATIENCE)
        waiting.lease.check()
        holder = client.leases.show("a.b/c").holder
        assert holder is not None
        assert (holder.holder, holder.token) == (waiting.lease.owner, waiting.lease.token)
        waiting.end()
        eventually(lambda: client.leases.show("a.b/c").holder is None, "nothing is left behind")
        assert not client.leases.show("a.b/c").waiters


def test_a_client_that_is_closed_waits_for_nothing(
    client: tenure.Client, shared: Server, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lookout, "EVERY", 0.2)
    other = tenure.Client(shared.url, name="two")
    with client.lease(scope):
        waiting = Waiting(other.lease(scope, wait=tenure.FOREVER))
        eventually(lambda: waits(client, scope, "two"))
        other.close()
        assert waiting.held.wait(PATIENCE)
        assert isinstance(waiting.error, RuntimeError)
        eventually(lambda: not waits(client, scope, "two"))


def test_no_server(servers: Callable[[], Server]) -> None:
    server = servers()
    server.end()
    with tenure.Client(server.url) as client:
        for ask in (
            client.capabilities,
            client.lease("a.b/c", wait=PATIENCE).acquire,
            lambda: list(client.observe("a.b/c")),
        ):
            with pytest.raises(tenure.Unavailable) as caught:
                ask()
            assert str(caught.value) == f"no server on 127.0.0.1:{server.port}; start one with `tenure serve`"


def test_a_client_that_is_closed_tells_its_leases(shared: Server, scope: str) -> None:
    client = tenure.Client(shared.url)
    lease = client.lease(scope).acquire()
    client.close()
    assert lease.lost.is_set()
    with pytest.raises(tenure.LeaseLost, match="its client was closed"):
        lease.check()
    with pytest.raises(RuntimeError, match="closed"):
        client._keeper.add(lease._tenure)


def test_slots(client: tenure.Client, other: tenure.Client, unique: str) -> None:
    group = f"{unique}.pool"
    with client.slot(group, count=2) as first, other.slot(group, count=2) as second:
        assert {first.index, second.index} == {0, 1}
        with pytest.raises(tenure.Held):
            client.slot(group, count=2).acquire()
        info = client.slots(group).show()
        assert info.count == 2
        assert {holder.lease.holder for holder in info.holders} == {first.owner, second.owner}
        client.slots(group).resize(3)
        with client.slot(group, count=2) as third:
            assert third.index == 2
            assert client.slots(group).show().count == 3
    assert client.slots(group).show().holders == ()


def test_a_resize_that_rests_on_an_older_look_is_a_conflict(client: tenure.Client, unique: str) -> None:
    slots = client.slots(f"{unique}.pool")
    assert slots.show().version is None
    with pytest.raises(tenure.NotFound):
        slots.resize(2, expect_version=1)
    slots.resize(2)
    seen = slots.show().version
    slots.resize(3, expect_version=seen)
    with pytest.raises(tenure.Conflict):
        slots.resize(4, expect_version=seen)
    assert slots.show().count == 3


def test_a_revocation_by_token_leaves_whoever_came_after_alone(client: tenure.Client, scope: str) -> None:
    first = client.lease(scope, ttl=30).acquire()
    assert client.leases.revoke(scope, reason="maintenance", expect_token=first.token)
    assert not client.leases.revoke(scope, expect_token=first.token)
    with client.lease(scope, ttl=30) as second:
        with pytest.raises(tenure.Lost):
            client.leases.revoke(scope, expect_token=first.token)
        holder = client.leases.show(scope).holder
        assert holder is not None
        assert holder.token == second.token


def test_what_is_left_is_reaped_once_with_its_commit(client: tenure.Client, unique: str) -> None:
    scope = f"{unique}.jobs/a"
    lease = client.lease(scope, ttl=30, reapable=True, metadata={"host": "h7"}).acquire()
    assert client.leases.orphans(f"{unique}.jobs") == ()
    client.leases.revoke(scope)
    (left,) = client.leases.orphans(unique, children=True)
    assert (left.scope, left.holder, left.token) == (scope, lease.owner, lease.token)
    assert left.metadata == {"host": "h7"}
    assert client.leases.orphans(unique) == ()
    # Both or neither: a commit that cannot apply leaves it to be reaped.
    failed = tenure.Put(unique, "a", "failed", expect=tenure.Expect.absent())
    with pytest.raises(tenure.NotFound):
        client.leases.reap(left, failed, checks=[tenure.Check(unique, "b", tenure.Expect.exists())])
    assert client.leases.orphans(f"{unique}.jobs") == (left,)
    assert client.leases.reap(left, failed)
    assert client.objects.get(unique, "a").text == "failed"
    assert not client.leases.reap(left, tenure.Put(unique, "a", "twice"))
    assert client.objects.get(unique, "a").text == "failed"
    assert client.leases.orphans(unique, children=True) == ()


def test_what_is_held_is_not_reaped(client: tenure.Client, scope: str) -> None:
    with client.lease(scope, ttl=30, reapable=True) as lease:
        grant = lease._tenure.grant
        alive = tenure.Orphan(scope, lease.owner, lease.token, grant["nonce"], grant["revision"], 0)
        with pytest.raises(tenure.Held):
            client.leases.reap(alive)


def test_a_slot_is_renewed_and_waited_for(client: tenure.Client, other: tenure.Client, unique: str) -> None:
    group = f"{unique}.pool"
    with client.slot(group, count=1, ttl=KEPT):
        waiting = Waiting(other.slot(group, count=1, ttl=KEPT, wait=PATIENCE))
        time.sleep(1.25 * KEPT)
        assert not waiting.held.is_set()
    assert waiting.held.wait(PATIENCE)
    assert waiting.lease.index == 0
    waiting.end()


def test_a_hand_over_leaves_no_gap(client: tenure.Client, other: tenure.Client, scope: str) -> None:
    with client.lease(scope) as lease:
        waiting = Waiting(other.lease(scope, wait=PATIENCE))
        eventually(lambda: waits(client, scope, "two"))
        lease.hand_over("two")
        assert not lease.valid
    assert waiting.held.wait(PATIENCE)
    assert waiting.lease.token > lease.token
    waiting.end()


def test_an_election(client: tenure.Client, other: tenure.Client, scope: str) -> None:
    assert client.leader(scope) is None
    seen: list[str | None] = []
    observing = threading.Event()

    def observe() -> None:
        for leader in other.observe(scope):
            told = f"{leader.holder.split('#')[0]} {leader.metadata.get('address')}" if leader else None
            seen.append(told)
            observing.set()
            if len(seen) == 5:
                return

    observer = threading.Thread(target=observe)
    observer.start()
    assert observing.wait(PATIENCE)
    with client.elect(scope, metadata={"address": "a"}) as lease:
        leader = other.leader(scope)
        assert leader is not None
        assert (leader.holder, leader.token) == (lease.owner, lease.token)
        eventually(lambda: len(seen) >= 2)
        lease.proclaim({"address": "b"})
        lease.check()
        eventually(lambda: len(seen) >= 3)
        successor = Waiting(other.elect(scope, metadata={"address": "c"}))
        eventually(lambda: waits(client, scope, "two"))
        lease.hand_over("two")
    assert successor.held.wait(PATIENCE)
    successor.end()
    observer.join(PATIENCE)
    assert seen == [None, "one a", "one b", "two c", None]


def test_leases_can_be_watched(client: tenure.Client, other: tenure.Client, unique: str) -> None:
    scope = f"{unique}.work/main"
    seen: list[tuple[str, str]] = []

    def watch() -> None:
        for event in other.leases.watch(f"{unique}."):
            seen.append((event.type, event.scope))
            if event.type == "ended":
                return

    watcher = threading.Thread(target=watch)
    watcher.start()
    until = time.monotonic() + PATIENCE
    # There is no telling when it has begun to watch, so give it something to see until it sees.
    while watcher.is_alive():
        assert time.monotonic() < until
        with client.lease(scope):
            time.sleep(0.05)
    assert set(seen) == {("held", scope), ("ended", scope)}


def test_what_the_server_refuses_is_told(client: tenure.Client) -> None:
    with pytest.raises(tenure.Invalid):
        client.lease("no scope at all").acquire()
    with pytest.raises(tenure.Invalid):
        client.leases.show("")
