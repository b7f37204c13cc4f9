"""Objects, blocking, against a real server."""

import threading
import time
from collections.abc import Callable

import pytest

import tenure
from conftest import PATIENCE, Server, eventually
from tenure import Check, Delete, Expect, Put


def test_the_life_of_an_object(client: tenure.Client, unique: str) -> None:
    objects = client.objects
    with pytest.raises(tenure.NotFound) as missing:
        objects.get(unique, "1")
    assert missing.value.key == tenure.Key(unique, "1")
    created = objects.put(
        unique, "1", '{"a": 1}', name="first", labels={"tier": "test"}, expect=Expect.absent()
    )
    assert (created.changed, created.version) == (True, 1)
    found = objects.get(unique, "1")
    assert (found.kind, found.id, found.name, found.labels) == (unique, "1", "first", {"tier": "test"})
    assert (found.text, found.json(), found.payload) == ('{"a": 1}', {"a": 1}, b'{"a": 1}')
    assert (found.version, found.revision) == (1, created.revision)
    assert abs(found.created_at_ms / 1000 - time.time()) < 60
    again = objects.put(unique, "1", '{"a": 1}', name="first", labels={"tier": "test"})
    assert (again.changed, again.version) == (False, 1)
    changed = objects.put(unique, "1", "b", expect_version=1)
    assert changed.version == 2
    with pytest.raises(tenure.Conflict) as conflict:
        objects.put(unique, "1", "c", expect_version=1)
    assert conflict.value.current is not None
    assert conflict.value.current.version == 2
    with pytest.raises(tenure.AlreadyExists):
        objects.put(unique, "1", "c", expect=Expect.absent())
    with pytest.raises(tenure.Conflict):
        objects.delete(unique, "1", expect_version=1)
    assert objects.delete(unique, "1", expect_version=2).existed
    assert not objects.delete(unique, "1").existed


@pytest.mark.parametrize(
    "id", ["plain", "with/slash", "with space", "ünï", "a?b#c%20", "..", "a//b", "x+y&z=1"]
)
@pytest.mark.parametrize("payload", [b"text", b"\x00\xff\xfe", b"", "\u2028\x85 ü".encode()])
def test_ids_and_payloads_come_back_as_they_went(
    client: tenure.Client, unique: str, id: str, payload: bytes
) -> None:
    client.objects.put(unique, id, payload)
    found = client.objects.get(unique, id)
    assert (found.id, found.payload) == (id, payload)
    assert [listed.id for listed in client.objects.list(unique)] == [id]
    assert client.objects.delete(unique, id).existed


def test_pages(client: tenure.Client, unique: str) -> None:
    for number in range(5):
        client.objects.put(unique, f"a{number}", "x", labels={"even": str(number % 2 == 0).lower()})
    last = client.objects.put(unique, "b", "x", name="bee")
    first = client.objects.list(unique, prefix="a", limit=3)
    assert [found.id for found in first] == ["a0", "a1", "a2"]
    assert first.next is not None
    second = client.objects.list(unique, prefix="a", limit=3, after=first.next)
    assert ([found.id for found in second], second.next) == (["a3", "a4"], None)
    assert first.revision >= last.revision
    assert [found.id for found in client.objects.list(unique, selector="even=true")] == ["a0", "a2", "a4"]
    assert [found.id for found in client.objects.list(unique, name="bee")] == ["b"]
    assert len(client.objects.list(f"{unique}-none")) == 0


def test_a_commit_is_all_or_nothing(client: tenure.Client, unique: str) -> None:
    objects = client.objects
    objects.put(unique, "provider", "gpu")
    objects.put(unique, "old", "x")
    done = objects.commit(
        Put(unique, "sandbox", b"\xff", expect=Expect.absent()),
        Delete(unique, "old"),
        Delete(unique, "never"),
        checks=[Check(unique, "provider", Expect.exists())],
    )
    put, gone, never = done.writes
    assert isinstance(put, tenure.Stored)
    assert put.changed
    assert put.revision == done.revision
    assert gone == tenure.Removed(True, done.revision)
    assert never == tenure.Removed(False, None)
    with pytest.raises(tenure.TenureError):
        objects.commit(Put(unique, "a", "1"), checks=[Check(unique, "old", Expect.exists())])
    with pytest.raises(tenure.NotFound):
        objects.get(unique, "a")


def test_a_life_ends_unless_it_is_touched(client: tenure.Client, unique: str) -> None:
    put = client.objects.put(unique, "runner", "alive", ttl=1.0)
    assert put.ttl == 1.0
    revision = put.revision
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        revision = client.objects.touch(unique, "runner", revision=revision, ttl=1.0)
        time.sleep(0.1)
    left = client.objects.get(unique, "runner").expires_in
    assert left is not None
    assert left <= 1.0
    eventually(lambda: not client.objects.list(unique).objects, "the end of its life")
    with pytest.raises(tenure.TenureError):
        client.objects.touch(unique, "runner", revision=revision, ttl=1.0)


