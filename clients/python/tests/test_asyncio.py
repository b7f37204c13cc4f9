"""The asyncio client against a real server: above all, that work stops when its lease is lost."""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

import pytest

import tenure
from conftest import PATIENCE, Server
from tenure import _lookout

TTL = 1.5
KEPT = 3.0
"""For leases that have to be kept: a renewal may come late by more than half of it."""


async def eventually(condition: Callable[[], Awaitable[object]], what: str = "it") -> None:
    until = time.monotonic() + PATIENCE
    while not await condition():
        assert time.monotonic() < until, f"{what} did not happen within {PATIENCE} s"
        await asyncio.sleep(0.02)


async def waits(client: tenure.AsyncClient, scope: str) -> bool:
    return bool((await client.leases.show(scope)).waiters)


async def test_a_lease_is_held_within_the_statement_and_free_after_it(
    aclient: tenure.AsyncClient, aother: tenure.AsyncClient, scope: str
) -> None:
    async with aclient.lease(scope, ttl=30) as lease:
        assert lease.valid
        lease.check()
        with pytest.raises(tenure.Held):
            await aother.lease(scope)
        holder = (await aother.leases.show(scope)).holder
        assert holder is not None
        assert (holder.holder, holder.token) == (lease.owner, lease.token)
    assert (await aclient.leases.show(scope)).holder is None
    assert lease.lost.cancelled()


async def test_the_body_is_cancelled_when_the_lease_is_revoked(
    aclient: tenure.AsyncClient, aother: tenure.AsyncClient, scope: str
) -> None:
    told: list[tenure.LeaseLost] = []
    stopped = False

    async def on_lost(loss: tenure.LeaseLost) -> None:
        await asyncio.sleep(0)
        told.append(loss)

    with pytest.raises(tenure.LeaseLost) as caught:
        async with aclient.lease(scope, ttl=TTL, on_lost=on_lost) as lease:
            await aother.leases.revoke(scope, reason="maintenance")
            try:
                await asyncio.sleep(PATIENCE)
            except asyncio.CancelledError:
                stopped = True
                raise
    assert stopped
    assert caught.value.scope == scope
    assert (await lease.lost).token == lease.token
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    await asyncio.sleep(0.1)
    assert len(told) == 1
    if sys.version_info >= (3, 11):
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
    # Whoever caught it goes on as if nothing had been cancelled.
    await asyncio.sleep(0.01)


async def test_the_body_is_cancelled_at_the_deadline_when_the_server_is_frozen(
    servers: Callable[[], Server],
) -> None:
    server = servers()
    async with tenure.AsyncClient(server.url) as client:
        with pytest.raises(tenure.LeaseLost, match="deadline has passed"):
            async with client.lease("a.b/c", ttl=TTL) as lease:
                server.freeze()
                # Nobody else can have it before a life from now at the earliest.
                assert lease.deadline < time.monotonic() + TTL
                await asyncio.sleep(2 * PATIENCE)
                pytest.fail("the body went on")
        server.thaw()


async def test_a_cancellation_from_elsewhere_stays_one_and_the_lease_is_released(
    aclient: tenure.AsyncClient, scope: str
) -> None:
    inside = asyncio.Event()

    async def work() -> None:
        async with aclient.lease(scope, ttl=30):
            inside.set()
            await asyncio.sleep(PATIENCE)

    task = asyncio.create_task(work())
    await asyncio.wait_for(inside.wait(), PATIENCE)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await aclient.leases.show(scope)).holder is None


@pytest.mark.skipif(sys.version_info < (3, 11), reason="before 3.11 nobody counts cancellations")
async def test_a_cancellation_at_the_instant_of_the_loss_is_not_swallowed(
    aclient: tenure.AsyncClient, scope: str
) -> None:
    inside = asyncio.Event()
    tenures = []

    async def work() -> None:
        async with aclient.lease(scope, ttl=30) as lease:
            tenures.append(lease._tenure)
            inside.set()
            await asyncio.sleep(PATIENCE)

    task = asyncio.create_task(work())
    await asyncio.wait_for(inside.wait(), PATIENCE)
    tenures[0].lose("for the test")
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await aclient.leases.revoke(scope)


async def test_nested_leases_are_told_apart(aclient: tenure.AsyncClient, unique: str) -> None:
    outer_scope, inner_scope = f"{unique}.outer/main", f"{unique}.inner/main"
    async with aclient.lease(outer_scope, ttl=30) as outer:
        with pytest.raises(tenure.LeaseLost) as caught:
            async with aclient.lease(inner_scope, ttl=TTL):
                await aclient.leases.revoke(inner_scope)
                await asyncio.sleep(PATIENCE)
        assert caught.value.scope == inner_scope
        outer.check()
    with pytest.raises(tenure.LeaseLost) as caught:
        async with aclient.lease(outer_scope, ttl=TTL), aclient.lease(inner_scope, ttl=30):
            await aclient.leases.revoke(outer_scope)
            await asyncio.sleep(PATIENCE)
    assert caught.value.scope == outer_scope
    assert await aclient.leases.list(unique, children=True) == ()


