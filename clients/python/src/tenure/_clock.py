"""The one place that reads a clock.

Deadlines go by a clock that counts steadily, also while the machine sleeps: a lease does not sleep
with its holder. Where the system has no such clock it is ``time.monotonic``.
"""

import time

_BOOTTIME: int | None = getattr(time, "CLOCK_BOOTTIME", None)


def now() -> float:
    """Seconds since some fixed instant."""
    if _BOOTTIME is None:
        return time.monotonic()
    return time.clock_gettime(_BOOTTIME)
