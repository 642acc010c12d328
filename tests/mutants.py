"""Puts small defects into the package, one at a time, and says which test notices each.

Run ``python -m tests.mutants`` before and after a change that makes the tests cheaper: a defect that is only
noticed before shows that an assertion has become weaker. The defects go into a copy of the tracked files; the
checkout does not change.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "airflow_provider_webcollect"
#: Variables that say where the tests' servers are; the Makefile sets paths relative to the checkout.
SERVERS = ("WEBCOLLECT_SERVERS", "WEBCOLLECT_AZURITE", "WEBCOLLECT_WAREHOUSES")
#: Seconds after which the tests of a defect are killed; a single test ends by itself after two minutes.
LONGEST = 900.0
FAILED = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)
SURVIVED = "**SURVIVED**"


@dataclass(frozen=True)
class Mutant:
    """A defect.

    :param file: path of the module, relative to the package.
    :param old: text that the module has exactly once.
    :param new: text that replaces it.
    :param breaks: the promise that no longer holds.
    :param tests: test files that must notice the defect, relative to ``tests``; where the other tests take
        long, with ``-k`` and a word of the names of the tests to run.
    """

    file: str
    old: str
    new: str
    breaks: str
    tests: str

    def applied_to(self, source: str) -> str:
        """Return the file's text with the defect.

        :raises ValueError: if it does not have the old text exactly once.
        """
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"the text is there {count} times, not once")
        return source.replace(self.old, self.new)

    @property
    def module(self) -> str:
        """The name of the changed module."""
        return f"{PACKAGE}.{self.file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")


# fmt: off
MUTANTS = (
    # Landing.
    Mutant("landing/write/run.py", "if rows != total:", "if rows > total:",
           "nothing is committed unless as many rows came as were announced", "landing/test_full_landing.py"),
    Mutant("landing/write/copy.py", "elif digest_rows(rows[: fingerprint.rows]) != fingerprint.sha256:",
           "elif len(rows) < fingerprint.rows:",
           "a source that was emptied and filled again is detected by its last page",
           "landing/test_incremental_landing.py"),
    Mutant("landing/write/copy.py",
           "        may_have_changed = may_have_changed or "
           "(self._job.options.mark_exported and self._pages > 1)\n", "",
           "rows that change while they are read are not committed, however short the read before a mark",
           "landing/test_full_landing.py"),
    Mutant("landing/write/run.py", "        state = self._log.append(self._state, commit)\n",
           "        if job.options.mark_exported:\n            job.mark()\n"
           "        state = self._log.append(self._state, commit)\n",
           "the mark comes only after the commit", "landing/test_incremental_landing.py"),
    Mutant("landing/storage/__init__.py", "with _published(Path(path), _link) as file:",
           "with self.upload(path) as file:",
           "of two landings that have read the same state, one commits",
           "landing/test_interleavings.py"),
    Mutant("landing/storage/object_stores.py",
           "        elif self.respects[place]:\n", "        elif place in self.respects:\n",
           "a storage that ignores conditions is detected and logged", "landing/test_storage.py"),
    Mutant("landing/storage/__init__.py",
           'hidden = target.with_name(f".tmp-{target.name}-{secrets.token_hex(4)}")', "hidden = target",
           "readers never see half a part", "landing/test_storage.py"),
    Mutant("landing/log/commits.py", "return state is None or self.number > state.place_commit",
           "return True",
           "a landing goes on only from where what has landed ends", "landing/test_incremental_landing.py"),
    Mutant("landing/write/run.py", "if not missing_part(draft.written, files)",
           "if not missing_part((), files)",
           "a finished part that has vanished before the commit is read again",
           "landing/test_full_landing.py"),
    Mutant("landing/write/run.py", "if draft.replaces and state.rows:",
           'if draft.replaces and state.rows and self._job.options.mode == "full":',
           "a source without rows replaces no landing", "landing/test_incremental_landing.py"),
    Mutant("landing/write/run.py", "        staging.write(scan.late_pages())\n", "",
           "rows that appear late land before the mark", "landing/test_incremental_landing.py"),
    Mutant("landing/cleaning.py", "        needed.update(_replaced(commits, state, until))\n", "",
           "what was replaced a moment ago can still be read", "landing/test_incremental_landing.py"),
    Mutant("landing/cleaning.py", "{name.casefold() for name in needed}", "needed",
           "on a disk without letter case nothing that has landed is removed", "landing/test_cleaning.py"),
    Mutant("landing/formats/reading.py", "return rows if digesting.sha256() == sha256 else None",
           "return rows",
           "verify detects every change of a part", "landing/test_reader.py"),
    Mutant("landing/write/run.py", "        job.stop.check()\n        state = self._log.append(",
           "        state = self._log.append(",
           "a task that has ended commits nothing more", "landing/test_interleavings.py -k stopped"),
    # Checks, quarantine, review.
    Mutant("landing/log/commits.py",
           "return self.exported_at is None and all(apart.is_earlier for apart in self.quarantined)",
           "return self.exported_at is None",
           "the export is not marked while rows are quarantined", "landing/test_review.py"),
    Mutant("landing/log/commits.py",
           "if not (skipped.is_earlier or skipped.replaces)",
           "if not skipped.replaces",
           "rows that were set apart before the source was reset do not count as its rows",
           "landing/test_review.py"),
    Mutant("landing/storage/folder.py", "if (copy.bytes, copy.sha256) != (part.bytes, part.sha256):",
           "if copy.bytes != part.bytes:",
           "quarantined parts that are not what was written are not accepted", "landing/test_review.py"),
    Mutant("landing/write/review.py",
           "if by and state and (earlier := commits.decision_by(state, by, run_id, number)):",
           "if state and (earlier := commits.decision_by(state, '?', run_id, number)):",
           "who decides again, as the answer was lost, decides on no other rows", "landing/test_review.py"),
    Mutant("landing/log/fold.py", ', set_apart=_as_earlier(state.set_apart)\n    )', "\n    )",
           "rows that wait go on waiting when the landing begins again", "landing/test_review.py"),
    Mutant("landing/log/names.py", 'return copy_name(name.removeprefix(f"{QUARANTINE}/"))',
           'return name.removeprefix(f"{QUARANTINE}/")',
           "a name is never used a second time", "landing/test_review.py"),
    Mutant("landing/write/job.py", "!= (start.rules, _options_of(start)):",
           "!= (start.rules, _options_of(start)) or draft.number != start.number:",
           "a decision or a mark does not let a run read all again", "landing/test_incremental_landing.py"),
    Mutant("landing/storage/commit_log.py",
           "if not has_record and len(history) >= MOST_RECORDS:",
           "if numbers and history:",
           "a run that is older than the records of the manifest is known",
           "landing/test_incremental_landing.py"),
    # Loads.
    Mutant("landing/read/loading.py", "range(first_row, first_row + count)", "range(count)",
           "a load gives the latest row of each key", "landing/loading/test_loads.py"),
    Mutant("landing/read/loading.py", "LANDING if is_whole else (LANDING, PART)", "(LANDING, PART)",
           "rows that a landing has no more leave the table", "landing/loading/test_loads.py"),
    Mutant("landing/formats/parquet.py",
           'empty = pc.or_kleene(empty, pc.equal(pc.utf8_trim_whitespace(column), ""))',
           'empty = pc.or_kleene(empty, pc.equal(column, ""))',
           "rows with a blank key are named, and nothing is loaded",
           "landing/loading/test_loads.py -k without_a_key"),
    Mutant("landing/read/loading.py", "        failure = _failure(error, table)",
           "        raise _failure(error, table) from error",
           "no error of a load shows credentials", "landing/loading/test_loads.py -k password"),
    # The service and its tokens.
    Mutant("service/call.py", "if call.retry is Retry.ONLY_IF_UNSENT and error.uncertain:",
           "if call.retry is Retry.ONLY_IF_UNSENT and error.uncertain and error.status is None:",
           "a copy that may have taken effect is not sent again", "service/test_error_table.py"),
    Mutant("service/call.py", "return max(backoff(state), self.requested_pause(error))",
           "return backoff(state)",
           "Retry-After is respected by requests", "service/test_retries.py"),
    Mutant("service/call.py", "if response.status in REDIRECTS and",
           "if response.status in REDIRECTS and call.endpoint.method == \"POST\" and",
           "a redirect is refused, with the place that it leads to", "service/test_connections.py"),
    Mutant("service/pages.py", "if self.rows != self.total:", "if self.rows > self.total:",
           "a read of many pages gives every row that was announced", "service/test_paging.py"),
    Mutant("service/tokens/renewal.py",
           "if source and source.refresh_token and digest(source.refresh_token) not in self._spent:",
           "if source and source.refresh_token:",
           "a spent refresh token is not sent again, however the connection is edited",
           "service/tokens/test_lockout.py"),
    Mutant("service/tokens/renewal.py",
           "if isinstance(error, ServiceError) and spelling_of_code(error.code) in REFUSALS:",
           "if isinstance(error, ServiceError) and error.permanent:",
           "only a known code refuses a refresh token", "service/tokens/test_lockout.py"),
    Mutant("service/tokens/__init__.py",
           "if visible != claim:", "if visible.state is not RenewalState.CLAIMED:",
           "no refresh token is sent twice: of several processes that claim the renewal, one renews",
           "service/tokens/test_world.py"),
    Mutant("service/tokens/__init__.py",
           'text = ""  # it may hold a token, and some tracebacks show variables',
           "return None",
           "a store that cannot be read is not taken for an empty one", "service/tokens/test_obtaining.py"),
    # Waits, and the operators and triggers that wait.
    Mutant("waiting/conditions.py", "or self.refusals >= REFUSALS)", "or self.refusals >= REFUSALS - 1)",
           "a refusal ends a wait only if it comes three times in a row", "waiting/test_poll_failures.py"),
    Mutant("waiting/runs.py", "            return unchanged_for >= status_delay\n",
           "            return active or unchanged_for >= status_delay\n",
           "the end of the run before does not count as this run's, though it was seen active",
           "waiting/test_evidence.py"),
    Mutant("waiting/conditions.py", "in absences if absence.responses >= 2]", "in absences]",
           "a task counts as missing only if two answers leave it out", "waiting/test_conditions.py"),
    Mutant("waiting/poll.py", "for wait in watched.in_flight:", "for wait in watched.waits:",
           "a wait is not shown the answer to an older question", "waiting/test_poll.py"),
    Mutant("waiting/poll.py",
           "self._earliest = _now() + min(SPACING, SPREAD * interval / batches)",
           "self._earliest = _now()",
           "no status query is answered with 429, also with two triggerers on one address",
           "waiting/test_poll_failures.py"),
    Mutant("triggers/webcollect.py", "self.began = time.time() if began is None else began",
           "self.began = time.time()",
           "the time waited counts after a restart of the triggerer", "airflow/test_triggers.py"),
    Mutant("waiting/runs.py", "last.run if was_unfinished else min(last.run + 1, now.run)",
           "last.run",
           "runs that end between two polls are told once", "waiting/test_finished_runs.py"),
    Mutant("sensors/webcollect.py", "        limit = min(limit, self.execution_timeout or limit)\n", "",
           "an execution timeout ends a deferred wait as it ends one that pokes", "airflow/test_sensors.py"),
    Mutant("operators/start.py", "            memory.keep(start)\n            try:",
           "            try:",
           "a retry knows of a start whose answer was lost", "airflow/test_operations_start.py"),
)
# fmt: on


def main() -> int:
    """Try all defects, or only ``--only``; return the exit status, which is 0 if tests notice all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="numbers of defects, with commas between them")
    arguments = parser.parse_args()
    only = {int(number) for number in arguments.only.split(",")} if arguments.only else None
    chosen = [pair for pair in enumerate(MUTANTS, 1) if only is None or pair[0] in only]

    killers: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as name:
        folder = Path(name).resolve()
        copy_tree(folder)
        _say("| No. | File | What it breaks | Killed by | Seconds |\n|---|---|---|---|---|")
        for number, mutant in chosen:
            began = time.monotonic()
            killers.append(tried(folder, number, mutant))
            seconds = time.monotonic() - began
            killed_by = killers[-1].removeprefix("tests/").replace("|", "\\|")
            _say(f"| {number} | `{mutant.file}` | {mutant.breaks} | {killed_by} | {seconds:.0f} |")
        tests = list(dict.fromkeys(killer for killer in killers if "::" in killer))
        if tests and (failing := first_failing(folder, tests)) != SURVIVED:
            _say(f"\nWithout any defect, this test fails too, so the table proves nothing: {failing}")
            return 1
    killed = sum("::" in killer for killer in killers)
    _say(f"\n{killed} of {len(killers)} are killed, by tests that pass without the defect.")
    return int(killed < len(killers))


