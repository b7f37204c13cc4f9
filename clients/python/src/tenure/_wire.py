"""Requests, replies and programs: what is to be done, without doing it.

A program is a generator that yields effects (send this, sleep that long) and is sent their results. It
knows nothing of threads or tasks, so the blocking and the asyncio client run the same ones.
"""

import json
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from . import errors

Duration = float | timedelta

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request, to whichever server."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    waits: float = 0.0
    """How long the server may take on top of the usual; infinite for a wait without end."""
    repeatable: bool = False
    """Whether asking twice does no harm."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    body: bytes
    retry_after: str | None = None


@dataclass(frozen=True, slots=True)
class Send:
    """An effect: send a request to this server. Its result is a :class:`Reply`."""

    server: str
    request: Request


@dataclass(frozen=True, slots=True)
class Sleep:
    """An effect: wait for so many seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Invoke:
    """An effect: call something of the user's. Its result is what that returns."""

    function: Callable[[], Any]


Effect = Send | Sleep | Invoke
Program = Generator[Effect, Any, T]


class NotSent(Exception):
    """The request cannot have reached the server."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.refused = refused


class NoAnswer(Exception):
    """The request may have reached the server; no answer did."""

    def __init__(self, reason: str, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.timed_out = timed_out


def answer(reply: Reply) -> Any:
    """The JSON of a reply, or the error that it tells of."""
    try:
        content = json.loads(reply.body) if reply.body else {}
    except ValueError:
        content = None
    if 200 <= reply.status < 300 and content is not None:
        return content
    if isinstance(content, Mapping) and isinstance(content.get("error"), Mapping):
        raise _with_retry_after(content["error"], reply)
    raise _foreign(reply)


def _with_retry_after(error: Mapping[str, Any], reply: Reply) -> errors.TenureError:
    if reply.retry_after and reply.retry_after.isdigit() and "retry_after_ms" not in error:
        error = {**error, "retry_after_ms": int(reply.retry_after) * 1000}
    return errors.from_wire(error)


def _foreign(reply: Reply) -> errors.TenureError:
    """Something between us and the server answered, or something that is no server of ours."""
    if reply.status in (502, 503):
        return errors.Unavailable(f"something before the server answers HTTP {reply.status}")
    if reply.status == 504:
        return errors.UnknownOutcome("something before the server answers HTTP 504: it may have happened")
    return errors.ProtocolError(
        f"HTTP {reply.status} without an answer of Tenure's; is that a Tenure server?"
    )


def millis(duration: Duration) -> int:
    """A duration as servers want it."""
    return max(0, round(to_seconds(duration) * 1000))


def to_seconds(duration: Duration) -> float:
    """A duration in seconds."""
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def given(**fields: Any) -> dict[str, Any]:
    """Those fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}
