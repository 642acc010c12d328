"""A file of URLs for upload: checked line by line, then streamed, and never loaded into memory as a whole."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.errors import FileUnreadable, InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from contextlib import AbstractContextManager

#: A longer line is not a URL; the limit also keeps a file without line ends from filling the memory.
MAX_LINE_BYTES = 64 * 1024
_PIECE_BYTES = 128 * 1024
#: What opening a file raises if another file has to be named; ``ValueError`` for a closed file, or no path.
_WRONG_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, ValueError)


@dataclass(frozen=True, slots=True)
class UrlFile:
    """A checked file of URLs, one per line (contract.md, endpoint 6).

    :ivar name: the file name that is sent to the service.
    :ivar count: number of URLs.
    :ivar size: number of bytes that are sent: the URLs, each with a line feed.
    """

    name: str
    count: int
    size: int
    _source: Any = field(repr=False)

    @contextlib.contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """Open the content to send for reading bytes; a file that the caller opened stays open.

        :raises InvalidArgument: if there is no such file, and while it is read, if it has changed since it
            was checked.
        :raises FileUnreadable: if it cannot be read now.
        """
        with _opened(self._source) as file:
            yield cast("BinaryIO", _Content(file, self))


class _Content:
    """The URLs as they were checked, each with a line feed.

    :ivar len: number of bytes left; the multipart encoder reads this attribute.
    """

    def __init__(self, file: BinaryIO, checked: UrlFile) -> None:
        self._urls = filter(None, _lines(file))
        self._name = checked.name
        self._next = bytearray()
        self.len = checked.size

    def read(self, size: int = -1) -> bytes:
        count = self.len if size < 0 else min(size, self.len)
        # one byte more: the upload must not end before it is known that no line was added
        while len(self._next) <= count and (url := next(self._urls, None)) is not None:
            self._next += url + b"\n"
        piece = bytes(self._next[:count])
        del self._next[:count]
        self.len -= len(piece)
        is_cut = len(piece) < count
        has_grown = not self.len and self._next
        if is_cut or has_grown:
            raise InvalidArgument(
                "file", self._name, "it must stay as it is between its check and its upload"
            )
        return piece


def url_file(source: Any) -> UrlFile:
    """Check a file of URLs and return it ready for upload.

    :param source: a path (text or ``os.PathLike``), an ``ObjectStoragePath`` or ``UPath``, an
        ``fsspec.OpenFile``, or a seekable file opened in binary mode. It may begin with a BOM and end with
        blank lines; these, and white space around a URL, are not sent.
    :raises InvalidArgument: if there is no such file; naming the line, if the file has no URL or is not
        UTF-8, or if a line before the last URL is blank or is not an http(s) URL.
    :raises FileUnreadable: if it cannot be read now.
    """
    size = count = blank = 0
    with _opened(source) as file:
        for number, url in enumerate(_lines(file), 1):
            if not url:
                blank = blank or number
                continue
            if blank:
                raise InvalidArgument(f"file, line {blank}", "", "only the last lines may be blank")
            _check(f"file, line {number}", url)
            count, size = number, size + len(url) + 1
    if not count:
        raise InvalidArgument("file", str(source), "it must hold at least one URL")
    return UrlFile(name=_name(source), count=count, size=size, _source=source)


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield each line without white space around it, and without a BOM; a line that is too long is the last.

    It does not use ``readline``, which has no size limit in fsspec's files on object stores.
    """
    rest = _read(file, len(codecs.BOM_UTF8))
    if not isinstance(rest, bytes):
        raise InvalidArgument("file", file, "it must be opened in binary mode")
    rest = rest.removeprefix(codecs.BOM_UTF8)
    while len(rest) <= MAX_LINE_BYTES and (piece := _read(file, _PIECE_BYTES)):
        *lines, rest = (rest + piece).split(b"\n")
        yield from map(_stripped, lines)
    yield from map(_stripped, rest.split(b"\n"))


def _read(file: BinaryIO, size: int) -> bytes:
    try:
        return file.read(size)
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> FileUnreadable:
    return FileUnreadable(f"the file of URLs cannot be read: {error or type(error).__name__}")


def _stripped(line: bytes) -> bytes:
    return line if len(line) > MAX_LINE_BYTES else line.strip()


def _name(source: Any) -> str:
    """Return the last part of the source's path, as the file name for the service's logs."""
    path = getattr(source, "path", None) or getattr(source, "name", None) or source
    return Path(path).name if isinstance(path, str | os.PathLike) else "urls.txt"


def url_list(urls: Iterable[str]) -> UrlFile:
    """Check URLs and return them as a file ready for upload; white space around a URL is not sent.

    :raises InvalidArgument: if there is no URL, or, naming the entry, if one is blank or not an http(s) URL.
    """
    lines = []
    for index, url in enumerate(arguments.items("urls", urls)):
        argument = f"urls[{index}]"
        if not isinstance(url, str):
            raise InvalidArgument(argument, url, "it must be a string")
        lines.append(url.encode(errors="surrogatepass").strip())
        _check(argument, lines[-1])
    text = b"\n".join(lines) + b"\n"
    return UrlFile(name="urls.txt", count=len(lines), size=len(text), _source=io.BytesIO(text))


def _check(argument: str, line: bytes) -> None:
    if len(line) > MAX_LINE_BYTES:
        raise InvalidArgument(argument, line[:100], f"it must be a URL of at most {MAX_LINE_BYTES} bytes")
    try:
        url = line.decode()
    except UnicodeDecodeError as error:
        raise InvalidArgument(argument, line[:100], f"it must be UTF-8 ({error.reason})") from None
    if not url.strip():
        raise InvalidArgument(argument, "", "no line may be blank")
    scheme, separator, rest = url.partition("://")
    usable = separator and rest and scheme.lower() in {"http", "https"} and len(url.splitlines()) == 1
    # white space of other scripts is left around it, such as a no-break space
    if not usable or url != url.strip():
        raise InvalidArgument(argument, url[:100], "it must be one http(s) URL")


@contextlib.contextmanager
def _opened(source: Any) -> Iterator[BinaryIO]:
    with contextlib.ExitStack() as opened:
        try:
            file = opened.enter_context(_file_of(source))
        except InvalidArgument:
            raise
        except _WRONG_FILE as error:
            raise InvalidArgument("file", _name(source), f"it must be readable ({error})") from error
        except OSError as error:
            raise _unreadable(error) from error
        yield file


def _file_of(source: Any) -> AbstractContextManager[BinaryIO]:
    """Return a context manager that opens a source of any kind; a file that is open already stays open."""
    if hasattr(source, "read"):
        try:
            source.seek(0)
        except OSError:
            rule = "it must be seekable, since a retry sends it again"
            raise InvalidArgument("file", source, rule) from None
        return contextlib.nullcontext(source)
    if hasattr(source, "open"):
        mode = getattr(source, "mode", None)
        if mode is None:
            return source.open("rb")  # type: ignore[no-any-return]
        # an ``fsspec.OpenFile`` opens itself
        if mode != "rb":
            raise InvalidArgument("file", source, "it must be opened in binary mode")
        return source  # type: ignore[no-any-return]
    if isinstance(source, str | os.PathLike):
        return Path(source).open("rb")
    raise InvalidArgument("file", source, "it must be a path, or a file that can be read as bytes")
