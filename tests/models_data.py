"""Data sets with known truth for the models of ``diagnosis``: step times and tokens per step of requests, each with one difficulty."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from scipy.signal import lfilter

from ddtree_metrics.diagnosis.cells import Cells, step_cells
from ddtree_metrics.metrics.doubt import Partitions

STEP_S = 0.75
"""Seconds from one cell to the next: 25 steps of 30 ms."""


@dataclass
class Data:
    """Cells with their terms.

    ``group`` and ``context`` are terms of every set, ``more`` are further ones. ``request`` is whose text a cell is of.
    """

    y: np.ndarray
    group: np.ndarray
    context: np.ndarray
    request: np.ndarray
    weight: np.ndarray
    more: dict[str, np.ndarray] = field(default_factory=dict)

    @property
    def time_us(self) -> np.ndarray:
        return (np.arange(len(self.y)) * STEP_S * 1e6).astype(np.int64)

    @property
    def terms(self) -> dict[str, np.ndarray]:
        return {"group": self.group, "context": self.context, **self.more}

    def by_request(self) -> Partitions:
        return Partitions.of(self.request, self.time_us, np.zeros(len(self.y), np.int64), blocks=False)

    def by_request_and_time(self) -> Partitions:
        return Partitions.of(self.request, self.time_us, np.zeros(len(self.y), np.int64))


def wandering(rng: np.random.Generator, n: int, sd: float, over_s: float, step_s: float = STEP_S) -> np.ndarray:
    """Make AR(1) noise from its stationary distribution, whose correlation falls to 1/e within ``over_s``."""
    phi = float(np.exp(-step_s / over_s))
    return sd * lfilter([1.0], [1.0, -phi], np.sqrt(1 - phi**2) * rng.standard_normal(n), zi=[phi * rng.standard_normal()])[0]


def requests(rng: np.random.Generator, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Make requests of so many cells: request, group (every other one is of the second) and context in thousands, which grows within."""
    request = np.repeat(np.arange(len(sizes)), sizes)
    group = (request % 2).astype(float)
    prompt = rng.uniform(0.2, 4.0, len(sizes))
    within = np.concatenate([np.arange(n) for n in sizes])
    return request, group, prompt[request] + 0.1 * within


def step_data(
    seed: int,
    *,
    sizes: Callable[[np.random.Generator], np.ndarray] = lambda rng: np.full(60, 30),
    noise: Callable[[np.random.Generator, int], np.ndarray] = lambda rng, n: 0.03 * rng.standard_normal(n),
    stalls: tuple[float, float] = (0.0, 0.0),
    request_sd: float = 0.0,
    steeper: float = 1.0,
    weighty: bool = False,
    more: dict[str, tuple[Callable[[np.random.Generator, Data], np.ndarray], float]] | None = None,
) -> Data:
    """Make step times of (28 + 2.5 ms for each 1000 tokens + what ``more`` adds) x 1.1 in the second group, with errors on the log scale.

    ``steeper`` multiplies the slope in the second group; ``request_sd`` is the standard deviation of a request's own level.
    """
    rng = np.random.default_rng(seed)
    request, group, context = requests(rng, sizes(rng))
    n = len(request)
    weight = rng.integers(1, 26, n).astype(float) if weighty else np.ones(n)
    data = Data(np.zeros(n), group, context, request, weight)
    added = 28 + 2.5 * context * np.where(group == 1, steeper, 1.0)
    for name, (make, slope) in (more or {}).items():
        data.more[name] = make(rng, data)
        added = added + slope * data.more[name]
    spread = 1 / np.sqrt(weight / weight.mean())
    logs = np.log(added) + np.log(1.1) * group + spread * noise(rng, n) + request_sd * rng.standard_normal(request.max() + 1)[request]
    stalled = rng.random(n) < np.where(group == 1, stalls[1], stalls[0])
    data.y = np.exp(logs) * np.where(stalled, rng.uniform(3, 7, n), 1.0)
    if steeper != 1.0:
        data.more["context:group"] = context * group
    return data


def _student(rng: np.random.Generator, n: int) -> np.ndarray:
    return 0.03 * rng.standard_t(3, n)


def _drift(rng: np.random.Generator, n: int) -> np.ndarray:
    return 0.01 * rng.standard_normal(n) + wandering(rng, n, 0.04, 60.0)


