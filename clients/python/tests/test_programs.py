"""Programs, run against scripted servers: what is sent where, and what becomes of the answers."""

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

import tenure
from tenure import _clock, _leases, _objects
from tenure._leases import Acquisition, Wanted
from tenure._servers import Servers, ask
from tenure._wire import Effect, Invoke, NoAnswer, NotSent, Program, Reply, Request, Send, Sleep

T = TypeVar("T")
Answer = Reply | Exception

A, B = "http://a:1", "http://b:2"
GET = Request("GET", "/v1/thing", repeatable=True)
PUT = Request("PUT", "/v1/thing", body={})


def ok(**content: Any) -> Reply:
    return Reply(200, json.dumps(content).encode())


def no(status: int, code: str, **fields: Any) -> Reply:
    return Reply(status, json.dumps({"error": {"code": code, "message": f"it is {code}", **fields}}).encode())


REFUSED = NotSent("connection refused", refused=True)
CUT = NoAnswer("connection reset")
SILENT = NoAnswer("it did not answer in time", timed_out=True)


class Script:
    """Answers in turn, and keeps what was sent. Time passes only while something sleeps or waits."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.sent: list[Send] = []
        self.slept = 0.0
        self.waited: Callable[[Send], float] = lambda _send: 0.0

    @property
    def to(self) -> list[str]:
        return [send.server for send in self.sent]

    def run(self, program: Program[T]) -> T:
        try:
            effect = next(program)
            while True:
                try:
                    result = self.perform(effect)
                except Exception as error:
                    effect = program.throw(error)
                else:
                    effect = program.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def perform(self, effect: Effect) -> Any:
        if isinstance(effect, Sleep):
            self.slept += effect.seconds
            return None
        if isinstance(effect, Invoke):
            return effect.function()
        self.slept += self.waited(effect)
        self.sent.append(effect)
        found = self.answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    script = Script()
    monkeypatch.setattr(_clock, "now", lambda: 1000.0 + script.slept)
    yield script
    assert script.answers == [], "answers that nobody asked for"


def test_the_next_server_is_asked_when_one_cannot_be_reached_and_then_stays_first(script: Script) -> None:
    servers = Servers([A, B])
    script.answers = [REFUSED, ok(a=1), ok(a=2)]
    assert script.run(ask(servers, PUT)) == {"a": 1}
    assert script.run(ask(servers, PUT)) == {"a": 2}
    assert script.to == [A, B, B]


def test_nobody_listens(script: Script) -> None:
    script.answers = [REFUSED]
    with pytest.raises(tenure.Unavailable) as caught:
        script.run(ask(Servers(["http://127.0.0.1:8368"]), GET))
    assert str(caught.value) == "no server on 127.0.0.1:8368; start one with `tenure serve`"


def test_another_reason_is_told_as_it_is(script: Script) -> None:
    script.answers = [NotSent("certificate has expired"), REFUSED]
    with pytest.raises(tenure.Unavailable, match="a:1: certificate has expired; b:2: connection refused"):
        script.run(ask(Servers([A, B]), GET))


def test_a_write_whose_answer_got_lost_is_not_sent_again(script: Script) -> None:
    script.answers = [CUT]
    with pytest.raises(tenure.UnknownOutcome, match="a:1 did not answer PUT /v1/thing.*read again"):
        script.run(ask(Servers([A, B]), PUT))


def test_a_read_whose_connection_was_cut_is_sent_again(script: Script) -> None:
    script.answers = [CUT, ok(a=1)]
    assert script.run(ask(Servers([A]), GET)) == {"a": 1}


def test_a_read_goes_on_to_the_next_server_when_one_is_silent(script: Script) -> None:
    servers = Servers([A, B])
    script.answers = [SILENT, ok(a=1)]
    script.run(ask(servers, GET))
    assert script.to == [A, B]
    assert servers.first == B


def test_a_server_that_leaves_is_left(script: Script) -> None:
    script.answers = [no(503, "unavailable"), ok(a=1)]
    assert script.run(ask(Servers([A, B]), PUT)) == {"a": 1}


@pytest.mark.parametrize(
    ("reply", "cls"),
    [
        (Reply(404, b"<html>"), tenure.ProtocolError),
        (Reply(200, b"<html>"), tenure.ProtocolError),
        (Reply(502, b"<html>"), tenure.Unavailable),
        (Reply(504, b""), tenure.UnknownOutcome),
        (no(423, "held"), tenure.Held),
        (no(418, "teapot"), tenure.TenureError),
    ],
)
def test_answers_of_all_kinds(script: Script, reply: Reply, cls: type[tenure.TenureError]) -> None:
    script.answers = [reply]
    with pytest.raises(tenure.TenureError) as caught:
        script.run(ask(Servers([A]), PUT))
    assert type(caught.value) is cls


def test_every_code_has_a_class_and_its_fields() -> None:
    held = tenure.errors.from_wire(
        {"code": "held", "message": "no", "scope": "a.b/c", "holder": "you#1", "expires_in_ms": 1500}
    )
    assert isinstance(held, tenure.Held)
    assert (held.scope, held.holder, held.expires_in) == ("a.b/c", "you#1", 1.5)
    conflict = tenure.errors.from_wire(
        {"code": "conflict", "message": "no", "key": {"kind": "k", "id": "i"}, "current": {"version": 3}}
    )
    assert isinstance(conflict, tenure.Conflict)
    assert conflict.key == tenure.Key("k", "i")
    assert conflict.current == tenure.Current(3, 0, 0)
    lost = tenure.errors.from_wire({"code": "lost", "message": "no", "token": 4, "current_token": 9})
    assert isinstance(lost, tenure.Lost)
    assert (lost.token, lost.current_token) == (4, 9)
    assert str(tenure.errors.from_wire({"code": "new_word"})) == "new_word"
    assert tenure.errors.from_wire({"code": "new_word"}).code == "new_word"


def test_overload_says_when_to_come_back(script: Script) -> None:
    body = json.dumps({"error": {"code": "overloaded", "message": "busy"}}).encode()
    script.answers = [Reply(429, body, retry_after="3")]
    with pytest.raises(tenure.Overloaded) as caught:
        script.run(ask(Servers([A]), PUT))
    assert caught.value.retry_after == 3.0


DEED = {"scope": "a.b/c", "token": 5, "owner": "me#1", "ttl_ms": 30_000, "revision": 5}
GRANTED = ok(grant=DEED, remaining_ms=27_000)
RENEWED = ok(renewed=[{"revision": 6, "ttl_ms": 30_000, "remaining_ms": 27_000}])
NOT_RENEWED = ok(renewed=[{"error": {"code": "lost", "message": "gone"}}])


def wanting(wait: float = 0.0) -> Acquisition:
    wanted = Wanted({"scope": "a.b/c"}, "/v1/leases/acquire", "me#1", wait, ttl=30)
    return Acquisition(Servers([A]), wanted)


def bodies(script: Script) -> list[Any]:
    return [send.request.body for send in script.sent]


def test_the_deadline_counts_from_before_the_request_was_sent(script: Script) -> None:
    script.answers = [GRANTED]
    script.waited = lambda _send: 2.0
    grant = script.run(wanting().run())
    assert grant.valid_until == 1027.0
    assert bodies(script) == [{"scope": "a.b/c", "owner": "me#1", "ttl_ms": 30_000}]


def test_a_lease_that_was_waited_for_is_renewed_before_it_is_handed_out(script: Script) -> None:
    script.answers = [GRANTED, RENEWED]
    script.waited = lambda send: 25.0 if send.request.path.endswith("acquire") else 1.0
    acquisition = wanting(wait=60)
    grant = script.run(acquisition.run())
    assert grant.valid_until == 1025.0 + 27.0
    assert grant.grant["revision"] == 6
    assert not acquisition.unsettled
    assert script.sent[0].request.body == {
        "scope": "a.b/c", "owner": "me#1", "ttl_ms": 30_000, "wait_ms": 60_000,
    }  # fmt: skip
    assert script.sent[0].request.waits == 60.0


def test_a_lease_with_little_left_is_renewed_before_it_is_handed_out(script: Script) -> None:
    script.answers = [ok(grant=DEED, remaining_ms=9_000), RENEWED]
    assert script.run(wanting().run()).valid_until == 1027.0


def test_a_lease_that_is_gone_when_it_is_renewed_is_asked_for_again(script: Script) -> None:
    script.answers = [GRANTED, NOT_RENEWED, GRANTED]
    waits = iter([25.0, 0.0, 0.0])
    script.waited = lambda _send: next(waits)
    assert script.run(wanting(wait=60).run()).valid_until == 1025.0 + 27.0
    assert bodies(script)[2]["wait_ms"] == 35_000


def test_a_lost_reply_is_resolved_by_asking_again_as_the_same_owner(script: Script) -> None:
    script.answers = [SILENT, SILENT, GRANTED]
    acquisition = wanting()
    grant = script.run(acquisition.run())
    assert grant.grant == DEED
    assert {body["owner"] for body in bodies(script)} == {"me#1"}
    assert not acquisition.unsettled


def test_a_lost_reply_that_cannot_be_resolved_is_told_and_remembered(script: Script) -> None:
    script.answers = [SILENT] * 3
    script.waited = lambda _send: 6.0
    acquisition = wanting()
    with pytest.raises(tenure.UnknownOutcome):
        script.run(acquisition.run())
    assert acquisition.unsettled


def test_without_a_server_nobody_waits(script: Script) -> None:
    script.answers = [REFUSED]
    acquisition = wanting(wait=60)
    with pytest.raises(tenure.Unavailable, match="no server"):
        script.run(acquisition.run())
    assert not acquisition.unsettled
    assert script.slept == 0


def test_a_wait_outlives_a_restart_of_the_server(script: Script) -> None:
    script.answers = [CUT, REFUSED, REFUSED, REFUSED, GRANTED]
    grant = script.run(wanting(wait=60).run())
    assert grant.grant == DEED
    assert 0 < script.slept < 5


def test_a_wait_outlives_a_server_that_leaves(script: Script) -> None:
    script.answers = [no(503, "unavailable"), REFUSED, REFUSED, GRANTED]
    assert script.run(wanting(wait=60).run()).grant == DEED


def test_an_overloaded_server_is_asked_again_within_the_wait(script: Script) -> None:
    script.answers = [no(429, "overloaded", retry_after_ms=4000), GRANTED]
    script.run(wanting(wait=60).run())
    assert script.slept == 4.0


def test_held_by_somebody_else(script: Script) -> None:
    script.answers = [no(423, "held", holder="you#2")]
    acquisition = wanting()
    with pytest.raises(tenure.Held) as caught:
        script.run(acquisition.run())
    assert caught.value.holder == "you#2"
    assert not acquisition.unsettled


def test_what_was_granted_to_nobody_is_let_go(script: Script) -> None:
    ours = {"scope": "a.b/c", "holder": "me#1", "token": 5}
    script.answers = [ok(waiters=[]), ok(holder=ours, waiters=[]), GRANTED, ok()]
    script.run(_leases.tidy(wanting()))
    assert script.sent[-1].request.path == "/v1/leases/release"
    assert script.sent[-1].request.body == {"grant": DEED, "fail": "nobody waited for it any more"}


def test_what_somebody_else_holds_is_left_alone(script: Script) -> None:
    theirs = {"scope": "a.b/c", "holder": "you#2", "token": 6}
    script.answers = [ok(holder=theirs, waiters=[])] * 4
    script.run(_leases.tidy(wanting()))
    assert {send.request.method for send in script.sent} == {"GET"}


def test_a_release_that_finds_nothing_after_a_lost_reply_was_the_first_one(script: Script) -> None:
    script.answers = [CUT, no(410, "lost")]
    script.run(_leases.release(Servers([A]), DEED, ok="done"))
    assert bodies(script)[0] == {"grant": DEED, "ok": "done"}


def test_a_release_that_finds_nothing_at_once_is_a_loss(script: Script) -> None:
    script.answers = [no(410, "lost")]
    with pytest.raises(tenure.Lost):
        script.run(_leases.release(Servers([A]), DEED))


def test_a_release_gives_up_in_the_end(script: Script) -> None:
    script.answers = [REFUSED] * _leases.RELEASES
    with pytest.raises(tenure.Unavailable):
        script.run(_leases.release(Servers([A]), DEED))


def wire(version: int, payload: str = "1") -> Reply:
    return ok(
        kind="k", id="i", payload=payload, version=version, revision=version + 10, name="n", labels={"l": "v"}
    )


WRITTEN = ok(outcome="put", version=3, revision=20)


def test_an_update_that_meets_another_begins_again(script: Script) -> None:
    script.answers = [wire(1), no(409, "conflict"), wire(2, "5"), WRITTEN]
    change: Callable[[tenure.Object], str] = lambda found: str(int(found.text) + 1)  # noqa: E731
    stored = script.run(_objects.update(Servers([A]), "k", "i", change, 5, None))
    assert stored.version == 3
    assert bodies(script)[3] == {"payload": "6", "name": "n", "labels": {"l": "v"}, "expect_revision": 12}


def test_an_update_gives_up_after_its_attempts(script: Script) -> None:
    script.answers = [wire(1), no(409, "conflict"), wire(2), no(409, "conflict")]
    with pytest.raises(tenure.Conflict):
        script.run(_objects.update(Servers([A]), "k", "i", lambda _found: "x", 2, None))


def test_an_update_that_changes_nothing_writes_nothing(script: Script) -> None:
    script.answers = [wire(4)]
    stored = script.run(_objects.update(Servers([A]), "k", "i", lambda _found: None, 5, None))
    assert (stored.changed, stored.version) == (False, 4)


def test_an_update_whose_answer_got_lost_is_not_repeated(script: Script) -> None:
    script.answers = [wire(1), CUT]
    with pytest.raises(tenure.UnknownOutcome):
        script.run(_objects.update(Servers([A]), "k", "i", lambda _found: "x", 5, None))


@pytest.mark.parametrize(
    ("id", "path"),
    [("a b", "a%20b"), ("a/b", "a%2Fb"), ("..", "%2E%2E"), ("a..b", "a..b"), ("ü?#", "%C3%BC%3F%23")],
)
def test_ids_reach_the_server_as_they_are(script: Script, id: str, path: str) -> None:
    script.answers = [wire(1)]
    script.run(_objects.get(Servers([A]), "k", id))
    assert script.sent[0].request.path == f"/v1/objects/k/{path}"


def test_a_fenced_delete_is_a_commit(script: Script) -> None:
    script.answers = [ok(revision=9, writes=[{"outcome": "deleted", "revision": 9}])]
    delete = tenure.Delete("k", "i", tenure.Expect.version(2))
    removed = script.run(_objects.delete(Servers([A]), delete, tenure.Fence("a.b/c", 5)))
    assert removed == tenure.Removed(True, 9)
    assert bodies(script) == [
        {
            "checks": [],
            "writes": [{"delete": {"kind": "k", "id": "i", "expect_version": 2}}],
            "fences": [{"scope": "a.b/c", "token": 5}],
        }
    ]


LEFT = tenure.Orphan("a.b/c", "me#1", 5, "n", 7, 0)


def test_a_resize_is_sent_again_unless_it_would_meet_its_own_change(script: Script) -> None:
    script.answers = [CUT, ok()]
    script.run(_leases.resize(Servers([A]), "a.b", 3, None))
    script.answers = [CUT]
    with pytest.raises(tenure.UnknownOutcome):
        script.run(_leases.resize(Servers([A, B]), "a.b", 3, 1))
    plain, expecting = {"group": "a.b", "count": 3}, {"group": "a.b", "count": 3, "expect_version": 1}
    assert bodies(script) == [plain, plain, expecting]


@pytest.mark.parametrize(
    "program",
    [
        lambda servers: _leases.revoke(servers, "a.b/c", None, 5),
        lambda servers: _leases.reap(servers, LEFT, {}),
    ],
    ids=["revoke", "reap"],
)
def test_what_would_be_told_of_its_own_effect_is_not_sent_again(
    script: Script, program: Callable[[Servers], Program[bool]]
) -> None:
    script.answers = [CUT]
    with pytest.raises(tenure.UnknownOutcome):
        script.run(program(Servers([A, B])))


def test_either_way_of_expecting_but_not_both() -> None:
    assert _objects.expectation(None, 3) == tenure.Expect.version(3)
    assert _objects.expectation(tenure.Expect.absent(), None) == tenure.Expect.absent()
    with pytest.raises(ValueError, match="not both"):
        _objects.expectation(tenure.Expect.absent(), 3)


def test_a_scope_or_a_namespace_and_a_key() -> None:
    assert _leases.scope_of("user.update", "42") == "user.update/42"
    assert _leases.scope_of("user.update/42", None) == "user.update/42"
    with pytest.raises(ValueError, match="has a key already"):
        _leases.scope_of("user.update/42", "42")
