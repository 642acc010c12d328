"""How blocks of a page run."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

pytest.importorskip("moto", reason="needs moto[server]")
pytest.importorskip("airflow.providers.amazon.aws.fs.s3", reason="needs the Amazon provider and s3fs")
pytestmark = pytest.mark.webcollect_sandbox(enforce_limits=False, speed=300)

DAG = """
from airflow.providers.common.compat.sdk import DAG, BaseOperator

class Command(BaseOperator):
    def execute(self, context):
        return {result}

with DAG("{dag_id}", schedule=None):
    only = Command(task_id="only")
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


def test_blocks_share_names_folder_and_environment(run: Callable[..., None], tmp_path: Path) -> None:
    run(
        ("python", "import os; from pathlib import Path; number = 1"),
        ("shell", "export COLOR=green\nmkdir below\ncd below\necho said"),
        "<!--- invisible-code-block: python\nsaid = f'{number} {os.environ[\"COLOR\"]} {output}'\n--->",
        ("python", "Path('seen').write_text(said)"),
    )
    assert (tmp_path / "below/seen").read_text() == "1 green said\n"


@pytest.mark.parametrize(
    "block",
    [("python", "assert False"), ("shell", "false | true"), ("shell", "false\ntrue"), ("sql", "select x")],
)
def test_a_block_that_fails_is_named(run: Callable[..., None], block: tuple[str, str]) -> None:
    with pytest.raises(Exception, match=r".") as failed:
        run(("text", "to be read"), block)
    assert failed.value.__notes__ == ["The block begins in page.md, line 5."]


def test_a_block_can_be_left_out(run: Callable[..., None]) -> None:
    run('<!--- skip: next "it fails" --->', ("python", "assert False"), ("python", "done = True"))


def test_a_file_is_written_and_not_run(run: Callable[..., None]) -> None:
    run(
        "<!--- file: ~/tests/test_it.py --->",
        ("python", "def test_it(): raise SystemExit(3)"),
        ("shell", "grep -q SystemExit tests/test_it.py"),
    )


def test_a_dag_of_a_block_or_of_a_file_runs(run: Callable[..., None]) -> None:
    run(
        ("python", DAG.format(dag_id="shown", result=1)),
        "<!--- run-dag: shown --->",
        ("python", "assert dag_run.xcoms == {'only': 1}"),
        "<!--- file: $AIRFLOW_HOME/dags/written.py --->",
        ("python", DAG.format(dag_id="written", result=2)),
        "<!--- run-dag: written --->",
        ("python", "assert dag_run.xcoms == {'only': 2}"),
    )


def test_a_dag_that_fails_fails_the_page(run: Callable[..., None]) -> None:
    with pytest.raises(AssertionError, match="bad ended as failed"):
        run(("python", DAG.format(dag_id="bad", result="1 / 0")), "<!--- run-dag: bad --->")


def test_there_are_a_sandbox_and_a_bucket(run: Callable[..., None]) -> None:
    run(
        ("python", "from airflow_provider_webcollect.hooks.webcollect import WebCollectHook"),
        ("python", "assert WebCollectHook().get_running_counts()"),
        ("python", "assert sandbox.url == 'http://127.0.0.1:8155'"),
        ("python", "from airflow.providers.common.compat.sdk import ObjectStoragePath"),
        ("python", "ObjectStoragePath('s3://aws_default@my-bucket/a.csv').write_text('city\\nRome\\n')"),
        ("sql", "select city from 's3://my-bucket/a.csv'"),
        ("python", "assert rows == [('Rome',)]"),
    )


def test_the_environment_has_no_credentials(run: Callable[..., None]) -> None:
    run(
        ("python", "import os"),
        ("python", "assert not [name for name in os.environ if name.startswith('AWS_')]"),
        ("python", "assert 'login' in os.environ['AIRFLOW_CONN_AWS_DEFAULT']"),
    )


def test_a_page_can_start_sandboxes_itself(run: Callable[..., None]) -> None:
    ask = ("python", "assert Control('http://127.0.0.1:8155').tasks()")
    run(
        ("shell", "python -m airflow_provider_webcollect.sandbox --speed 60"),
        ("python", "from airflow_provider_webcollect.sandbox import Control"),
        ask,
        ("shell", "python -m airflow_provider_webcollect.sandbox --port 8155"),
        ask,
        ("python", "assert 'sandbox' not in globals()"),
    )


@pytest.mark.parametrize("page", ["first", "second"])
def test_a_page_finds_nothing_of_another(run: Callable[..., None], page: str) -> None:
    run(
        ("python", "from airflow.models import Variable"),
        ("python", "assert Variable.get('color', 'none') == 'none'"),
        ("python", "Variable.set('color', 'green')"),
        ("shell", "touch $AIRFLOW_HOME/dags/new.py; export COLOR=green; test ! -e here; touch here"),
    )
