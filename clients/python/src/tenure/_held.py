"""What a lease shows of itself, blocking or not."""

import time
from collections.abc import Mapping
from typing import Any

from ._tenure import Tenure


class HeldLease:
    """A scope held until a deadline, with a fencing token."""

    def __init__(self, tenure: Tenure) -> None:
        self._tenure = tenure

    @property
    def scope(self) -> str:
        """What is held."""
        return self._tenure.scope

    @property
    def token(self) -> int:
        """The fencing token: greater than that of every earlier holder."""
        return self._tenure.token

    @property
    def owner(self) -> str:
        """Who holds it: ``name#start``."""
        return self._tenure.owner

    @property
    def grant(self) -> Mapping[str, Any]:
        """What it takes to renew and release it, from anywhere. Keep it like a password."""
        return self._tenure.grant

    @property
    def deadline(self) -> float:
        """Until when the holder may act, on ``time.monotonic()``. It moves on with every renewal."""
        return time.monotonic() + self.remaining()

    def remaining(self) -> float:
        """For how many seconds the holder may act if nothing is renewed; 0 if it is over."""
        return self._tenure.remaining()

    @property
    def valid(self) -> bool:
        """Whether the holder may act now."""
        return self.remaining() > 0

    def check(self) -> None:
        """Raises :class:`tenure.LeaseLost` if the holder must not act any more."""
        self._tenure.check()

    def __repr__(self) -> str:
        state = f"{self.remaining():.1f} s left" if self.valid else "over"
        return f"<{type(self).__name__} {self.scope} token {self.token}, {state}>"


def failure(error: BaseException | None) -> str | None:
    """What to say of work that ended with this."""
    if error is None:
        return None
    return (f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)[:500]
