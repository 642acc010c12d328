"""A page fails if one of its blocks fails. What else blocks can do is tested by the pages themselves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

pytest.importorskip("moto", reason="needs moto[server]")
pytest.importorskip("airflow.providers.amazon.aws.fs.s3", reason="needs the Amazon provider and s3fs")
pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False, speed=300)

BAD_DAG = """
from airflow.providers.common.compat.sdk import DAG, BaseOperator

class Bad(BaseOperator):
    def execute(self, context):
        return 1 / 0

with DAG("bad", schedule=None):
    only = Bad(task_id="only")
"""


@pytest.fixture
def run(tmp_path: Path, run_page: Callable[[Path], None]) -> Callable[..., None]:
    """Runs blocks, each given as its language and lines, or as a comment."""

    def run(*blocks: str | tuple[str, str]) -> None:
        page = tmp_path / "page.md"
        page.write_text(
            "\n\n".join(
                block if isinstance(block, str) else f"```{block[0]}\n{dedent(block[1]).strip()}\n```"
                for block in blocks
            )
        )
        run_page(page)

    return run


@pytest.mark.parametrize(
    "block",
    [
        ("python", "assert False"),
        *(("shell", failing) for failing in ("false | true", "false\ntrue", "false && true")),
        ("sql", "select x"),
    ],
)
def test_a_block_that_fails_is_named(run: Callable[..., None], block: tuple[str, str]) -> None:
    with pytest.raises(Exception, match=r".") as failed:
        run(("text", "to be read"), block)
    assert failed.value.__notes__ == ["The block begins in page.md, line 5."]


def test_a_dag_that_fails_fails_the_page(run: Callable[..., None]) -> None:
    with pytest.raises(AssertionError, match="bad ended as failed"):
        run(("python", BAD_DAG), "<!--- run-dag: bad --->")
