"""One file of requests → plain mappings of field name to value, whatever program wrote it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from ddtree_metrics.dialects import detect
from ddtree_metrics.errors import JoinError, SourceDamaged, SourceNotFound
from ddtree_metrics.requests import request_fields
from ddtree_metrics.sources.byte_streams import compression
from ddtree_metrics.sources.open_files import open_file
from ddtree_metrics.validation import printable

Row = dict[str, Any]

SUFFIXES = (".jsonl", ".json", ".log", ".ndjson", ".csv", ".tsv", ".parquet")
_LOG_HEAD = re.compile(r"^\[[^\]]{8,40}\]\s*(?=\{)")
FRAME = "frame"
"""What stands for the name of a file where requests come in a frame."""
_WRAPPERS = ("requests", "results", "records", "data")
_INSIDE = ("meta_info", "usage", "metrics", "timings", "speculative_decoding")
_META = ("request_parameters", "spec_verify_ct", "request_received_ts", "meta_info")


@dataclass(slots=True)
class Met:
    """What was met while files were read."""

    files: int = 0
    records: int = 0
    broken: int = 0
    first_broken: str | None = None
    not_requests: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    empty: list[str] = field(default_factory=list)

    def bad(self, where: str) -> None:
        """Count a record that cannot be read."""
        self.broken += 1
        self.first_broken = self.first_broken or where


def expand(paths: Any) -> list[Path | pd.DataFrame]:
    """List the files meant by a path, a folder, a glob, or several of them; a frame stands for itself."""
    some = [paths] if isinstance(paths, (str, Path, pd.DataFrame)) else list(paths)
    found: list[Path | pd.DataFrame] = []
    for one in some:
        if isinstance(one, pd.DataFrame):
            found.append(one)
            continue
        path = Path(one)
        if path.is_dir():
            inside = sorted(p for p in path.iterdir() if p.is_file() and (set(p.suffixes) & set(SUFFIXES)))
            if not inside:
                raise SourceNotFound(f"no request file in {path}; looked for {', '.join(SUFFIXES)}")
            found.extend(inside)
        elif any(c in str(one) for c in "*?[") and not path.exists():
            hits = sorted(Path(path.anchor or ".").glob(str(path.relative_to(path.anchor) if path.anchor else path)))
            if not hits:
                raise SourceNotFound(f"no file matches {one}")
            found.extend(hits)
        elif path.exists():
            found.append(path)
        else:
            raise SourceNotFound(f"no request file {path}")
    return found


def rows(path: Path | pd.DataFrame, met: Met) -> Iterator[tuple[str, str, Row]]:
    """Yield (where, source, mapping) for each request of one file, or of a frame.

    ``source`` is ``request_file`` for what the server itself wrote, else ``client``.
    """
    met.files += 1
    if isinstance(path, pd.DataFrame):
        yield from _frame(path, met)
        return
    data = _bytes(path)
    if data[:4] == b"PAR1" and path.is_file():
        yield from _parquet(path, met)
        return
    if _is_log(data[: 1 << 16]):
        raise JoinError(f"{path} is a log, not a file of requests: give it as the log; what its lines tell of requests is read with it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SourceDamaged(f"{path} is no text file, and no Parquet file either: {e.reason}") from e
    first = text.lstrip()[:1]
    if first == "{" or (first == "[" and (_LOG_HEAD.match(text.lstrip()) or text.lstrip()[1:].lstrip()[:1] in ("{", "]"))):
        named: dict[str, None] = {}
        some = False
        for where, value in _json_values(path.name, text, met):
            for one in _requests_of(where, value, met):
                some = True
                if len(named) < 64:
                    named.update(dict.fromkeys(one[2]))
                yield one
        if some:
            _check_useful(path, [n for n in named if not n.startswith("_")], "field")
    elif text.strip():
        yield from _csv(path, text, met)


def _is_log(head: bytes) -> bool:
    """Tell whether a file is a journal, an export of one, or lines of a server."""
    if head.startswith((b"LPKSHHRH", b"__CURSOR=", b'{"__CURSOR"')):
        return True
    lines = head.decode("utf-8", "replace").splitlines()[:200]
    return not any(line.lstrip()[:1] in ("{", "[") and "{" in line for line in lines[:1]) and bool(detect(lines))


def _bytes(path: Path) -> bytes:
    """Read a file once, for a pipe cannot be read again; of a Parquet file its head is enough."""
    kind = {"gzip": "gzip", "zstd": "zstd", "bzip2": "bz2"}
    try:
        with open_file(str(path)) as file:
            head = file.read(64)
            if head[:4] == b"PAR1" and path.is_file():
                return head
            data = head + file.read()
    except SourceNotFound:
        raise SourceNotFound(f"no request file {path}") from None
    packed = compression(head)
    if packed is None:
        return data
    try:
        return bytes(pa.CompressedInputStream(pa.BufferReader(data), kind[packed]).read())
    except (KeyError, OSError) as e:
        raise SourceDamaged(f"{path} cannot be unpacked ({packed}); unpack it first") from e


def _json_values(name: str, text: str, met: Met) -> Iterator[tuple[str, Any]]:
    """Yield each JSON value of a text: one a line, or one for the whole."""
    lines = text.splitlines()
    stripped = text.lstrip()
    if stripped[0] == "[" or len(lines) > 1:
        try:
            _json(_LOG_HEAD.sub("", lines[0]))
        except ValueError:
            try:  # one document over many lines
                value = _json(text)
            except ValueError:
                pass
            else:
                yield name, value
                return
    for i, line in enumerate(lines, 1):
        line = line.strip()
        if not line:
            continue
        try:
            value = _json(_LOG_HEAD.sub("", line))
        except ValueError:
            met.bad(f"{name}:{i}")
            continue
        yield f"{name}:{i}", value


def _json(text: str) -> Any:
    """Read JSON; what is nested too deeply is no JSON of anybody's requests."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _requests_of(where: str, value: Any, met: Met) -> Iterator[tuple[str, str, Row]]:
    """Take apart one JSON value, by what wrote it."""
    if isinstance(value, list):
        for i, one in enumerate(value):
            if isinstance(one, list):  # lists of requests, not lists of lists
                met.bad(f"{where}[{i}]")
                continue
            yield from _requests_of(f"{where}[{i}]", one, met)
        return
    if not isinstance(value, Mapping):
        met.bad(where)
        return
    if isinstance(value.get("benchmarks"), list):  # guidellm
        for b, benchmark in enumerate(value["benchmarks"]):
            groups = benchmark.get("requests") if isinstance(benchmark, Mapping) else None
            for group, items in groups.items() if isinstance(groups, Mapping) else ():
                for i, one in enumerate(items or ()):
                    if isinstance(one, Mapping):
                        yield f"{where}.benchmarks[{b}].requests.{group}[{i}]", "client", _guidellm(one, group)
        return
    if isinstance(value.get("input_lens"), list) and isinstance(value.get("output_lens"), list):
        yield from _bench_serving(where, value)
        return
    about = value.get("metadata")
    if isinstance(about, Mapping) and ("request_start_ns" in about or "request_end_ns" in about):
        yield where, "client", _aiperf(value, about)
        return
    for name in _WRAPPERS:  # {"requests": [{…}, …], …}
        inside = value.get(name)
        if isinstance(inside, list) and not _is_useful(value) and any(isinstance(x, Mapping) and _is_useful(_flat(x)) for x in inside):
            for i, one in enumerate(inside):
                yield from _requests_of(f"{where}.{name}[{i}]", one, met)
            return
        if isinstance(inside, list) and not inside and not _is_useful(value):
            return
    if "event" in value and str(value["event"]).startswith("request."):
        out = value.get("out")
        if value["event"] == "request.finished" and isinstance(out, Mapping):
            meta = out.get("meta_info")
            made: Row = {"request_id": value.get("rid"), **(dict(meta) if isinstance(meta, Mapping) else {})}
            if "request_finished_ts" not in made:
                made["finished"] = value.get("timestamp")
            yield where, "request_file", made
        else:
            met.not_requests += 1
        return
    yield where, "request_file" if any(k in value for k in _META) else "client", _flat(value)


