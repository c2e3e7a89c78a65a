"""Simulated servers with known truth, independent of the tool that reads their logs."""

from tests.worlds.scenarios import SCENARIOS, make
from tests.worlds.truth import Truth, World

__all__ = ["SCENARIOS", "Truth", "World", "make"]
