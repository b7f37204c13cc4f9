"""The addresses of servers, as people write them: ``https://a:8368,https://b:8368``.

The scheme may be left out after the first, ``https://a:8368,b:8368``, and the port where it is ours. The
command line reads the same: both are told by one variable of the environment.
"""

import ipaddress
import re
from collections.abc import Iterable

PORT = 8368
"""Where a server listens unless told otherwise."""

_WRITE = "write it like http://127.0.0.1:8368, more of them separated by commas"
_HOST = re.compile(r"(?P<host>\[[^\]]*\]|[A-Za-z0-9._-]+)(?::(?P<port>[0-9]{1,5}))?")


def parse(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Each server as ``SCHEME://HOST:PORT``. What is no address is an error that names it."""
    if not isinstance(addresses, str):
        addresses = ",".join(addresses)
    if "@" in addresses:
        host = addresses.rpartition("@")[2]
        raise ValueError(f"the address of {host} contains a password; pass it as token=")
    parts = [part.strip() for part in addresses.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"there is no server to ask; name at least one, {_WRITE}")
    first = _split(parts[0])[0]
    if first is None:
        raise _wrong(parts[0], _WRITE)
    return tuple(_one(part, first) for part in parts)


def _one(part: str, scheme: str) -> str:
    own, rest = _split(part)
    if own not in (None, scheme):
        raise _wrong(part, f"the first one is {scheme}, and all of them take the same scheme")
    found = _HOST.fullmatch(rest.rstrip("/"))
    if found is None or (found["port"] is not None and not 0 < int(found["port"]) < 65536):
        raise _wrong(part, _advice(rest))
    host = found["host"]
    if host.startswith("[") and not _is_ipv6(host[1:-1]):
        raise _wrong(part, _advice(rest))
    return f"{scheme}://{host}:{int(found['port'] or PORT)}"


def _split(part: str) -> tuple[str | None, str]:
    """The scheme, if there is one, and what follows it."""
    scheme, separator, rest = part.partition("://")
    if not separator:
        return None, part
    if scheme.lower() not in ("http", "https"):
        raise _wrong(part, _WRITE)
    return scheme.lower(), rest


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.IPv6Address(text).scope_id is None
    except ValueError:
        return False


def _advice(rest: str) -> str:
    if rest.startswith("[") or _is_ipv6(rest.rstrip("/")):
        return "an address of IPv6 is written in brackets: http://[::1]:8368"
    return _WRITE


def _wrong(address: str, advice: str) -> ValueError:
    return ValueError(f"{address!r} is no address of a server; {advice}")
