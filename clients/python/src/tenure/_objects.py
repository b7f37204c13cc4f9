"""Objects as programs."""

import secrets
from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from . import errors
from ._servers import Servers, ask
from ._wire import Duration, Invoke, Program, Request, Sleep, given, millis
from .model import Committed, Fenced, Object, Page, Removed, Stored, seconds

Payload = str | bytes
Change = Callable[[Object], Payload | None]
AsyncChange = Callable[[Object], Awaitable[Payload | None] | Payload | None]

_What = Literal["version", "revision", "token", "absent", "exists"]


@dataclass(frozen=True, slots=True)
class Expect:
    """What must be so for a write to apply: ``Expect.version(4)`` or ``Expect.absent()``."""

    what: _What
    value: int | bool

    @classmethod
    def version(cls, version: int) -> "Expect":
        """It has this version."""
        return cls("version", version)

    @classmethod
    def revision(cls, revision: int) -> "Expect":
        """It was changed last at this revision."""
        return cls("revision", revision)

    @classmethod
    def token(cls, token: int) -> "Expect":
        """It has this token."""
        return cls("token", token)

    @classmethod
    def absent(cls) -> "Expect":
        """There is none."""
        return cls("absent", True)

    @classmethod
    def exists(cls) -> "Expect":
        """There is one, whichever."""
        return cls("exists", True)

    def wire(self) -> dict[str, int | bool]:
        """As JSON."""
        return {f"expect_{self.what}": self.value}


@dataclass(frozen=True, slots=True)
class Put:
    """Writes an object, whole."""

    kind: str
    id: str
    payload: Payload
    name: str | None = None
    labels: Mapping[str, str] | None = None
    ttl: Duration | None = None
    expect: Expect | None = None

    def content(self) -> dict[str, Any]:
        """As JSON, without kind and id."""
        return {
            **_payload(self.payload),
            **given(
                name=self.name,
                labels=dict(self.labels) if self.labels else None,
                ttl_ms=None if self.ttl is None else millis(self.ttl),
            ),
            **_expecting(self.expect),
        }

    def wire(self) -> dict[str, Any]:
        """As part of a commit."""
        return {"put": {"kind": self.kind, "id": self.id, **self.content()}}


@dataclass(frozen=True, slots=True)
class Delete:
    """Deletes an object."""

    kind: str
    id: str
    expect: Expect | None = None

    def wire(self) -> dict[str, Any]:
        """As part of a commit."""
        return {"delete": {"kind": self.kind, "id": self.id, **_expecting(self.expect)}}


@dataclass(frozen=True, slots=True)
class Check:
    """A condition on an object that a commit does not write."""

    kind: str
    id: str
    expect: Expect

    def wire(self) -> dict[str, Any]:
        """As part of a commit."""
        return {"kind": self.kind, "id": self.id, **self.expect.wire()}


def _payload(payload: Payload) -> dict[str, str]:
    if isinstance(payload, str):
        return {"payload": payload}
    if isinstance(payload, bytes):
        return {"payload_base64": b64encode(payload).decode()}
    kind = type(payload).__name__
    raise TypeError(f"a payload is str or bytes, not {kind}; json.dumps makes a str of what is to be JSON")


def expectation(expect: Expect | None, expect_version: int | None) -> Expect | None:
    """Either way of saying what is expected, not both."""
    if expect_version is None:
        return expect
    if expect is not None:
        raise ValueError("give expect or expect_version, not both")
    return Expect.version(expect_version)


def get(servers: Servers, kind: str, id: str) -> Program[Object]:
    """One object."""
    return Object.read((yield from ask(servers, Request("GET", _path(kind, id), repeatable=True))))


def list_page(
    servers: Servers,
    kind: str,
    *,
    prefix: str | None,
    name: str | None,
    selector: str | None,
    after: str | None,
    limit: int | None,
) -> Program[Page]:
    """A page of objects."""
    text = None if limit is None else str(limit)
    params = given(prefix=prefix, name=name, selector=selector, after=after, limit=text)
    request = Request("GET", f"/v1/objects/{_segment(kind)}", params=params, repeatable=True)
    content = yield from ask(servers, request)
    objects = tuple(Object.read(wire) for wire in content["objects"])
    return Page(objects, content.get("next"), content["revision"])


def put(servers: Servers, put: Put, fence: Fenced | None) -> Program[Stored]:
    """Writes one object."""
    body = {**put.content(), **given(fence=_fence(fence))}
    content = yield from ask(servers, Request("PUT", _path(put.kind, put.id), body=body))
    return _stored(content)


