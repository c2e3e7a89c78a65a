"""``python -m ddtree_metrics.native.built``: say what is compiled here; it ends with 1 where something is not."""

import sys
from pathlib import Path

from ddtree_metrics.native import load

names = sorted(source.stem for source in Path(__file__).parent.glob("*.c"))
missing = [name for name in names if load(name) is None]
print(f"not compiled: {', '.join(missing)}" if missing else f"compiled: {', '.join(names)}")
sys.exit(bool(missing))
