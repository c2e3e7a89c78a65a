"""A sweep: what was asked for, every answer, the point of each context length; saved, loaded, and as tables.

A saved sweep is also a baseline: it holds all that is needed to make the same sweep again, and no prompt, answer text or key.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, get_type_hints

from msgspec import Meta, Struct

from ddtree_metrics.bench.answers import TimedAnswer
from ddtree_metrics.bench.key_filter import clean_texts
from ddtree_metrics.bench.stats import Point
from ddtree_metrics.errors import BenchError, OutputError
from ddtree_metrics.validation import decode_json, printable

if TYPE_CHECKING:
    import pandas as pd

KIND = "ddtree_metrics.bench"
SCHEMA_VERSION = 1
# History of the saved form. 1: the first.
LARGEST_FILE = 1 << 28
"""Bytes; a thousand context lengths with fifteen rounds each are a tenth of it."""
_MOST = 10_000_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure.

    Parameters
    ----------
    ctx : tuple of int
        Prompt lengths, in tokens.
    lengths : tuple of int
        ``max_tokens`` of the requests of a round, ascending: two, or more for a regression. The first is at least 2: after one
        token, the first decode step would be paid by one side only.
    repeat : int
        Rounds.
    precision : float
        Stop a context length early when its interval is narrower than this share of its value (after seven rounds); 0 never.
    concurrency : int
        Requests at once.
    chat, stream : bool
        The chat endpoint instead of completions; event streams instead of whole answers.
    seed : int
        Of the prompts.
    timeout : float
        Seconds for one request.
    model : str or None
        Its name; ``None`` asks the server.

    Raises
    ------
    BenchError
        If it makes no sense.
    """

    ctx: tuple[int, ...] = (64, 1024, 3072, 5120)
    lengths: tuple[int, ...] = (8, 264)
    repeat: int = 15
    precision: float = 0.05
    concurrency: int = 1
    chat: bool = False
    stream: bool = False
    seed: int = 0
    timeout: float = 300.0
    model: str | None = None

    def __post_init__(self) -> None:
        if not self.ctx or min(self.ctx) < 1 or max(self.ctx) > _MOST or len(set(self.ctx)) != len(self.ctx):
            raise BenchError(f"context lengths must lie between 1 and {_MOST:,} tokens and be given once each")
        if len(self.lengths) < 2 or list(self.lengths) != sorted(set(self.lengths)):
            raise BenchError("a round needs two or more different numbers of tokens, the smallest first (n1 < n2)")
        if self.lengths[0] < 2:
            raise BenchError("n1 must be at least 2: with one token, one request of each pair alone pays for its first decode step")
        if not (1 <= self.repeat <= _MOST and 1 <= self.concurrency <= 1000 and 0 < self.timeout <= _MOST and self.lengths[-1] <= _MOST):
            raise BenchError("repeat, concurrency, timeout and the numbers of tokens must be positive, and none as large as that")
        if not 0 <= self.precision < 1:
            raise BenchError("precision must be a share below 1")

    @property
    def requests(self) -> int:
        """How many requests it takes at least: warm-up and lengths of each round, and one to begin with for each context."""
        return 1 + len(self.ctx) * (1 + self.repeat * self.concurrency * (1 + len(self.lengths)))

    @property
    def tokens(self) -> tuple[int, int]:
        """How many prompt tokens and output tokens that is, at most."""
        a_round = self.lengths[0] + sum(self.lengths)
        prompt = sum(c * (1 + self.repeat * self.concurrency * (1 + len(self.lengths))) for c in self.ctx)
        return prompt, len(self.ctx) * (self.lengths[0] + self.repeat * self.concurrency * a_round)


