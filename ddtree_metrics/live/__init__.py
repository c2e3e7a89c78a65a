"""A log as it is written: speed, step time and tokens per step of the last minutes, against a baseline."""
