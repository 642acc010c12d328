"""Writes ``docs/reference/command-line.md`` from the commands' own help; ``make docs`` runs it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from airflow_provider_webcollect.cli.main import webcollect

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent / "reference" / "command-line.md"

HEAD = """# The command line

`webcollect` shows, steers, reads and lands what the service collects. From Airflow 3.2 on, the same
commands are `airflow webcollect …`, where the options of the sandbox follow `--`; Airflow before 3.2 has no
commands of providers. What needs no Airflow does not wait for it: everything with `--url`, and `landing`
without `--storage-conn-id`.

## Connections

- Through Airflow, `--conn-id`: any connection that Airflow finds, in its database, its secrets backends or
  the environment. Its token is shared with Airflow's tasks.
- Without Airflow, `--url` or `WEBCOLLECT_URL`, with `https://` or `http://`. The credentials are environment
  variables, so that no secret is on a command line: `WEBCOLLECT_REFRESH_TOKEN`, `WEBCOLLECT_ACCESS_TOKEN`,
  `WEBCOLLECT_USERNAME` and `WEBCOLLECT_PASSWORD`, `WEBCOLLECT_API_KEY`. The other [extras of a
  connection](connection.md) are set in the same way, for example `WEBCOLLECT_TIMEZONE`.

A refresh token works once. Without Airflow, its successor is kept in `~/.local/state/webcollect` (or
`$XDG_STATE_HOME/webcollect`), in files that only you can read. Do not use the refresh token of an Airflow
connection there: one of the two would be locked out.

## Commands that change something

`--dry-run` shows the request (`start` reads the sub-tasks for it) and changes nothing. What cannot be undone
is preceded by a question on the terminal; without a terminal, or with ids from a pipe, it takes `--yes`.
Where there may be several tasks, `-` reads their ids from standard input:

<!--- skip: next "needs jq, and a group of the reader's" --->
```shell
webcollect status -o json | jq -r '.[] | select(.status == "Stopped").task' |
  webcollect task copy - --group 7 --dry-run
```

If the response to a copy, a start or `set-loop --append` is lost, it may have been carried out. It is not
sent again; the exit code is 3, with an [`OutcomeUnknown`](errors.md) that says what to check. All other
commands can be repeated.

[The endpoints](endpoints.md) name the command that calls each of them. Only version 1 of the status has none:
it may be asked once in five seconds, and all that version 2 lacks of it is the task's name, which `analytics`
and `status` without ids show.

## Output and exit codes

`--output json` and `csv` are for programs. A table is for people: it leaves out columns without a value, and
its columns may change. On a terminal, one record is a line for each value, and columns without room are left
out, which a line on standard error names. What is said beside the result (progress, waits, cursors, errors)
goes to standard error. A reader of the output that ends early, such as `head`, is no failure.

The folder that `land` and `landing verify` print is one that the other commands and `read_landing` take.

| Exit code | Means |
|---|---|
| 0 | done |
| 1 | the answer is no: a landing damaged or missing, a run stopped, a copy not made, no such task or token |
| 2 | a wrong option or argument, or a missing extra; nothing was sent |
| 3 | refused: it fails again until somebody acts |
| 4 | failed: another try may help |
| 130 | interrupted; the same command goes on, unless the message says that the outcome is unknown |

## Commands
"""


def page() -> str:
    """Return the whole page."""
    return HEAD + "".join(
        f"\n### {path}\n\n```text\n{text}\n```\n"
        for path, text in _helps(webcollect, "webcollect")
    )


def _helps(
    command: click.Command, path: str, parent: click.Context | None = None
) -> Iterator[tuple[str, str]]:
    context = click.Context(
        command,
        parent,
        info_name=path.split()[-1],
        terminal_width=90,
        **command.context_settings,
    )
    yield path, command.get_help(context)
    for name in sorted(getattr(command, "commands", {})):
        yield from _helps(command.commands[name], f"{path} {name}", context)  # type: ignore[attr-defined]


if __name__ == "__main__":
    PAGE.write_text(page())