async def test_work_that_ignores_its_cancellation_does_not_hide_the_loss(
    aclient: tenure.AsyncClient, scope: str
) -> None:
    with pytest.raises(tenure.LeaseLost):
        async with aclient.lease(scope, ttl=TTL):
            await aclient.leases.revoke(scope)
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(PATIENCE)
    await asyncio.sleep(0.01)


async def test_a_thread_that_works_for_the_task_may_look_at_the_lease(
    aclient: tenure.AsyncClient, scope: str
) -> None:
    def work(lease: tenure.AsyncLease) -> None:
        while True:
            lease.check()
            time.sleep(0.01)

    told: list[tenure.LeaseLost] = []
    with pytest.raises(tenure.LeaseLost):
        async with aclient.lease(scope, ttl=TTL, on_lost=told.append) as lease:
            aclient._keep().drop(lease._tenure)
            await asyncio.to_thread(work, lease)
    assert len(told) == 1


async def test_one_declaration_serves_many_tasks(aclient: tenure.AsyncClient, scope: str) -> None:
    taking = aclient.lease(scope, ttl=30, wait=PATIENCE)
    tokens: list[int] = []

    async def work() -> None:
        async with taking as lease:
            tokens.append(lease.token)
            await asyncio.sleep(0.01)
            lease.check()

    await asyncio.gather(*(work() for _ in range(5)))
    assert tokens == sorted(set(tokens))
    assert taking._inside == {}


