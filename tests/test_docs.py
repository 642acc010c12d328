"""The documentation says what the code does."""

from __future__ import annotations

import ast
import functools
import re
import runpy
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import msgspec
import pytest

from airflow_provider_webcollect.cli.main import webcollect
from airflow_provider_webcollect.landing import errors as landing_errors
from airflow_provider_webcollect.landing.log.commits import Commit, Kind, Manifest, Part
from airflow_provider_webcollect.operators import webcollect as operators
from airflow_provider_webcollect.sensors import webcollect as sensors
from airflow_provider_webcollect.service import errors
from airflow_provider_webcollect.transfers import webcollect_to_object_storage as transfers
from airflow_provider_webcollect.triggers import webcollect as triggers
from tests.interruption import PATIENCE

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
ENDPOINT_TABLE = REFERENCE / "endpoints.md"
ARCHITECTURE, CONTRACT, ASSUMPTIONS, PROTOCOL, RELIABILITY = (
    DOCS / "contributing" / f"{name}.md"
    for name in ("architecture", "contract", "assumptions", "landing-protocol", "reliability")
)
PACKAGE = ROOT / "airflow_provider_webcollect"
LOG_LINES = DOCS / "guides" / "find-out-what-runs.md"
CITATION = re.compile(r"\b(contract|assumptions)\.md, ")
#: What may follow the name of the page: "endpoint 7", "endpoints 17, 18 and 19", or a heading.
CITED = re.compile(r"endpoints? \d+(?:(?:, | and | to )\d+)*\b|[A-Z][\w-]*(?: [\w-]+)*")


def rows_of_endpoints() -> dict[int, list[str]]:
    """Return the cells of the generated table, by the endpoint's number."""
    lines = re.findall(r"^\| (\d+) \|(.*)\|$", ENDPOINT_TABLE.read_text(), re.MULTILINE)
    return {int(number): [cell.strip() for cell in cells.split("|")] for number, cells in lines}


def sections(page: Path) -> dict[str, str]:
    """Return the text below each heading, in one line; ``Endpoint 7: …`` is shortened to ``Endpoint 7``."""
    _, *parts = re.split(r"^##+ (.*)\n", page.read_text(), flags=re.MULTILINE)
    return {
        heading.partition(":")[0]: " ".join(text.split())
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }


def citations(code: str) -> Iterator[tuple[str, str]]:
    """Yield each page and heading that a comment or docstring cites, also over line ends."""
    text = re.sub(r"\s*\n\s*(?:#:? )?", " ", code)
    for match in CITATION.finditer(text):
        cited = CITED.match(text, match.end())
        label = cited[0] if cited else text[match.end() : match.end() + 30]
        if cited and label.startswith("endpoint"):
            yield from ((match[1], f"Endpoint {number}") for number in re.findall(r"\d+", label))
        else:
            yield match[1], label


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, which links may name after the ``#``."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}


def templates(package: str) -> Iterator[str]:
    """Yield the strings of a package's code, with … for the values that f-strings and logging fill in."""
    for file in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            match node:
                case ast.JoinedStr(values=values):
                    yield "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "…" for part in values
                    )
                case ast.Constant(value=str() as text):
                    yield " ".join(re.sub(r"%[\d.]*[sdf]", "…", text).split())


def files_named(page: str) -> set[str]:
    """Return the paths of files and folders that a page has in backticks."""
    return set(re.findall(r"`([\w/]+(?:\.\w+|/))`", page))


def modules_drawn(page: str) -> set[str]:
    """Return the modules and packages in the picture of the architecture, relative to the package."""
    drawn = set()
    package_at: dict[int, str] = {}
    for line in "".join(re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)).splitlines():
        for title in re.finditer(r"┌─ (\S+/) ", line):
            package_at[title.start()] = title[1].removeprefix(f"{PACKAGE.name}/")
        cells = [(package_at[cell.start()], cell[1]) for cell in re.finditer(r"│ (.*?) │", line)]
        if listed := re.match(r"(\S+/): (.*)", line):
            cells.append((listed[1], listed[2]))
        for package, cell in cells:
            drawn |= {package + name for name in re.findall(r"\w+", cell.replace("(no Airflow)", ""))}
    return drawn


@pytest.mark.parametrize("name", ["architecture", "connection", "endpoints", "errors", "options"])
def test_a_page_that_is_made_is_the_one_that_the_code_gives_now(name: str) -> None:
    made = runpy.run_path(str(DOCS / f"make_{name}.py"))
    assert made["page"]() == made["PAGE"].read_text(), "run make docs"


