"""URLs for upload, from a file or a list, which are checked line by line and kept in memory until sent."""

from __future__ import annotations

import codecs
import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from airflow_provider_webcollect.service.arguments import items
from airflow_provider_webcollect.service.endpoints import UrlFile
from airflow_provider_webcollect.service.errors import FileUnreadable, InvalidArgument, WebCollectError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

#: Maximum size of a file in bytes; checking and sending it takes up to five times as much memory.
MAX_FILE_BYTES = 64 * 1024 * 1024
#: Maximum size of a line in bytes; a longer line is not a URL.
MAX_LINE_BYTES = 64 * 1024
#: Errors of opening a file that a retry cannot fix. ``ValueError`` is for a closed file or an invalid path,
#: ``ImportError`` for a storage whose library is missing. ``PermissionError`` is not one of them: storages
#: also raise it for expired credentials, and a retry gets new ones.
_WRONG_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, ImportError, ValueError)
#: Text that cannot be part of a URL, but can separate two URLs on one line.
_BETWEEN = re.compile(r"\t|\s[A-Za-z][A-Za-z0-9+.-]*://")


def url_file(source: Any) -> UrlFile:
    """Check a file of URLs and return it ready for upload.

    :param source: a path (``str`` or ``os.PathLike``), an ``ObjectStoragePath`` or ``UPath``, an
        ``fsspec.OpenFile``, or a file opened in binary mode, which stays open, and is read from its beginning
        if it is seekable. It may begin with a BOM and end with blank lines; these, and white space around a
        URL, are not sent.
    :raises InvalidArgument: if there is no such file, or if it is too large or has no URL; also, with the
        number of the line, if a line is not UTF-8, is not an http(s) URL, or is blank before the last URL.
    :raises FileUnreadable: if the file cannot be read now.
    """
    lines = [line.strip() for line in _read(source).split(b"\n")]
    while lines and not lines[-1]:
        lines.pop()
    if not lines:
        raise InvalidArgument("file", str(source), "it must hold at least one URL")
    for number, line in enumerate(lines, 1):
        if not line:
            raise InvalidArgument(f"file, line {number}", "", "only the last lines may be blank")
        _check(f"file, line {number}", line)
    return _upload(_name(source), lines)


def url_list(urls: Iterable[str]) -> UrlFile:
    """Check URLs and return them as a file ready for upload; white space around a URL is not sent.

    :raises InvalidArgument: if there is no URL, or if they have more bytes than a file may have; also, with
        the index of the entry, if an entry is blank or not an http(s) URL.
    """
    file = _upload("urls.txt", items("urls", urls, _url))
    _check_size("urls", f"{file.count} URLs", file.content)
    return file


def _url(argument: str, url: object) -> bytes:
    if not isinstance(url, str):
        raise InvalidArgument(argument, url, "it must be a string")
    line = url.encode(errors="surrogatepass").strip()
    _check(argument, line)
    return line


def _upload(name: str, lines: Sequence[bytes]) -> UrlFile:
    return UrlFile(name, len(lines), b"\n".join([*lines, b""]))


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
    has_host = bool(separator) and rest[:1] not in {"", "/", "?", "#"}
    is_one = len(url.splitlines()) == 1 and not _BETWEEN.search(url)
    # stripping bytes leaves Unicode white space around the URL, such as a no-break space
    if not (has_host and is_one and scheme.lower() in {"http", "https"}) or url != url.strip():
        raise InvalidArgument(argument, url[:100], "it must be one http(s) URL")


def _name(source: Any) -> str:
    """Return the last part of the source's path, which is sent as the file name for the service's logs."""
    path = getattr(source, "path", None) or getattr(source, "name", None) or source
    name = Path(path).name if isinstance(path, str | os.PathLike) else "urls.txt"
    # a file name on disk may not be valid Unicode
    return name.encode(errors="replace").decode()


def _read(source: Any) -> bytes:
    """Return the content of a source of any kind, without a BOM."""
    try:
        with _file_of(source) as file:
            text = _all_of(file)
    except WebCollectError:
        raise
    except _WRONG_FILE as error:
        raise InvalidArgument("file", _name(source), f"it must be readable ({error})") from error
    except Exception as error:  # each storage has its own classes of errors
        message = f"the file of URLs cannot be read: {error or type(error).__name__}"
        raise FileUnreadable(message) from error
    if not isinstance(text, bytes):
        raise InvalidArgument("file", source, "it must be opened in binary mode")
    _check_size("file", _name(source), text)
    return text.removeprefix(codecs.BOM_UTF8)


def _check_size(argument: str, value: str, content: bytes) -> None:
    if len(content) > MAX_FILE_BYTES:
        raise InvalidArgument(argument, value, f"it must be at most {MAX_FILE_BYTES // 1024**2} MiB")


def _all_of(file: BinaryIO) -> object:
    """Return the rest of a file, up to one byte more than may be sent.

    It takes several reads, since one read of a raw stream may return less than the rest.
    """
    pieces: list[bytes] = []
    left = MAX_FILE_BYTES + 1
    while left > 0:
        piece: object = file.read(left)
        if not isinstance(piece, bytes):
            return piece  # a string, or the None of a non-blocking stream
        if not piece:
            break
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _file_of(source: Any) -> AbstractContextManager[BinaryIO]:
    """Return a context manager that opens a source of any kind; a file that was open before stays open."""
    if hasattr(source, "read"):
        is_seekable = getattr(source, "seekable", lambda: hasattr(source, "seek"))
        if is_seekable():
            source.seek(0)
        return contextlib.nullcontext(source)
    if hasattr(source, "open"):
        mode = getattr(source, "mode", None)
        if mode is None:
            return source.open("rb")  # type: ignore[no-any-return]
        # an ``fsspec.OpenFile`` is itself a context manager that opens the file
        if mode != "rb":
            raise InvalidArgument("file", source, "it must be opened in binary mode")
        return source  # type: ignore[no-any-return]
    if isinstance(source, str | os.PathLike):
        return Path(source).open("rb")
    raise InvalidArgument("file", source, "it must be a path, or a file that can be read as bytes")
