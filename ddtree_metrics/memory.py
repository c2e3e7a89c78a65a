"""Give memory that nothing uses any more back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import sys

import pyarrow as pa


def give_back() -> None:
    """Return what was freed to the system.

    Allocators keep freed memory for later. Arrays of 1 to 30 MB, of which a long log makes hundreds, leave holes between those that
    stay, and the process then holds twice what it uses. Where there is no way to ask for it nothing is done.
    """
    pa.default_memory_pool().release_unused()
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):  # another libc has no such call
            ctypes.CDLL(None).malloc_trim(0)


LARGE = 8 << 20
"""Arrays from this size on are given back as soon as they are freed, once a log is long."""

_M_MMAP_THRESHOLD = -3


def return_large_arrays() -> None:
    """Have large arrays of the whole process returned to the system when they are freed, where its C library can be told so.

    glibc raises the size from which it does that to 32 MB once such an array was freed, which is that of a column of a long log.
    """
    if sys.platform.startswith("linux"):
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE)
