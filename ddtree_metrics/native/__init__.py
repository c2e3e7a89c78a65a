"""What is compiled where there was a C compiler at installation: each ``NAME.c`` here is one module, and each has a plain equal in Python.

An equal gives the same results; it is what runs where nothing was built, and what the compiled one is tested against. Nothing compiled is
used with ``DDTREE_PURE=1`` in the environment.
"""

from __future__ import annotations

import functools
import importlib
import os
import warnings
from pathlib import Path
from typing import Any

from ddtree_metrics.errors import DDTreeWarning

PURE = "DDTREE_PURE"
TOLD = "the compiled parts were not built when ddtree-metrics was installed, and reading takes 5 to 35 times as long"
HOW = "install ddtree-metrics again after: apt-get install -y --no-install-recommends gcc libc6-dev python3-dev"

_missing: dict[str, str] = {}


@functools.cache
def load(name: str) -> Any:
    """Return a compiled module; ``None`` where it was not built, or is not wanted."""
    if os.environ.get(PURE, "") not in ("", "0"):
        return None
    try:
        return importlib.import_module(f"{__name__}.{name}")
    except ImportError as error:
        _missing[name] = "" if isinstance(error, ModuleNotFoundError) else f" ({error})"
        return None


@functools.cache
def tell_once() -> None:
    """Warn, once, that the slow readers are at work, and how the fast ones are had."""
    for source in sorted(Path(__file__).parent.glob("*.c")):
        load(source.stem)
    if _missing:
        why = next(iter(_missing.values()))
        warnings.warn(DDTreeWarning(f"{TOLD}{why}: {HOW}"), stacklevel=3)
