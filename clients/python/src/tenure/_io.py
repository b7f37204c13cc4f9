"""The edge: programs and streams run over httpx, blocking or in an event loop."""

import asyncio
import errno
import inspect
import math
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import httpx

from . import _lookout
from ._settings import Settings
from ._streams import SILENCE, Subscription, ended
from ._wire import Effect, Invoke, NoAnswer, NotSent, Program, Reply, Request, Send, Sleep, answer
from .errors import TenureError

T = TypeVar("T")

CONNECT_MAX = 5.0
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20)


def _socket_options() -> list[tuple[int, int, int]]:
    """A long wait says nothing, so the system has to notice when the other side is gone."""
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)]
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def _timeout(settings: Settings, request: Request) -> httpx.Timeout:
    usual = settings.timeout
    read = None if math.isinf(request.waits) else usual + request.waits
    return httpx.Timeout(usual, connect=min(usual, CONNECT_MAX), read=read)


@contextmanager
def _translated() -> Iterator[None]:
    """Errors of httpx as what they mean for the request."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise NotSent(str(error) or "it did not answer in time", refused=_refused(error)) from error
    except httpx.TimeoutException as error:
        raise NoAnswer("it did not answer in time", timed_out=True) from error
    except httpx.RequestError as error:
        raise NoAnswer(str(error) or type(error).__name__) from error


def _refused(error: BaseException | None) -> bool:
    """Whether nobody listens there. Looks through what the layers below wrap around it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno == errno.ECONNREFUSED:
            return True
        parts: tuple[BaseException, ...] = getattr(error, "exceptions", ())
        if parts:
            return all(_refused(part) for part in parts)
        error = error.__cause__ or error.__context__
    return False


def _reply(response: httpx.Response) -> Reply:
    return Reply(response.status_code, response.content, response.headers.get("Retry-After"))


