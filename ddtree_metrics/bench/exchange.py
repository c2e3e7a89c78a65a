"""One HTTP exchange, under a deadline over all of it and a limit on its bytes.

The limits hold for whatever a server does: connecting, the handshake, sending, headers that trickle, ``100 Continue`` without end, a body
that never ends, an answer that is small on the wire and huge when it is unpacked. httpcore speaks HTTP; its network back end is the place
where every byte and every wait passes.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import ssl
import threading
import time
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpcore

from ddtree_metrics.errors import BenchError

_SLICE = 16_384
_FRAMING = 1 << 20
"""Bytes on the wire beside those of the body: headers, chunk sizes, interim answers."""


class ExchangeFailed(Exception):
    """No whole answer came.

    Attributes
    ----------
    kind : str
        ``timeout``, ``connection``, ``broken`` or ``bad_answer``, as ``Answer.failure``.
    """

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(slots=True)
class Limits:
    """What one exchange may take.

    Attributes
    ----------
    seconds : float
        From now until the last byte.
    size : int
        Bytes of the answer, unpacked.
    """

    seconds: float
    size: int
    stopped: threading.Event
    _end: float = 0.0
    _wire: int = 0

    def __post_init__(self) -> None:
        self._end = time.monotonic() + self.seconds
        self._wire = 4 * self.size + _FRAMING

    def left(self) -> float:
        """Return the seconds that are left; no answer at all if there are none."""
        seconds = self._end - time.monotonic()
        if self.stopped.is_set():
            raise ExchangeFailed("broken", "the client was closed")
        if seconds <= 0:
            raise self.late()
        return seconds

    def late(self) -> ExchangeFailed:
        """Return what to say when the time is over."""
        return ExchangeFailed("timeout", f"not finished after {self.seconds:g} s")

    def too_much(self) -> ExchangeFailed:
        """Return what to say when there is no end of it."""
        return ExchangeFailed("bad_answer", f"the answer is longer than {self.size:,} bytes")

    def came(self, size: int) -> None:
        """Count bytes on the wire."""
        self._wire -= size
        if self._wire < 0:
            raise self.too_much()


class _LimitedStream(httpcore.NetworkStream):
    def __init__(self, inner: httpcore.NetworkStream, limits: Limits) -> None:
        self._inner, self._limits = inner, limits

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = self._inner.read(max_bytes, timeout=self._limits.left())
        self._limits.came(len(data))
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        for at in range(0, len(buffer), _SLICE):
            self._inner.write(buffer[at : at + _SLICE], timeout=self._limits.left())

    def close(self) -> None:
        self._inner.close()

    def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None) -> _LimitedStream:
        return _LimitedStream(self._inner.start_tls(ssl_context, server_hostname, self._limits.left()), self._limits)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class _LimitedNetwork(httpcore.NetworkBackend):
    def __init__(self, limits: Limits) -> None:
        self._limits, self._plain = limits, httpcore.SyncBackend()

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, local_address: str | None = None, socket_options: Any = None
    ) -> _LimitedStream:
        """Try each address of a name, within one time for all of them."""
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(getattr(error, "strerror", None) or "no such host") from None
        last: Exception = httpcore.ConnectError("no address")
        for _, _, _, _, address in found:
            try:
                inner = self._plain.connect_tcp(str(address[0]), port, self._limits.left(), local_address, socket_options)
                return _LimitedStream(inner, self._limits)
            except httpcore.ConnectError as error:
                last = error
        raise last


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status, the headers that matter, and the body as it comes, unpacked."""

    status: int
    content_type: str
    retry_after: str
    pieces: Iterator[bytes]

    def whole(self) -> bytes:
        """Return the body."""
        return b"".join(self.pieces)


