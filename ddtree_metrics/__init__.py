"""Why was speculative decoding slow? Step time and tokens per step, from log lines that are already there.

>>> import ddtree_metrics as ddt
>>> log = ddt.read("run.log.gz")  # doctest: +SKIP
>>> log.coverage  # doctest: +SKIP

The public names stand in ``__init__.pyi``. They are imported when they are first used, so that importing the package loads no pandas,
pyarrow or matplotlib.
"""

import lazy_loader

__version__ = "0.1.0"

__getattr__, _, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
