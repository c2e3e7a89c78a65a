"""Bytes as they come: from files, pipes and compressed files, never more of them than there are."""

from __future__ import annotations

import bz2
import codecs
import contextlib
import io
import lzma
import os
import select
import stat
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from ddtree_metrics.sources import SourceStats

CHUNK = 8 << 20
PIPE_READ = 1 << 20
STEP = 4096
"""Compressed bytes taken in one step."""
NEAR_END = 1 << 16
"""Compressed bytes before the end that are unpacked with more care."""
PATIENCE = 0.01
"""Seconds to wait for more bytes of a pipe before a small batch is made of what is there."""

GZIP, ZSTD, XZ, BZIP2 = b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh"
SKIPPABLE = bytes(range(0x50, 0x60))
"""First bytes of zstd's skippable frames (followed by ``2a 4d 18``)."""


def compression(head: bytes) -> str | None:
    """Name the compression that the first bytes of a file tell, if any."""
    if head.startswith(GZIP):
        return "gzip"
    if head.startswith(ZSTD) or (head[1:4] == b"\x2a\x4d\x18" and head[:1] in SKIPPABLE):
        return "zstd"
    if head.startswith(XZ):
        return "xz"
    if head.startswith(BZIP2) and head[3:4].isdigit() and head[4:10] in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90"):
        return "bzip2"
    return None


