"""A long wait says nothing until it is over, so somebody has to look whether its server still works.

A server that is frozen keeps its connections: the system answers for it. What it does not do is to answer
another question, so it is asked one now and then, and a wait at one that is silent is cut.
"""

import contextlib
import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import httpx

EVERY = 5.0
"""So often a server at which somebody waits is asked whether it works. Shorter waits go without."""
QUESTION = "/healthz"
SILENT = "it does not answer other requests either"


class Lookout:
    """Looks after one wait of a thread, from a thread of its own, and cuts its connection."""

    def __init__(self, http: httpx.Client, server: str, patience: httpx.Timeout) -> None:
        self._http = http
        self._question = server + QUESTION
        self._patience = patience
        self._socket: socket.socket | None = None
        self._over = threading.Event()
        self.silent = False

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Learns of the connection that is waited on, as an extension of httpx."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            self._socket = info["return_value"].get_extra_info("socket")

    def __enter__(self) -> "Lookout":
        threading.Thread(target=self._look, name="tenure-lookout", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(EVERY):
            try:
                self._http.get(self._question, timeout=self._patience)
                continue
            except httpx.RequestError:
                self.silent = True
            except RuntimeError:
                # The client was closed, and waits for nothing any more.
                pass
            self._cut()
            return

    def _cut(self) -> None:
        # Closing it would not wake whoever reads from it.
        if self._socket is not None and not self._over.is_set():
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