def test_the_contract_has_a_section_for_each_endpoint() -> None:
    named = [heading for heading in sections(CONTRACT) if heading.startswith("Endpoint ")]
    assert named == [f"Endpoint {number}" for number in rows_of_endpoints()]


def test_every_endpoint_but_two_has_a_command() -> None:
    named = {number: cells[3].strip("`").split() for number, cells in rows_of_endpoints().items()}
    assert [number for number, words in named.items() if not words] == [8, 12]
    for words in named.values():
        command: click.Command = webcollect
        for word in words:
            if isinstance(command, click.Group):
                command = command.commands[word]
            else:
                assert word in {option for parameter in command.params for option in parameter.opts}


def test_every_class_that_the_reference_names_exists() -> None:
    for page in (CONTRACT, ASSUMPTIONS, ENDPOINT_TABLE):
        for name in re.findall(r"`(WebCollect\w+)`", page.read_text()):
            assert any(hasattr(module, name) for module in (operators, sensors, transfers, triggers)), name


def test_every_citation_names_a_heading_of_the_reference() -> None:
    headings = {page.stem: set(sections(page)) for page in (CONTRACT, ASSUMPTIONS)}
    cited = [
        (file, page, heading)
        for folder in ("airflow_provider_webcollect", "tests")
        for file in (ROOT / folder).rglob("*.py")
        for page, heading in citations(file.read_text())
    ]
    assert {page for _, page, _ in cited} == {"contract", "assumptions"}
    assert not [
        f"{file.name}: {page}.md, {heading}" for file, page, heading in cited if heading not in headings[page]
    ]


def test_the_landing_protocol_names_files_and_kinds_of_commits() -> None:
    page = PROTOCOL.read_text()
    names = {name for name in files_named(page) if name.endswith((".py", "/"))}
    assert "write/job.py" in names
    for name in names:
        assert (ROOT / name).exists() or (PACKAGE / "landing" / name).exists(), name
    assert [kind for kind in get_args(Kind) if f"`{kind}`" not in page] == []


def test_the_architecture_has_every_module_and_no_other() -> None:
    modules = {file.relative_to(PACKAGE).with_suffix("") for file in PACKAGE.rglob("*.py")}
    packages = {module.parent for module in modules if module.name == "__init__"}
    modules = {module for module in modules if module.name != "__init__"}
    expected = {module.as_posix() for module in modules | packages if module != Path()}
    assert modules_drawn(ARCHITECTURE.read_text()) == expected


def test_the_architecture_names_files_and_their_definitions() -> None:
    page = ARCHITECTURE.read_text()
    named = files_named(page)
    assert {"landing/write/copy.py", "ui/static/logic.js", "docs/make_options.py", "ui/"} <= named
    for name in named:
        assert (PACKAGE / name).exists() or (ROOT / name).exists(), name
    definitions = re.findall(r"`([\w/]+\.py)`\s\(`(\w+)`", page)
    assert ("waiting/conditions.py", "Wait") in definitions
    for file, name in definitions:
        code = (PACKAGE / file).read_text()
        assert re.search(rf"^(?:class |def |async def )?{name}\b", code, re.MULTILINE), f"{file}: {name}"


@pytest.mark.parametrize("kind", [Manifest, Commit, Part])
def test_docstrings_explain_each_key_of_manifest_and_commits(kind: type[msgspec.Struct]) -> None:
    said = " ".join(base.__doc__ or "" for base in kind.__mro__)
    names = {name for listed in re.findall(r":ivar (\w+):|``(\w+)``", said) for name in listed}
    # these need no explanation
    names |= {"name", "source", "rows", "bytes", "sha256"}
    assert set(kind.__struct_fields__) - names == set()


@pytest.mark.parametrize(
    "kind",
    [
        kind
        for module in (errors, landing_errors)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, Exception)
        and kind.__module__ == module.__name__
        # a base class needs no line of its own
        and not kind.__subclasses__()
    ],
)
def test_the_reference_explains_every_error(kind: type[Exception]) -> None:
    page = (REFERENCE / "errors.md").read_text()
    rows = re.findall(rf"^\| `{kind.__name__}` \|(.*)\|$", page, re.MULTILINE)
    assert any(all(cell.strip() for cell in row.split("|")) for row in rows)


def test_log_lines_that_the_docs_explain_are_in_the_code() -> None:
    _, _, lines = LOG_LINES.read_text().partition("\n## What a log line means\n")
    explained = re.findall(r"^\| `([^`]+)` \|", lines, re.MULTILINE)
    assert len(explained) > 8
    code = list(templates("airflow_provider_webcollect"))
    for line in explained:
        # the fixed words between the values that are filled in
        for words in re.split(r"…|\d[\d.]*| for | task |[(),:;.]", line.replace("`", "")):
            if len(words.split()) > 1:
                assert any(words.strip() in text for text in code), line


