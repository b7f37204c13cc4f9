"""Which leases are kept, when they are to be renewed, and what the answers mean. No clock, no network."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import errors
from ._tenure import Tenure
from ._timing import attempt_timeout

BATCH = 1000
"""At most so many leases are renewed by one request; fewer where a server's store wants fewer."""

_DEFINITE = (errors.Lost, errors.NotFound, errors.Conflict, errors.Held)
"""With these the server says that somebody else holds it, or nobody. Everything else may pass."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Leases to renew with one request, sent at ``sent``, that may take ``timeout`` seconds."""

    tenures: Sequence[Tenure]
    sent: float
    timeout: float

    @property
    def grants(self) -> list[Mapping[str, Any]]:
        """What to send."""
        return [tenure.grant for tenure in self.tenures]


class Book:
    """All leases of a client."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._tenures: dict[int, Tenure] = {}
        self._jitter = jitter
        self._batch = BATCH

    def __len__(self) -> int:
        return len(self._tenures)

    def add(self, tenure: Tenure) -> None:
        """Keep this one from now on."""
        self._tenures[id(tenure)] = tenure

    def drop(self, tenure: Tenure) -> None:
        """Keep it no longer."""
        self._tenures.pop(id(tenure), None)

    def wake_at(self) -> float | None:
        """When there is something to do; None if there is nothing to keep."""
        instants = (
            tenure.valid_until if tenure.renewing else min(tenure.due, tenure.valid_until)
            for tenure in self._tenures.values()
        )
        return min(instants, default=None)

    def expire(self, now: float) -> None:
        """Ends what has run out, and forgets what has ended."""
        for tenure in list(self._tenures.values()):
            tenure.expire(now)
            if tenure.ended:
                self.drop(tenure)

    def due(self, now: float) -> list[Batch]:
        """What to send now. Those that will soon be due go along."""
        idle = [tenure for tenure in self._tenures.values() if not tenure.renewing and not tenure.ended]
        if not any(tenure.due <= now for tenure in idle):
            return []
        chosen = [t for t in idle if t.due <= now or _soon(t, now)]
        return [self._make(chosen[at : at + self._batch], now) for at in range(0, len(chosen), self._batch)]

    def _make(self, tenures: Sequence[Tenure], now: float) -> Batch:
        for tenure in tenures:
            tenure.renewing = True
        return Batch(tenures, now, min(attempt_timeout(now, tenure.valid_until) for tenure in tenures))

    def answered(self, batch: Batch, now: float, results: Iterable[Mapping[str, Any]]) -> None:
        """The server has answered, one result for each lease."""
        results = list(results)
        if len(results) != len(batch.tenures):
            self.failed(batch, now, errors.ProtocolError("the server did not answer for every lease"))
            return
        for tenure, result in zip(batch.tenures, results, strict=True):
            tenure.renewing = False
            if "error" not in result:
                tenure.renewed(batch.sent, result)
                continue
            error = errors.from_wire(result["error"])
            if isinstance(error, _DEFINITE):
                tenure.lose(error.message)
            else:
                tenure.failed(now, error.message, self._jitter())

    def failed(self, batch: Batch, now: float, error: Exception) -> None:
        """The request as a whole failed."""
        if isinstance(error, errors.LimitExceeded):
            self._batch = max(1, min(error.max or BATCH, len(batch.tenures) // 2))
        for tenure in batch.tenures:
            tenure.renewing = False
            tenure.failed(now, str(error), self._jitter())

    def close(self, reason: str) -> None:
        """Nobody will renew them any more."""
        for tenure in list(self._tenures.values()):
            tenure.lose(reason)
        self._tenures.clear()


def _soon(tenure: Tenure, now: float) -> bool:
    return tenure.failures == 0 and tenure.due - now <= tenure.timing.renew_every / 2
