"""``python -m ddtree_metrics`` is ``ddtree-logs``."""

from ddtree_metrics.cli import main

if __name__ == "__main__":
    main(prog_name="ddtree-logs")
