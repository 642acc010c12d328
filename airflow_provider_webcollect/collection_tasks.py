"""The file of collection tasks: the names of the service's tasks, and what a person sets for each of them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from airflow.providers.common.compat.sdk import conf

from airflow_provider_webcollect.service import validation
from airflow_provider_webcollect.service.errors import InvalidArgument

if TYPE_CHECKING:
    import yaml

SECTION, OPTION = "webcollect", "collection_tasks"
#: Keys that begin with this are a person's own, with any value.
OWN = "x-"
#: Seconds for which a file that was just written, and cannot be read, is taken for half-written.
SETTLE = 1.0
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_LONGEST_NAME = 200
_TWO_ESCAPES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
#: Keys whose values have YAML's types; all other values are texts, as they are written.
_TYPED = {"checks", "is_append", "rows", "cost"}
#: Files that were read: when each was written, its size, and what it has.
_read: dict[Path, tuple[tuple[int, int], CollectionTasks]] = {}


class CollectionTask(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the file.

    :ivar id: the service's task.
    :ivar name: unique in the file, whatever the letter case.
    :ivar lotno: one batch of it; None for the whole history.
    :ivar destination: of its rows; None for a folder called as the task in that of a DAG.
    :ivar checks: what its rows must be, as the transfer operator takes it.
    :ivar tags: a person's words for it.
    :ivar loop_items: to set before a run; each ``{"action_id", "loop_type", "loop_items"}`` and, as needed,
        ``"is_append"``.
    :ivar last_run: when it ran last, ISO 8601; this and the next two are written by discovery.
    :ivar rows: that it has collected in the last three months.
    :ivar cost: of these.
    """

    id: str
    name: str
    lotno: str | None = None
    destination: str | None = None
    checks: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    loop_items: tuple[dict[str, Any], ...] = ()
    last_run: str | None = None
    rows: int | None = None
    cost: float | None = None


class CollectionTasks(msgspec.Struct, frozen=True):
    """The entries of a file, in its order."""

    path: Path
    tasks: tuple[CollectionTask, ...]
    by_key: dict[str, CollectionTask]

    def find(self, key: str) -> CollectionTask | None:
        """Return the entry with this id or name, in any letter case; None if there is none."""
        return self.by_key.get(key.strip().casefold())

    def get(self, argument: str, key: str) -> CollectionTask:
        """Return the entry with this id or name.

        :param argument: that has it, for the error.
        :raises InvalidArgument: with the nearest names, if there is none.
        """
        if task := self.find(key):
            return task
        import difflib

        near = difflib.get_close_matches(key.strip().casefold(), self.by_key, cutoff=0.5)
        names = ", ".join(repr(self.by_key[each].name) for each in near)
        rule = f"no collection task in {self.path} has this name or id"
        raise InvalidArgument(argument, key, f"{rule}; the nearest: {names}" if names else rule)


def is_id(key: str) -> bool:
    """Return whether a text is an id whatever the file says: a UUID."""
    return _UUID.fullmatch(key) is not None


def configured() -> CollectionTasks | None:
    """Return what the file of ``[webcollect] collection_tasks`` has; None if none is set.

    :raises InvalidArgument: if the file is wrong, or its path is not absolute.
    """
    path = conf.get(SECTION, OPTION, fallback=None)
    if not path:
        return None
    if not Path(path).expanduser().is_absolute():
        raise InvalidArgument(f"[{SECTION}] {OPTION}", path, "it must be an absolute path")
    return read_collection_tasks(path)


def task_id_of(argument: str, value: object) -> str:
    """Return the id of a task that is given by its id, or by its name in the configured file.

    :raises InvalidArgument: if it is no text; if there is a file which does not have it, and it is no UUID.
    """
    key = validation.text(argument, value)
    if is_id(key) or (tasks := configured()) is None:
        return key
    return tasks.get(argument, key).id


def task_ids_of(argument: str, values: object, *, may_be_empty: bool = False) -> list[str]:
    """Return the ids of a list of tasks, each as :func:`task_id_of` takes it."""
    keys = validation.texts(argument, values, may_be_empty=may_be_empty)
    return [task_id_of(f"{argument}[{index}]", key) for index, key in enumerate(keys)]


