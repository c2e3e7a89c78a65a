"""The public names of ``ddtree_metrics.bench``, and the modules that they stand in."""

from .baseline import SweepComparison as SweepComparison, PointVerdict as PointVerdict, compare as compare
from .prompts import PromptSource as PromptSource
from .protocol import run_sweep as run_sweep
from .stats import Point as Point
from .sweep import Plan as Plan, Sweep as Sweep, load_sweep as load_sweep
