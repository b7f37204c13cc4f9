"""Streams of events: decoding, and going on after a break."""

import json
from typing import Any

import pytest

import tenure
from tenure import _clock, _streams
from tenure._servers import Servers
from tenure._streams import Decoder, Message, ended
from tenure._wire import NotSent

A, B = "http://a:1", "http://b:2"


def event(name: str, content: Any, id: str | None = None) -> bytes:
    lines = [f"event: {name}", f"data: {json.dumps(content, ensure_ascii=False)}"]
    return "\n".join([*lines, *([f"id: {id}"] if id else []), "", ""]).encode()


def put(version: int) -> dict[str, Any]:
    return {"kind": "k", "id": "i", "payload": "x", "version": version, "revision": version}


def batch(revision: int) -> bytes:
    events = [{"type": "put", "object": put(revision)}]
    return event("batch", {"revision": revision, "events": events}, str(revision))


def test_messages_come_out_whole_however_they_arrive() -> None:
    stream = b": hello\n\n" + event("batch", {"text": "a\u2028b\x85c"}, "7") + b"data: 1\r\ndata: 2\r\n\r\n"
    whole = Decoder().feed(stream)
    assert whole == [
        Message("batch", json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False), "7"),
        Message("message", "1\n2", None),
    ]
    decoder = Decoder()
    assert [message for byte in stream for message in decoder.feed(bytes([byte]))] == whole


def test_an_event_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_streams, "MAX_MESSAGE", 100)
    with pytest.raises(tenure.ProtocolError):
        Decoder().feed(b"data: " + b"x" * 200)
    decoder = Decoder()
    with pytest.raises(tenure.ProtocolError):
        for _ in range(20):
            decoder.feed(b"data: 0123456789\n")


def test_a_watch_goes_on_after_the_last_revision_it_told_at_the_next_server() -> None:
    watch = _streams.watch(Servers([A, B]), "k", None, 3)
    first = watch.begin()
    assert (watch.server, first.params, first.headers) == (
        A, {"kind": "k", "after": "3"}, {"Accept": "text/event-stream"},
    )  # fmt: skip
    told = watch.received(event("start", {"revision": 3}) + batch(4) + batch(5))
    assert [found.revision for found in told] == [4, 5]
    assert told[0].events[0].object == tenure.Object.read(put(4))
    assert 0 < watch.broken(ended()) < 1
    second = watch.begin()
    assert watch.server == B
    assert second.params == {"kind": "k"}
    assert second.headers["Last-Event-ID"] == "5"


def test_a_watch_of_something_quiet_goes_on_from_the_last_mark() -> None:
    watch = _streams.watch(Servers([A]), "k", None, 3)
    watch.begin()
    told = watch.received(event("start", {"revision": 3}) + batch(4) + b"id: 900\n\n: comment\n\n")
    assert [found.revision for found in told] == [4]
    watch.broken(ended())
    assert watch.begin().headers["Last-Event-ID"] == "900"


def test_a_watch_from_now_on_goes_on_from_where_it_started() -> None:
    watch = _streams.watch(Servers([A]), None, None, None)
    watch.begin()
    watch.received(event("start", {"revision": 8}) + event("leaving", {}))
    watch.broken(ended())
    assert watch.begin().headers["Last-Event-ID"] == "8"


def test_a_half_message_before_a_break_is_forgotten() -> None:
    watch = _streams.watch(Servers([A]), None, None, None)
    watch.begin()
    watch.received(event("start", {"revision": 1}) + batch(2)[:-5])
    watch.broken(ended())
    watch.begin()
    assert [found.revision for found in watch.received(batch(2))] == [2]


def test_an_error_of_the_server_ends_a_stream() -> None:
    watch = _streams.watch(Servers([A]), None, None, 1)
    watch.begin()
    error = {"error": {"code": "compacted", "message": "gone", "oldest": 5}}
    with pytest.raises(tenure.Compacted) as caught:
        watch.received(event("error", error))
    with pytest.raises(tenure.Compacted):
        watch.broken(caught.value)


def test_a_stream_that_never_opened_fails_once_all_servers_were_asked() -> None:
    watch = _streams.watch(Servers([A, B]), None, None, None)
    refused = NotSent("refused", refused=True)
    watch.begin()
    assert watch.broken(refused) < 1
    watch.begin()
    with pytest.raises(tenure.Unavailable, match="no server on a:1, b:2; start one"):
        watch.broken(refused)


def test_patience_with_a_stream_that_broke_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(_clock, "now", lambda: now)
    watch = _streams.watch(Servers([A]), None, None, None)
    watch.begin()
    watch.received(event("start", {"revision": 1}))
    attempts = 0
    with pytest.raises(tenure.Unavailable, match="no server on a:1"):
        while True:
            attempts += 1
            watch.begin()
            now += watch.broken(NotSent("refused", refused=True)) + 0.01
    assert _streams.PATIENCE < now < _streams.PATIENCE + 3
    assert 20 < attempts < 100


def test_an_observer_hears_each_leader_once() -> None:
    observer = _streams.observe(Servers([A]), "a.b/c")
    lead = {"leader": {"scope": "a.b/c", "holder": "me#1", "token": 4, "ttl_ms": 1000, "expires_in_ms": 900}}
    later = {"leader": {**lead["leader"], "expires_in_ms": 100}}
    observer.begin()
    assert observer.received(event("leader", {"leader": None})) == [None]
    assert [found and found.holder for found in observer.received(event("leader", lead))] == ["me#1"]
    observer.broken(ended())
    observer.begin()
    assert observer.received(event("leader", later)) == []
    assert observer.received(event("leader", {"leader": None})) == [None]


def test_events_of_leases() -> None:
    watch = _streams.watch_leases(Servers([A]), "a.")
    lease = {"scope": "a.b/c", "holder": "me#1", "token": 4, "ttl_ms": 1000}
    ended_lease = {"scope": "a.b/c", "cause": "expired", "last": lease}
    watch.begin()
    told = watch.received(event("start", {}) + event("held", lease) + event("ended", ended_lease))
    assert [(found.type, found.scope, found.cause) for found in told] == [
        ("held", "a.b/c", None),
        ("ended", "a.b/c", "expired"),
    ]