def run_by_day(selected: str) -> bool:
    """Return whether `make test` runs any of the tests that an entry of the page on reliability selects."""
    file, _, word = selected.partition(" -k ")
    if file.startswith("tests/system"):
        return False
    return any(word in name for name in kept_by_day(file))


@functools.cache
def kept_by_day(file: str) -> list[str]:
    """Return the names of the tests of a file that `make test` runs."""
    return list(names_by_day(ast.parse((ROOT / file).read_text())))


def names_by_day(node: ast.AST) -> Iterator[str]:
    """Yield the name of each function of a module or class that is not marked `at_night`."""
    assigned = [child for child in getattr(node, "body", []) if isinstance(child, ast.Assign)]
    marks = [statement.value for statement in assigned if ast.unparse(statement.targets[0]) == "pytestmark"]
    marks = [element for mark in marks for element in getattr(mark, "elts", [mark])]
    if any(
        ast.unparse(mark) == "pytest.mark.at_night" for mark in marks + getattr(node, "decorator_list", [])
    ):
        return
    if isinstance(node, ast.Module | ast.ClassDef):
        for child in node.body:
            yield from names_by_day(child)
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.name


def test_every_promise_has_a_test_by_day_or_says_at_night() -> None:
    promises = re.findall(r"^- .*(?:\n  .*)*", RELIABILITY.read_text(), re.MULTILINE)
    for promise, tests in [(promise, re.findall(r"`(tests/[^`]+)`", promise)) for promise in promises]:
        is_by_day = any(run_by_day(test) for test in tests)
        assert not tests or is_by_day is not ("at night" in promise), promise


def test_the_page_on_reliability_names_real_tests_and_targets() -> None:
    page = RELIABILITY.read_text()
    tests = re.findall(r"`(tests/[^`]+)`", page)
    assert len(tests) > 100
    for test in tests:
        file, _, word = test.partition(" -k ")
        assert (ROOT / file).exists(), test
        assert not word or re.search(rf"def test_\w*{word}", (ROOT / file).read_text()), test
    commands = set(re.findall(r"`make ([^`]*)`", page))
    assert "-C benchmarks waiting" in commands
    assert commands <= targets("Makefile") | {
        f"-C benchmarks {name}" for name in targets("benchmarks/Makefile")
    }


def targets(makefile: str) -> set[str]:
    """Return the phony targets of a Makefile."""
    return set(" ".join(re.findall(r"^\.PHONY: (.*)$", (ROOT / makefile).read_text(), re.MULTILINE)).split())


def test_make_lists_at_most_twenty_targets_on_a_screen() -> None:
    listed = subprocess.run(
        ["make", "--silent"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE, check=True
    ).stdout.splitlines()
    assert len(listed) <= 20
    assert max(map(len, listed)) <= 80


def test_contributing_has_every_make_target() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text()
    assert {name for name in targets("Makefile") if f"| `make {name}` |" not in page} == {"help"}


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *DOCS.rglob("*.md")):
        for target, anchor in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name}: {target}"
            assert not anchor or anchor in anchors(linked), f"{page.name}: {target}#{anchor}"


def test_the_dag_of_the_readme_can_be_pasted(tmp_path: Path) -> None:
    readme, file = (ROOT / "README.md").read_text(), tmp_path / "pasted.py"
    dag = re.search(r"```python\n(.*?)```", readme, re.DOTALL)
    tasks = re.search(r"```yaml\n(.*?)```", readme, re.DOTALL)
    later = dict(re.findall(r"`((collection_tasks|destination)=\".*\")`", readme))
    assert dag
    assert tasks
    file.write_text(dag.group(1))
    first = {task.task_id.rpartition(".")[2]: task for task in runpy.run_path(str(file))["dag"].tasks}
    assert first.keys() == {"start", "wait", "land"}

    (tmp_path / "collection_tasks.yaml").write_text(tasks.group(1))
    pasted = dag.group(1)
    for written, name in later.items():
        pasted = re.sub(rf"\b{name}=.*(?=,\n)", written, pasted)
    file.write_text(pasted)
    second = runpy.run_path(str(file))["dag"]
    assert [task.destination for task in second.tasks if task.task_id.endswith(".land")] == [
        f"s3://aws_default@my-bucket/{name}" for name in ("prices", "books")
    ]
    # the second DAG goes on with the landing of the first one
    assert first["land"].destination == "s3://aws_default@my-bucket/prices"
