"""A start without pandas, for commands that go from lines to files and make no frame.

pyarrow imports pandas when it converts its first value, a plain list too, only to see whether it was given a pandas object. That
costs a third of a second of CPU time, half of what a small export takes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Hidden:
    """An entry of ``sys.meta_path`` that says there is no pandas."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)
        return None


def without_pandas() -> None:
    """Have pyarrow look for pandas now, and find none; it then works without it for as long as the process lives.

    Only for a process that makes no frame and takes none: pyarrow would not know a series when it sees one.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    hidden = _Hidden()
    sys.meta_path.insert(0, hidden)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(hidden)


__all__ = ["without_pandas"]
