"""What Prometheus gets of watch, and the dashboard that asks for it."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from ddtree_metrics.errors import SourceUnsupported
from ddtree_metrics.live.curve import baseline_of
from ddtree_metrics.live.exposition import NAMES, Exposition, serve
from ddtree_metrics.live.watching import Watch
from ddtree_metrics.reading import start_reading
from tests.captures import journal_export

DASHBOARD = Path(__file__).parent.parent / "docs" / "grafana-watch.json"


@pytest.fixture(scope="module")
def exposition() -> Exposition:
    """Capture A, all of it, held against itself."""
    baseline = baseline_of(start_reading(journal_export("A"), on_error="skip"), "itself")
    watch = Watch(start_reading(journal_export("A"), on_error="skip"), live=False, baseline=baseline)
    made = Exposition(watch)
    for tables in watch.reading:
        made.add(*watch.take([tables], 0.0))
    made.snapshot = watch.snapshot(0.0)
    return made


def samples(exposition: Exposition) -> dict[str, list[tuple[dict[str, str], float]]]:
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in exposition.collect():
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_histograms_add_up_to_the_steps_and_tokens_of_the_log(exposition: Exposition) -> None:
    found = samples(exposition)
    # 545 steps, of which 19 stand behind a prefill and 2 are the first of their process
    assert sum(v for _, v in found["ddtree_tokens_per_step_count"]) == 545
    assert sum(v for _, v in found["ddtree_step_time_seconds_count"]) == 545 - 19 - 2
    spans = exposition.snapshot.spans["15 min"]
    assert sum(v for _, v in found["ddtree_tokens_per_step_sum"]) == pytest.approx(545 * spans.tokens)
    assert sum(v for _, v in found["ddtree_step_time_seconds_sum"]) == pytest.approx((545 - 19 - 2) * spans.step_ms / 1000)
    assert found["ddtree_lines_total"][0][1] == 1496


def test_buckets_rise_to_the_count_in_each_context(exposition: Exposition) -> None:
    found = samples(exposition)
    for name in ("ddtree_step_time_seconds", "ddtree_tokens_per_step"):
        counts = {labels["context"]: value for labels, value in found[f"{name}_count"]}
        for context, count in counts.items():
            rising = [value for labels, value in found[f"{name}_bucket"] if labels["context"] == context]
            assert rising == sorted(rising)
            assert rising[-1] == count


def test_a_value_on_the_edge_of_a_bucket_is_in_it(exposition: Exposition) -> None:
    # le means less or equal: steps of one token are in the bucket of 1
    found = samples(exposition)
    ones = sum(value for labels, value in found["ddtree_tokens_per_step_bucket"] if labels["le"] == "1")
    share = exposition.snapshot.spans["15 min"].accepted_share
    assert ones == pytest.approx(545 * (1 - share))


def test_names_and_units_are_those_of_the_conventions(exposition: Exposition) -> None:
    for family in exposition.collect():
        assert re.fullmatch(r"ddtree_[a-z_]+", family.name)
        assert family.documentation.endswith(".")
        assert not re.search(r"_(ms|millis|kb|minutes)$", family.name)
        if "time" in family.name.split("_"):
            assert family.name.endswith("_seconds")
    published = {f.name + ("_total" if f.type == "counter" else "") for f in exposition.collect()}
    assert published == set(NAMES)


def test_the_formats_of_prometheus_and_openmetrics_take_what_is_published(exposition: Exposition) -> None:
    registry = CollectorRegistry()
    registry.register(exposition)
    assert generate_latest(registry).endswith(b"# EOF\n")


def test_the_dashboard_asks_for_names_that_are_published_and_for_all_of_them(exposition: Exposition) -> None:
    board = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named = {name for expr in asked for name in re.findall(r"ddtree_\w+", expr)}
    assert named <= set(samples(exposition))
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in named} == set(NAMES)
    labels = {label for rows in samples(exposition).values() for found, _ in rows for label in found}
    by = {label.strip() for expr in asked for some in re.findall(r"by \(([^)]*)\)", expr) for label in some.split(",")}
    legends = {label for panel in board["panels"] for t in panel["targets"] for label in re.findall(r"{{(\w+)}}", t["legendFormat"])}
    assert by | legends <= labels
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


def test_a_scrape_over_http_is_what_was_counted(exposition: Exposition) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server: Any = serve(exposition, "127.0.0.1", port)
    try:
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20).read().decode()
        with pytest.raises(SourceUnsupported, match="choose another"):
            serve(exposition, "127.0.0.1", port)
    finally:
        server.shutdown()
        server.server_close()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["ddtree_step_time_seconds"].type == "histogram"
    assert families["ddtree_lines"].samples[0].value == 1496
