"""A server of bare sockets, for what no HTTP library would send: trickles, floods, bombs, headers without end.

``RawServer(play)`` calls ``play(connection, request)`` with the bytes of each request; what it sends is what the client gets. A client that
hangs up ends the play.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any


class Connection:
    """What a play sends to."""

    def __init__(self, wire: socket.socket, closing: threading.Event) -> None:
        self._wire = wire
        self.closing = closing

    def send(self, data: bytes) -> None:
        self._wire.sendall(data)

    def drip(self, pieces: Iterator[bytes], every: float = 0.01) -> None:
        """Send pieces slowly, until they end or the client has gone."""
        for piece in pieces:
            if self.closing.wait(every):
                return
            self.send(piece)


class RawServer:
    """Serve plays."""

    def __init__(self, play: Callable[[Connection, bytes], None]) -> None:
        self.play, self.closing, self.requests = play, threading.Event(), 0
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                wire, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(wire,), daemon=True).start()

    def _serve(self, wire: socket.socket) -> None:
        with wire, contextlib.suppress(OSError):
            request = wire.recv(65536)
            head, _, body = request.partition(b"\r\n\r\n")
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            while len(body) < length:
                body += wire.recv(65536)
            self.requests += 1
            self.play(Connection(wire, self.closing), head + b"\r\n\r\n" + body)

    def __enter__(self) -> RawServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._socket.close()


def head(*lines: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    """Make the head of an answer."""
    return "\r\n".join([f"HTTP/1.1 {status}", f"Content-Type: {kind}", "Connection: close", *lines, "", ""]).encode()


def path_of(request: bytes) -> str:
    return request.split(b" ", 2)[1].decode()


def asked(request: bytes) -> dict[str, Any]:
    """Return the JSON body of a request."""
    body: dict[str, Any] = json.loads(request.partition(b"\r\n\r\n")[2] or b"{}")
    return body


def completion(request: bytes, **more: Any) -> dict[str, Any]:
    """Make a right answer to a request for a completion, with the length of the prompt in words."""
    body = asked(request)
    asked_for, prompt = body.get("max_tokens", 8), body.get("prompt") or body.get("messages", [{}])[0].get("content", "")
    usage = {"prompt_tokens": len(prompt.split()), "completion_tokens": asked_for, "prompt_tokens_details": {"cached_tokens": 1}}
    return {"id": "cmpl-1", "choices": [{"index": 0, "text": " so", "finish_reason": "length"}], "usage": usage} | more


def told(payload: Any, *lines: str, status: str = "200 OK") -> bytes:
    """Make a whole JSON answer."""
    raw = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return head(f"Content-Length: {len(raw)}", *lines, status=status) + raw


def healthy(answer: Callable[[Connection, bytes], None]) -> Callable[[Connection, bytes], None]:
    """Answer side questions like any server, and completions by ``answer``."""

    def play(wire: Connection, request: bytes) -> None:
        if path_of(request).endswith("/models"):
            wire.send(told({"data": [{"id": "fake"}]}))
        elif path_of(request).endswith("/completions"):
            answer(wire, request)
        else:
            wire.send(told({"detail": "Not Found"}, status="404 Not Found"))

    return play


def bomb(megabytes: int, form: int = zlib.MAX_WBITS | 16) -> Iterator[bytes]:
    """Yield a packed stream of zeros that unpacks to so many megabytes (a thousandth of it on the wire)."""
    pack, block = zlib.compressobj(9, zlib.DEFLATED, form), b"\0" * (1 << 20)
    for _ in range(megabytes):
        yield pack.compress(block)
    yield pack.flush()


def for_ever(piece: bytes) -> Iterator[bytes]:
    while True:
        yield piece


def trickle(wire: Connection, request: bytes) -> None:
    """One byte of the body after the other, without end."""
    wire.send(head("Content-Length: 1000000000") + b'{"id": "')
    wire.drip(for_ever(b"x"))


def slow_headers(wire: Connection, request: bytes) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\nX-Long: ")
    wire.drip(for_ever(b"x"))


def many_headers(wire: Connection, request: bytes) -> None:
    wire.send(b"HTTP/1.1 200 OK\r\n")
    wire.drip(for_ever(b"X-Again: yes\r\n" * 1000), every=0)


def endless_continue(wire: Connection, request: bytes) -> None:
    wire.drip(for_ever(b"HTTP/1.1 100 Continue\r\n\r\n"))


def continue_flood(wire: Connection, request: bytes) -> None:
    wire.drip(for_ever(b"HTTP/1.1 102 Processing\r\n\r\n" * 1000), every=0)


def flood(wire: Connection, request: bytes) -> None:
    wire.send(head())
    wire.drip(for_ever(b"x" * 65536), every=0)


def stream_flood(wire: Connection, request: bytes) -> None:
    wire.send(head(kind="text/event-stream"))
    wire.drip(for_ever(b"x" * 65536), every=0)


def stream_without_end(wire: Connection, request: bytes) -> None:
    wire.send(head(kind="text/event-stream"))
    wire.drip(for_ever(b'data: {"choices": [{"text": "x"}]}\n\n'))


def comment_stream(wire: Connection, request: bytes) -> None:
    wire.send(head(kind="text/event-stream"))
    wire.drip(for_ever(b": still here\n\n"))


def gzip_bomb(wire: Connection, request: bytes) -> None:
    wire.send(head("Content-Encoding: gzip"))
    wire.drip(bomb(4000), every=0)


def deflate_bomb(wire: Connection, request: bytes) -> None:
    wire.send(head("Content-Encoding: deflate"))
    wire.drip(bomb(4000, zlib.MAX_WBITS), every=0)


def stream_bomb(wire: Connection, request: bytes) -> None:
    wire.send(head("Content-Encoding: gzip", kind="text/event-stream"))
    wire.drip(bomb(4000), every=0)


def chunked_for_ever(wire: Connection, request: bytes) -> None:
    wire.send(head("Transfer-Encoding: chunked"))
    wire.drip(for_ever(b"1\r\nx\r\n"))


def chunk_extension_flood(wire: Connection, request: bytes) -> None:
    wire.send(head("Transfer-Encoding: chunked") + b"1;")
    wire.drip(for_ever(b"x" * 65536), every=0)


def silence(wire: Connection, request: bytes) -> None:
    wire.closing.wait()


def error_flood(wire: Connection, request: bytes) -> None:
    wire.send(head(status="400 Bad Request"))
    wire.drip(for_ever(b"x" * 65536), every=0)


def no_http(wire: Connection, request: bytes) -> None:
    wire.send(b"SSH-2.0-OpenSSH_9.2\r\n")


BAD = {
    play.__name__: play
    for play in (
        trickle,
        slow_headers,
        many_headers,
        endless_continue,
        continue_flood,
        flood,
        stream_flood,
        stream_without_end,
        comment_stream,
        gzip_bomb,
        deflate_bomb,
        stream_bomb,
        chunked_for_ever,
        chunk_extension_flood,
        silence,
        error_flood,
        no_http,
    )
}
"""Servers that no client should wait for, or believe."""
