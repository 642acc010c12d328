"""What every operator and sensor declares: its docstring, its templates, its links, its place in the docs."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_webcollect as provider
from airflow_provider_webcollect.links import WebCollectTaskLink

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
NAMES = [name for name in dir(provider) if name.endswith(("Operator", "Sensor"))]
#: Described by the base class: it has a meaning only where an outcome can be unknown.
IN_BASES = {"retry_unknown_outcome"}
WITHOUT_THE_SERVICE = {
    "WebCollectAcceptLandingOperator",
    "WebCollectCleanLandingOperator",
    "WebCollectLoadOperator",
    "WebCollectVerifyLandingOperator",
}
#: Arguments that are lists or objects, beside ids and names.
MANY = {"actions", "after", "columns", "column_types", "loop_items", "sources", "urls"}


def arguments(cls: type[Any]) -> Iterator[str]:
    """Yield the names of the arguments that this package adds to those of Airflow."""
    for each in cls.__mro__:
        if each.__module__.startswith("airflow_provider_webcollect.") and "__init__" in vars(each):
            parameters = inspect.signature(each.__init__).parameters.values()
            yield from (each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


def test_there_are_all() -> None:
    assert len(NAMES) >= 24


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_is_complete(name: str) -> None:
    cls = getattr(provider, name)
    text = " ".join((inspect.getdoc(cls) or "").split())
    described = {found[1]: found[2] for found in re.finditer(r":param (\w+): (.*?)(?= :\w+ \w+:|$)", text)}

    assert described.keys() | IN_BASES == set(arguments(cls)) | IN_BASES
    templated = {argument for argument, meaning in described.items() if "(templated)" in meaning}
    # Airflow stores template fields: `timeout` is among them for the page alone, and is no template
    assert templated == set(cls.template_fields) - {"timeout"}
    assert ":raises AirflowFailException:" in text
    assert " Returns " in text
    assert bool(re.search(r"\(contract\.md, endpoint", text)) == (name not in WITHOUT_THE_SERVICE)


@pytest.mark.parametrize("name", NAMES)
def test_lists_and_objects_are_shown_as_json_once_they_are_rendered(name: str) -> None:
    cls = getattr(provider, name)
    many = {each for each in cls.template_fields if each in MANY or each.endswith(("_ids", "_names"))}

    assert many <= set(cls.template_fields_renderers)


@pytest.mark.parametrize("name", NAMES)
def test_who_works_on_one_collection_task_links_to_it(name: str) -> None:
    cls = getattr(provider, name)
    linked = any(isinstance(link, WebCollectTaskLink) for link in cls.operator_extra_links)

    assert linked == ("collection_task_id" in cls.template_fields)


def test_the_reference_lists_all_in_one_table_and_describes_each_once() -> None:
    table = re.findall(r"^\| (`WebCollect[^|]*)", (REFERENCE / "operators.md").read_text(), re.MULTILINE)
    pages = "".join(page.read_text() for page in sorted((REFERENCE / "api").glob("*.md")))
    described = re.findall(r"autoclass:: [\w.]+\.(WebCollect\w*(?:Operator|Sensor))$", pages, re.MULTILINE)

    assert sorted(re.findall(r"WebCollect\w+", "".join(table))) == sorted(NAMES)
    bases = ["WebCollectOperator", "WebCollectTaskOperator"]
    assert sorted(described) == sorted([*NAMES, *bases])
