"""A file of URLs for upload: checked line by line, then streamed, and never loaded into memory as a whole."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from airflow_provider_webcollect.service.api import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: A longer line is not a URL; the limit also keeps a file without line ends from filling the memory.
MAX_LINE_BYTES = 64 * 1024
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class UrlFile:
    """A checked file of URLs, one per line (contract.md, endpoint 6).

    :ivar name: the file name that is sent to the service.
    :ivar count: number of URLs.
    :ivar size: number of bytes that are sent, without a BOM and the blank lines at the end.
    """

    name: str
    count: int
    size: int
    _source: Any = field(repr=False)
    _start: int = 0

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the content to send for reading bytes; a file that the caller opened stays open.

        :raises InvalidArgument: while it is read, if the file has changed since it was checked.
        """
        with _opened(self._source) as file:
            file.read(self._start)
            yield cast("BinaryIO", _Content(file, self))


class _Content:
    """The bytes of a file that are sent.

    :ivar len: number of bytes left; the multipart encoder reads this attribute.
    """

    def __init__(self, file: BinaryIO, checked: UrlFile) -> None:
        self._file = file
        self._name = checked.name
        self.len = checked.size

    def read(self, size: int = -1) -> bytes:
        wanted = self.len if size < 0 else min(size, self.len)
        piece = self._file.read(wanted)
        self.len -= len(piece)
        is_cut = bool(wanted and not piece)
        # checked before the last piece is returned: the upload must not end within a line
        has_grown = not self.len and any(map(bytes.strip, _pieces(self._file)))
        if is_cut or has_grown:
            raise InvalidArgument(
                "file", self._name, "it must stay as it is between its check and its upload"
            )
        return piece


def url_file(source: Any) -> UrlFile:
    """Check a file of URLs and return it ready for upload.

    :param source: a path (text or ``os.PathLike``), an ``ObjectStoragePath`` or ``UPath``, an
        ``fsspec.OpenFile``, or a seekable file opened in binary mode. It may begin with a BOM and end with
        blank lines, which are not sent.
    :raises InvalidArgument: naming the line, if the file has no URL or is not UTF-8, or if a line before the
        last URL is blank or is not an http(s) URL.
    """
    start = end = position = count = blank = 0
    with _opened(source) as file:
        for number, (line, length) in enumerate(_lines(file), 1):
            if number == 1 and line.startswith(codecs.BOM_UTF8):
                start = len(codecs.BOM_UTF8)
                line = line[start:]
            position += length
            if len(line) <= MAX_LINE_BYTES and not line.strip():
                blank = blank or number
                continue
            if blank:
                raise InvalidArgument(f"file, line {blank}", "", "only the last lines may be blank")
            _check(f"file, line {number}", line)
            count, end = number, position
    if not count:
        raise InvalidArgument("file", str(source), "it must hold at least one URL")
    return UrlFile(name=_name(source), count=count, size=end - start, _source=source, _start=start)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    while piece := file.read(_PIECE_BYTES):
        yield piece


def _lines(file: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield each line without its line feed, and the line's length including it.

    It does not use ``readline``, which has no size limit in fsspec's files on object stores.
    """
    rest = b""
    for piece in _pieces(file):
        if not isinstance(piece, bytes):
            raise InvalidArgument("file", file, "it must be opened in binary mode")
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line, len(line) + 1
        if len(rest) > MAX_LINE_BYTES:
            break
    if rest:
        yield rest, len(rest)


def _name(source: Any) -> str:
    """Return the last part of the source's path, as the file name for the service's logs."""
    path = getattr(source, "path", None) or getattr(source, "name", None) or source
    return Path(path).name if isinstance(path, str | os.PathLike) else "urls.txt"


def url_list(urls: Iterable[str]) -> UrlFile:
    """Check URLs and return them as a file ready for upload.

    :raises InvalidArgument: if there is no URL, or, naming the entry, if one is blank or not an http(s) URL.
    """
    lines = []
    for index, url in enumerate(validation.items("urls", urls)):
        argument = f"urls[{index}]"
        if not isinstance(url, str):
            raise InvalidArgument(argument, url, "it must be a string")
        lines.append(url.encode(errors="surrogatepass"))
        _check(argument, lines[-1])
    text = b"\n".join(lines) + b"\n"
    return UrlFile(name="urls.txt", count=len(lines), size=len(text), _source=io.BytesIO(text))


def _check(argument: str, line: bytes) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidArgument(argument, line[:100], f"it must be a URL of at most {MAX_LINE_BYTES} bytes")
    try:
        url = line.decode().strip()
    except UnicodeDecodeError as error:
        raise InvalidArgument(argument, line[:100], f"it must be UTF-8 ({error.reason})") from None
    if not url:
        raise InvalidArgument(argument, url, "no line may be blank")
    scheme, separator, rest = url.partition("://")
    if not separator or not rest or scheme.lower() not in {"http", "https"} or len(url.splitlines()) > 1:
        raise InvalidArgument(argument, url[:100], "it must be one http(s) URL")


@contextlib.contextmanager
def _opened(source: Any) -> Iterator[BinaryIO]:
    if hasattr(source, "read"):
        yield _rewound(source)
    elif hasattr(source, "open"):
        with _openable(source) as file:
            yield file
    elif isinstance(source, str | os.PathLike):
        with Path(source).open("rb") as file:
            yield file
    else:
        raise InvalidArgument("file", source, "it must be a path, or a file that can be read as bytes")


def _rewound(file: Any) -> BinaryIO:
    try:
        file.seek(0)
    except OSError:
        raise InvalidArgument("file", file, "it must be seekable, since a retry sends it again") from None
    return file  # type: ignore[no-any-return]


def _openable(source: Any) -> Any:
    """Return a context manager that opens a path of any kind; an ``fsspec.OpenFile`` is one itself."""
    mode = getattr(source, "mode", None)
    if mode is None:
        return source.open("rb")
    if mode != "rb":
        raise InvalidArgument("file", source, "it must be opened in binary mode")
    return source
