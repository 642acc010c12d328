"""Compressing and decompressing a part piece by piece."""

from __future__ import annotations

import gzip
import zlib
from typing import TYPE_CHECKING, Literal, Protocol, cast

from airflow_provider_webcollect.landing.formats.extras import require

if TYPE_CHECKING:
    from typing import BinaryIO

    from airflow_provider_webcollect.landing.formats.base import SupportsWrite

Compression = Literal["gzip", "zstd"]

SUFFIXES: dict[str | None, str] = {None: "", "gzip": ".gz", "zstd": ".zst"}
_ZSTD_LEVEL = 3
#: The highest of isal's levels is 3. Higher ones take many times longer for little saving.
_ISAL_LEVEL = 2
#: The highest of zlib's levels is 9. Without isal, this is the one closest to its speed.
_ZLIB_LEVEL = 1
#: Makes zlib write a gzip file with header and checksum.
_GZIP_WINDOW = 31


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class Output:
    """Writes to ``sink``, compressed: one gzip member or zstd frame, with a checksum.

    gzip is compressed by isal (the extra ``gzip``), or more slowly by zlib.
    """

    def __init__(self, sink: SupportsWrite, compression: Compression | None) -> None:
        self._sink = sink
        self._compressor = _compressor(compression)

    def write(self, data: bytes) -> None:
        """Write ``data``, or buffer it until there is enough."""
        if self._compressor is not None:
            data = self._compressor.compress(data)
        if data:
            self._sink.write(data)

    def close(self) -> None:
        """Write what is still buffered, and the trailer."""
        if self._compressor is not None:
            self._sink.write(self._compressor.flush())


def require_extras(compression: Compression | None) -> None:
    """Raise :class:`ExtraMissing` if a package for ``compression`` is not installed."""
    if compression == "zstd":
        require("zstandard", "zstd", "compression='zstd'")


def decompressed(source: BinaryIO, compression: Compression | None) -> BinaryIO:
    """Return a file that reads the decompressed bytes of ``source``."""
    match compression:
        case "gzip":
            return _gunzipped(source)
        case "zstd":
            require_extras(compression)
            import zstandard

            return zstandard.ZstdDecompressor().stream_reader(source, closefd=False)
    return source


def _gunzipped(source: BinaryIO) -> BinaryIO:
    try:
        from isal import igzip
    except ImportError:
        return cast("BinaryIO", gzip.GzipFile(fileobj=source))
    return cast("BinaryIO", igzip.IGzipFile(fileobj=source))  # type: ignore[no-untyped-call]


def _compressor(compression: Compression | None) -> _Compressor | None:
    match compression:
        case "gzip":
            return _gzip()
        case "zstd":
            require_extras(compression)
            import zstandard

            return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    return None


def _gzip() -> _Compressor:
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.compressobj(_ZLIB_LEVEL, wbits=_GZIP_WINDOW)
    return isal_zlib.compressobj(_ISAL_LEVEL, wbits=_GZIP_WINDOW)