def encoding(head: bytes) -> str | None:
    """Name the encoding of a text that is not made of single bytes: by its byte order mark, or by the zeros beside ASCII characters."""
    for mark, name in ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32"), (codecs.BOM_UTF16_LE, "utf-16")):
        if head.startswith(mark):
            return name
    if head.startswith(codecs.BOM_UTF16_BE):
        return "utf-16"
    even, odd = head[: len(head) // 2 * 2 : 2], head[1::2]
    if len(odd) >= 4 and not any(odd) and all(even):
        return "utf-16-le"
    return "utf-16-be" if len(odd) >= 4 and not any(even[: len(odd)]) and all(odd) else None


def _fd(file: Any) -> int | None:
    try:
        return int(file.fileno())
    except (OSError, AttributeError, ValueError, io.UnsupportedOperation):
        return None


class Peekable:
    """Bytes that come in pieces, the first of which can be looked at before they are read."""

    def __init__(self) -> None:
        self._ahead = b""

    def _next(self) -> bytes:
        """Return the next piece; empty at the end."""
        raise NotImplementedError

    def peek(self, size: int) -> bytes:
        """Look at the first bytes: ``size`` of them, or fewer if a line ends before, or the file."""
        while len(self._ahead) < size and b"\n" not in self._ahead and (more := self._next()):
            self._ahead += more
        return self._ahead

    def read(self) -> bytes:
        """Return the next bytes, at most ``CHUNK`` or so; empty at the end."""
        data, self._ahead = self._ahead, b""
        return data or self._next()


class Bytes(Peekable):
    """The bytes of an open file.

    A regular file is read to the size it had when it was opened, and on to the end of the line that was being written then; a pipe or a
    terminal until its other end closes it, each time as much as is there.

    Parameters
    ----------
    file : binary file object
        Need not be seekable.
    name : str
        What to call it in messages.
    stats : SourceStats
        Where damage is noted.
    """

    def __init__(self, file: BinaryIO, name: str, stats: SourceStats) -> None:
        super().__init__()
        self.name = name
        self.stats = stats
        self.file = file
        self._fd = _fd(file)
        self._size: int | None = None
        self._read = 0
        self.ended = False
        self.live = bool(getattr(file, "live", False))
        """Whether bytes come as somebody writes them."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                status = os.fstat(self._fd)
                if stat.S_ISREG(status.st_mode):
                    # The files of /proc have no size and yet bytes.
                    self._size = status.st_size or None
                else:
                    self.live = True

    def _next(self) -> bytes:
        if self.ended:
            return b""
        try:
            data = self._live() if self.live and self._fd is not None else self._chunk()
        except (OSError, ValueError, EOFError) as error:
            self.stats.damaged.append(f"{self.name}: reading stopped after {self._read} bytes: {error}; what came before was read")
            data = b""
        if not data:
            self.ended = True
            if self._size is not None and self._read < self._size:
                self.stats.damaged.append(
                    f"{self.name}: was cut to {self._read} of {self._size} bytes while it was read; keep a copy and read that"
                )
        self._read += len(data)
        return data

    def _chunk(self) -> bytes:
        read = getattr(self.file, "read1", None) if self._size is None else None
        if read is not None:
            return bytes(read(CHUNK))
        if self._size is not None and self._read >= self._size:
            return b""
        data = self.file.read(CHUNK) or b""
        if self._size is not None and self._read + len(data) > self._size:
            # The file has grown. Take the line that was being written when it was opened, and leave the rest for the next time.
            keep = self._size - self._read
            end = data.find(b"\n", max(keep - 1, 0))
            data = data[: end + 1] if end >= 0 else data
        return data

    def _live(self) -> bytes:
        """Read what is there; wait a moment for more, so that a fast writer does not make thousands of small batches."""
        fd = self._fd
        assert fd is not None
        parts: list[bytes] = []
        size = 0
        if not self._read and hasattr(self.file, "read1"):
            # Somebody may have looked at sys.stdin already: take what its buffer holds, then go on below it.
            data = bytes(self.file.read1(PIPE_READ))
            if not data:
                return b""
            parts.append(data)
            size = len(data)
        while size < CHUNK:
            if parts and not select.select([fd], [], [], PATIENCE)[0]:
                break
            data = os.read(fd, PIPE_READ)
            if not data:
                break
            parts.append(data)
            size += len(data)
        return b"".join(parts)


class Unpacked(Peekable):
    """The bytes that a compressed stream unpacks to; damage is noted, and what was unpacked before it is kept."""

    def __init__(self, packed: Bytes | Unpacked, kind: str, stats: SourceStats) -> None:
        super().__init__()
        self.name: str = packed.name
        self.stats = stats
        self.live: bool = packed.live
        self.torn = False
        """Whether the stream ended before its end: the last line may be cut."""
        self._parts = self._joined({"gzip": self._gzip, "xz": self._xz, "bzip2": self._bzip2, "zstd": self._zstd}[kind](packed))
        self._kind = kind
        self._made = 0

    def _next(self) -> bytes:
        return next(self._parts, b"")

    def _joined(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Join small parts, except while they come slowly."""
        kept: list[bytes] = []
        size = 0
        for part in parts:
            self._made += len(part)
            kept.append(part)
            size += len(part)
            if size >= CHUNK or self.live:
                yield b"".join(kept)
                kept, size = [], 0
        if kept:
            yield b"".join(kept)

    def _damaged(self, why: str) -> None:
        self.torn = True
        self.stats.damaged.append(f"{self.name}: {why} after {self._made} unpacked bytes; what came before was read")

    def _gzip(self, packed: Bytes | Unpacked) -> Iterator[bytes]:
        return self._with(packed, lambda: zlib.decompressobj(31), (zlib.error,))

    def _xz(self, packed: Bytes | Unpacked) -> Iterator[bytes]:
        return self._with(packed, lzma.LZMADecompressor, (lzma.LZMAError,))

    def _bzip2(self, packed: Bytes | Unpacked) -> Iterator[bytes]:
        return self._with(packed, bz2.BZ2Decompressor, (OSError, ValueError))

    def _with(self, packed: Bytes | Unpacked, new: Any, errors: tuple[type[Exception], ...]) -> Iterator[bytes]:
        """Unpack with the standard library's objects, in small steps: one that fails loses what it has unpacked."""
        engine, begun = new(), False
        is_zlib = not hasattr(engine, "needs_input")
        while data := packed.read():
            view, at = data, 0
            while at < len(view):
                step = view[at : at + STEP]
                at += len(step)
                if not begun:  # zeros between members are padding
                    step = step.lstrip(b"\0")
                    if not step:
                        continue
                begun = True
                try:
                    yield from self._drain(engine, step, is_zlib)
                except errors as error:
                    self._damaged(f"the {self._kind} stream is damaged ({error})")
                    return
                if engine.eof:
                    view, at = engine.unused_data + view[at:], 0
                    engine, begun = new(), False
        if begun:
            self._damaged(f"the {self._kind} stream ends too early")

    def _drain(self, engine: Any, step: bytes, is_zlib: bool) -> Iterator[bytes]:
        """Unpack one step, at most ``CHUNK`` bytes at a time: 1 KiB can unpack to 1 MiB."""
        while step or not (is_zlib or engine.eof or engine.needs_input):
            made = engine.decompress(step, CHUNK)
            step = engine.unconsumed_tail if is_zlib else b""
            if made:
                yield made
            elif not step:
                return

    def _zstd(self, packed: Bytes | Unpacked) -> Iterator[bytes]:
        source = _Feed(packed)
        try:
            stream = pa.input_stream(pa.PythonFile(source, mode="r"), compression="zstd", buffer_size=None)
            # What a failing read has unpacked is lost: small steps, and very small ones near the end, where files are torn.
            while data := stream.read(64 if source.ended else 1 << 16):
                yield data
        except (OSError, ValueError) as error:
            self._damaged(f"the zstd stream is damaged or ends too early ({str(error).splitlines()[0][:120]})")


class Decoded(Peekable):
    """The bytes of a text in UTF-16 or UTF-32, as UTF-8; what is not of the encoding becomes U+FFFD."""

    def __init__(self, source: Bytes | Unpacked, code: str, stats: SourceStats) -> None:
        super().__init__()
        self.name: str = source.name
        self.live: bool = source.live
        self.stats = stats
        self._source = source
        self._decoder = codecs.getincrementaldecoder(code)("replace")
        self._ended = False
        stats.notes.append(f"{self.name}: the text is {code[:6].upper()}; it was read as such")

    @property
    def torn(self) -> bool:
        """Whether the stream ended before its end."""
        return bool(getattr(self._source, "torn", False))

    def _next(self) -> bytes:
        while not self._ended:
            data = self._source.read()
            self._ended = not data
            text = self._decoder.decode(data, final=self._ended)
            if "\ufffd" in text:
                self.stats.bad_bytes += text.count("\ufffd")
            if text:
                return text.encode("utf-8", "replace")
        return b""


class _Feed(io.RawIOBase):
    """A file object for pyarrow over bytes as they come."""

    def __init__(self, packed: Bytes | Unpacked) -> None:
        self._packed = packed
        self._rest = b""
        self._exhausted = False
        self.ended = False
        """Whether the end is near."""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = self._packed.read()
        if size < 0:
            size = len(self._rest)
        if not self._packed.live and len(self._rest) <= size + NEAR_END and not self._exhausted:
            more = self._packed.read()
            self._exhausted = not more
            self._rest += more
        data, self._rest = self._rest[:size], self._rest[size:]
        self.ended = self._exhausted and len(self._rest) <= NEAR_END
        return data
