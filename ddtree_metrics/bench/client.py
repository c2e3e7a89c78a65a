"""Send one request to an OpenAI-compatible server and time it.

A connection is opened for each request and the clock starts when its first byte is sent (the connection stands by then), so the
cost of connecting is in no measurement, and a reused connection that the server has closed can spoil none. A request that
was sent is never silently repeated.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.parse
import uuid
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ddtree_metrics.bench.answers import Answer, EventStream, Reader, explain, named_fields
from ddtree_metrics.errors import BenchError

if TYPE_CHECKING:
    import httpx

INSTALL = "the benchmark needs httpx: pip install 'ddtree-metrics[bench]'"
clock = time.perf_counter
"""The clock of all measurements; tests put their own here."""
SECRET_WORDS = ("key", "token", "secret", "password", "sig", "auth")


def load_httpx() -> Any:
    """Import httpx, or say how to get it.

    Raises
    ------
    BenchError
        If it is not installed.
    """
    try:
        import httpx
    except ImportError:
        raise BenchError(INSTALL) from None
    return httpx


def base_address(url: str) -> tuple[str, tuple[str, str] | None]:
    """Bring a server's address into one form: ``http://host:port/v1``, and user and password if it holds them.

    Raises
    ------
    BenchError
        If it is no http address, or has a query that looks like a secret.
    """
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urllib.parse.urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if parts.scheme not in ("http", "https") or not host:
        raise BenchError("the server's address must look like http://127.0.0.1:30000 (a file of a saved sweep works too)")
    names = [name.lower() for name, _ in urllib.parse.parse_qsl(parts.query, keep_blank_values=True)]
    if any(word in name for name in names for word in SECRET_WORDS):
        raise BenchError("the address holds a key in its query; give it in DDTREE_API_KEY instead")
    path = parts.path.rstrip("/")
    for tail in ("/chat/completions", "/completions"):
        path = path.removesuffix(tail)
    if not path.endswith("/v1"):
        path += "/v1"
    place = f"[{host}]" if ":" in host else host
    if port:
        place += f":{port}"
    login = (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")) if parts.username else None
    return urllib.parse.urlunsplit((parts.scheme, place, path, parts.query, "")), login


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
        Seconds that one request may take.
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
        self._httpx = load_httpx()
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
        headers = {"Accept-Encoding": "identity", "Connection": "close"}
        if api_key:
            if not api_key.isascii() or any(c.isspace() for c in api_key):
                raise BenchError("the API key holds blanks or characters that a header cannot carry; check DDTREE_API_KEY")
            headers["Authorization"] = f"Bearer {api_key}"
        local = urllib.parse.urlsplit(self.base).hostname in ("127.0.0.1", "localhost", "::1")
        self._http: httpx.Client = self._httpx.Client(
            headers=headers,
            auth=login,
            timeout=self._httpx.Timeout(timeout, connect=min(timeout, 15.0)),
            limits=self._httpx.Limits(max_keepalive_connections=0),
            trust_env=not local,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; requests under way end with a failure."""
        self.stopped.set()
        self._http.close()

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
        try:
            where = self.address(path, root=root)
            answer = self._http.get(where, timeout=10.0) if body is None else self._http.post(where, json=body, timeout=30.0)
            if answer.status_code != 200:
                return None
            return answer.json() if "json" in answer.headers.get("content-type", "") else answer.text
        except (self._httpx.HTTPError, ValueError):
            return None

    def models(self) -> list[str]:
        """List the models that the server names.

        Raises
        ------
        BenchError
            If nothing listens there, or the key is not taken.
        """
        try:
            answer = self._http.get(self.address("/models"), timeout=15.0)
        except self._httpx.ConnectError as error:
            raise BenchError(f"nothing answers at {self.shown_url}: {error}; check address and port") from None
        except self._httpx.HTTPError as error:
            raise BenchError(f"no usable answer from {self.shown_url}: {type(error).__name__}") from None
        if answer.status_code in (401, 403):
            raise BenchError(_key_text(answer.status_code, self._key))
        try:
            data = answer.json().get("data") or []
            return [m["id"] for m in data if isinstance(m, dict) and isinstance(m.get("id"), str)]
        except (ValueError, AttributeError):
            return []

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

    def ask(self, prompt: str, max_tokens: int, **about: Any) -> Answer:
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
        httpx = self._httpx
        answer = Answer(max_tokens=max_tokens, request_id=f"ddtree-{uuid.uuid4().hex[:16]}", **about)
        own_id = answer.request_id or ""
        reader = Reader(answer)
        path = "/chat/completions" if self.chat else "/completions"
        body = json.dumps(self.body(prompt, max_tokens)).encode()
        start = clock()
        answer.sent_us = time.time_ns() // 1000

        def on_wire(event: str, _: dict[str, Any]) -> None:
            nonlocal start
            if event == "http11.send_request_headers.started":
                answer.sent_us = time.time_ns() // 1000
                start = clock()

        headers = {"Content-Type": "application/json", "X-Request-Id": own_id}
        try:
            with self._http.stream("POST", self.address(path), content=body, headers=headers, extensions={"trace": on_wire}) as response:
                answer.status = response.status_code
                streamed = "event-stream" in response.headers.get("content-type", "")
                if response.status_code != 200:
                    answer.retry_after_s = _seconds(response.headers.get("retry-after"))
                    self._read_error(reader, response, prompt)
                    return answer
                raw, events = bytearray(), EventStream()
                for piece in response.iter_raw():
                    now = clock() - start
                    if self.stopped.is_set() or now > self.timeout:
                        reader.fail("timeout", f"not finished after {self.timeout:g} s")
                        return answer
                    if not streamed:
                        raw += piece
                        continue
                    for data in events.feed(piece):
                        reader.event(data, now)
                    if reader.done:
                        break
                answer.elapsed_s = clock() - start
                if streamed:
                    for data in events.end():
                        reader.event(data, answer.elapsed_s)
                else:
                    reader.body(json.loads(bytes(raw)))
        except httpx.TimeoutException as error:
            what = "the connection" if isinstance(error, httpx.ConnectTimeout) else "an answer"
            reader.fail("timeout", f"no more of {what} within {self.timeout:g} s")
        except httpx.ConnectError as error:
            reader.fail("connection", f"cannot connect: {error}")
        except (httpx.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed under it
            reader.fail("broken", f"the connection broke: {type(error).__name__}")
        except ValueError:
            reader.fail("bad_answer", "the answer is not JSON")
        finished = reader.finish(stream=self.stream)
        finished.message = self._clean(finished.message, prompt)
        return finished

    def ask_politely(self, prompt: str, max_tokens: int, *, retries: int = 4, **about: Any) -> tuple[Answer, list[Answer]]:
        """Ask outside a measurement: leave out refused fields, wait and ask again where the server says it is busy.

        Returns
        -------
        answer : Answer
            The last one.
        all_answers : list of Answer
            Every request that was sent, in order.
        """
        sent: list[Answer] = []
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

    def back_off(self, answer: Answer, times: int = 0) -> None:
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

    def _read_error(self, reader: Reader, response: httpx.Response, prompt: str) -> None:
        raw = b""
        for piece in response.iter_raw():
            raw += piece
            if len(raw) > 100_000:
                break
        try:
            payload = json.loads(raw)
        except ValueError:
            payload = {"message": raw[:200].decode("utf-8", "replace").strip() or f"HTTP {response.status_code}"}
        kind, text = explain(response.status_code, payload)
        if kind == "auth":
            text = _key_text(response.status_code, self._key)
        if 300 <= response.status_code < 400:
            text = f"the server redirects (HTTP {response.status_code}); give the address it redirects to"
        reader.fail(kind, self._clean(text, prompt) or "")

    def _clean(self, text: str | None, prompt: str) -> str | None:
        """Take key and prompt out of a server's words."""
        if text is None:
            return None
        if self._key:
            text = text.replace(self._key, "***")
        flat = json.dumps(text)
        if any(prompt[i : i + 24] in text or json.dumps(prompt[i : i + 24])[1:-1] in flat for i in range(0, min(len(prompt), 400), 24)):
            return "the server's message quotes the prompt and is left out"
        return text[:200]


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
    except (TypeError, ValueError):
        return None