def _flat(value: Mapping[str, Any]) -> Row:
    """Lift what stands one level down in the shapes that are known; texts and token ids stay behind."""
    made = {k: v for k, v in value.items() if k not in (*_INSIDE, "request_parameters")}
    for name in _INSIDE:
        inner = value.get(name)
        if isinstance(inner, Mapping):
            made.update({k: v for k, v in inner.items() if k not in (*made, *_INSIDE)})
            if isinstance(inner.get("speculative_decoding"), Mapping):  # vLLM has it within ``metrics``
                made.update(inner["speculative_decoding"])
            for details in ("prompt_tokens_details", "completion_tokens_details"):
                if isinstance(inner.get(details), Mapping):
                    made.update(inner[details])
    parameters = value.get("request_parameters")
    if isinstance(parameters, str):
        try:
            parameters = _json(parameters)
        except ValueError:
            parameters = None
    if isinstance(parameters, Mapping):
        made["_warmup"] = _is_warmup(parameters)
        made.setdefault("request_id", made.get("id") or parameters.get("rid"))
    return made


def _is_warmup(parameters: Mapping[str, Any]) -> bool:
    """Whether these are the parameters of the request that SGLang sends itself when it starts."""
    sampling = parameters.get("sampling_params")
    return (
        isinstance(sampling, Mapping)
        and {k: v for k, v in sampling.items() if v is not None} == {"temperature": 0, "max_new_tokens": 8}
        and not parameters.get("stream")
    )