def copy_tree(folder: Path) -> None:
    """Copy the tracked files, as they are in the checkout, into a folder."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    for name in listed.stdout.decode().split("\0"):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def tried(folder: Path, number: int, mutant: Mutant) -> str:
    """Return the test that notices a defect; if none does, return why.

    :param folder: folder with the copied tree.
    """
    path = folder / PACKAGE / mutant.file
    source = path.read_text()
    try:
        path.write_text(mutant.applied_to(source))
        # a modification time of its own, so that Python does not use bytecode of another text
        os.utime(path, (number, number))
        command = [sys.executable, "-P", "-c", f"import {mutant.module} as module; print(module.__file__)"]
        result = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True)
        if result.returncode or result.stdout.split()[-1] != str(path):
            return f"INVALID: {(result.stderr or result.stdout).strip().splitlines()[-1]}"
        tests = [f"tests/{name}" if name.endswith(".py") else name for name in mutant.tests.split()]
        return first_failing(folder, tests)
    except (OSError, ValueError) as error:
        return f"INVALID: {error}"
    finally:
        path.write_text(source)


def first_failing(folder: Path, tests: list[str]) -> str:
    """Return the first test that fails in a tree; if none does, return how the tests have ended."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    command += ["-m", "not at_night", *tests]
    # not into a pipe: servers left by a failed test would keep it open
    log = folder / "pytest.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=_environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            process_group=0,
        )
        try:
            process.wait(LONGEST)
        except subprocess.TimeoutExpired:
            return f"INVALID: no end after {LONGEST:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    output = log.read_text(errors="replace")
    if process.returncode == 0:
        return SURVIVED
    failed = FAILED.search(output)
    if process.returncode == 1 and failed and "::" in failed[1]:
        return failed[1]
    said = failed[0] if failed else " ".join(output.splitlines()[-1:])
    return f"INVALID: pytest ended with {process.returncode}: {said}"


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment of processes that import the tree's package, whatever is installed."""
    servers = {name: str(Path(os.environ[name]).absolute()) for name in SERVERS if name in os.environ}
    return {**os.environ, **servers, "PYTHONPATH": str(folder), "AIRFLOW_HOME": str(folder / ".airflow")}


def _say(line: str) -> None:
    print(line, flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