def described(task_id: str) -> str:
    """Return what a log calls a task: its name and id, or its id alone if the file has no name for it."""
    task = None
    # what is wrong with the file fails nothing that goes without it
    with contextlib.suppress(InvalidArgument):
        task = (tasks := configured()) and tasks.find(task_id)
    return f"{task.name} ({task_id})" if task and task.name != task_id else task_id


def read_collection_tasks(path: str | Path) -> CollectionTasks:
    """Return the entries of a file, YAML or JSON; one that has not changed is not read again.

    A file that changes meanwhile is read again, and one that was written a moment ago and cannot be read is
    given a second.

    :raises InvalidArgument: if there is no such file, or with file, line, key, value and rule if it is wrong.
    """
    path = Path(path).expanduser()
    until = time.monotonic() + SETTLE
    while True:
        try:
            before = path.stat()
            version = (before.st_mtime_ns, before.st_size)
            if path in _read and _read[path][0] == version:
                return _read[path][1]
            text = path.read_bytes().decode("utf-8-sig")
            after = path.stat()
            if (after.st_mtime_ns, after.st_size) == version:
                tasks = parse(path, text)
                _read[path] = version, tasks
                return tasks
        except OSError as error:
            raise InvalidArgument(OPTION, str(path), f"it cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, InvalidArgument) as error:
            if time.monotonic() > until or abs(time.time() - before.st_mtime) > SETTLE:
                if isinstance(error, UnicodeDecodeError):
                    raise InvalidArgument(OPTION, str(path), f"it is not UTF-8: {error.reason}") from error
                raise
        time.sleep(SETTLE / 20)


def parse(path: Path, text: str) -> CollectionTasks:
    """Return the entries of the text of a file.

    :param path: of the file, for errors; with the suffix ``.json`` it is JSON, else YAML.
    """
    entries, seen = [], set[int]()
    for node in entry_nodes(path, text):
        entry = _plain(path, node, seen)
        lines = {key.value: key.start_mark.line + 1 for key, _ in node.value}
        first = node.start_mark.line + 1

        def where(key: str, lines: Mapping[str, int] = lines, first: int = first) -> str:
            return f"{path}, line {lines.get(key, first)}, {key}"

        entries.append((make_collection_task(entry, where), where))
    return CollectionTasks(path, tuple(task for task, _ in entries), _by_key(entries))


def entry_nodes(path: Path, text: str) -> list[yaml.MappingNode]:
    """Return the nodes of the entries, with their places in the text.

    :raises InvalidArgument: if it is not YAML or JSON, or no list of mappings.
    """
    import yaml

    if path.suffix == ".json":
        # two things that JSON has and YAML has not: tabs between values, and characters as two escapes
        text = _TWO_ESCAPES.sub(lambda found: bytes.fromhex(found[1] + found[2]).decode("utf-16-be"), text)
        text = text.replace("\t", " ")
    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        said = getattr(error, "problem", None) or error
        raise InvalidArgument(OPTION, f"{path}{line}", f"it cannot be read: {said}") from error
    if root is None:
        raise InvalidArgument(OPTION, str(path), "it is empty, and must be a list of collection tasks")
    if not isinstance(root, yaml.SequenceNode) or not root.value:
        raise InvalidArgument(OPTION, str(path), "it must be a list of collection tasks, at least one")
    for node in root.value:
        if not isinstance(node, yaml.MappingNode):
            rule = "it must be a mapping with `id` and `name`"
            raise InvalidArgument(f"{path}, line {node.start_mark.line + 1}", str(node.value), rule)
    entries: list[yaml.MappingNode] = root.value
    return entries


def _plain(path: Path, node: yaml.Node, seen: set[int], is_typed: bool = False) -> Any:
    """Return what a node has: texts as they are written, or YAML's types.

    :param seen: the nodes before: an alias is the same one again.
    """
    import yaml

    def wrong(what: yaml.Node, value: object, rule: str) -> InvalidArgument:
        return InvalidArgument(f"{path}, line {what.start_mark.line + 1}", value, rule)

    if id(node) in seen:
        raise wrong(node, "&…", "anchors and aliases are not read: write it out where it is needed")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, each, seen, is_typed) for each in node.value]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            if key in values:
                raise wrong(key_node, key, "the same key stands above it in the same mapping")
            values[key] = _plain(path, value_node, seen, is_typed or key in _TYPED)
        return values
    if is_typed and not node.tag.endswith((":timestamp", ":str")):
        try:
            return yaml.constructor.SafeConstructor().construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            raise wrong(node, node.value, f"it has no value of the type {node.tag}") from error
    return None if node.tag.endswith(":null") else str(node.value)


