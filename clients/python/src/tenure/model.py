"""What a server tells of, as plain values."""

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol


@dataclass(frozen=True, slots=True)
class Key:
    """What an object is called."""

    kind: str
    id: str


@dataclass(frozen=True, slots=True)
class Current:
    """What a condition met."""

    version: int
    revision: int
    token: int

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> "Current":
        """From JSON."""
        return cls(wire.get("version", 0), wire.get("revision", 0), wire.get("token", 0))


class Fenced(Protocol):
    """Something held: a lease, or a :class:`Fence` that was made from one elsewhere."""

    @property
    def scope(self) -> str:
        """What is held."""
        ...

    @property
    def token(self) -> int:
        """Greater than that of every earlier holder."""
        ...


@dataclass(frozen=True, slots=True)
class Fence:
    """A lease as another process may carry it: its scope and its token."""

    scope: str
    token: int


@dataclass(frozen=True, slots=True)
class Object:
    """A versioned object, as it was when it was read."""

    kind: str
    id: str
    payload: bytes
    version: int
    revision: int
    created_revision: int
    token: int
    created_at_ms: int
    updated_at_ms: int
    name: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    ttl: float | None = None
    expires_in: float | None = None

    @property
    def key(self) -> Key:
        """What it is called."""
        return Key(self.kind, self.id)

    @property
    def text(self) -> str:
        """The payload as text."""
        return self.payload.decode()

    def json(self) -> Any:
        """The payload, read as JSON."""
        return json.loads(self.payload)

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> "Object":
        """From JSON."""
        if "payload_base64" in wire:
            payload = b64decode(wire["payload_base64"])
        else:
            payload = str(wire.get("payload", "")).encode()
        return cls(
            kind=wire["kind"],
            id=wire["id"],
            payload=payload,
            version=wire["version"],
            revision=wire["revision"],
            created_revision=wire.get("created_revision", 0),
            token=wire.get("token", 0),
            created_at_ms=wire.get("created_at_ms", 0),
            updated_at_ms=wire.get("updated_at_ms", 0),
            name=wire.get("name"),
            labels=dict(wire.get("labels") or {}),
            ttl=seconds(wire.get("ttl_ms")),
            expires_in=seconds(wire.get("expires_in_ms")),
        )


@dataclass(frozen=True, slots=True)
class Page:
    """Some objects in order of id. A watch from ``revision`` on misses nothing that came after."""

    objects: tuple[Object, ...]
    next: str | None
    revision: int

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects)

    def __len__(self) -> int:
        return len(self.objects)


@dataclass(frozen=True, slots=True)
class Stored:
    """What became of a put. ``changed`` is false if the object was like that already."""

    changed: bool
    version: int
    revision: int
    created_revision: int
    token: int
    created_at_ms: int
    updated_at_ms: int
    ttl: float | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of a delete. ``existed`` is false if there was nothing to delete."""

    existed: bool
    revision: int | None


@dataclass(frozen=True, slots=True)
class Committed:
    """What became of a commit: one result for each write. ``revision`` is None if nothing changed."""

    revision: int | None
    writes: tuple[Stored | Removed, ...]


@dataclass(frozen=True, slots=True)
class Event:
    """An object was put (``object`` is the new one) or deleted (``object`` is the last one, if known)."""

    type: Literal["put", "deleted"]
    key: Key
    object: Object | None
    cause: str | None = None

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> "Event":
        """From JSON."""
        if wire["type"] == "put":
            put = Object.read(wire["object"])
            return cls("put", put.key, put)
        last = wire.get("last")
        key = Key(wire["kind"], wire["id"])
        return cls("deleted", key, Object.read(last) if last else None, wire.get("cause"))


@dataclass(frozen=True, slots=True)
class Batch:
    """All that happened in one commit. To go on later, watch ``after`` its revision."""

    revision: int
    events: tuple[Event, ...]

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)


@dataclass(frozen=True, slots=True)
class LeaseInfo:
    """A lease as everybody sees it."""

    scope: str
    holder: str
    token: int
    revision: int
    acquired_at_ms: int
    ttl: float
    expires_in: float | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> "LeaseInfo":
        """From JSON."""
        return cls(
            scope=wire["scope"],
            holder=wire["holder"],
            token=wire["token"],
            revision=wire.get("revision", 0),
            acquired_at_ms=wire.get("acquired_at_ms", 0),
            ttl=wire.get("ttl_ms", 0) / 1000,
            expires_in=seconds(wire.get("expires_in_ms")),
            metadata=dict(wire.get("metadata") or {}),
        )


@dataclass(frozen=True, slots=True)
class Orphan:
    """A lease as it was, of which something is left to do: it was reapable and ended without a release.

    ``nonce`` is unique to that acquisition, ``revision`` that of what is left, not of the lease.
    """

    scope: str
    holder: str
    token: int
    nonce: str
    revision: int
    acquired_at_ms: int
    metadata: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> "Orphan":
        """From JSON."""
        return cls(
            scope=wire["scope"],
            holder=wire["holder"],
            token=wire["token"],
            nonce=wire["nonce"],
            revision=wire["revision"],
            acquired_at_ms=wire.get("acquired_at_ms", 0),
            metadata=dict(wire.get("metadata") or {}),
        )


@dataclass(frozen=True, slots=True)
class Waiter:
    """Somebody in line; a lower place is earlier."""

    owner: str
    place: int
    since_ms: int

    @classmethod
    def read(cls, wire: Mapping[str, Any]) -> "Waiter":
        """From JSON."""
        return cls(wire["owner"], wire.get("place", 0), wire.get("since_ms", 0))


@dataclass(frozen=True, slots=True)
class Contention:
    """Who holds a scope, and who waits for it."""

    holder: LeaseInfo | None
    waiters: tuple[Waiter, ...]


@dataclass(frozen=True, slots=True)
class SlotHolder:
    """Who holds which slot."""

    index: int
    lease: LeaseInfo


@dataclass(frozen=True, slots=True)
class SlotsInfo:
    """A group of slots. ``count`` and ``version`` are None if nobody has asked for one yet."""

    count: int | None
    holders: tuple[SlotHolder, ...]
    waiters: tuple[Waiter, ...]
    version: int | None = None
    """Changes with the count; for a resize to expect."""


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """Somebody holds a lease (``lease``), or it has ended (``lease`` is the last one, if known)."""

    type: Literal["held", "ended"]
    scope: str
    lease: LeaseInfo | None
    cause: str | None = None


def seconds(ms: int | None) -> float | None:
    """Milliseconds as seconds, where there are any."""
    return None if ms is None else ms / 1000
