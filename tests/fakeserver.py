"""A scripted HTTP server for what a real engine cannot be made to do on demand.

``FakeServer(script)`` listens on 127.0.0.1 in threads of the test process. The script gets each completion request (its parsed
body, and its number) and returns a ``Reply``; helpers below make the usual ones. Everything it was sent is in ``seen``.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class Clock:
    """A clock that runs only when the fake says so: tests wait for nothing and a busy machine changes nothing."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._lock = threading.Lock()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        with self._lock:
            self.now += seconds


CLOCK = Clock()
SSE = Path(__file__).resolve().parents[1] / "fixtures" / "sse"


@dataclass
class Reply:
    """What to answer, and how to go about it."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    pieces: list[bytes] | None = None  # sent one after the other, flushed, without a length
    pause: float = 0.0  # before the answer, on CLOCK
    gap: float = 0.0  # before each piece, on CLOCK
    hang: bool = False  # after the headers and all pieces, until the server is closed
    cut: bool = False  # close the connection where the body should go on


class FakeServer:
    """Serve a script."""

    def __init__(self, script: Callable[[dict[str, Any], int], Reply], routes: dict[str, Any] | None = None) -> None:
        self.script = script
        self.routes = {"/v1/models": {"data": [{"id": "fake"}]}} | (routes or {})
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_GET(self) -> None:
                outer.answer_side(self, None)

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path.endswith("/completions"):
                    outer.answer(self, body)
                else:
                    outer.answer_side(self, body)

        class Quiet(ThreadingHTTPServer):
            def handle_error(self, *_: object) -> None:
                pass  # a client that hangs up is what some tests are about

        self._http = Quiet(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def answer_side(self, handler: BaseHTTPRequestHandler, body: dict[str, Any] | None) -> None:
        made = self.routes.get(handler.path)
        if callable(made):
            made = made(body)
        if isinstance(made, Reply):
            self._send(handler, made)
        elif isinstance(made, str):
            self._send(handler, Reply(body=made.encode(), kind="text/plain"))
        elif made is None:
            self._send(handler, Reply(404, b'{"detail":"Not Found"}'))
        else:
            self._send(handler, Reply(body=json.dumps(made).encode()))

    def answer(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        with self._lock:
            number = len(self.seen)
            self.seen.append(body | {"path": handler.path})
            self.headers.append(dict(handler.headers.items()))
        self._send(handler, self.script(body, number))

    def _send(self, handler: BaseHTTPRequestHandler, reply: Reply) -> None:
        handler.close_connection = True
        CLOCK.advance(reply.pause)
        handler.send_response(reply.status)
        handler.send_header("Content-Type", reply.kind)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if reply.pieces is None:
            handler.send_header("Content-Length", str(len(reply.body) + (100 if reply.cut else 0)))
            handler.end_headers()
            handler.wfile.write(reply.body)
        else:
            handler.send_header("Connection", "close")
            handler.end_headers()
            for piece in reply.pieces:
                CLOCK.advance(reply.gap)
                handler.wfile.write(piece)
                handler.wfile.flush()
        if reply.hang:
            self.closing.wait(60)

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


def words(body: dict[str, Any]) -> int:
    """Count as the fake's tokenizer does: blank-separated words."""
    prompt = body.get("prompt") or "".join(m["content"] for m in body.get("messages", ()))
    return len(prompt.split())


def usage_of(body: dict[str, Any], made: int | None = None, cached: int | None = None) -> dict[str, Any]:
    """Make a usage that counts words."""
    asked = body.get("max_tokens", body.get("max_completion_tokens"))
    usage: dict[str, Any] = {"prompt_tokens": words(body), "completion_tokens": asked if made is None else made}
    if cached is not None:
        usage["prompt_tokens_details"] = {"cached_tokens": cached}
    return usage


def whole(
    body: dict[str, Any], *, made: int | None = None, cached: int | None = None, pause: float = 0.0, finish: str = "length", **more: Any
) -> Reply:
    """Make a complete answer to a request that does not stream."""
    said = {"id": "cmpl-1", "choices": [{"index": 0, "text": " so", "finish_reason": finish}], "usage": usage_of(body, made, cached)}
    return Reply(body=json.dumps(said | more).encode(), pause=pause)


def error(status: int, message: str, **headers: str) -> Reply:
    """Make an error in OpenAI's form."""
    return Reply(status, json.dumps({"error": {"message": message, "type": "error", "code": status}}).encode(), headers=headers)


def events(*payloads: dict[str, Any] | str) -> list[bytes]:
    """Events of a stream, one piece each."""
    return [f"data: {p if isinstance(p, str) else json.dumps(p)}\n\n".encode() for p in payloads]


def streamed(pieces: list[bytes], gap: float = 0.0, **more: Any) -> Reply:
    """Make a stream."""
    return Reply(kind="text/event-stream", pieces=pieces, gap=gap, **more)


def recorded(name: str) -> bytes:
    """Read a stream that a real engine sent."""
    return (SSE / name).read_bytes()
