"""The servers there are, and how one of them is asked."""

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

from . import _addresses, errors
from ._wire import NoAnswer, NotSent, Program, Reply, Request, Send, answer


class Servers:
    """Replicas that all serve the same store. Whichever answered last is asked first."""

    def __init__(self, urls: str | Iterable[str]) -> None:
        self.urls = _addresses.parse(urls)
        self._first = 0

    def __len__(self) -> int:
        return len(self.urls)

    @property
    def first(self) -> str:
        """Whom to ask next."""
        return self.urls[self._first]

    def order(self) -> list[str]:
        """All of them, in the order in which to ask."""
        first = self._first
        return [*self.urls[first:], *self.urls[:first]]

    def prefer(self, url: str) -> None:
        """Whom to ask first from now on, because it answers."""
        self._first = self.urls.index(url)

    def leave(self, url: str) -> None:
        """Whom not to ask first, because it does not answer; the one after it is."""
        self._first = (self.urls.index(url) + 1) % len(self.urls)


def place(url: str) -> str:
    """Host and port, as people say it."""
    return urlsplit(url).netloc


def ask(servers: Servers, request: Request) -> Program[Any]:
    """One request, at the first server that can be reached, and the JSON that it answers."""
    misses: list[tuple[str, NotSent]] = []
    trouble: errors.TenureError | None = None
    order, again = servers.order(), request.repeatable
    while order:
        server = order[0]
        try:
            reply: Reply = yield Send(server, request)
        except NotSent as miss:
            misses.append((order.pop(0), miss))
            continue
        except NoAnswer as silence:
            servers.leave(server)
            trouble = _unanswered(server, request, silence)
            if not request.repeatable:
                raise trouble from silence
            # A connection that was kept open may be from before the server was restarted.
            if again and not silence.timed_out:
                again = False
            else:
                order.pop(0)
            continue
        try:
            content = answer(reply)
        except errors.Unavailable as error:
            trouble = error
            order.pop(0)
            servers.leave(server)
            continue
        servers.prefer(server)
        return content
    raise trouble or nobody(misses)


def _unanswered(server: str, request: Request, silence: NoAnswer) -> errors.TenureError:
    if request.method == "GET":
        return errors.Unavailable(f"{place(server)} did not answer: {silence}")
    return errors.UnknownOutcome(
        f"{place(server)} did not answer {request.method} {request.path}: {silence}; "
        "it may or may not have happened, read again before you retry"
    )


def nobody(misses: list[tuple[str, NotSent]]) -> errors.NoServer:
    """No server could be reached."""
    places = ", ".join(place(server) for server, _ in misses)
    if all(miss.refused for _, miss in misses):
        return errors.NoServer(f"no server on {places}; start one with `tenure serve`")
    reasons = "; ".join(f"{place(server)}: {miss}{_advice(server, str(miss))}" for server, miss in misses)
    return errors.NoServer(f"no server can be reached: {reasons}")


def _advice(server: str, reason: str) -> str:
    """What to do, where the words of the layers below leave that open."""
    if "CERTIFICATE_VERIFY_FAILED" in reason and ("self-signed" in reason or "local issuer" in reason):
        return " (name its authority with ca=)"
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
        return f" (it does not speak TLS; write http://{place(server)})"
    return ""