@dataclass(slots=True)
class Sweep:
    """The result of a run.

    Attributes
    ----------
    url, model, prompt : str
        What was measured, and with which text.
    plan : Plan
    points : list of Point
        One a context length, in the order asked for.
    answers : list of TimedAnswer
        Every request.
    server, client : dict
        What is known about both ends.
    started, finished : float
        Seconds since 1970.
    interrupted : bool
        Whether Ctrl-C ended it.
    notes, refused : list of str
        What a reader should know; fields the server does not take.
    """

    url: str
    plan: Plan
    model: str | None
    prompt: str
    points: list[Point]
    answers: list[TimedAnswer] = field(default_factory=list)
    server: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    started: float = 0.0
    finished: float = 0.0
    interrupted: bool = False
    notes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def unmeasured(self) -> list[Point]:
        """Points without a number."""
        return [p for p in self.points if p.decode_tok_s is None]

    def frame(self) -> pd.DataFrame:
        """Return one row a context length: the fields of ``Point``, with the names that ``by_context`` uses for the curve.

        ``x_mean`` is the context length of the value (prompt and half of the output); ``tok_per_s``, ``tok_per_s_low`` and
        ``tok_per_s_high`` are its speed and interval, ``step_time_mean_ms`` and ``tokens_per_step_pooled`` what the server's verify
        counts give.
        """
        import pandas as pd

        names = [f.name for f in fields(Point)]
        made = pd.DataFrame([{n: getattr(p, n) for n in names} for p in self.points], columns=names)
        for name in names:
            if name not in ("dropped", "status", "reason", "notes", "steps_from"):
                made[name] = pd.to_numeric(made[name], errors="coerce")
        renamed = {
            "x_mean": "context_mid",
            "tok_per_s": "decode_tok_s",
            "tok_per_s_low": "low",
            "tok_per_s_high": "high",
            "step_time_ms": "step_ms",
            "step_time_mean_ms": "step_ms",
            "tokens_per_step_pooled": "tokens_per_step",
        }
        for new, old in renamed.items():
            made[new] = made[old]
        return made

    def request_records(self) -> list[dict[str, Any]]:
        """Return the requests that were answered, with the columns of ``records.Request``: what ``join_requests`` takes.

        All of them, warm-ups too: they made steps like any other. ``where`` tells what each was for.
        """
        from ddtree_metrics.records import Request
        from ddtree_metrics.schema import columns

        made = []
        for a in self.answers:
            if a.completion_tokens is None or a.elapsed_s is None:
                continue
            row: dict[str, Any] = dict.fromkeys(c.name for c in columns(Request))
            row |= {
                "request_id": a.request_id,
                "received": _instant(a.sent_us),
                "first_token": _instant(a.sent_us + round(a.first_token_s * 1e6)) if a.first_token_s is not None else None,
                "finished": _instant(a.sent_us + round(a.elapsed_s * 1e6)),
                "prompt_tokens": a.prompt_tokens,
                "cached_tokens": a.cached_tokens,
                "completion_tokens": a.completion_tokens,
                "reasoning_tokens": a.reasoning_tokens,
                "verify_steps": a.steps,
                "accepted_drafts": a.accepted_drafts,
                "proposed_drafts": a.proposed_drafts,
                "finish_reason": a.finish_reason,
                "kind": "client",
                "source": "client",
                "where": f"bench ctx={a.ctx} round={a.round} {a.role} max_tokens={a.max_tokens}",
            }
            made.append(row)
        return sorted(made, key=lambda r: r["received"])

    def requests(self) -> pd.DataFrame:
        """Return ``request_records()`` as a frame of the requests table."""
        import pyarrow as pa

        from ddtree_metrics.records import Request
        from ddtree_metrics.schema import arrow_schema
        from ddtree_metrics.tables import to_pandas

        return to_pandas(pa.Table.from_pylist(self.request_records(), schema=arrow_schema(Request)))

    def save_requests(self, path: str | Path, *, force: bool = True) -> None:
        """Write the requests as JSON lines that ``read_requests`` reads."""
        from ddtree_metrics.tables.atomic import write_whole

        lines = []
        for row in self.request_records():
            known = {k: v.isoformat() if isinstance(v, datetime) else v for k, v in row.items() if v is not None}
            lines.append(json.dumps(known) + "\n")
        write_whole(Path(path), "".join(lines).encode(), force=force)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values for JSON."""
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "started": _iso(self.started),
            "finished": _iso(self.finished),
            "interrupted": self.interrupted,
            "url": self.url,
            "model": self.model,
            "prompt": self.prompt,
            "plan": asdict(self.plan),
            "server": self.server,
            "client": self.client,
            "refused": self.refused,
            "notes": self.notes,
            "points": [asdict(p) for p in self.points],
            "answers": [{k: v for k, v in asdict(a).items() if v is not None} for a in self.answers],
        }

    def to_json(self) -> str:
        """Return it as JSON text; numbers that JSON does not have become null."""
        return json.dumps(_finite(self.to_dict()), indent=1, allow_nan=False) + "\n"

    def save(self, path: str | Path, *, force: bool = True) -> None:
        """Write it: ``.json``, or ``.parquet`` with one row a context length and the whole sweep in the file's metadata.

        Raises
        ------
        OutputError
            If the ending is another, the file exists and ``force`` is off, or it cannot be written.
        """
        from ddtree_metrics.tables.atomic import write_whole

        path = Path(path)
        if path.suffix == ".json":
            write_whole(path, self.to_json().encode(), force=force)
        elif path.suffix == ".parquet":
            write_whole(path, self._parquet(), force=force)
        else:
            raise OutputError(f"a sweep is written to .json or .parquet, not to {path.name}", usage=True)

    def _parquet(self) -> bytes:
        import io

        import pyarrow as pa
        import pyarrow.parquet as pq

        whole = {name: ("int" in str(kind), "float" not in str(kind)) for name, kind in get_type_hints(Point).items()}
        columns: dict[str, Any] = {}
        for name, (integer, text) in whole.items():
            values = [getattr(p, name) for p in self.points]
            if name == "dropped":
                columns[name] = pa.array([list(v.items()) for v in values], pa.map_(pa.string(), pa.int64()))
            elif name == "notes":
                columns[name] = pa.array(values, pa.list_(pa.string()))
            else:
                columns[name] = pa.array(values, pa.int64() if integer else pa.string() if text else pa.float64())
        table = pa.table(columns).replace_schema_metadata({KIND: self.to_json(), f"{KIND}.schema_version": str(SCHEMA_VERSION)})
        sink = io.BytesIO()
        pq.write_table(table, sink, compression="zstd")
        return sink.getvalue()

    def plain(self) -> str:
        """Return the five columns that the method's first table had: tokens asked for, prompt, speed, and the two times."""
        lines = ["ctx_req prompt_tok decode_tok/s    t_a     t_b"]
        for p in self.points:
            speed, t_a, t_b = _num(p.decode_tok_s, 1), _num(p.t_a, 2), _num(p.t_b, 2)
            lines.append(f"{p.ctx_req:>7} {_num(p.prompt_tok, 0):>10} {speed:>12} {t_a:>6} {t_b:>7}")
        return "\n".join(lines) + "\n"

    def table(self) -> str:
        """Return the result as a table for people; columns that nothing is known for are left out."""
        levels = {round(100 * p.level, 1) for p in self.points if p.level is not None}

        def interval(p: Point) -> str:
            if p.low is None or p.high is None or p.level is None:
                return "-"
            return f"{p.low:.1f} - {p.high:.1f}" + (f" ({100 * p.level:.3g} %)" if len(levels) > 1 else "")

        wanted: list[tuple[str, Any]] = [
            ("ctx_req", lambda p: str(p.ctx_req)),
            ("prompt_tok", lambda p: _num(p.prompt_tok, 0)),
            ("decode_tok/s", lambda p: _num(p.decode_tok_s, 1)),
            ("interval", interval),
            ("best", lambda p: _num(p.best_tok_s, 1)),
            ("t_a", lambda p: _num(p.t_a, 3)),
            ("t_b", lambda p: _num(p.t_b, 3)),
            ("n_a", lambda p: _num(p.n_a, 0)),
            ("n_b", lambda p: _num(p.n_b, 0)),
            ("rounds", lambda p: f"{p.kept}/{p.rounds}"),
            ("tok/step", lambda p: _num(p.tokens_per_step, 2)),
            ("step_ms", lambda p: _num(p.step_ms, 2)),
            ("server", lambda p: _num(p.server_tok_s, 1)),
            ("stream", lambda p: _num(p.stream_tok_s, 1)),
            ("all", lambda p: _num(p.total_tok_s, 1)),
            ("prefill", lambda p: _num(p.prefill_tok_s, 0)),
        ]
        optional = {"tok/step", "step_ms", "server", "stream", "all", "prefill"}
        columns = []
        for name, cell in wanted:
            cells = [cell(p) for p in self.points]
            if name in optional and all(c == "-" for c in cells):
                continue
            if name == "interval" and len(levels) == 1:
                name = f"{min(levels):g} % interval"
            width = max(len(c) for c in (name, *cells))
            columns.append([name.rjust(width), *(c.rjust(width) for c in cells)])
        return "\n".join(" ".join(row).rstrip() for row in zip(*columns, strict=True)) + "\n"