async def test_what_the_body_raises_comes_out(aclient: tenure.AsyncClient, scope: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with aclient.lease(scope):
            _ = 1 / 0
    assert (await aclient.leases.show(scope)).holder is None


async def test_leases_are_renewed_beyond_their_lives(
    aclient: tenure.AsyncClient, aother: tenure.AsyncClient, unique: str
) -> None:
    leases = [await aclient.lease(f"{unique}.many/{number}", ttl=KEPT) for number in range(10)]
    until = time.monotonic() + 1.25 * KEPT
    while time.monotonic() < until:
        for lease in leases:
            lease.check()
        with pytest.raises(tenure.Held):
            await aother.lease(leases[0].scope)
        await asyncio.sleep(0.1)
    for lease in leases:
        await lease.release()


async def test_a_wait_that_is_cancelled_leaves_nothing_behind(
    aclient: tenure.AsyncClient, aother: tenure.AsyncClient, scope: str
) -> None:
    lease = await aclient.lease(scope, ttl=30)
    waiting = asyncio.create_task(aother.lease(scope, wait=tenure.FOREVER).acquire())
    await eventually(lambda: waits(aclient, scope), "the wait")
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting

    async def nobody_waits() -> bool:
        return not await waits(aclient, scope)

    await eventually(nobody_waits, "the end of the wait")
    await lease.release()
    again = await aclient.lease(scope)
    await again.release()


async def test_a_wait_leaves_a_frozen_replica_for_another(
    servers: Callable[[], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_lookout, "EVERY", 0.2)
    first, second = servers(), servers()
    async with (
        tenure.AsyncClient(second.url, name="one") as client,
        tenure.AsyncClient([first.url, second.url], name="two", timeout=1) as other,
    ):
        lease = await client.lease("a.b/c", ttl=30)
        waiting = asyncio.create_task(other.lease("a.b/c", ttl=30, wait=tenure.FOREVER).acquire())
        await eventually(lambda: waits(client, "a.b/c"), "the wait")
        first.freeze()

        async def waits_elsewhere() -> bool:
            return len((await client.leases.show("a.b/c")).waiters) == 2

        await eventually(waits_elsewhere, "the wait at the other one")
        await lease.release()
        held = await asyncio.wait_for(waiting, PATIENCE)
        held.check()
        await held.release()


async def test_a_wait_that_is_cancelled_as_it_is_granted_leaves_nothing_behind(
    aclient: tenure.AsyncClient, aother: tenure.AsyncClient, scope: str
) -> None:
    for attempt in range(10):
        # Sooner than by its expiry: whatever was granted to nobody is released.
        lease = await aclient.lease(scope, ttl=30, wait=10)
        waiting = asyncio.create_task(aother.lease(scope, ttl=30, wait=tenure.FOREVER).acquire())
        await eventually(lambda: waits(aclient, scope), "the wait")
        releasing = asyncio.create_task(lease.release())
        await asyncio.sleep(0.001 * attempt)
        waiting.cancel()
        await releasing
        with contextlib.suppress(asyncio.CancelledError):
            await (await waiting).release()
    await (await aclient.lease(scope, wait=10)).release()


async def test_slots_and_a_hand_over(
    aclient: tenure.AsyncClient, aother: tenure.AsyncClient, unique: str
) -> None:
    group = f"{unique}.pool"
    async with aclient.slot(group, count=1, ttl=30) as slot:
        assert slot.index == 0
        waiting = asyncio.create_task(aother.slot(group, count=1, wait=PATIENCE).acquire())

        async def someone_waits() -> object:
            return (await aclient.slots(group).show()).waiters

        await eventually(someone_waits, "the wait")
        await aclient.slots(group).resize(2)
        second = await waiting
        assert second.index == 1
        assert (await aclient.slots(group).show()).count == 2
        await second.release()
    async with aclient.lease(f"{unique}.work/main", ttl=30) as lease:
        successor = asyncio.create_task(aother.lease(lease.scope, wait=PATIENCE).acquire())
        await eventually(lambda: waits(aclient, lease.scope))
        await lease.hand_over("async-two")
    assert (await successor).token > lease.token
    await (await successor).release()


async def test_what_rests_on_a_look(aclient: tenure.AsyncClient, unique: str) -> None:
    slots, leases = aclient.slots(f"{unique}.pool"), aclient.leases
    await slots.resize(2)
    seen = (await slots.show()).version
    await slots.resize(3, expect_version=seen)
    with pytest.raises(tenure.Conflict):
        await slots.resize(4, expect_version=seen)
    lease = await aclient.lease(f"{unique}.jobs/a", ttl=30, reapable=True)
    with pytest.raises(tenure.Lost):
        await leases.revoke(lease.scope, expect_token=lease.token + 1)
    with pytest.raises(tenure.Invalid, match="nobody waits"):
        await leases.ask_to_hand_over(lease.scope, wait=1)
    assert await leases.revoke(lease.scope, expect_token=lease.token)
    (left,) = await leases.orphans(unique, children=True)
    assert left.token == lease.token
    assert await leases.reap(left, tenure.Put(unique, "a", "failed"))
    assert not await leases.reap(left)
    assert (await aclient.objects.get(unique, "a")).text == "failed"


async def test_an_election_is_observed(
    aclient: tenure.AsyncClient, aother: tenure.AsyncClient, scope: str
) -> None:
    observed = aother.observe(scope)
    assert await anext(observed) is None
    async with aclient.elect(scope, metadata={"address": "a"}) as lease:
        leader = await asyncio.wait_for(anext(observed), PATIENCE)
        assert leader is not None
        assert (leader.holder, leader.metadata) == (lease.owner, {"address": "a"})
        await lease.proclaim({"address": "b"})
        leader = await asyncio.wait_for(anext(observed), PATIENCE)
        assert leader is not None
        assert leader.metadata == {"address": "b"}
        assert await aother.leader(scope) is not None
    assert await asyncio.wait_for(anext(observed), PATIENCE) is None
    await observed.aclose()


async def test_objects(aclient: tenure.AsyncClient, unique: str) -> None:
    objects = aclient.objects
    put = await objects.put(unique, "1", "0")
    batches = objects.watch(unique, after=put.revision)

    async def count(found: tenure.Object) -> str:
        await asyncio.sleep(0)
        return str(int(found.text) + 1)

    await asyncio.gather(*(objects.update(unique, "1", count, attempts=50) for _ in range(10)))
    assert (await objects.get(unique, "1")).text == "10"
    seen = [event.object.text async for event in first(batches, 10) if event.object]
    assert seen == [str(number) for number in range(1, 11)]
    async with aclient.lease(f"{unique}.work/main", ttl=30) as lease:
        await objects.put(unique, "2", b"\xff", fence=lease)
        committed = await objects.commit(tenure.Put(unique, "3", "x"), fences=[lease])
        assert len(committed.writes) == 1
    with pytest.raises(tenure.Lost):
        await objects.put(unique, "2", "late", fence=lease)
    assert [found.id for found in await objects.list(unique)] == ["1", "2", "3"]
    assert (await objects.delete(unique, "3")).existed
    with pytest.raises(tenure.NotFound):
        await objects.get(unique, "3")


async def first(batches: AsyncGenerator[tenure.Batch, None], count: int) -> AsyncIterator[tenure.Event]:
    async for batch in batches:
        for event in batch:
            yield event
            count -= 1
        if count <= 0:
            return


async def test_a_restart_of_the_server_keeps_the_lease(servers: Callable[[], Server]) -> None:
    server = servers()
    async with tenure.AsyncClient(server.url) as client:
        async with client.lease("a.b/c", ttl=6) as lease:
            await asyncio.get_running_loop().run_in_executor(None, server.restart)
            before = lease._tenure.valid_until

            async def renewed() -> bool:
                return lease._tenure.valid_until > before

            await eventually(renewed, "a renewal at the new server")
            lease.check()
        assert (await client.leases.show("a.b/c")).holder is None


async def test_no_server(servers: Callable[[], Server]) -> None:
    server = servers()
    server.end()
    async with tenure.AsyncClient(server.url) as client:
        with pytest.raises(tenure.Unavailable) as caught:
            await client.lease("a.b/c", wait=PATIENCE)
        assert str(caught.value) == f"no server on 127.0.0.1:{server.port}; start one with `tenure serve`"
