"""The two-point decode benchmark against an OpenAI-compatible server, and its baselines.

``run_sweep(url, Plan(ctx=(64, 1024)))`` measures; ``Sweep.save`` and ``load_sweep`` keep; ``compare`` says what changed. These names
stand in ``__init__.pyi``, and are imported when they are first used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
