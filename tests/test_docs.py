"""The documentation says what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

from airflow_provider_webcollect.hooks.webcollect import WebCollectHook
from airflow_provider_webcollect.operators import webcollect as operators
from airflow_provider_webcollect.sensors import webcollect as sensors
from airflow_provider_webcollect.service.api.endpoints import ENDPOINTS
from airflow_provider_webcollect.transfers import webcollect_to_object_storage as transfers
from airflow_provider_webcollect.triggers import webcollect as triggers

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_table_of_endpoints_is_the_one_that_the_declarations_give() -> None:
    made = runpy.run_path(str(DOCS / "make_endpoints.py"))
    assert made["page"]() == (DOCS / "endpoints.md").read_text(), "run make docs"


def test_every_endpoint_has_a_row_and_a_hook_method() -> None:
    rows = re.findall(r"^\| (\d+) \|.*?\| `(\w+)` \|", (DOCS / "endpoints.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 21))
    assert [name for _, name in rows] == [endpoint.name for endpoint in ENDPOINTS]
    assert all(callable(getattr(WebCollectHook, name)) for _, name in rows)


def test_every_class_that_the_table_names_exists() -> None:
    for name in re.findall(r"`(WebCollect\w+)`", (DOCS / "endpoints.md").read_text()):
        assert any(hasattr(module, name) for module in (operators, sensors, transfers, triggers)), name


def test_every_link_of_the_documentation_leads_somewhere() -> None:
    for page in (*ROOT.glob("*.md"), *DOCS.glob("*.md")):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_dag_of_the_readme_can_be_pasted(tmp_path: Path) -> None:
    dag = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert dag
    (tmp_path / "pasted.py").write_text(dag.group(1))
    tasks = runpy.run_path(str(tmp_path / "pasted.py"))
    assert tasks["land"].upstream_task_ids == {"wait"}
