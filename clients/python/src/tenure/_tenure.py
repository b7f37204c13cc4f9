"""One tenure: what its holder knows of a lease that it holds, and when that ends.

It ends once, in one of two ways: it is over because the holder let go, or it is lost. Whoever notices
first settles it, be it the keeper, an answer of the server, or the holder looking at the clock. While it is
being passed on it may be the successor's already: nobody acts under it, and nothing is a loss.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import _clock
from ._timing import Timing, retry_at
from .errors import LeaseLost

log = logging.getLogger("tenure")


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease as it was granted: by what was sent at ``sent``, for ``remaining`` seconds from then."""

    grant: Mapping[str, Any]
    sent: float
    remaining: float
    index: int = 0

    @property
    def timing(self) -> Timing:
        """How long it lives."""
        return Timing(self.grant["ttl_ms"] / 1000)

    @property
    def valid_until(self) -> float:
        """After which instant the holder must not act."""
        return self.timing.valid_until(self.sent, self.remaining)

    @property
    def due(self) -> float:
        """When to renew it."""
        return self.timing.due(self.sent, self.valid_until)


class Tenure:
    """A lease that is held, until it is not."""

    def __init__(self, grant: Grant) -> None:
        self.grant = dict(grant.grant)
        self.index = grant.index
        self.timing = grant.timing
        self.valid_until = grant.valid_until
        self.due = grant.due
        self.failures = 0
        self.renewing = False
        self.trouble = ""
        self.loss: LeaseLost | None = None
        self.over = False
        self.passing = False
        self._lock = threading.Lock()
        self._listeners: list[Callable[[LeaseLost], None]] = []

    @property
    def scope(self) -> str:
        """What is held."""
        return str(self.grant["scope"])

    @property
    def token(self) -> int:
        """Greater than that of every earlier holder."""
        return int(self.grant["token"])

    @property
    def owner(self) -> str:
        """Who holds it: ``name#start``."""
        return str(self.grant["owner"])

    @property
    def ended(self) -> bool:
        """Whether it is over or lost."""
        return self.over or self.loss is not None

    def remaining(self) -> float:
        """For how many seconds the holder may still act."""
        return 0.0 if self.ended or self.passing else max(0.0, self.valid_until - _clock.now())

    def check(self) -> None:
        """Raises if the holder must not act any more, by its own clock."""
        if not self.ended:
            self.expire(_clock.now())
        if self.loss is not None:
            # A new one each time: an exception that is raised twice drags the first traceback along.
            raise LeaseLost(self.scope, self.token, self.loss.reason) from self.loss.__cause__
        if self.over:
            raise LeaseLost(self.scope, self.token, "it was released")
        if self.passing:
            raise LeaseLost(self.scope, self.token, "it is being passed on")

    def expire(self, now: float) -> bool:
        """Ends it if its deadline has passed."""
        if now < self.valid_until:
            return False
        because = f"; the last attempt to renew it failed: {self.trouble}" if self.trouble else ""
        return self.lose(f"its deadline has passed{because}")

    def renewed(self, sent: float, renewal: Mapping[str, Any]) -> None:
        """What was sent at ``sent`` was granted."""
        self.timing = Timing(renewal["ttl_ms"] / 1000)
        self.grant = {**self.grant, "revision": renewal["revision"], "ttl_ms": renewal["ttl_ms"]}
        # An answer that was overtaken by a later one takes nothing away.
        granted = self.timing.valid_until(sent, renewal["remaining_ms"] / 1000)
        self.valid_until = max(self.valid_until, granted)
        self.due = self.timing.due(sent, granted)
        self.failures, self.trouble = 0, ""

    def failed(self, now: float, trouble: str, jitter: float) -> None:
        """An attempt to renew it failed for a reason that may pass."""
        self.failures += 1
        self.trouble = trouble
        self.due = retry_at(now, self.valid_until, self.failures, jitter)

    def pass_on(self) -> None:
        """The holder begins to pass it on. Raises if it may not."""
        self.check()
        with self._lock:
            self.passing = not self.ended
        if self.ended:
            self.check()

    def keep(self) -> None:
        """It was not passed on."""
        self.passing = False

    def end(self) -> bool:
        """The holder lets go. False if it had ended already."""
        with self._lock:
            if self.ended:
                return False
            self.over = True
            return True

    def lose(self, reason: str) -> bool:
        """Nobody but the holder ended it. Listeners are told once."""
        with self._lock:
            if self.ended or self.passing:
                return False
            self.loss = LeaseLost(self.scope, self.token, reason)
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            self._tell(listener, self.loss)
        return True

    def on_loss(self, listener: Callable[[LeaseLost], None]) -> None:
        """Calls the listener when it is lost, at once if it is lost already."""
        with self._lock:
            if self.loss is None:
                self._listeners.append(listener)
                return
        self._tell(listener, self.loss)

    def _tell(self, listener: Callable[[LeaseLost], None], loss: LeaseLost) -> None:
        try:
            listener(loss)
        except Exception:
            # Whoever settles it has other leases to look after.
            log.exception("%s: the loss could not be told", self.scope)