class _Facts(TypedDict, total=False):
    kind: str
    version: str | None
    flags: dict[str, str]
    context_len: int | None


class _Kind(Struct):
    kind: Any = None
    schema_version: Any = None


class _Saved(Struct):
    """The saved form, as ``Sweep.to_dict`` makes it."""

    plan: Plan
    model: str | None
    prompt: str
    url: str
    started: Annotated[datetime, Meta(tz=True)]
    finished: Annotated[datetime, Meta(tz=True)]
    interrupted: bool
    server: _Facts
    client: dict[str, str | int | None]
    points: list[Point]
    answers: list[TimedAnswer]
    notes: list[str]
    refused: list[str]


def load_sweep(path: str | Path) -> Sweep:
    """Load a sweep that ``bench --output`` or ``--save`` wrote, JSON or Parquet.

    Raises
    ------
    BenchError
        If the file cannot be read, is no sweep, was written by a newer version, or holds a value that no sweep has.
    """
    path = Path(path)

    def unfit(why: str) -> BenchError:
        return BenchError(f"{path} is not a sweep that can be used: {why}")

    raw = _json_of(path)
    nothing = BenchError(f"{path} is not a sweep that 'ddtree-logs bench' saved")
    head: _Kind = decode_json(raw, _Kind, lambda _: nothing)
    if head.kind != KIND:
        raise nothing
    if not isinstance(head.schema_version, int) or head.schema_version < 1:
        raise unfit("schema_version: a whole number from 1 on is wanted")
    if head.schema_version > SCHEMA_VERSION:
        raise BenchError(f"{path} was written by a newer version of this tool (form {head.schema_version}); update it")
    try:
        saved: _Saved = decode_json(raw, _Saved, ValueError)
    except ValueError as error:
        raise unfit(str(error)) from None
    except BenchError as error:  # what a Plan says of itself
        raise unfit(f"plan: {error}") from None
    made = Sweep(
        url=saved.url,
        plan=saved.plan,
        model=saved.model,
        prompt=saved.prompt,
        points=saved.points,
        answers=saved.answers,
        server=dict(saved.server),
        client=dict(saved.client),
        started=saved.started.timestamp(),
        finished=saved.finished.timestamp(),
        interrupted=saved.interrupted,
        notes=saved.notes,
        refused=saved.refused,
    )
    shown: Sweep = clean_texts(made, printable)
    return shown


