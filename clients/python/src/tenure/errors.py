"""What can go wrong: one class for each code that a server answers with.

All of them except :class:`UnknownOutcome` mean that nothing was applied.
"""

from collections.abc import Mapping
from typing import Any

from .model import Current, Key


class TenureError(Exception):
    """Why something did not happen. ``code`` is a short stable word, ``fields`` all that was told of it."""

    code: str = "error"

    def __init__(self, message: str, *, fields: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.fields: Mapping[str, Any] = dict(fields or {})

    @property
    def key(self) -> Key | None:
        """The object that it is about."""
        key = self.fields.get("key")
        return Key(key.get("kind", ""), key.get("id", "")) if isinstance(key, Mapping) else None

    @property
    def reason(self) -> str:
        """What is behind it, where the server says so."""
        return str(self.fields.get("reason", ""))

    def _number(self, name: str) -> int | None:
        value = self.fields.get(name)
        return value if isinstance(value, int) else None

    def _text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return value if isinstance(value, str) else None


class NotFound(TenureError):
    """There is no such object."""

    code = "not_found"


class AlreadyExists(TenureError):
    """It should have been absent, and is not."""

    code = "already_exists"


class NameTaken(TenureError):
    """Another object of the kind bears that name."""

    code = "name_taken"

    @property
    def name(self) -> str | None:
        """The name."""
        return self._text("name")


class Conflict(TenureError):
    """Somebody changed it first: read it again and re-apply."""

    code = "conflict"

    @property
    def current(self) -> Current | None:
        """What is there instead of what was expected."""
        current = self.fields.get("current")
        return Current.read(current) if isinstance(current, Mapping) else None


class Held(TenureError):
    """Somebody else holds it, and the wait is over."""

    code = "held"

    @property
    def scope(self) -> str | None:
        """What is held."""
        return self._text("scope")

    @property
    def holder(self) -> str | None:
        """Who holds it: ``name#start``."""
        return self._text("holder")

    @property
    def expires_in(self) -> float | None:
        """In how many seconds it would expire if it were not renewed."""
        ms = self._number("expires_in_ms")
        return None if ms is None else ms / 1000


class Lost(TenureError):
    """The lease that this rests on is somebody else's now, or nobody's."""

    code = "lost"

    @property
    def token(self) -> int | None:
        """The token that was held."""
        return self._number("token")

    @property
    def current_token(self) -> int | None:
        """The token of whoever holds it now."""
        return self._number("current_token")


class LeaseLost(Lost):
    """A lease of this client is over before it was released: whatever it guards must stop."""

    def __init__(self, scope: str, token: int, reason: str) -> None:
        super().__init__(
            f"{scope} is lost (token {token}): {reason}", fields={"token": token, "reason": reason}
        )
        self.scope = scope


class Unsupported(TenureError):
    """The server's store cannot do that."""

    code = "unsupported"

    @property
    def capability(self) -> str | None:
        """What it would take."""
        return self._text("capability")


class Invalid(TenureError):
    """The request makes no sense; the message says why."""

    code = "invalid"


class LimitExceeded(TenureError):
    """Too big, or too many."""

    code = "limit_exceeded"

    @property
    def limit(self) -> str | None:
        """The name of the limit."""
        return self._text("limit")

    @property
    def max(self) -> int | None:
        """The most that is allowed."""
        return self._number("max")


class Compacted(TenureError):
    """The history asked for is gone: list again, and watch from that revision."""

    code = "compacted"

    @property
    def oldest(self) -> int | None:
        """The oldest revision that can still be asked for."""
        return self._number("oldest")


class Refused(TenureError):
    """The server is too old for its store."""

    code = "refused"


class Unavailable(TenureError):
    """No server can be reached, or its store cannot; nothing was done."""

    code = "unavailable"


class NoServer(Unavailable):
    """No server can be reached at all."""


class Full(TenureError):
    """The store has no room."""

    code = "full"


class Corrupt(TenureError):
    """The store is damaged."""

    code = "corrupt"


class UnknownOutcome(TenureError):
    """It may or may not have happened: read again before you retry."""

    code = "unknown"


class Unauthenticated(TenureError):
    """The server does not know who asks."""

    code = "unauthenticated"


class Denied(TenureError):
    """The server knows who asks, and says no."""

    code = "denied"


class Overloaded(TenureError):
    """Too much at once."""

    code = "overloaded"

    @property
    def retry_after(self) -> float:
        """After how many seconds to ask again."""
        ms = self._number("retry_after_ms")
        return 1.0 if ms is None else ms / 1000


class ProtocolError(TenureError):
    """That was no answer of a Tenure server."""

    code = "protocol"


_CLASSES: tuple[type[TenureError], ...] = (
    NotFound,
    AlreadyExists,
    NameTaken,
    Conflict,
    Held,
    Lost,
    Unsupported,
    Invalid,
    LimitExceeded,
    Compacted,
    Refused,
    Unavailable,
    Full,
    Corrupt,
    UnknownOutcome,
    Unauthenticated,
    Denied,
    Overloaded,
)
BY_CODE: Mapping[str, type[TenureError]] = {cls.code: cls for cls in _CLASSES}


def from_wire(error: Mapping[str, Any]) -> TenureError:
    """The error that a server told of, as JSON."""
    code = str(error.get("code", ""))
    message = str(error.get("message") or code or "the server did not say what went wrong")
    cls = BY_CODE.get(code)
    if cls is not None:
        return cls(message, fields=error)
    unknown = TenureError(message, fields=error)
    unknown.code = code or TenureError.code
    return unknown