def _guidellm(one: Mapping[str, Any], group: str) -> Row:
    made: Row = {k: v for k, v in one.items() if not isinstance(v, (Mapping, list))}
    info = one.get("info") or one.get("scheduler_info") or {}
    timings = info.get("timings") or info.get("request_timings") or {} if isinstance(info, Mapping) else {}
    for ours, theirs in (
        ("received", "request_start"),
        ("first_token", "first_token_iteration"),
        ("finished", "request_end"),
        ("finished", "last_token_iteration"),
    ):
        if isinstance(timings, Mapping) and timings.get(theirs) is not None and ours not in made:
            made[ours] = timings[theirs]
    for ours, theirs in (("prompt_tokens", "input_metrics"), ("completion_tokens", "output_metrics")):
        measured = one.get(theirs)
        if made.get(ours) is None and isinstance(measured, Mapping):
            made[ours] = measured.get("total_tokens") or measured.get("text_tokens")
    if group in ("errored", "incomplete"):
        made["_flag"] = group
    return made


def _aiperf(value: Mapping[str, Any], about: Mapping[str, Any]) -> Row:
    made: Row = {
        "request_id": about.get("x_request_id") or about.get("session_num"),
        "received_ns": about.get("request_start_ns"),
        "finished_ns": about.get("request_end_ns"),
    }
    for name, metric in (value.get("metrics") or {}).items():
        if not isinstance(metric, Mapping) or isinstance(metric.get("value"), list):
            continue
        if name in ("time_to_first_token", "request_latency"):
            made[f"{name}_{metric.get('unit', 'ms')}"] = metric.get("value")
        else:
            made[name] = metric.get("value")
    if about.get("benchmark_phase") == "warmup":
        made["_warmup"] = True
    if about.get("was_cancelled") or value.get("error"):
        made["_flag"] = "errored"
        made["finish_reason"] = "abort" if about.get("was_cancelled") else None
    return made


def _bench_serving(where: str, value: Mapping[str, Any]) -> Iterator[tuple[str, str, Row]]:
    """Take apart one run of bench_serving (written with --output-details): lists with one element a request."""
    n = len(value["input_lens"])

    def of(*names: str) -> list[Any]:
        got = next((value[k] for k in names if isinstance(value.get(k), list) and len(value[k]) == n), None)
        return list(got) if got is not None else [None] * n

    starts, ttfts, e2es, itls, errors = (
        of("start_times", "arrival_times"),
        of("ttfts"),
        of("e2els", "latencies", "e2e_latencies"),
        of("itls"),
        of("errors"),
    )
    for i in range(n):
        e2e = e2es[i]
        if e2e is None and isinstance(itls[i], list) and ttfts[i] is not None:
            e2e = ttfts[i] + sum(itls[i])
        made: Row = {
            "prompt_tokens": value["input_lens"][i],
            "completion_tokens": value["output_lens"][i] if i < len(value["output_lens"]) else None,
            "received": starts[i],
            "ttft_s": ttfts[i],
            "e2e_s": e2e,
            "request_id": of("request_ids", "rids")[i],
        }
        if errors[i]:
            made["_flag"] = "errored"
        yield f"{where}[{i}]", "client", made