def delete(servers: Servers, delete: Delete, fence: Fenced | None) -> Program[Removed]:
    """Deletes one object."""
    if fence is None and (delete.expect is None or delete.expect.what in ("version", "revision")):
        params = {name: str(value) for name, value in _expecting(delete.expect).items()}
        request = Request("DELETE", _path(delete.kind, delete.id), params=params)
        return _removed((yield from ask(servers, request)))
    committed = yield from commit(servers, [delete], [], [] if fence is None else [fence])
    (removed,) = committed.writes
    if not isinstance(removed, Removed):
        raise errors.ProtocolError("the server answered a delete as if it were a put")
    return removed


def commit(
    servers: Servers, writes: Iterable[Put | Delete], checks: Iterable[Check], fences: Iterable[Fenced]
) -> Program[Committed]:
    """Checks and writes, all or nothing."""
    body = commit_wire(writes, checks, fences)
    content = yield from ask(servers, Request("POST", "/v1/commit", body=body))
    return Committed(content.get("revision"), tuple(_written(write) for write in content["writes"]))


def commit_wire(
    writes: Iterable[Put | Delete], checks: Iterable[Check], fences: Iterable[Fenced]
) -> dict[str, Any]:
    """A commit as JSON."""
    return {
        "checks": [check.wire() for check in checks],
        "writes": [write.wire() for write in writes],
        "fences": [_fence(fence) for fence in fences],
    }


def touch(servers: Servers, kind: str, id: str, revision: int, ttl: Duration) -> Program[int]:
    """Starts the life of an object anew."""
    item = {"kind": kind, "id": id, "revision": revision, "ttl_ms": millis(ttl)}
    content = yield from ask(servers, Request("POST", "/v1/touch", body={"touches": [item]}))
    (touched,) = content["touched"]
    if "error" in touched:
        raise errors.from_wire(touched["error"])
    return int(touched["revision"])


def update(
    servers: Servers, kind: str, id: str, change: AsyncChange, attempts: int, fence: Fenced | None
) -> Program[Stored]:
    """Reads, changes and writes, and again if somebody was faster."""
    for attempt in range(1, max(1, attempts) + 1):
        found = yield from get(servers, kind, id)
        payload: Payload | None = yield _changing(change, found)
        if payload is None:
            return _as_it_was(found)
        new = Put(kind, id, payload, found.name, found.labels, found.ttl, Expect.revision(found.revision))
        try:
            return (yield from put(servers, new, fence))
        except errors.Conflict:
            if attempt >= attempts:
                raise
        yield Sleep(0.01 * 2**attempt * secrets.randbelow(1024) / 1024)
    raise AssertionError("the loop ends by returning or raising")


def _as_it_was(found: Object) -> Stored:
    return Stored(
        changed=False,
        version=found.version,
        revision=found.revision,
        created_revision=found.created_revision,
        token=found.token,
        created_at_ms=found.created_at_ms,
        updated_at_ms=found.updated_at_ms,
        ttl=found.ttl,
    )


def _changing(change: AsyncChange, found: Object) -> Invoke:
    return Invoke(lambda: change(found))


def _path(kind: str, id: str) -> str:
    return f"/v1/objects/{_segment(kind)}/{_segment(id)}"


def _segment(text: str) -> str:
    quoted = quote(text, safe="")
    # A path of dots would be taken for a step up.
    return quoted.replace(".", "%2E") if quoted.strip(".") == "" else quoted


def _expecting(expect: Expect | None) -> dict[str, int | bool]:
    return {} if expect is None else expect.wire()


def _fence(fence: Fenced | None) -> dict[str, Any] | None:
    return None if fence is None else {"scope": fence.scope, "token": fence.token}


def _written(wire: Mapping[str, Any]) -> Stored | Removed:
    return _stored(wire) if wire["outcome"] in ("put", "unchanged") else _removed(wire)


def _stored(wire: Mapping[str, Any]) -> Stored:
    return Stored(
        changed=wire["outcome"] == "put",
        version=wire["version"],
        revision=wire["revision"],
        created_revision=wire.get("created_revision", 0),
        token=wire.get("token", 0),
        created_at_ms=wire.get("created_at_ms", 0),
        updated_at_ms=wire.get("updated_at_ms", 0),
        ttl=seconds(wire.get("ttl_ms")),
    )


def _removed(wire: Mapping[str, Any]) -> Removed:
    return Removed(wire["outcome"] == "deleted", wire.get("revision"))
