"""Streams of events: decoding them, and going on after a break. No network."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from . import _clock, errors
from ._servers import Servers, nobody
from ._timing import backoff
from ._wire import NoAnswer, NotSent, Request, given
from .model import Batch, Event, LeaseEvent, LeaseInfo

SILENCE = 45.0
"""A server says something every 15 seconds; one that is silent for this long is gone."""
PATIENCE = 60.0
"""For so long a stream that broke is opened again before it fails."""
MAX_MESSAGE = 64 << 20
MARK = "mark"
"""An id without data: nothing of interest happened up to there."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Message:
    """One event of a stream."""

    event: str
    data: str
    id: str | None


class Decoder:
    """Bytes to messages."""

    def __init__(self) -> None:
        self._rest = b""
        self._size = 0
        self._event = "message"
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[Message]:
        """What has become complete with these bytes."""
        # Only at line feeds: text may contain what Python takes for other ends of lines.
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        messages = [message for line in lines if (message := self._line(line.rstrip(b"\r").decode()))]
        if len(self._rest) + self._size > MAX_MESSAGE:
            raise errors.ProtocolError("the server sends an event that is too big to be true")
        return messages

    def _line(self, line: str) -> Message | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
            self._size += len(value)
        elif name == "event":
            self._event = value
        elif name == "id":
            self._id = value
        return None

    def _dispatch(self) -> Message | None:
        message = None
        if self._data:
            message = Message(self._event, "\n".join(self._data), self._id)
        elif self._id is not None:
            message = Message(MARK, "", self._id)
        self._event, self._id, self._data, self._size = "message", None, [], 0
        return message


class Subscription(Generic[T]):
    """A stream that is opened again where it broke, at whichever server answers."""

    def __init__(self, servers: Servers, request: Request, read: Callable[[Message], list[T]]) -> None:
        self._servers = servers
        self._request = request
        self._read = read
        self._decoder = Decoder()
        self._last_id: str | None = None
        self._opened = False
        self._failures = 0
        self._broken_since: float | None = None
        self._misses: list[tuple[str, NotSent]] = []
        self.server = servers.first

    def begin(self) -> Request:
        """What to send, to ``server``, to open the stream or to go on with it."""
        self.server = self._servers.first
        self._decoder = Decoder()
        headers = {"Accept": "text/event-stream"}
        if self._last_id is None:
            return replace(self._request, headers=headers)
        params = {name: value for name, value in self._request.params.items() if name != "after"}
        return replace(self._request, params=params, headers={**headers, "Last-Event-ID": self._last_id})

    def received(self, chunk: bytes) -> list[T]:
        """What to tell the caller about."""
        found: list[T] = []
        for message in self._decoder.feed(chunk):
            self._heard(message)
            if message.event not in ("start", "leaving", MARK):
                found.extend(self._read(message))
        return found

    def _heard(self, message: Message) -> None:
        if message.event == "error":
            raise errors.from_wire(json.loads(message.data)["error"])
        self._opened = True
        self._failures, self._broken_since, self._misses = 0, None, []
        self._servers.prefer(self.server)
        if message.id is not None:
            self._last_id = message.id
        elif message.event == "start" and self._last_id is None:
            revision = json.loads(message.data).get("revision")
            self._last_id = None if revision is None else str(revision)

    def broken(self, why: Exception) -> float:
        """How long to pause before opening it again; raises if that is of no use."""
        now = _clock.now()
        self._failures += 1
        self._broken_since = now if self._broken_since is None else self._broken_since
        self._servers.leave(self.server)
        error = self._error(why)
        hopeless = not isinstance(error, errors.Unavailable | errors.Overloaded)
        tried = self._opened or self._failures < len(self._servers)
        if hopeless or not tried or now - self._broken_since > PATIENCE:
            raise error from why
        if isinstance(error, errors.Overloaded):
            return error.retry_after
        return backoff(self._failures, 0.05, 2.0) * (0.75 + random.random() / 4)  # noqa: S311

    def _error(self, why: Exception) -> errors.TenureError:
        if isinstance(why, NotSent):
            self._misses = [*self._misses[-len(self._servers) + 1 :], (self.server, why)]
            return nobody(self._misses)
        if isinstance(why, errors.TenureError):
            return why
        return errors.Unavailable(f"the stream broke: {why}")


def watch(servers: Servers, kind: str | None, prefix: str | None, after: int | None) -> Subscription[Batch]:
    """What happens to objects."""
    text = None if after is None else str(after)
    request = Request("GET", "/v1/watch", params=given(kind=kind, prefix=prefix, after=text))
    return Subscription(servers, request, _batches)


def watch_leases(servers: Servers, prefix: str | None) -> Subscription[LeaseEvent]:
    """What happens to leases."""
    return Subscription(
        servers, Request("GET", "/v1/leases/watch", params=given(prefix=prefix)), _lease_events
    )


def observe(servers: Servers, scope: str) -> Subscription[LeaseInfo | None]:
    """The leader now, then every change. What a stream that was opened again repeats is left out."""
    told: list[tuple[int, Mapping[str, str]] | None] = []

    def read(message: Message) -> list[LeaseInfo | None]:
        wire = json.loads(message.data).get("leader")
        leader = LeaseInfo.read(wire) if wire else None
        mark = (leader.token, leader.metadata) if leader else None
        if told and told[-1] == mark:
            return []
        told[:] = [mark]
        return [leader]

    return Subscription(servers, Request("GET", "/v1/elections/observe", params={"scope": scope}), read)


def _batches(message: Message) -> list[Batch]:
    if message.event != "batch":
        return []
    content = json.loads(message.data)
    return [Batch(content["revision"], tuple(Event.read(event) for event in content["events"]))]


def _lease_events(message: Message) -> list[LeaseEvent]:
    content: dict[str, Any] = json.loads(message.data)
    if message.event == "held":
        lease = LeaseInfo.read(content)
        return [LeaseEvent("held", lease.scope, lease)]
    if message.event == "ended":
        last = content.get("last")
        return [
            LeaseEvent(
                "ended", content["scope"], LeaseInfo.read(last) if last else None, content.get("cause")
            )
        ]
    return []


def ended() -> NoAnswer:
    """What the end of a stream is to whoever reads it: a break like any other."""
    return NoAnswer("the server ended it")
