"""A file of URLs for upload: checked line by line, then streamed; never whole in memory."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: A line longer than this is no URL; the bound keeps a file without line ends out of memory.
MAX_LINE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class UrlFile:
    """A checked file of URLs, one per line (contract, endpoint 6).

    :ivar name: the file name that is told to the service.
    :ivar count: how many URLs it holds.
    """

    name: str
    count: int
    _source: Any = field(repr=False)

    def open(self) -> contextlib.AbstractContextManager[BinaryIO]:
        """Open the file at its start, in binary; what the caller had opened is left open."""
        return _opened(self._source)


def url_file(source: Any) -> UrlFile:
    """Check a file of URLs and return it ready for upload.

    :param source: a path (text or ``os.PathLike``), an ``ObjectStoragePath`` or ``UPath``, an
        ``fsspec.OpenFile``, or a seekable file opened in binary mode.
    :raises InvalidArgument: naming the line, if the file is empty or not UTF-8, or a line is blank or no http(s) URL.
    """
    count = 0
    with _opened(source) as lines:
        while line := lines.readline(MAX_LINE_BYTES + 1):
            count += 1
            _check("file", count, line)
    if not count:
        raise InvalidArgument("file", str(source), "it must hold at least one URL")
    return UrlFile(name=_name(source), count=count, _source=source)


def _name(source: Any) -> str:
    """Return the last part of the source's path, for the service's own log."""
    path = getattr(source, "path", None) or getattr(source, "name", None) or source
    return Path(path).name if isinstance(path, str | os.PathLike) else "urls.txt"


def url_list(urls: Iterable[str]) -> UrlFile:
    """Check URLs and return them as a file ready for upload.

    :raises InvalidArgument: naming the entry, if there is none or one is blank or no http(s) URL.
    """
    if isinstance(urls, str | bytes):
        raise InvalidArgument("urls", urls, "it must be a list of URLs")
    lines: list[bytes] = []
    for url in urls:
        if not isinstance(url, str) or "\n" in url or "\r" in url:
            raise InvalidArgument(f"urls[{len(lines)}]", url, "it must be one URL")
        lines.append(url.encode())
        _check("urls", len(lines), lines[-1])
    if not lines:
        raise InvalidArgument("urls", [], "it must hold at least one URL")
    return UrlFile(name="urls.txt", count=len(lines), _source=io.BytesIO(b"\n".join(lines) + b"\n"))


def _check(argument: str, number: int, line: bytes) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidArgument(
            argument, f"line {number}", f"a line must be a URL of at most {MAX_LINE_BYTES} bytes"
        )
    try:
        url = line.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidArgument(argument, f"line {number}", f"it must be UTF-8 ({error.reason})") from None
    if not url:
        raise InvalidArgument(argument, f"line {number}", "no line may be blank")
    scheme, separator, rest = url.partition("://")
    if not separator or not rest or scheme.lower() not in {"http", "https"}:
        raise InvalidArgument(argument, f"line {number}: {url[:100]}", "every line must be an http(s) URL")


@contextlib.contextmanager
def _opened(source: Any) -> Iterator[BinaryIO]:
    if hasattr(source, "read"):
        source.seek(0)
        yield source
    elif isinstance(source, str):
        with Path(source).open("rb") as file:
            yield file
    elif isinstance(source, os.PathLike):
        # also Airflow's ObjectStoragePath and UPath, whose own open() knows the storage
        with Path(source).open("rb") if not hasattr(source, "open") else source.open("rb") as file:
            yield file
    elif hasattr(source, "open") and getattr(source, "mode", None) == "rb":
        with source as file:
            yield file
    else:
        raise InvalidArgument("file", source, "it must be a path, or a file that can be read as bytes")
