"""Send one request to an OpenAI-compatible server and time it.

A connection is opened for each request and the clock starts when its first byte is sent (the connection stands by then), so the
cost of connecting is in no measurement, and a reused connection that the server has closed can spoil none. A request that
was sent is never silently repeated.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import threading
import time
import urllib.parse
import uuid
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ddtree_metrics.bench.answers import AnswerReader, EventStream, TimedAnswer, explain, named_fields
from ddtree_metrics.bench.key_filter import KeyFilter, clean_texts
from ddtree_metrics.errors import BenchError
from ddtree_metrics.validation import decode_json

if TYPE_CHECKING:
    from ddtree_metrics.bench.exchange import HttpAnswer

INSTALL = "the benchmark needs httpcore: pip install 'ddtree-metrics[bench]'"
LARGEST = 16 << 20
"""Bytes of an answer beside its tokens, and of all that a side endpoint says."""
A_TOKEN = 4096
"""Bytes that a token may take in an answer; an event of a stream is a kilobyte at most."""
SIDE_SECONDS = 10.0
clock = time.perf_counter
"""The clock of all measurements; tests put their own here."""
SECRET_WORDS = ("key", "token", "secret", "password", "sig", "auth")


def load_exchange() -> Any:
    """Import what speaks HTTP, or say how to get it.

    Raises
    ------
    BenchError
        If it is not installed.
    """
    try:
        return importlib.import_module("ddtree_metrics.bench.exchange")
    except ImportError:
        raise BenchError(INSTALL) from None


def base_address(url: str) -> tuple[str, tuple[str, str] | None]:
    """Bring a server's address into one form: ``http://host:port/v1``, and user and password if it holds them.

    Raises
    ------
    BenchError
        If it is no http address, or has a query that looks like a secret.
    """
    text = url if "://" in url else f"http://{url}"
    host, port, path, query, parts = "", None, "", "", None
    with contextlib.suppress(ValueError):  # UnicodeError is one
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname or "", parts.port
        host = host if ":" in host else host.encode("idna").decode()
        path, query = (urllib.parse.quote(part, safe="/%:@!$&'()*+,;=~?") for part in (parts.path, parts.query))
    if parts is None or parts.scheme not in ("http", "https") or not host or not text.isprintable() or " " in host:
        raise BenchError("the server's address must look like http://127.0.0.1:30000 (a file of a saved sweep works too)")
    names = [name.lower() for name, _ in urllib.parse.parse_qsl(query, keep_blank_values=True)]
    if any(word in name for name in names for word in SECRET_WORDS):
        raise BenchError("the address holds a key in its query; give it in DDTREE_API_KEY instead")
    path = path.rstrip("/")
    for tail in ("/chat/completions", "/completions"):
        path = path.removesuffix(tail)
    if not path.endswith("/v1"):
        path += "/v1"
    place = f"[{host}]" if ":" in host else host
    if port is not None:
        place += f":{port}"
    login = (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")) if parts.username else None
    return urllib.parse.urlunsplit((parts.scheme, place, path, query, "")), login


class Client:
    """Requests to one server.

    Parameters
    ----------
    url : str
        The server's address, with or without ``/v1``.
    model : str or None
        Its name; ``None`` asks the server.
    api_key : str or None
        Sent as a bearer token; appears nowhere else.
    chat, stream : bool
        Which endpoint, and whether as an event stream.
    timeout : float
        Seconds that one request may take, from connecting to its last byte.

    Attributes
    ----------
    clean : KeyFilter
        Takes the key and the password out of a text, and what is not printable.
    """

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        chat: bool = False,
        stream: bool = False,
        timeout: float = 300.0,
    ) -> None:
        self._http = load_exchange()
        self.base, login = base_address(url)
        self.model = model
        self.chat = chat
        self.stream = stream
        self.timeout = timeout
        self.refused: list[str] = []
        """Fields that this server does not take; left out since it said so."""
        self.stopped = threading.Event()
        self._key = api_key
        self._length_field = "max_tokens"
        self._headers = {"Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close", "User-Agent": "ddtree-logs"}
        both = ":".join(login or ())
        if login:
            self._headers["Authorization"] = "Basic " + base64.b64encode(both.encode()).decode()
        if api_key:
            if not api_key.isascii() or not api_key.isprintable() or " " in api_key:
                raise BenchError("the API key holds blanks or characters that a header cannot carry; check DDTREE_API_KEY")
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._proxy, proxy_password = self._http.environment_proxy(self.base)
        self.clean = KeyFilter((api_key or "", (login or ("", ""))[1], proxy_password), (both,))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; requests under way end with a failure."""
        self.stopped.set()

    @property
    def shown_url(self) -> str:
        """The address without user, password and query."""
        return self.base.split("?", 1)[0]

    def address(self, path: str, *, root: bool = False) -> str:
        """Return the address of an endpoint, below ``/v1`` or beside it."""
        parts = urllib.parse.urlsplit(self.base)
        base = parts.path.removesuffix("/v1") if root else parts.path
        return urllib.parse.urlunsplit((parts.scheme, parts.netloc, base + path, parts.query, ""))

    def get(self, path: str, *, root: bool = True, body: dict[str, Any] | None = None) -> Any:
        """Ask a side endpoint (``/props``, ``/metrics``, ``/tokenize``); ``None`` if it has none or anything goes wrong."""
        content = None if body is None else json.dumps(body).encode()
        try:
            with self._exchange(path, content, min(self.timeout, SIDE_SECONDS * (1 if body is None else 3)), root=root) as answer:
                if answer.status != 200:
                    return None
                raw = answer.whole()
                return decode_json(raw, Any, ValueError) if "json" in answer.content_type else raw.decode("utf-8", "replace")
        except (self._http.ExchangeFailed, ValueError):
            return None

    def models(self) -> list[str]:
        """List the models that the server names, as it names them.

        Raises
        ------
        BenchError
            If nothing listens there, or the key is not taken.
        """
        try:
            with self._exchange("/models", None, min(self.timeout, SIDE_SECONDS)) as answer:
                status, raw = answer.status, answer.whole()
        except self._http.ExchangeFailed as error:
            if error.kind == "connection":
                raise BenchError(self.clean(f"nothing answers at {self.shown_url}: {error}; check address and port")) from None
            raise BenchError(self.clean(f"no usable answer from {self.shown_url}: {error}")) from None
        if status in (401, 403):
            raise BenchError(_key_text(status, self._key))
        try:
            said: Any = decode_json(raw, Any, ValueError)
        except ValueError:
            return []
        served = said.get("data") if isinstance(said, dict) else None
        named = [m.get("id") for m in served if isinstance(m, dict)] if isinstance(served, list) else []
        return [name for name in named if isinstance(name, str) and name]

    def _exchange(self, path: str, content: bytes | None, seconds: float, *, root: bool = False, size: int = LARGEST, **more: Any) -> Any:
        headers = self._headers | ({"Content-Type": "application/json"} if content is not None else {}) | more.pop("headers", {})
        limits = self._http.Limits(seconds, size, self.stopped)
        method = "GET" if content is None else "POST"
        where = self.address(path, root=root)
        return self._http.exchange(method, where, headers=headers, content=content, limits=limits, proxy=self._proxy, **more)

    def body(self, prompt: str, max_tokens: int) -> dict[str, Any]:
        """Make the body of a request, without the fields that the server has refused."""
        made: dict[str, Any] = {"model": self.model or "default", self._length_field: max_tokens, "stream": self.stream}
        if self.chat:
            made["messages"] = [{"role": "user", "content": prompt}]
        else:
            made["prompt"] = prompt
        made |= {"temperature": 0, "ignore_eos": True, "min_tokens": max_tokens}
        if self.stream:
            made["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
            if "continuous_usage_stats" in self.refused:
                del made["stream_options"]["continuous_usage_stats"]
        for name in self.refused:
            made.pop(name, None)
        return made

    def ask(self, prompt: str, max_tokens: int, **about: Any) -> TimedAnswer:
        """Send one request and read the answer to its end.

        Parameters
        ----------
        prompt : str
            The text.
        max_tokens : int
            Tokens asked for.
        **about
            ``role``, ``ctx``, ``round``, ``worker`` of the answer.

        Returns
        -------
        Answer
            Whole, or with ``failure`` set; never an exception for what the server does.
        """
        answer = TimedAnswer(max_tokens=max_tokens, request_id=f"ddtree-{uuid.uuid4().hex[:16]}", **about)
        reader = AnswerReader(answer)
        path = "/chat/completions" if self.chat else "/completions"
        body = json.dumps(self.body(prompt, max_tokens)).encode()
        start = clock()
        answer.sent_us = time.time_ns() // 1000

        def on_sent() -> None:
            nonlocal start
            answer.sent_us = time.time_ns() // 1000
            start = clock()

        headers, size = {"X-Request-Id": answer.request_id}, LARGEST + A_TOKEN * max_tokens
        try:
            with self._exchange(path, body, self.timeout, size=size, headers=headers, on_sent=on_sent) as response:
                answer.status = response.status
                if response.status != 200:
                    answer.retry_after_s = _seconds(response.retry_after)
                    self._read_error(reader, response)
                elif "event-stream" in response.content_type:
                    events = EventStream()
                    for piece in response.pieces:
                        now = clock() - start
                        for data in events.feed(piece):
                            reader.event(data, now)
                        if reader.done or answer.failure:
                            break
                    answer.elapsed_s = clock() - start
                    for data in events.end():
                        reader.event(data, answer.elapsed_s)
                else:
                    raw = response.whole()
                    answer.elapsed_s = clock() - start
                    reader.body(decode_json(raw, Any, ValueError))
        except self._http.ExchangeFailed as error:
            reader.fail(error.kind, str(error))
        except ValueError as error:
            reader.fail("bad_answer", f"the answer cannot be read: {error}")
        answer.message = self._unquoted(answer.message, prompt)
        finished: TimedAnswer = clean_texts(reader.finish(stream=self.stream), self.clean)
        finished.message = finished.message and finished.message[:200]
        return finished

    def ask_politely(self, prompt: str, max_tokens: int, *, retries: int = 4, **about: Any) -> tuple[TimedAnswer, list[TimedAnswer]]:
        """Ask outside a measurement: leave out refused fields, wait and ask again where the server says it is busy.

        Returns
        -------
        answer : TimedAnswer
            The last one.
        all_answers : list of TimedAnswer
            Every request that was sent, in order.
        """
        sent: list[TimedAnswer] = []
        waits = 0
        while True:
            answer = self.ask(prompt, max_tokens, **about)
            sent.append(answer)
            if answer.failure == "refused_field" and self.give_up(answer.message or ""):
                continue
            if answer.failure in ("rate_limited", "server_error") and waits < retries and not self.stopped.is_set():
                self.back_off(answer, waits)
                waits += 1
                continue
            return answer, sent

    def back_off(self, answer: TimedAnswer, times: int = 0) -> None:
        """Wait as long as the server asks for, or half a second, one, two, four ...; never longer than ``timeout``."""
        wait = answer.retry_after_s if answer.retry_after_s is not None else 0.5 * 2**times
        self.stopped.wait(min(wait, self.timeout, 60.0))

    def give_up(self, message: str) -> bool:
        """Leave out what an error text names, or all that is not OpenAI's own; false if nothing is left to leave out."""
        named = named_fields(message)
        if "max_tokens" in named and self.chat and self._length_field == "max_tokens" and "min_tokens" not in named:
            self._length_field = "max_completion_tokens"
            return True
        wanted = [n for n in named if n not in ("max_tokens", "include_usage")]
        if "continuous_usage_stats" in wanted and "stream_options" in wanted:
            wanted.remove("stream_options")
        wanted = wanted or ["ignore_eos", "min_tokens", "continuous_usage_stats"]
        new = [n for n in wanted if n not in self.refused]
        self.refused += new
        return bool(new)

    def _read_error(self, reader: AnswerReader, response: HttpAnswer) -> None:
        raw = b""
        for piece in response.pieces:
            raw += piece
            if len(raw) > 100_000:
                break
        try:
            payload: Any = decode_json(raw, Any, ValueError)
        except ValueError:
            payload = {"message": raw[:200].decode("utf-8", "replace").strip() or f"HTTP {response.status}"}
        kind, text = explain(response.status, payload)
        if kind == "auth":
            text = _key_text(response.status, self._key)
        if 300 <= response.status < 400:
            text = f"the server redirects (HTTP {response.status}); give the address it redirects to"
        reader.fail(kind, text)

    @staticmethod
    def _unquoted(text: str | None, prompt: str) -> str | None:
        """Leave out a server's words where they quote the prompt."""
        flat = json.dumps(text)
        pieces = (prompt[i : i + 24] for i in range(0, min(len(prompt), 400), 24))
        if text and any(piece in text or json.dumps(piece)[1:-1] in flat for piece in pieces):
            return "the server's message quotes the prompt and is left out"
        return text


def _key_text(status: int, key: str | None) -> str:
    have = "does not take this API key" if key else "wants an API key"
    return f"the server {have} (HTTP {status}); set DDTREE_API_KEY"


def _seconds(text: str | None) -> float | None:
    """Read a Retry-After header: seconds, or a date."""
    if not text:
        return None
    try:
        return max(0.0, float(text))
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError, OverflowError):
        return None