def make_collection_task(entry: Mapping[str, Any], where: Callable[[str], str]) -> CollectionTask:
    """Return the checked entry.

    :param entry: its values by key.
    :param where: gives the name of a key in errors.
    :raises InvalidArgument: if a key is unknown or missing, or a value breaks a rule.
    """
    for key in entry:
        if key not in _CHECKS and not str(key).startswith(OWN):
            rule = f"it is no key of a collection task: these are {', '.join(_CHECKS)}, and your own, {OWN}…"
            raise InvalidArgument(where(key), entry[key], rule)
    values = {
        key: check(where(key), entry.get(key))
        for key, check in _CHECKS.items()
        if key in {"id", "name"} or entry.get(key) is not None
    }
    if is_id(values["name"]) and values["name"].lower() != values["id"].lower():
        raise InvalidArgument(where("name"), values["name"], "a UUID always is an id, so it can be no name")
    return CollectionTask(**values)


def _name(argument: str, value: object) -> str:
    name = validation.text(argument, value)
    if len(name) > _LONGEST_NAME or not name.isprintable() or "{{" in name or "{%" in name:
        rule = f"it must be of at most {_LONGEST_NAME} printable characters, and no template"
        raise InvalidArgument(argument, value, rule)
    return name


def _destination(argument: str, value: object) -> str:
    from airflow_provider_webcollect.landing.options import check_location
    from airflow_provider_webcollect.landing.tables import is_iceberg_name

    text = validation.text(argument, value)
    if not ("{{" in text or "{%" in text or is_iceberg_name(text)):
        check_location(argument, text)
    return text


def _checks(argument: str, value: Any) -> dict[str, Any]:
    from airflow_provider_webcollect.landing.checks import make_checks
    from airflow_provider_webcollect.landing.formats import make_format

    with _inside(argument):
        make_checks(value, make_format())
    return dict(value)


def _loop_items(argument: str, value: Any) -> tuple[dict[str, Any], ...]:
    from airflow_provider_webcollect.service.endpoints import update_task_parameters

    values = validation.items(argument, value)
    with _inside(argument):
        update_task_parameters("-", loop_items=values)
    return tuple(values)


@contextlib.contextmanager
def _inside(argument: str) -> Iterator[None]:
    """Return a context manager whose errors name the key of the entry, and the place in its value."""
    try:
        yield
    except InvalidArgument as error:
        place = f"{argument}: {error.argument}"
        raise InvalidArgument(place, None, error.rule, shown=error.value) from error


def _number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidArgument(argument, value, "it must be a number")
    return value


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "id": validation.text,
    "name": _name,
    "lotno": validation.text,
    "destination": _destination,
    "checks": _checks,
    "tags": lambda argument, value: tuple(validation.texts(argument, value, may_be_empty=True)),
    "loop_items": _loop_items,
    "last_run": validation.text,
    "rows": lambda argument, value: validation.integer(argument, value, 0),
    "cost": _number,
}


def _by_key(entries: Sequence[tuple[CollectionTask, Callable[[str], str]]]) -> dict[str, CollectionTask]:
    """Return the entries by id and by name, in lower case.

    :raises InvalidArgument: if two have one id, name or folder, or a name is the id of another.
    """
    owners: dict[tuple[str, str], tuple[CollectionTask, str]] = {}
    for task, where in entries:
        taken = {("key", task.id.casefold()): "id", ("key", task.name.casefold()): "name"}
        if task.destination:
            taken["folder", task.destination.rstrip("/")] = "destination"
        for key, field in taken.items():
            _, other = owners.setdefault(key, (task, where(field)))
            if owners[key][0] is not task:
                rule = f"no two collection tasks can have the same: {other} has it"
                raise InvalidArgument(where(field), getattr(task, field), rule)
    return {key: task for (kind, key), (task, _) in owners.items() if kind == "key"}
