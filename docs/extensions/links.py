"""Has links to files beside ``docs/`` lead to the copies on the site, and finds links that lead nowhere.

Sphinx itself checks only the links that it has made.
"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

log = logging.getLogger(__name__)


#: Pages of the repository that are included in pages of the site.
INCLUDED = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing/development.md",
    "benchmarks/RESULTS.md": "contributing/results.md",
}
#: The target of a link to such a page, up to the file's extension.
OUTSIDE = re.compile(rf"(?<=\]\()((?:\.\./)+)({'|'.join(map(re.escape, INCLUDED))})")


class _Page(HTMLParser):
    """Which anchors a page has, and where its links lead."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors = {""}
        self.links: set[str] = set()
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in {"href", "src"} and value:
                self.links.add(value)


def setup(app: Sphinx) -> dict[str, Any]:
    """Redirect links when a page is read, and check them once all are written."""
    app.connect("source-read", _redirect)
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True}


def _redirect(app: Sphinx, name: str, source: list[str]) -> None:
    folder = Path(app.srcdir, name).parent

    def redirected(match: re.Match[str]) -> str:
        if (folder / match[1]).resolve() != app.srcdir.parent:
            return match[0]
        return match[1].removeprefix("../") + INCLUDED[match[2]]

    source[0] = OUTSIDE.sub(redirected, source[0])


def _check(app: Sphinx, error: Exception | None) -> None:
    if error is not None or app.builder.format != "html":
        return
    root = Path(app.outdir)
    pages = {file: _Page(file) for file in root.rglob("*.html")}
    for file, page in pages.items():
        for link in sorted(page.links):
            url = urlsplit(link)
            if url.scheme or url.netloc:
                continue
            target = (file.parent / unquote(url.path)).resolve() if url.path else file
            linked = pages.get(target)
            if not target.exists() or (
                linked and unquote(url.fragment) not in linked.anchors
            ):
                log.warning(
                    "%s: the link %s leads nowhere", file.relative_to(root), link
                )
