"""Passing a lease on: from the first word of it until the last, at most one holds it."""

import asyncio
from typing import Any

import pytest

import tenure
from conftest import PATIENCE, eventually
from tenure import _clock, _leases
from tenure._book import Batch
from tenure._servers import Servers
from tenure._tenure import Grant, Tenure
from tenure._wire import Effect, NoAnswer, Send
from test_asyncio import eventually as aeventually
from test_asyncio import waits as awaits
from test_leases import Waiting, waits
from test_programs import CUT, REFUSED, A, Script, no, ok

HOLDER = {
    "scope": "a.b/c",
    "holder": "me#1",
    "name": "me",
    "token": 7,
    "acquired_at_ms": 0,
    "expires_in_ms": 1000,
    "ttl_ms": 30000,
    "metadata": {},
}


def held(**fields: Any) -> dict[str, Any]:
    return {"holder": {**HOLDER, **fields}, "waiters": []}


def tenure_of(token: int = 7) -> Tenure:
    grant = {"scope": "a.b/c", "owner": "me#1", "token": token, "ttl_ms": 30_000}
    return Tenure(Grant(grant, _clock.now(), 30.0))


def test_a_hand_over_that_nobody_answers_for_is_looked_up() -> None:
    script, mine = Script(CUT, ok(**held(holder="you#2", token=8))), tenure_of()
    script.run(_leases.hand_over(Servers([A]), mine, "you"))
    assert mine.over
    assert [send.request.path for send in script.sent] == ["/v1/leases/hand-over", "/v1/leases/show"]


def test_a_hand_over_that_may_still_arrive_ends_the_tenure() -> None:
    script, mine = Script(CUT, ok(**held()), ok()), tenure_of()
    with pytest.raises(tenure.UnknownOutcome):
        script.run(_leases.hand_over(Servers([A]), mine, "you"))
    assert mine.over
    assert mine.loss is None
    assert script.sent[-1].request.path == "/v1/leases/release"
    # Nor does it stay with a holder that was interrupted.
    mine = tenure_of()
    passing = _leases.hand_over(Servers([A]), mine, "you")
    next(passing)
    assert mine.remaining() == 0
    with pytest.raises(tenure.LeaseLost):
        mine.check()
    passing.close()
    assert mine.over


def test_a_hand_over_that_fails_leaves_things_as_they_were() -> None:
    for refusal in (no(400, "invalid"), no(503, "unavailable"), REFUSED):
        script, mine = Script(refusal), tenure_of()
        with pytest.raises(tenure.TenureError):
            script.run(_leases.hand_over(Servers([A]), mine, "you"))
        mine.check()
    script, mine = Script(no(410, "lost")), tenure_of()
    with pytest.raises(tenure.Lost):
        script.run(_leases.hand_over(Servers([A]), mine, "you"))
    assert mine.loss is not None


def test_a_hand_over_whose_reply_got_lost_is_one(
    client: tenure.Client, other: tenure.Client, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = client.lease(scope).acquire()
    waiting = Waiting(other.lease(scope, wait=PATIENCE))
    eventually(lambda: waits(client, scope, "two"))
    perform, valid = client._io._perform, []

    def cut(effect: Effect) -> Any:
        reply = perform(effect)
        if isinstance(effect, Send) and effect.request.path.endswith("hand-over"):
            valid.append(lease.valid)
            raise NoAnswer("the connection was cut")
        return reply

    monkeypatch.setattr(client._io, "_perform", cut)
    lease.hand_over("two")
    # Not valid from the moment that it may be another's.
    assert valid == [False]
    assert not lease.valid
    assert not lease.lost.is_set()
    assert waiting.held.wait(PATIENCE)
    waiting.end()


def test_a_hand_over_that_is_refused_leaves_the_lease_with_its_holder(
    client: tenure.Client, scope: str
) -> None:
    with client.lease(scope) as lease:
        with pytest.raises(tenure.Invalid):
            lease.hand_over("nobody")
        lease.check()
        keeper = client._keeper._keeper
        assert keeper is not None
        # It is handed to the keeper's thread, which takes it up when it gets to run.
        eventually(lambda: len(keeper._book) > 0, "the lease is kept again")


async def test_a_renewal_that_comes_after_a_hand_over_is_no_loss(
    aclient: tenure.AsyncClient, aother: tenure.AsyncClient, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    perform = aclient._io._perform
    async with aclient.lease(scope, ttl=30) as lease:
        successor = asyncio.create_task(aother.lease(scope, wait=PATIENCE).acquire())
        await aeventually(lambda: awaits(aclient, scope))

        async def overtaken(effect: Effect) -> Any:
            reply = await perform(effect)
            if isinstance(effect, Send) and effect.request.path.endswith("hand-over"):
                # It was sent before, and is answered after.
                await aclient._keep()._renew(Batch([lease._tenure], _clock.now(), PATIENCE))
                assert not lease.valid
            return reply

        monkeypatch.setattr(aclient._io, "_perform", overtaken)
        await lease.hand_over("async-two")
        await asyncio.sleep(0)
        assert lease.lost.cancelled()
    await (await successor).release()