@contextlib.contextmanager
def exchange(
    method: str,
    url: str,
    *,
    headers: Mapping[str, str],
    content: bytes | None,
    limits: Limits,
    proxy: httpcore.Proxy | None = None,
    on_sent: Callable[[], None] | None = None,
) -> Iterator[HttpAnswer]:
    """Send one request on a connection of its own, and give the answer while it comes.

    Parameters
    ----------
    method, url, headers, content
        The request.
    limits : Limits
        They count from when they were made.
    proxy : httpcore.Proxy, optional
    on_sent : callable, optional
        Called when the first byte of the request is about to be sent, the connection standing.

    Raises
    ------
    ExchangeFailed
        If no whole answer comes within the limits.
    """

    def trace(event: str, _: dict[str, Any]) -> None:
        if on_sent is not None and event == "http11.send_request_headers.started":
            on_sent()

    try:
        with (
            httpcore.ConnectionPool(
                ssl_context=_certificates(), proxy=proxy, max_keepalive_connections=0, network_backend=_LimitedNetwork(limits)
            ) as pool,
            pool.stream(method, url, headers=list(headers.items()), content=content, extensions={"trace": trace}) as response,
        ):
            said = {name.lower(): value.decode("latin-1") for name, value in response.headers}
            body = _unpacked(response.iter_stream(), said.get(b"content-encoding", "").strip().lower(), limits)
            yield HttpAnswer(response.status, said.get(b"content-type", "").lower(), said.get(b"retry-after", ""), body)
    except httpcore.ConnectError as error:
        raise ExchangeFailed("connection", f"cannot connect: {error}") from None
    except httpcore.TimeoutException:
        raise limits.late() from None
    except (ImportError, httpcore.UnsupportedProtocol):
        raise ExchangeFailed("connection", "a SOCKS proxy needs socksio: pip install 'httpcore[socks]'") from None
    except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.ProxyError, OSError) as error:
        raise ExchangeFailed("broken", f"the connection broke: {type(error).__name__}") from None


def _unpacked(pieces: Iterable[bytes], encoding: str, limits: Limits) -> Iterator[bytes]:
    """Yield a body as it was before it was packed, never more than the limit; plain was asked for, but a proxy may not care."""
    size = 0
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise ExchangeFailed("bad_answer", "the answer is packed in a way that was not asked for")
    unpack = None if encoding in ("", "identity") else zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        for piece in pieces:
            rest = piece
            while rest:
                limits.left()
                if unpack is None:
                    made, rest = rest, b""
                else:
                    made = unpack.decompress(rest, _SLICE)
                    rest = b"" if unpack.eof else unpack.unconsumed_tail
                size += len(made)
                if size > limits.size:
                    raise limits.too_much()
                if made:
                    yield made
        if unpack is not None and not unpack.eof:
            raise ExchangeFailed("broken", "the packed answer ends too early")
    except zlib.error:
        raise ExchangeFailed("broken", "the packed answer is damaged") from None


@functools.cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def environment_proxy(url: str) -> tuple[httpcore.Proxy | None, str]:
    """Return the proxy that ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY`` name for an address, and its password.

    Raises
    ------
    BenchError
        If the variable holds no usable address.
    """
    parts = urllib.parse.urlsplit(url)
    host = parts.hostname or ""
    if host in ("127.0.0.1", "localhost", "::1") or urllib.request.proxy_bypass(host):
        return None, ""
    known = urllib.request.getproxies()
    name = parts.scheme if known.get(parts.scheme) else "all"
    text = known.get(name)
    if not text:
        return None, ""
    try:
        if "://" not in text:
            text = f"http://{text}"
        place = urllib.parse.urlsplit(text)
        where, port = place.hostname, place.port
        if place.scheme not in ("http", "https", "socks5", "socks5h") or not where or not text.isprintable():
            raise ValueError
        user, password = urllib.parse.unquote(place.username or ""), urllib.parse.unquote(place.password or "")
        where = f"[{where}]" if ":" in where else where.encode("idna").decode()
        address = f"{place.scheme}://{where}" + (f":{port}" if port is not None else "")
        return httpcore.Proxy(address, auth=(user.encode(), password.encode()) if user else None), password
    except (ValueError, UnicodeError, TypeError):
        raise BenchError(f"{name.upper()}_PROXY does not hold a proxy's address such as http://host:3128; mend or unset it") from None
