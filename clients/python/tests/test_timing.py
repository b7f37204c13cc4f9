"""The arithmetic of deadlines, and what the keeper decides by it."""

from collections.abc import Mapping
from typing import Any

import pytest

from tenure import LeaseLost, LimitExceeded, Unavailable
from tenure._book import Book
from tenure._tenure import Grant, Tenure
from tenure._timing import Timing, attempt_timeout, retry_at

FAR = 1e12
"""An instant that the real clock does not reach: tests with times of their own count from here."""


def held(sent: float = FAR, ttl: float = 30.0, remaining: float = 27.0, scope: str = "a.b/c") -> Tenure:
    grant = {"scope": scope, "token": 7, "owner": "me#1", "ttl_ms": int(ttl * 1000), "revision": 7}
    return Tenure(Grant(grant, sent, remaining))


def granted(ttl: float = 30.0, revision: int = 8) -> Mapping[str, Any]:
    return {"revision": revision, "ttl_ms": int(ttl * 1000), "remaining_ms": int(ttl * 900)}


def refused(code: str) -> Mapping[str, Any]:
    return {"error": {"code": code, "message": f"it is {code}"}}


def test_the_holder_stops_before_the_store_could_have_given_the_lease_away() -> None:
    timing = Timing(30.0)
    assert timing.due(100.0, 127.0) == 110.0
    assert timing.valid_until(100.0, 27.0) == 127.0
    assert Timing(3600.0).valid_until(0.0, 3600.0) == 3595.0


def test_a_server_is_believed_when_it_grants_less_and_not_when_it_grants_more() -> None:
    timing = Timing(30.0)
    assert timing.valid_until(100.0, 5.0) == 105.0
    assert timing.valid_until(100.0, 500.0) == 127.0
    assert timing.valid_until(100.0, -1.0) == 100.0


def test_a_short_grant_is_renewed_before_it_is_over() -> None:
    tenure = held(remaining=4.0)
    assert (tenure.due, tenure.valid_until) == (FAR + 2, FAR + 4)
    tenure.renewed(FAR + 2, {"revision": 8, "ttl_ms": 30_000, "remaining_ms": 6_000})
    assert (tenure.due, tenure.valid_until) == (FAR + 5, FAR + 8)


def test_retries_go_on_until_the_deadline_and_never_past_it() -> None:
    now, until, attempts = 0.0, 10.0, 0
    while now < until:
        attempts += 1
        now += min(attempt_timeout(now, until), until - now)
        if now < until:
            following = retry_at(now, until, attempts, 0.5)
            assert now < following <= until
            now = following
    assert 4 <= attempts < 50


def test_leases_that_are_nearly_due_are_renewed_along_with_one_that_is() -> None:
    book = Book()
    due, soon, fresh = held(FAR), held(FAR + 4), held(FAR + 9.9)
    for tenure in (due, soon, fresh):
        book.add(tenure)
    assert book.wake_at() == FAR + 10
    assert book.due(FAR + 9.99) == []
    (batch,) = book.due(FAR + 10)
    assert list(batch.tenures) == [due, soon]
    assert book.due(FAR + 10) == [], "what is under way is not sent twice"
    book.answered(batch, FAR + 11, [granted(), granted()])
    assert due.valid_until == FAR + 37
    assert due.grant["revision"] == 8
    assert book.wake_at() == FAR + 9.9 + 10


def test_a_renewal_that_fails_is_tried_again_until_the_deadline() -> None:
    book = Book(jitter=lambda: 0.0)
    tenure = held()
    book.add(tenure)
    now, attempts = FAR + 10, 0
    while not tenure.ended:
        for batch in book.due(now):
            attempts += 1
            book.failed(batch, now + 0.001, Unavailable("no server"))
        wake = book.wake_at()
        assert wake is not None
        assert wake > now
        now = wake
        book.expire(now)
    assert now == FAR + 27
    assert attempts > 5
    assert len(book) == 0
    assert tenure.loss is not None
    assert tenure.loss.reason == "its deadline has passed; the last attempt to renew it failed: no server"


@pytest.mark.parametrize("code", ["unavailable", "unknown", "overloaded", "denied", "full"])
def test_what_may_pass_is_no_loss(code: str) -> None:
    book = Book()
    tenure = held()
    book.add(tenure)
    (batch,) = book.due(FAR + 10)
    book.answered(batch, FAR + 10.1, [refused(code)])
    assert not tenure.ended
    assert FAR + 10.1 < tenure.due < FAR + 10.2


@pytest.mark.parametrize("code", ["lost", "not_found", "conflict", "held"])
def test_what_the_server_is_sure_of_is_a_loss_and_told_once(code: str) -> None:
    book = Book()
    kept, gone = held(scope="a.b/kept"), held(scope="a.b/gone")
    told: list[LeaseLost] = []
    gone.on_loss(told.append)
    book.add(kept)
    book.add(gone)
    (batch,) = book.due(FAR + 10)
    book.answered(batch, FAR + 10.1, [granted(), refused(code)])
    book.expire(FAR + 100)
    assert [(loss.scope, loss.token, loss.reason) for loss in told] == [("a.b/gone", 7, f"it is {code}")]
    with pytest.raises(LeaseLost, match="a.b/gone is lost"):
        gone.check()


def test_an_answer_that_comes_after_the_deadline_revives_nothing() -> None:
    book = Book()
    tenure = held()
    book.add(tenure)
    (batch,) = book.due(FAR + 10)
    book.expire(FAR + 27)
    assert tenure.ended
    book.answered(batch, FAR + 28, [granted()])
    assert tenure.ended
    assert tenure.remaining() == 0


def test_an_answer_that_was_overtaken_takes_nothing_away() -> None:
    tenure = held()
    tenure.renewed(FAR + 20, granted())
    tenure.renewed(FAR + 10, granted())
    assert tenure.valid_until == FAR + 47


def test_batches_shrink_to_what_the_store_takes() -> None:
    book = Book()
    for number in range(10):
        book.add(held(scope=f"a.b/{number}"))
    (batch,) = book.due(FAR + 10)
    book.failed(batch, FAR + 10, LimitExceeded("too many", fields={"max": 4}))
    assert [len(batch.tenures) for batch in book.due(FAR + 11)] == [4, 4, 2]


def test_an_answer_that_leaves_some_out_counts_for_none() -> None:
    book = Book()
    book.add(held(scope="a.b/1"))
    book.add(held(scope="a.b/2"))
    (batch,) = book.due(FAR + 10)
    book.answered(batch, FAR + 10, [granted()])
    assert all(tenure.failures == 1 and not tenure.renewing for tenure in batch.tenures)


def test_a_lease_that_was_let_go_is_not_lost_later() -> None:
    tenure = held()
    told: list[LeaseLost] = []
    tenure.on_loss(told.append)
    assert tenure.end()
    assert not tenure.lose("too late")
    assert not tenure.end()
    assert told == []
    with pytest.raises(LeaseLost, match="it was released"):
        tenure.check()


def test_a_listener_that_fails_does_not_keep_the_others_from_being_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tenure = held()
    told: list[LeaseLost] = []

    def broken(_loss: LeaseLost) -> None:
        raise RuntimeError("broken")

    tenure.on_loss(broken)
    tenure.on_loss(told.append)
    tenure.lose("gone")
    assert len(told) == 1
    assert "could not be told" in caplog.text


def test_closing_the_book_tells_every_holder() -> None:
    book = Book()
    tenure = held()
    book.add(tenure)
    book.close("the client was closed")
    assert tenure.loss is not None
    assert tenure.loss.reason == "the client was closed"