def _json_of(path: Path) -> bytes:
    """Return the JSON text of a saved sweep; of a Parquet file, what its metadata holds."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        raise BenchError(f"cannot read the sweep {path}: {getattr(error, 'strerror', None) or 'it is no file name'}") from None
    if len(raw) > LARGEST_FILE:
        raise BenchError(f"{path} is too large for a saved sweep (more than {LARGEST_FILE:,} bytes)")
    if raw[:4] == b"PAR1":
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            return (pq.read_schema(pa.BufferReader(raw)).metadata or {}).get(KIND.encode(), b"")
        except (pa.ArrowException, OSError, ValueError):
            return b""
    return raw


def client_facts() -> dict[str, Any]:
    """Return what of this machine matters for repeating a sweep."""
    from ddtree_metrics import __version__

    facts: dict[str, Any] = {"tool": __version__, "python": platform.python_version(), "system": platform.system(), "cpus": os.cpu_count()}
    with contextlib.suppress(ImportError):
        import httpcore

        facts["httpcore"] = httpcore.__version__
    return facts


def _num(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _instant(us: int) -> datetime:
    return datetime.fromtimestamp(us // 1_000_000, timezone.utc).replace(microsecond=us % 1_000_000)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) < float("inf") else None
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(v) for v in value]
    return value