def _is_useful(names: Iterable[str]) -> bool:
    """Whether any of these names is a request's id or time."""
    hits = map(request_fields.find, names)
    return any(hit is not None and hit[0] in ("received", "finished", "first_token", "request_id") for hit in hits)


def _check_useful(path: Path, names: list[str], word: str) -> None:
    if not _is_useful(names):
        shown = ", ".join(repr(n[:40]) for n in names[:12])
        column, name = request_fields.nearest(names) or ("finished", names[0] if names else "NAME")
        raise JoinError(
            f"{path}: no {word} of {shown} is a request's id or time; say which is, as in --map {column}={name[:40]} "
            f"(columns={{{column!r}: {name[:40]!r}}}), for request_id, received, first_token or finished"
        )


def _check_columns(path: Path, names: list[str], met: Met) -> None:
    _check_useful(path, names, "column")
    for name in names:
        if request_fields.find(name) is None and request_fields.plain(name) not in request_fields.IGNORED:
            shown = printable(name[:40])
            met.unknown[shown] = met.unknown.get(shown, 0) + 1


def _csv(path: Path, text: str, met: Met) -> Iterator[tuple[str, str, Row]]:
    lines = text.splitlines(keepends=True)
    blank = next(i for i, line in enumerate(lines) if line.strip())
    delimiter = max(",;\t|", key=lines[blank].count)
    reader = csv.DictReader(io.StringIO("".join(lines[blank:]), newline=""), delimiter=delimiter)
    try:
        names = reader.fieldnames or ()
    except csv.Error as e:
        raise SourceDamaged(f"{path}: its first line has no names of columns that can be read: {e}") from None
    _check_columns(path, [n for n in names if n], met)
    while True:
        try:
            row = next(reader, None)
        except csv.Error:  # a field of more than 131,072 characters
            met.bad(f"{path.name}:{reader.line_num + blank}")
            continue
        if row is None:
            return
        where = f"{path.name}:{reader.line_num + blank}"
        if None in row or any(v is None for v in row.values()):
            met.bad(where)
            continue
        yield where, "client", {k: v for k, v in row.items() if v != ""}


def _parquet(path: Path, met: Met) -> Iterator[tuple[str, str, Row]]:
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowInvalid, OSError) as e:
        raise SourceDamaged(f"{path} cannot be read as Parquet: {e}") from e
    chosen = _chosen(path, file.schema_arrow.names, met)
    at = 0
    for batch in file.iter_batches(columns=chosen):
        for row in batch.to_pylist():
            at += 1
            yield f"{path.name}:{at}", "client", row


def _frame(frame: pd.DataFrame, met: Met) -> Iterator[tuple[str, str, Row]]:
    chosen = _chosen(Path(FRAME), [str(n) for n in frame.columns], met)
    plain = frame.rename(columns=str)[chosen]
    # a null is null whatever its kind: NaN in a column of whole numbers, NaT, None
    held = {name: [None if null else value for value, null in zip(plain[name], plain[name].isna(), strict=True)] for name in chosen}
    for at in range(len(frame)):
        yield f"{FRAME}:{at + 1}", "client", {name: _plain(values[at]) for name, values in held.items()}


def _plain(value: Any) -> Any:
    """Return a cell of a frame as plain Python has it."""
    value = value.to_pydatetime(warn=False) if hasattr(value, "to_pydatetime") else value
    return value.item() if hasattr(value, "item") else value


def _chosen(path: Path, names: list[str], met: Met) -> list[str]:
    """Return the columns that are known, and those that say what was decided of a request before."""
    _check_columns(path, names, met)
    return [n for n in names if request_fields.find(n) is not None] + [n for n in ("kind", "source", "flags") if n in names]
