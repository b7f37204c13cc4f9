"""The arithmetic of a tenure, as pure functions of instants on the holder's own steady clock."""

from dataclasses import dataclass

MARGIN_PART = 10
"""The margin is a tenth of the life: a holder's clock may run that much slower than the store's."""
MARGIN_MAX = 5.0
ATTEMPT_MAX = 5.0
"""An attempt that takes longer than this has met a server that hangs."""
RETRY_FIRST = 0.05
"""The first retry of a renewal comes this soon; each further one waits twice as long."""
TOO_LATE = 0.01
"""With less than this left, another attempt cannot be answered in time."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How long a lease lives, and how often it is renewed."""

    ttl: float

    @property
    def usable(self) -> float:
        """How much of a life its holder uses."""
        return self.ttl - margin(self.ttl)

    @property
    def renew_every(self) -> float:
        """How long after a renewal was sent the next one is due."""
        return self.ttl / 3

    def valid_until(self, sent: float, remaining: float) -> float:
        """After which instant the holder must not act, if what was sent at ``sent`` was granted.

        Counted from before the request left: the store's count began later, so it ends later. The
        server may grant less than the whole life, and is not believed if it says more.
        """
        return sent + max(0.0, min(remaining, self.usable))

    def due(self, sent: float, valid_until: float) -> float:
        """When the renewal after the one sent at ``sent`` is due: in time also if little was granted."""
        return min(sent + self.renew_every, (sent + valid_until) / 2)

    def soon_over(self, now: float, valid_until: float) -> bool:
        """Whether so little is left that a renewal comes before anything else."""
        return valid_until - now < self.usable / 2


def margin(ttl: float) -> float:
    """By how much the holder stops before its life ends."""
    return min(ttl / MARGIN_PART, MARGIN_MAX)


def attempt_timeout(now: float, valid_until: float) -> float:
    """How long one attempt to renew may take, so that there is time for others before the deadline."""
    return min(max((valid_until - now) / 3, TOO_LATE), ATTEMPT_MAX)


def retry_at(now: float, valid_until: float, failures: int, jitter: float) -> float:
    """When to try again; ``jitter`` is between 0 and 1. The deadline once nothing can be achieved before."""
    left = valid_until - now
    if left <= TOO_LATE:
        return valid_until
    pause = min(backoff(failures, RETRY_FIRST, 60.0), left / 4)
    return now + pause * (1 - jitter / 4)


def backoff(failures: int, first: float, longest: float) -> float:
    """Twice as long after each failure."""
    return min(longest, first * 2.0 ** min(max(failures - 1, 0), 10))