class Io:
    """Blocking."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._http = self._connect()
        self._closed = False

    def _connect(self) -> httpx.Client:
        transport = httpx.HTTPTransport(
            verify=self._settings.tls, trust_env=False, limits=_LIMITS, socket_options=_socket_options()
        )
        return httpx.Client(transport=transport, auth=self._settings.authorize, trust_env=False)

    def run(self, program: Program[T]) -> T:
        """Runs a program to its end."""
        try:
            effect = next(program)
            while True:
                try:
                    result = self._perform(effect)
                except Exception as error:
                    effect = program.throw(error)
                else:
                    effect = program.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Sleep):
            return time.sleep(effect.seconds)
        if isinstance(effect, Invoke):
            return effect.function()
        with _translated():
            if effect.request.waits > _lookout.EVERY:
                return self._wait(effect)
            return _reply(self._http.request(**self._arguments(effect)))

    def _wait(self, send: Send) -> Reply:
        """A long wait, on a connection of its own that can be cut if the server is silent."""
        if self._closed:
            raise RuntimeError("the client is closed")
        patience = _timeout(self._settings, Request("GET", _lookout.QUESTION))
        with self._connect() as http, _lookout.Lookout(self._http, send.server, patience) as lookout:
            try:
                extensions = {"trace": lookout.trace}
                return _reply(http.request(**self._arguments(send), extensions=extensions))
            except httpx.RequestError as error:
                if lookout.silent:
                    raise NoAnswer(_lookout.SILENT, timed_out=True) from error
                raise

    def follow(self, subscription: Subscription[T]) -> Generator[T, None, None]:
        """Yields what a stream tells, and opens it again when it breaks."""
        # On connections of its own: a stream that is dropped half-way is closed by the garbage collector,
        # at any point of any thread, also where that holds the lock of the shared ones.
        with self._connect() as http:
            while not self._closed:
                why: Exception = ended()
                try:
                    for chunk in self._chunks(http, subscription):
                        yield from subscription.received(chunk)
                except (NotSent, NoAnswer, TenureError) as error:
                    why = error
                time.sleep(subscription.broken(why))

    def _chunks(self, http: httpx.Client, subscription: Subscription[T]) -> Generator[bytes, None, None]:
        request = subscription.begin()
        arguments = self._arguments(Send(subscription.server, request))
        arguments["timeout"] = httpx.Timeout(SILENCE, connect=CONNECT_MAX)
        with _translated(), http.stream(**arguments) as response:
            if response.status_code != httpx.codes.OK:
                response.read()
                answer(_reply(response))
            for chunk in response.iter_bytes():
                if self._closed:
                    return
                yield chunk

    def _arguments(self, send: Send) -> dict[str, Any]:
        return _arguments(self._settings, send)

    def close(self) -> None:
        """Closes all connections; those of streams when they hear the next time."""
        self._closed = True
        self._http.close()


class AsyncIo:
    """In an event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        transport = httpx.AsyncHTTPTransport(
            verify=settings.tls, trust_env=False, limits=_LIMITS, socket_options=_socket_options()
        )
        self._http = httpx.AsyncClient(transport=transport, auth=settings.authorize, trust_env=False)

    async def run(self, program: Program[T]) -> T:
        """Runs a program to its end."""
        try:
            effect = next(program)
            while True:
                try:
                    result = await self._perform(effect)
                except Exception as error:
                    effect = program.throw(error)
                else:
                    effect = program.send(result)
        except StopIteration as stop:
            value: T = stop.value
            return value

    async def _perform(self, effect: Effect) -> Any:
        if isinstance(effect, Sleep):
            return await asyncio.sleep(effect.seconds)
        if isinstance(effect, Invoke):
            result = effect.function()
            return await result if inspect.isawaitable(result) else result
        with _translated():
            if effect.request.waits > _lookout.EVERY:
                return await self._wait(effect)
            return _reply(await self._http.request(**_arguments(self._settings, effect)))

    async def _wait(self, send: Send) -> Reply:
        """A long wait, given up if the server is silent."""
        asking = asyncio.create_task(self._http.request(**_arguments(self._settings, send)))
        try:
            while not (await asyncio.wait({asking}, timeout=_lookout.EVERY))[0]:
                if not await self._answers(send.server) and not asking.done():
                    raise NoAnswer(_lookout.SILENT, timed_out=True)
            return _reply(asking.result())
        finally:
            # Closes its connection, so that the server gives up the place in line.
            if not asking.done():
                asking.cancel()
                await asyncio.wait({asking})

    async def _answers(self, server: str) -> bool:
        patience = _timeout(self._settings, Request("GET", _lookout.QUESTION))
        try:
            await self._http.get(server + _lookout.QUESTION, timeout=patience)
        except httpx.RequestError:
            return False
        return True

    async def follow(self, subscription: Subscription[T]) -> AsyncGenerator[T, None]:
        """Yields what a stream tells, and opens it again when it breaks."""
        while True:
            why: Exception = ended()
            try:
                request = subscription.begin()
                arguments = _arguments(self._settings, Send(subscription.server, request))
                arguments["timeout"] = httpx.Timeout(SILENCE, connect=CONNECT_MAX)
                async with self._stream(arguments) as response:
                    if response.status_code != httpx.codes.OK:
                        await response.aread()
                        answer(_reply(response))
                    async for chunk in response.aiter_bytes():
                        for item in subscription.received(chunk):
                            yield item
            except (NotSent, NoAnswer, TenureError) as error:
                why = error
            await asyncio.sleep(subscription.broken(why))

    @asynccontextmanager
    async def _stream(self, arguments: dict[str, Any]) -> AsyncIterator[httpx.Response]:
        with _translated():
            async with self._http.stream(**arguments) as response:
                yield response

    async def close(self) -> None:
        """Closes all connections."""
        await self._http.aclose()


def _arguments(settings: Settings, send: Send) -> dict[str, Any]:
    request = send.request
    return {
        "method": request.method,
        "url": send.server + request.path,
        "params": dict(request.params) or None,
        "json": request.body,
        "headers": dict(request.headers),
        "timeout": _timeout(settings, request),
    }
