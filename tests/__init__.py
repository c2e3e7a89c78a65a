"""Tests, and the simulator that feeds them."""