def test_a_write_that_is_fenced_needs_its_lease(client: tenure.Client, unique: str) -> None:
    scope = f"{unique}.work/main"
    with client.lease(scope) as lease:
        client.objects.put(unique, "1", "mine", fence=lease)
        client.objects.commit(Put(unique, "2", "mine"), fences=[tenure.Fence(lease.scope, lease.token)])
        client.objects.update(unique, "2", lambda found: found.payload + b"!", fence=lease)
    with client.lease(scope) as successor:
        for write in (
            lambda: client.objects.put(unique, "1", "late", fence=lease),
            lambda: client.objects.delete(unique, "1", fence=lease),
            lambda: client.objects.commit(Put(unique, "1", "late"), fences=[lease]),
            lambda: client.objects.update(unique, "1", lambda _found: "late", fence=lease),
        ):
            with pytest.raises(tenure.Lost) as caught:
                write()
            assert caught.value.token == lease.token
            assert caught.value.current_token == successor.token
        assert client.objects.delete(unique, "2", fence=successor).existed
    assert client.objects.get(unique, "1").text == "mine"


def test_counting_by_compare_and_swap_loses_nothing(shared: Server, unique: str) -> None:
    clients = [tenure.Client(shared.url) for _ in range(4)]
    clients[0].objects.put(unique, "counter", "0", name="n", labels={"a": "b"})

    def count(client: tenure.Client) -> None:
        for _ in range(10):
            client.objects.update(unique, "counter", lambda found: str(int(found.text) + 1), attempts=50)

    together(count, clients)
    found = clients[0].objects.get(unique, "counter")
    assert (found.text, found.name, found.labels) == ("40", "n", {"a": "b"})
    for client in clients:
        client.close()


def test_counting_under_a_lease_with_fenced_writes_loses_nothing(shared: Server, unique: str) -> None:
    clients = [tenure.Client(shared.url, name=f"counter-{number}") for number in range(4)]
    clients[0].objects.put(unique, "counter", "0")
    tokens: list[int] = []

    def count(client: tenure.Client) -> None:
        for _ in range(8):
            with client.lease(f"{unique}.count/main", wait=PATIENCE) as lease:
                before = int(client.objects.get(unique, "counter").text)
                client.objects.put(unique, "counter", str(before + 1), fence=lease)
                tokens.append(lease.token)

    together(count, clients)
    assert clients[0].objects.get(unique, "counter").text == "32"
    assert tokens == sorted(set(tokens)), "each holder's token is greater than the one before"
    for client in clients:
        client.close()


def together(work: Callable[[tenure.Client], None], clients: list[tenure.Client]) -> None:
    threads = [threading.Thread(target=work, args=(client,)) for client in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(3 * PATIENCE)
        assert not thread.is_alive()


def test_a_watch_tells_everything_from_a_revision_on(client: tenure.Client, unique: str) -> None:
    first = client.objects.put(unique, "1", "a")
    client.objects.put(unique, "2", b"\xff")
    client.objects.commit(Put(unique, "1", "b"), Delete(unique, "2"))
    seen = []
    for batch in client.objects.watch(unique, after=first.revision - 1):
        seen.append([(event.type, event.key.id, event.object and event.object.payload) for event in batch])
        if len(seen) == 3:
            break
    assert seen[:2] == [[("put", "1", b"a")], [("put", "2", b"\xff")]]
    assert sorted(seen[2], key=lambda event: event[1])[0] == ("put", "1", b"b")
    assert {event[:2] for event in seen[2]} == {("put", "1"), ("deleted", "2")}


def test_a_watch_goes_on_after_a_restart_and_misses_nothing(servers: Callable[[], Server]) -> None:
    server = servers()
    with tenure.Client(server.url) as client:
        start = client.objects.put("k", "0", "0").revision
        seen: list[str] = []

        def watch() -> None:
            for batch in client.objects.watch("k", after=start):
                seen.extend(event.key.id for event in batch)
                if seen[-1] == "last":
                    return

        watcher = threading.Thread(target=watch)
        watcher.start()
        for number in range(3):
            client.objects.put("k", f"before-{number}", "x")
        eventually(lambda: len(seen) == 3)
        server.restart()
        for number in range(3):
            client.objects.put("k", f"after-{number}", "x")
        client.objects.put("k", "last", "x")
        watcher.join(PATIENCE)
        assert seen == [*(f"{when}-{n}" for when in ("before", "after") for n in range(3)), "last"]


def test_a_watch_from_the_future_is_refused(client: tenure.Client, unique: str) -> None:
    with pytest.raises(tenure.TenureError):
        next(client.objects.watch(unique, after=10**12))


def test_what_the_store_promises(client: tenure.Client) -> None:
    assert client.capabilities()["backend"] == "sqlite"


def test_limits_are_named(client: tenure.Client, unique: str) -> None:
    with pytest.raises(tenure.LimitExceeded) as caught:
        client.objects.put(unique, "big", b"x" * (1 << 20) + b"x")
    assert caught.value.limit == "payload_bytes"
    assert caught.value.max == 1 << 20


def test_a_payload_that_is_no_text_is_named() -> None:
    with pytest.raises(TypeError, match="not dict; json.dumps"):
        Put("order", "1", {"state": "new"}).wire()  # type: ignore[arg-type]
