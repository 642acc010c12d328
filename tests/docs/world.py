"""The environment of a page's blocks, and how blocks of each kind run."""

from __future__ import annotations

import logging
import os
import re
import runpy
import signal
import socket
import subprocess
import time
import unittest
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.sdk import DAG, BaseOperator
from airflow.providers.common.compat.version_compat import AIRFLOW_V_3_0_PLUS, AIRFLOW_V_3_3_PLUS
from sybil import Document, Region
from sybil.example import Example
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer

from tests.airflow.dag_runs import run_dag

log = logging.getLogger(__name__)

DOCUMENTED_PORT = "8155"
STARTS_SANDBOX = re.compile(r"^python -m airflow_provider_webcollect\.sandbox\b", re.MULTILINE)
#: Languages of blocks that are only read; any language that is neither here nor run is a mistake.
NOT_RUN = ("text", "json", "toml", "yaml", "ini", "dockerfile", "diff")
#: Variables that a shell sets for itself.
OF_THE_SHELL = {"_", "OLDPWD", "SHLVL"}
#: Arguments that set pauses of tasks; by default, these are longer than the sandbox's runs.
PAUSES = {"poke_interval", "late_rows_delay"}
#: Maximum seconds for a shell block; exit code 124 says that it took longer.
LIMIT = 300


class World:
    """Runs the blocks of one page.

    :param folder: working directory of the blocks, in which the process already must be.
    :param dags: the folder of DAGs.
    :param port: port that replaces the documented one.
    :param replaced: other texts of the page to replace, with their replacements.
    :param names: names that are defined for the Python blocks.
    """

    def __init__(
        self, folder: Path, dags: Path, port: int, replaced: Mapping[str, str] | None = None, **names: Any
    ) -> None:
        self._folder = folder
        self._dags = dags
        self._port = port
        self._replaced = {DOCUMENTED_PORT: str(port), **(replaced or {})}
        self._names = names
        self._sandbox: subprocess.Popen[bytes] | None = None
        self._duckdb: Any = None

    def run(self, page: Path) -> None:
        """Run all blocks of a page; an error says in which line the block begins."""
        text = page.read_text()
        for documented, used in self._replaced.items():
            text = text.replace(documented, used)
        document = Document(text, str(page))
        document.namespace |= self._names | {
            "AIRFLOW_3": AIRFLOW_V_3_0_PLUS,
            "AIRFLOW_3_3": AIRFLOW_V_3_3_PLUS,
            "DBT": os.environ.get("WEBCOLLECT_DBT"),
            "port": self._port,
        }
        for parse in self._parsers():
            for region in parse(document):
                document.add(region)
        for example in document.examples():
            begun = time.monotonic()
            try:
                example.evaluate()
            except unittest.SkipTest:
                continue
            except BaseException as error:
                error.add_note(f"The block begins in {page.name}, line {example.line}.")
                raise
            log.info("%s, line %d: %.1f s", page.name, example.line, time.monotonic() - begun)

    def close(self) -> None:
        """End what blocks have started."""
        self._end_sandbox()
        if self._duckdb is not None:
            self._duckdb.close()

    def _parsers(self) -> Iterator[Callable[[Document], Any]]:
        yield PythonCodeBlockParser()
        yield CodeBlockParser("shell", self._shell)
        yield CodeBlockParser("sql", self._sql)
        for language in NOT_RUN:
            yield CodeBlockParser(language, _leave)
        yield _directive("run-dag", self._run_dag)
        yield _directive("file", self._write_next)
        yield SkipParser()

    def _shell(self, block: Example) -> None:
        if STARTS_SANDBOX.search(block.parsed):
            self._start_sandbox(block.parsed)
            return
        kept = self._folder / ".environment"
        # bash goes on after `failing && other`, so keep its exit status
        script = f"{block.parsed}\nended=$?\nenv -0 > {kept}\nexit $ended"
        done = subprocess.run(
            # this also ends what the block has started
            ["timeout", str(LIMIT), "bash", "-euo", "pipefail", "-c", script],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}"
        block.namespace["output"] = done.stdout
        variables = dict(line.split("=", 1) for line in kept.read_text().split("\0") if line)
        kept.unlink()
        for name in os.environ.keys() - variables.keys() - OF_THE_SHELL:
            del os.environ[name]
        os.environ.update({name: value for name, value in variables.items() if name not in OF_THE_SHELL})
        os.chdir(variables["PWD"])

    def _start_sandbox(self, command: str) -> None:
        self._end_sandbox()
        if "--port" not in command:
            command = STARTS_SANDBOX.sub(rf"\g<0> --port {self._port}", command)
        output = self._folder / ".sandbox"
        with output.open("wb") as file:
            self._sandbox = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", command],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        while not _listens(self._port):
            assert self._sandbox.poll() is None, f"the sandbox ended:\n{output.read_text()}"
            time.sleep(0.05)

    def _end_sandbox(self) -> None:
        if self._sandbox is not None:
            os.killpg(self._sandbox.pid, signal.SIGTERM)
            self._sandbox.wait()
            self._sandbox = None

    def _sql(self, block: Example) -> None:
        import duckdb
        from airflow.providers.common.compat.sdk import ObjectStoragePath

        if self._duckdb is None:
            self._duckdb = duckdb.connect()
            self._duckdb.register_filesystem(ObjectStoragePath("s3://aws_default@my-bucket").fs)
        block.namespace["rows"] = self._duckdb.execute(block.parsed).fetchall()

    def _run_dag(self, directive: Example) -> None:
        dag_id = directive.parsed
        of_files = (runpy.run_path(str(file)) for file in sorted(self._dags.rglob("*.py")))
        dags = (
            dag for names in (directive.namespace, *of_files) for dag in _dags(names) if dag.dag_id == dag_id
        )
        dag = next(dags, None)
        assert dag, (
            f"no name of a block above, or of a file in {self._dags}, is the DAG {dag_id} or a task of it"
        )
        for task in dag.tasks:
            for name in PAUSES & vars(task).keys():
                setattr(task, name, 0.2)
        dag_run = directive.namespace["dag_run"] = run_dag(dag)
        assert dag_run.state == "success", f"{dag_id} ended as {dag_run.state}: {dag_run.states}"

    def _write_next(self, directive: Example) -> None:
        path = Path(os.path.expandvars(directive.parsed)).expanduser()

        def write(block: Example) -> None:
            block.document.pop_evaluator(write)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.parsed)

        directive.document.push_evaluator(write)


def _directive(name: str, evaluate: Callable[[Example], None]) -> Callable[[Document], Iterator[Region]]:
    """Return a parser of comments ``<!--- name: argument --->``."""
    lex = DirectiveInHTMLCommentLexer(name, arguments=r"\S+")

    def parse(document: Document) -> Iterator[Region]:
        for region in lex(document):
            yield Region(region.start, region.end, region.lexemes["arguments"], evaluate)

    return parse


def _dags(names: dict[str, Any]) -> Iterator[DAG]:
    """Yield the DAGs among named objects, and the DAGs of tasks among them."""
    for value in names.values():
        if isinstance(value, DAG):
            yield value
        elif isinstance(value, BaseOperator) and value.has_dag():
            yield value.dag


def _leave(block: Example) -> None:
    """Do nothing: the block is only read."""


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
