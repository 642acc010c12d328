"""Docstrings of operators and sensors: arguments, results, what is raised, which endpoint is called."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_webcollect.operators import webcollect as operators
from airflow_provider_webcollect.sensors import webcollect as sensors
from airflow_provider_webcollect.transfers import landing_to_warehouse as loads
from airflow_provider_webcollect.transfers import webcollect_to_object_storage as transfers

#: Base classes that are imported beside the public ones.
BASES = {"WebCollectOperator", "WebCollectTaskOperator"}
CLASSES = {
    name: found
    for module in (operators, sensors, transfers, loads)
    for name, found in vars(module).items()
    if re.fullmatch(r"WebCollect\w+(Operator|Sensor)", name) and name not in BASES
}
#: Described by the base classes: the first has a meaning only where an outcome can be unknown.
IN_BASES = {"retry_unknown_outcome", "retry_policy"}
WITHOUT_THE_SERVICE = {
    "WebCollectAcceptLandingOperator",
    "WebCollectCleanLandingOperator",
    "WebCollectLoadOperator",
    "WebCollectCompactLandingOperator",
    "WebCollectVerifyLandingOperator",
}


def arguments(cls: type[Any]) -> Iterator[str]:
    """Yield the names of the arguments that this package adds to those of Airflow."""
    for each in cls.__mro__:
        if each.__module__.startswith("airflow_provider_webcollect.") and "__init__" in vars(each):
            parameters = inspect.signature(each.__init__).parameters.values()
            yield from (each.name for each in parameters if each.kind is each.KEYWORD_ONLY)


@pytest.mark.parametrize("name", CLASSES)
def test_the_docstring_is_complete(name: str) -> None:
    cls = CLASSES[name]
    text = " ".join(inspect.getdoc(cls).split())
    described = {found[1]: found[2] for found in re.finditer(r":param (\w+): (.*?)(?= :\w+ \w+:|$)", text)}

    assert described.keys() | IN_BASES == set(arguments(cls)) | IN_BASES
    templated = {argument for argument, meaning in described.items() if "(templated)" in meaning}
    # Airflow stores template fields: `timeout` is among them for the page alone, and is no template
    assert templated == set(cls.template_fields) - {"timeout"}
    assert ":raises AirflowFailException:" in text
    assert " Returns " in text
    assert bool(re.search(r"\(contract\.md, endpoint", text)) == (name not in WITHOUT_THE_SERVICE)
