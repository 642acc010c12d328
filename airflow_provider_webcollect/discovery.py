"""Discovery of the account's tasks from analytics, for the file of collection tasks."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import re
import secrets
import shutil
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pendulum
import yaml

from airflow_provider_webcollect.collection_tasks import (
    LONGEST_NAME,
    OPTION,
    CollectionTask,
    entry_nodes,
    folded,
    id_or_name,
    is_id,
    parse,
    read_collection_tasks,
    table_name,
)
from airflow_provider_webcollect.service.errors import InvalidArgument, WebCollectError, quoted
from airflow_provider_webcollect.service.models import AnalyticsRow
from airflow_provider_webcollect.service.pages import all_analytics

if TYPE_CHECKING:
    from airflow_provider_webcollect.service.call import Sender

Entry = tuple[CollectionTask, yaml.MappingNode]

log = logging.getLogger(__name__)
#: The differences between analytics and a file: tasks that are ``new`` (only in analytics), ``gone`` (only in
#: the file), or ``renamed`` in the service since the file was written. Each task is ``{"id", "name"}``, with
#: the name in the file, and has ``"service_name"`` if the service has another name for it.
Differences = dict[str, list[dict[str, str]]]
#: The keys that discovery keeps up to date; it writes the id and the name only once.
_UPDATED = ("service_name", "last_run", "rows", "cost")
#: The keys of a new entry.
_WRITTEN = ("id", "name", *_UPDATED)
#: Blank lines and comments at the end, without indented comments, which are about an entry.
_COMMENTS = re.compile(r"(?:^(?:#[^\r\n]*|[ \t]*)\r?\n)+\Z", re.MULTILINE)
_END_OF_LINE = re.compile(r"\r?$", re.MULTILINE)


def as_lines(differences: Differences) -> list[str]:
    """Return a line for each difference, and a last line with the counts."""
    lines = []
    for kind, tasks in differences.items():
        for task in tasks:
            service_name = task.get("service_name")
            other = f", which the service calls {quoted(service_name)}" if service_name else ""
            why = ", which has not run in the last three months" if kind == "gone" else other
            lines.append(f"{kind}: {task['name']} ({task['id']}){why}")
    return [*lines, ", ".join(f"{len(tasks)} {kind}" for kind, tasks in differences.items())]


def discover(
    sender: Sender, listed: Sequence[CollectionTask] = ()
) -> tuple[list[CollectionTask], Differences]:
    """Return the account's tasks that ran in the last three months (contract.md, endpoint 2).

    Tasks with ids that the file cannot have are left out, with a warning.

    :param listed: the entries of a file, whose names stay. Other tasks get a name that the file can have.
    :return: the tasks, sorted by their names in the service, and the differences from the file.
    """
    today = pendulum.now("UTC").date()
    # one day less than the service allows: by its clock, the next day may have begun
    by_id = defaultdict(list)
    for row in all_analytics(sender, start=today.subtract(months=3).add(days=1), end=today):
        by_id[row.task_id].append(row)
    for task_id in [*by_id]:
        try:
            id_or_name("taskId", task_id)
        except InvalidArgument as error:
            log.warning("A task of the service is left out: %s", error)
            del by_id[task_id]
    all_rows = itertools.chain.from_iterable(by_id.values())
    service_names = AnalyticsRow.names(all_rows)
    names = {task_id: name or task_id for task_id, name in service_names.items()}
    entries = {folded(task.id): task for task in listed}
    # the ids of tasks by all taken ids and names, and by all taken names of tables
    owners = {folded(key): folded(task.id) for task in listed for key in (task.id, task.name)}
    owners |= {folded(task_id): folded(task_id) for task_id in by_id}
    tables = {table_name(task.name): folded(task.id) for task in listed}

    def is_free(name: str, own: str) -> bool:
        """Return whether a task can have a name, and reserve it; names must also differ as table names.

        :param own: the task's id, in the form of :func:`folded`.
        """
        keys = ((owners, folded(name)), (tables, table_name(name)))
        if not all(taken.get(key, own) == own for taken, key in keys):
            return False
        for taken, key in keys:
            taken[key] = own
        return True

    tasks, differences = [], Differences(new=[], gone=[], renamed=[])
    for task_id in sorted(names, key=lambda task_id: (names[task_id].casefold(), task_id)):
        own, possible = folded(task_id), _names(task_id, names[task_id])
        entry = entries.pop(own, None)
        free = (name for name in possible if is_free(name, own))
        name = entry.name if entry else next(free, possible[-1])
        difference, service_name = {"id": task_id, "name": name}, service_names[task_id] or None
        # an entry that a person wrote does not have the task's name in the service
        if service_name and (entry.service_name if entry else name) not in (None, service_name):
            difference["service_name"] = service_name
        if entry is None or "service_name" in difference:
            differences["renamed" if entry else "new"].append(difference)
        ran = [row.day_key for row in by_id[task_id] if row.execution_metrics.run_count != 0]
        total = AnalyticsRow.total(by_id[task_id])
        rows = None if total["rows"] is None else round(total["rows"])
        last_run = max(ran, default=None)
        tasks.append(
            CollectionTask(
                id=task_id,
                name=name,
                service_name=service_name,
                last_run=last_run,
                rows=rows,
                cost=total["cost"],
            )
        )
    differences["gone"] = [{"id": task.id, "name": task.name} for task in entries.values()]
    return tasks, differences


def _names(task_id: str, service_name: str) -> list[str]:
    """Return the names that the file can have for a task, the best one first.

    Spaces replace unprintable characters and separate the braces of templates. If another task has the name,
    or a name that is the same in Airflow's ids, the next names can be used: they end with the beginning of
    the id, and with the whole id.
    """
    name = "".join(character if character.isprintable() else " " for character in service_name)
    name = re.sub(r"\{(?=[{%#])", "{ ", name).strip() or task_id
    ends = ("", f" ({task_id[:8]})", f" ({task_id})")
    names = [name[: LONGEST_NAME - len(end)].strip() + end for end in ends]
    return names[1:] if is_id(name) and name.lower() != task_id.lower() else names


def as_yaml(tasks: Sequence[CollectionTask]) -> str:
    """Return tasks as entries of the file, in YAML."""
    entries = msgspec.to_builtins(tasks)
    return "".join(_as_yaml(entry) for entry in entries)


def _as_yaml(value: Any) -> str:
    """Return a value as an entry of a YAML list, with escapes if a text has unprintable characters."""
    texts = [
        text for text in (value.values() if isinstance(value, dict) else [value]) if isinstance(text, str)
    ]
    is_plain = all(map(str.isprintable, texts))
    return yaml.safe_dump([value], sort_keys=False, allow_unicode=is_plain, width=math.inf)


def update(path: str | Path, sender: Sender, *, write: bool) -> Differences:
    """Compare a file with the tasks that ran in the last three months, and merge those tasks into the file.

    New entries are added at the end; ``service_name``, ``last_run``, ``rows`` and ``cost`` of the others are
    updated. Everything else stays unchanged, byte for byte. The file is replaced atomically, and only if it
    changes; a file that does not exist is created.

    :param path: path of the file; for a merge it must be YAML, and its entries must have a line for each key.
    :param write: whether to merge the tasks; if not, the file is only compared.
    :return: the differences between analytics and the file before the merge.
    :raises InvalidArgument: if the file is invalid, or cannot be read, merged or written.
    :raises WebCollectError: if somebody else has changed the file meanwhile, or the service cannot be
        queried.
    """
    # the target of a link is replaced, so that the link itself stays
    try:
        path = Path(path).expanduser().resolve()
        is_there = path.exists()
    except (OSError, ValueError) as error:  # such as a name that is too long
        raise InvalidArgument(OPTION, str(path), f"it cannot be read: {error}") from error
    listed = read_collection_tasks(path).tasks if is_there else ()
    before = _content(path)
    text = before.decode("utf-8-sig")
    # if the file has changed between the two reads, `_merged` finds the difference
    nodes = entry_nodes(path, text)[1] if listed else None
    entries = list(zip(listed, nodes.value, strict=False)) if nodes else []
    if write and (
        path.suffix.lower() not in {".yaml", ".yml"} or any(node.flow_style for _, node in entries)
    ):
        rule = "to be merged, it must be a .yaml file with a line for each key, and no entry in { }"
        raise InvalidArgument(OPTION, str(path), rule)
    tasks, differences = discover(sender, listed)
    if write and (merged := _merged(path, text, entries, tasks, nodes)) != text:
        # a byte order mark stays
        _replace(path, before, before.removesuffix(text.encode()) + merged.encode())
    return differences


def _merged(
    path: Path,
    text: str,
    entries: Sequence[Entry],
    tasks: Sequence[CollectionTask],
    nodes: yaml.SequenceNode | None,
) -> str:
    """Return the text of a file with the discovered tasks in it.

    :param nodes: the node of the list of entries; None for a file without entries.
    :raises InvalidArgument: if the new text would not be read as intended.
    """
    line_end = "\r\n" if "\r\n" in text else "\n"
    new = {folded(task.id): task for task in tasks}
    pieces, at, expected = [], 0, []
    for old, node in entries:
        updated = new.pop(folded(old.id), old)
        values = {key: getattr(updated, key) for key in _UPDATED}
        values = {key: value for key, value in values.items() if value not in (None, getattr(old, key))}
        expected.append(msgspec.structs.replace(old, **values))
        for start, end, piece in _edits(text, node, values, line_end):
            pieces += [text[at:start], piece]
            at = end
    # new entries come before anything that follows the list: the defaults, or YAML's end marker
    end = nodes.end_mark.index if nodes else len(text)
    if nodes and text[end:].strip() and (comments := _COMMENTS.search(text, 0, end)):
        # the comments are about the text that follows the list
        end = comments.start()
    merged = "".join([*pieces, text[at:end]])
    if new:
        lines = textwrap.indent(as_yaml([*new.values()]), " " * (nodes.start_mark.column if nodes else 0))
        merged += line_end if merged and not merged.endswith("\n") else ""
        merged += lines.replace("\n", line_end)
    merged += text[end:]
    # an error about the new text would name lines that the file does not have
    with contextlib.suppress(InvalidArgument, ValueError):
        read = parse(path, merged).tasks if merged else ()
        # the file's defaults apply to new entries, too
        added = zip(read[len(expected) :], new.values(), strict=True)
        if read[: len(expected)] == tuple(expected) and all(
            getattr(one, key) == getattr(other, key) for one, other in added for key in _WRITTEN
        ):
            return merged
    rule = "discovered tasks cannot be added to a file of this form: write plain lines of `key: value`"
    raise InvalidArgument(OPTION, str(path), rule)


def _edits(
    text: str, node: yaml.MappingNode, values: Mapping[str, Any], line_end: str
) -> list[tuple[int, int, str]]:
    """Return the changes to an entry in order: the start and the end of the old text, and the new text."""
    spans = {}
    for key_node, value_node in node.value:
        start = value_node.start_mark.index
        # the end mark of a value of several lines is at the next key
        spans[key_node.value] = start, start + len(text[start : value_node.end_mark.index].rstrip())
    line = _END_OF_LINE.search(text, max(spans["id"][1], spans["name"][1]))
    missing = (line.start(), line.start()) if line else (len(text), len(text))
    column = node.value[0][0].start_mark.column
    edits = []
    for key, value in values.items():
        start, end = spans.get(key, missing)
        # a key without a value has no space before the place of the value
        before = " " * (start == end) if key in spans else f"{line_end}{' ' * column}{key}: "
        written = _as_yaml(value).removeprefix("- ").rstrip()
        edits.append((start, end, before + written))
    return sorted(edits, key=lambda edit: edit[0])


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def write_new(files: Mapping[Path, str]) -> None:
    """Write new files, each atomically; if one cannot be written, or already exists, remove the others.

    :param files: the texts of the files, by path.
    :raises InvalidArgument: if a file cannot be written.
    :raises WebCollectError: if somebody else has written one of the files meanwhile.
    """
    written: list[Path] = []
    try:
        for path, text in files.items():
            _replace(path, b"", text.encode())
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink()
        raise


def _replace(path: Path, before: bytes, data: bytes) -> None:
    """Replace a file's content atomically, unless somebody else has changed it meanwhile."""
    unfinished = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        unfinished.write_bytes(data)
        if path.exists():
            owner = path.stat()
            # only root can give a file to others
            with contextlib.suppress(PermissionError):
                os.chown(unfinished, owner.st_uid, owner.st_gid)
            shutil.copymode(path, unfinished)
        if _content(path) != before:
            raise WebCollectError(f"{path} has changed meanwhile, so nothing was written: try again")
        unfinished.replace(path)
    except OSError as error:
        raise InvalidArgument(OPTION, str(path), f"it cannot be written: {error.strerror}") from error
    finally:
        unfinished.unlink(missing_ok=True)
