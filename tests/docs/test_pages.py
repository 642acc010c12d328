"""The blocks of docs/ run; those of README.md, which installs the package, run in `make newcomer`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from sybil import Document
from sybil.parsers.markdown import PythonCodeBlockParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, FencedCodeBlockLexer

from tests.docs.world import NOT_RUN

pytest.importorskip("moto", reason="needs moto[server]")
pytest.importorskip("airflow.providers.amazon.aws.fs.s3", reason="needs the Amazon provider and s3fs")

ROOT = Path(__file__).parents[2]
PAGES = [str(page.relative_to(ROOT)) for page in sorted((ROOT / "docs").rglob("*.md"))]
FENCES = FencedCodeBlockLexer(r"[^\n]*", mapping={"language": "language"})
SKIPS = DirectiveInHTMLCommentLexer("skip")
#: The reason of a skip, as Sybil reads it.
REASON = re.compile(r'(?:next|start)\s+(?:if\(.*\breason=)?"([^"]+)"\)?$')


def skips() -> list[tuple[str, str]]:
    """Return the places where blocks are left out, with the arguments of the comments."""
    documents = [(name, Document((ROOT / name).read_text(), name)) for name in PAGES]
    return [
        (f"{name}, {document.line_column(skip.start)}", skip.lexemes["arguments"])
        for name, document in documents
        for skip in SKIPS(document)
        if skip.lexemes["arguments"] != "end"
    ]


@pytest.mark.webcollect_sandbox(enforce_limits=False, speed=300)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in PAGES])
def test_every_block_of_a_page_runs(name: str, run_page: Callable[[Path], None]) -> None:
    run_page(ROOT / name)


@pytest.mark.parametrize("name", PAGES)
def test_every_block_of_a_page_is_of_a_known_language(name: str) -> None:
    languages = {fence.lexemes["language"] for fence in FENCES(Document((ROOT / name).read_text(), name))}
    directives = {language for language in languages if language.startswith("{")}
    assert languages - directives <= {"python", "shell", "sql", *NOT_RUN}


@pytest.mark.parametrize("name", PAGES)
def test_a_block_uses_no_name_that_readers_do_not_see_made(name: str) -> None:
    document = Document((ROOT / name).read_text(), name)
    seen: set[str] = set()
    hidden: set[str] = set()
    for block in sorted(PythonCodeBlockParser()(document), key=lambda region: region.start):
        nodes = [*ast.walk(ast.parse(block.parsed))]
        names = [node for node in nodes if isinstance(node, ast.Name)]
        used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        made = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        made |= {node.arg for node in nodes if isinstance(node, ast.arg)}
        made |= {node.name for node in nodes if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        imported = [node for node in nodes if isinstance(node, ast.alias)]
        made |= {(alias.asname or alias.name).partition(".")[0] for alias in imported}
        if document.text[block.start] == "<":
            hidden |= made
        else:
            seen |= made
            assert not used & hidden - seen, f"{name}, {document.line_column(block.start)}"


@pytest.mark.parametrize(("place", "skip"), skips())
def test_a_block_that_is_left_out_says_why(place: str, skip: str) -> None:
    reason = REASON.match(skip)
    assert reason, f"{place}: {skip}"
    pytest.skip(f"{place}: {reason[1]}")
