"""Where the servers are, who asks, and how they are trusted."""

import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from ._servers import Servers, place

DEFAULT_URL = "http://127.0.0.1:8368"


@dataclass(frozen=True)
class Settings:
    """What the blocking and the asyncio client have in common."""

    servers: Servers
    name: str
    timeout: float
    tls: ssl.SSLContext
    token: str | Callable[[], str] | None = field(default=None, repr=False)

    @classmethod
    def find(
        cls,
        url: str | Sequence[str] | None,
        token: str | Callable[[], str] | None,
        name: str | None,
        ca: str | os.PathLike[str] | ssl.SSLContext | None,
        cert: tuple[str, str] | None,
        timeout: float,
        environment: Mapping[str, str] = os.environ,
    ) -> "Settings":
        """What is given, else what the environment says, else the defaults."""
        urls = url or environment.get("TENURE_SERVER") or DEFAULT_URL
        name = name or environment.get("TENURE_NAME") or socket.gethostname()
        if "#" in name:
            raise ValueError(
                f"the name {name!r} contains '#', which separates it from its start; use another"
            )
        if not callable(token):
            token = _sendable(token or environment.get("TENURE_BEARER") or "")
        return cls(
            servers=Servers(urls),
            name=name,
            timeout=timeout,
            tls=_tls(ca, cert),
            token=token,
        )

    def authorize(self, request: httpx.Request) -> httpx.Request:
        """Shows the token with a request: the one of this moment, if it is asked for each time."""
        token = _sendable(self.token()) if callable(self.token) else self.token
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        return request

    def describe(self, cls: type[Any]) -> str:
        """For ``repr``: never the token."""
        places = ", ".join(place(url) for url in self.servers.urls)
        return f"<{cls.__name__} {self.name} at {places}>"


def _sendable(token: str) -> str | None:
    # What comes from a file often ends with a line feed.
    token = token.strip()
    if not (token.isascii() and token.isprintable()):
        # Which ones is not told: it is a secret.
        raise ValueError(
            "the token contains characters that no header can carry; is it one line, and all of it?"
        )
    return token or None


def _tls(ca: str | os.PathLike[str] | ssl.SSLContext | None, cert: tuple[str, str] | None) -> ssl.SSLContext:
    if isinstance(ca, ssl.SSLContext):
        return ca
    try:
        context = ssl.create_default_context(cafile=ca)
    except OSError as error:
        raise ValueError(f"ca={str(ca)!r} has no certificates to trust: {error}") from error
    if cert is not None:
        try:
            context.load_cert_chain(*cert)
        except OSError as error:
            raise ValueError(f"cert={cert!r} is no certificate with its key: {error}") from error
    return context