STEP_SETS: dict[str, Callable[[], Data]] = {
    "calm": lambda: step_data(1),
    "stalls 1.5 % and 1.5 %": lambda: step_data(2, stalls=(0.015, 0.015)),
    "stalls 1.5 % and 6 %": lambda: step_data(3, stalls=(0.015, 0.06)),
    "unequal requests": lambda: step_data(4, sizes=lambda rng: np.round(rng.lognormal(2.7, 1.0, 60)).astype(int) + 2, request_sd=0.02),
    "heavy tails": lambda: step_data(5, noise=_student),
    "drift in time": lambda: step_data(6, noise=_drift),
    "collinear terms": lambda: step_data(
        7, request_sd=0.01, more={"longest": (lambda rng, d: d.context + 0.3 * rng.standard_normal(len(d.context)), 0.8)}
    ),
    "eight requests": lambda: step_data(8, sizes=lambda rng: np.full(8, 60), request_sd=0.02),
    "unequal weights": lambda: step_data(9, weighty=True),
    "two slopes": lambda: step_data(10, steeper=1.5),
    "yes or no within requests": lambda: step_data(
        11, request_sd=0.02, more={"graph_off": (lambda rng, d: (rng.random(len(d.context)) < 0.3).astype(float), 6.0)}
    ),
    "requests with levels of their own": lambda: step_data(12, request_sd=0.06),
}


def token_data(
    seed: int,
    *,
    sizes: Callable[[np.random.Generator], np.ndarray] = lambda rng: np.full(60, 30),
    text_sd: float = 0.5,
    noise: Callable[[np.random.Generator, int], np.ndarray] = lambda rng, n: 0.4 * rng.standard_normal(n),
    within: float = -0.15,
    between: float = -0.15,
    weighty: bool = False,
    group: float = 0.4,
    more: dict[str, tuple[Callable[[np.random.Generator, Data], np.ndarray], float]] | None = None,
) -> Data:
    """Make tokens per step of 4.5 + 0.4 in the second group + slopes with batch size (here: ``context``), within and between requests."""
    rng = np.random.default_rng([seed, 99])
    number = sizes(rng)
    request, second, _ = requests(rng, number)
    n = len(request)
    batch = rng.uniform(1, 8, len(number))[request] + wandering(rng, n, 1.5, 5.0)
    weight = rng.integers(1, 26, n).astype(float) if weighty else np.ones(n)
    data = Data(np.zeros(n), second, batch, request, weight)
    middle = mean_of(data, batch)
    y = 4.5 + group * second + between * (middle - 4.5) + within * (batch - middle) + text_sd * rng.standard_normal(len(number))[request]
    for name, (make, slope) in (more or {}).items():
        data.more[name] = make(rng, data)
        y = y + slope * data.more[name]
    data.y = y + noise(rng, n) / np.sqrt(weight / weight.mean())
    return data


def mean_of(data: Data, values: np.ndarray) -> np.ndarray:
    """Return, for each cell, the weighted mean over its request."""
    total = np.bincount(data.request, data.weight)
    return (np.bincount(data.request, data.weight * values) / total)[data.request]


TOKEN_SETS: dict[str, Callable[[], Data]] = {
    "calm": lambda: token_data(1, text_sd=0.1),
    "texts that differ": lambda: token_data(2, text_sd=1.0),
    "no texts at all": lambda: token_data(3, text_sd=0.0),
    "unequal requests": lambda: token_data(4, sizes=lambda rng: np.round(rng.lognormal(2.7, 1.0, 80)).astype(int) + 2),
    "heavy tails": lambda: token_data(5, noise=lambda rng, n: 0.4 * rng.standard_t(3, n)),
    "drift in time": lambda: token_data(6, noise=lambda rng, n: 0.2 * rng.standard_normal(n) + wandering(rng, n, 0.5, 10.0)),
    "collinear terms": lambda: token_data(
        7, more={"generated": (lambda rng, d: 0.8 * d.context + 0.6 * rng.standard_normal(len(d.context)), -0.2)}
    ),
    "eight requests": lambda: token_data(8, sizes=lambda rng: np.full(8, 60)),
    "unequal weights": lambda: token_data(9, weighty=True),
    "another slope between than within": lambda: token_data(10, within=-0.2, between=0.1),
    "a slope within only": lambda: token_data(11, within=-0.2, between=0.0),
    "yes or no within requests": lambda: token_data(
        12, more={"graph_off": (lambda rng, d: (rng.random(len(d.context)) < 0.3).astype(float), -0.5)}
    ),
}


class Rows:
    """Steps of requests alone in their batch, as ``step_cells`` takes them."""

    windows = False

    def __init__(self, ms: np.ndarray, request: np.ndarray, group: np.ndarray) -> None:
        self.step_ms, self.cluster, self.text = ms, request, request
        self.timed = np.ones(len(ms), bool)
        self.stream = np.zeros(len(ms), np.int64)
        self.run, self.part = self.stream + 1, group.astype(np.int64) + 1
        self.batch = np.ones(len(ms))
        self.budget = np.full(len(ms), np.nan)
        self.weight = np.ones(len(ms))
        self.time_us = (np.cumsum(ms) * 1000).astype(np.int64)

    def __len__(self) -> int:
        return len(self.step_ms)

    def cells(self) -> Cells:
        return step_cells(self, self.timed, self.part)  # type: ignore[arg-type]
