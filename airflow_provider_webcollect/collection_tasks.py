"""The file of collection tasks: the names of the service's tasks, and the settings of each task."""

from __future__ import annotations

import contextlib
import copy
import difflib
import functools
import gc
import hashlib
import math
import re
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import yaml

from airflow_provider_webcollect.landing.checks import make_checks
from airflow_provider_webcollect.landing.formats import make_format
from airflow_provider_webcollect.landing.location import Location
from airflow_provider_webcollect.landing.options import LoadOptions, SourceOptions, check_table
from airflow_provider_webcollect.service import arguments
from airflow_provider_webcollect.service.endpoints import update_task_parameters
from airflow_provider_webcollect.service.errors import InvalidArgument, quoted

SECTION, OPTION = "webcollect", "collection_tasks"
#: Prefix of the keys that people can use for themselves, with any value.
OWN = "x-"
#: Seconds for which an invalid file that was just written counts as half-written, and seconds without a
#: change after which a file is read.
SETTLE, PAUSE = 1.0, 0.05
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
#: Maximum depth of nested lists and mappings in a file.
DEEPEST = 100
#: Maximum number of characters in an id or a name.
LONGEST_NAME = 200
#: The beginning of an expression, a block or a comment of Jinja.
_TEMPLATE = re.compile(r"\{[{%#]")
#: Fields that are filled in, and anything that looks like a field, but not inside the braces of a template.
FIELD, _ANY_FIELD = re.compile(r"(?<!\{)\{(name|id)\}(?!\})"), re.compile(r"(?<!\{)\{(\w+)\}(?!\})")
#: Names whose letters and digits are all allowed in Airflow's ids and in names of tables.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9._ -]{1,100}")
_TWO_ESCAPES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
#: Keys whose values may be booleans and numbers; all other values are strings, exactly as written.
_TYPED = {"checks", "is_append", "rows", "cost"} | {
    name for name, option in arguments.declared(SourceOptions).items() if option.kind in {bool, int, float}
}
#: Keys inside such values whose own values are strings; a mapping under such a key is about a column that has
#: this name, and may have booleans and numbers.
_TEXTS = {"values", "pattern", "column", "action_id"}
#: A number in JSON and in YAML 1.2; YAML 1.1 would read 010 as 8, and 1e3 as a string.
_NUMBER = re.compile(r"[-+]?(?=\.?[0-9])[0-9]{0,30}(\.[0-9]*)?([eE][-+]?[0-9]+)?")
#: The files that were read: for each path, the file's version, and its entries or the error in it.
_read: dict[Path, tuple[tuple[int, ...], CollectionTasks | InvalidArgument]] = {}


class CollectionTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry of the file.

    :ivar id: the id of the service's task.
    :ivar name: the task's name, unique in the file, whatever the letter case.
    :ivar lotno: the number of one of the task's batches; None for the whole history.
    :ivar destination: the folder of the task's rows; None for the DAG's destination, with the task's name in
        it.
    :ivar options: the options of the landing, as :class:`~.landing.options.SourceOptions` takes them; in the
        file, each option is a key of the entry.
    :ivar load: ``table`` and the options of the load, as :class:`~.landing.options.LoadOptions` takes them;
        False for no load; None for the load that the DAG sets for all tasks.
    :ivar tags: words with which a person describes the task.
    :ivar loop_items: loops to set before a run; each ``{"action_id", "loop_type", "loop_items"}`` and,
        optionally, ``"is_append"``.
    :ivar service_name: the task's name in the service when discovery last wrote the file; discovery also
        writes the next three values.
    :ivar last_run: the last day with a run, ISO 8601.
    :ivar rows: the number of rows collected in the last three months.
    :ivar cost: the cost of these rows.
    """

    id: Annotated[str, id_or_name]
    name: Annotated[str, id_or_name]
    lotno: str | None = None
    destination: Annotated[str | None, _destination] = None
    options: Annotated[dict[str, Any], arguments.as_given] = {}
    load: Annotated[dict[str, Any] | Literal[False] | None, _load] = None
    tags: Annotated[tuple[str, ...], _tags] = ()
    loop_items: Annotated[tuple[dict[str, Any], ...], _loop_items] = ()
    service_name: Annotated[str | None, arguments.encodable] = None
    last_run: str | None = None
    rows: Annotated[int | None, arguments.Range(0)] = None
    cost: Annotated[float | None, _number] = None


#: The keys that an entry can have, in the order in which errors name them.
_OPTIONS = SourceOptions.__struct_fields__
_KEYS = (*(name for name in CollectionTask.__struct_fields__ if name != "options"), *_OPTIONS)
#: The keys that the file's defaults cannot have: each value is unique, or discovery writes it.
_UNIQUE = {"id", "name", "destination", "service_name", "last_run", "rows", "cost"}


class CollectionTasks(msgspec.Struct, frozen=True):
    """The entries of a file, in the file's order."""

    path: Path
    tasks: tuple[CollectionTask, ...]
    by_key: dict[str, CollectionTask]

    def find(self, key: str) -> CollectionTask | None:
        """Return the entry with this id or name, in any letter case; None if there is none."""
        return self.by_key.get(folded(key))

    def names(self, task_ids: Iterable[str]) -> dict[str, str]:
        """Return the names of the given tasks by id, without tasks that the file lacks."""
        return {task_id: task.name for task_id in task_ids if (task := self.find(task_id))}

    def get(self, argument: str, key: str) -> CollectionTask:
        """Return the entry with this id or name.

        :param argument: the name of the argument that has the key, for the error.
        :raises InvalidArgument: if there is no such entry; the error shows the nearest names.
        """
        if task := self.find(key):
            return task
        near = difflib.get_close_matches(folded(key), self.by_key, cutoff=0.5)
        names = ", ".join(dict.fromkeys(repr(self.by_key[name].name) for name in near))
        rule = f"no collection task in {self.path} has this name or id"
        raise InvalidArgument(argument, key, f"{rule}; the nearest: {names}" if names else rule)


def folded(key: str) -> str:
    """Return an id or a name in a form that ignores letter case and how accents are encoded."""
    return unicodedata.normalize("NFC", key.strip().casefold())


def plain_name(name: str) -> str:
    """Return a name in characters that Airflow's ids allow, with a digest if others were replaced."""
    ascii_only = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9]+", "_", ascii_only).strip("_")[:100]
    if _PLAIN_NAME.fullmatch(name) and plain:
        return plain
    return f"{plain}_{hashlib.sha256(name.encode()).hexdigest()[:8]}".strip("_")


def table_name(name: str) -> str:
    """Return a name as a table's name: a letter, then letters, digits and single underscores, lower-case."""
    plain = plain_name(name).lower()
    return plain if plain[0].isalpha() else f"t_{plain}"


def filled(argument: str, text: str, task: CollectionTask, spell: Callable[[str], str] = str) -> str:
    """Return a text with the name and the id of a task in place of the fields.

    :param argument: the name of the argument that has the text, for the error.
    :param spell: returns a name or an id in the form in which the text can have it.
    :raises InvalidArgument: if the text has another field.
    """
    if unknown := [field for field in _ANY_FIELD.findall(text) if field not in {"name", "id"}]:
        rule = f"the only fields it can have are {{name}} and {{id}}, not {{{unknown[0]}}}"
        raise InvalidArgument(argument, text, rule)
    return FIELD.sub(lambda field: spell(getattr(task, field[1])), text)


def is_id(key: str) -> bool:
    """Return whether a key is a UUID, which is always an id, never a name."""
    return _UUID.fullmatch(key) is not None


def configured() -> CollectionTasks | None:
    """Return the entries of the file in ``[webcollect] collection_tasks``; None if no file is set.

    :raises InvalidArgument: if the file is invalid, or its path is not absolute.
    """
    # imported here, since the command line works without Airflow
    from airflow.providers.common.compat.sdk import conf

    path = conf.get(SECTION, OPTION, fallback=None)
    if not path:
        return None
    if not _expanded(path).is_absolute():
        raise InvalidArgument(f"[{SECTION}] {OPTION}", path, "it must be an absolute path")
    return read_collection_tasks(path)


def task_of(
    argument: str, value: object, read: Callable[[], CollectionTasks | None] = configured
) -> CollectionTask:
    """Return the entry of a task that is given by its name; for an id, an entry that has only the id.

    :param argument: the name of the argument, for the error.
    :param value: the task's id or name.
    :param read: returns the entries of the configured file, or None if there is no file.
    :raises InvalidArgument: if the value is not a string; or if there is a file, and the value is neither a
        UUID nor in the file.
    """
    key = arguments.text(argument, value)
    if not is_id(key) and (tasks := read()):
        task = tasks.get(argument, key)
        if folded(key) == folded(task.name):
            return task
        key = task.id
    return CollectionTask(id=key, name=key)


def task_id_of(argument: str, value: object) -> str:
    """Return the id of a task that is given by its id, or by its name in the configured file.

    :raises InvalidArgument: as :func:`task_of` does.
    """
    return task_of(argument, value).id


def task_ids_of(
    argument: str, values: object, *, most: int | None = None, may_be_empty: bool = False
) -> list[str]:
    """Return the ids of a list of tasks, given by their ids or names; the list may be JSON text.

    :param most: maximum number of tasks; None for no limit.
    :raises InvalidArgument: as :func:`task_of` does, and if the number of tasks is not allowed.
    """
    keys = arguments.texts(argument, arguments.decoded(values), most=most, may_be_empty=may_be_empty)
    return [task_id_of(f"{argument}[{index}]", key) for index, key in enumerate(keys)]


def hint_at_names(
    keys: Iterable[str],
    read: Callable[[], CollectionTasks | None] = configured,
    setting: str = f"`[{SECTION}] {OPTION}`",
) -> str:
    """Return a hint about tasks that the service does not know, if a key may be a name and there is no file.

    :param keys: the ids of the tasks, as the request had them.
    :param read: as for :func:`task_of`.
    :param setting: the setting with which a person names the file.
    :return: a sentence; empty if all keys are UUIDs, or if there is a file.
    """
    with contextlib.suppress(InvalidArgument):
        if (name := next((key for key in keys if not is_id(key)), None)) is not None and read() is None:
            need = "a file of collection tasks must list it"
            return f"If {quoted(name)} is a name, {need}: set {setting}, or use the id."
    return ""


def one_or_many(collection_task_id: Any, collection_task_ids: Any) -> tuple[str, ...]:
    """Return the ids of the tasks that one of two arguments names, each id once.

    :param collection_task_id: the id or the name of one task; None if the other argument is given.
    :param collection_task_ids: a list of ids and names; None if the other argument is given.
    :raises InvalidArgument: unless exactly one argument is given, and it is not empty.
    """
    if (collection_task_id is None) == (collection_task_ids is None):
        raise InvalidArgument(
            "collection_task_id",
            collection_task_id,
            "either `collection_task_id` or `collection_task_ids` must be given",
        )
    if collection_task_ids is None:
        return (task_id_of("collection_task_id", collection_task_id),)
    return tuple(dict.fromkeys(task_ids_of("collection_task_ids", collection_task_ids)))


def check_names(names: object) -> None:
    """Check the names of tasks that a DAG passes to an operator.

    :raises InvalidArgument: unless the value is None or a dict of names by id.
    """
    argument = "collection_task_names"
    if not isinstance(names, Mapping | None):
        raise InvalidArgument(argument, names, "it must be a dict of names by id")
    for task_id, name in (names or {}).items():
        id_or_name(argument, task_id)
        where = f"{argument}[{task_id!r}]"
        if id_or_name(where, name) != name:
            raise InvalidArgument(where, name, "it must be a text without blanks around it")


def named_tasks(task_ids: Iterable[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the names of the tasks that have one, by id.

    :param given: names by id, which take precedence over the names in the configured file; None for none.
    """
    ids = [*task_ids]
    return file_of_names().names(ids) | {id_: given[id_] for id_ in ids if given and id_ in given}


def described(task_id: str, given: Mapping[str, str] | None = None) -> str:
    """Return the text with which logs name a task: its name and id, or only its id if no name is known.

    :param given: as for :func:`named_tasks`.
    """
    return described_tasks([task_id], given).get(task_id, task_id)


def described_tasks(task_ids: Iterable[str], given: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the texts with which logs name the tasks that have a name, by id.

    :param given: as for :func:`named_tasks`.
    """
    return {task_id: f"{name} ({task_id})" for task_id, name in named_tasks(task_ids, given).items()}


def file_of_names() -> CollectionTasks:
    """Return the configured file's entries, to show names; none if there is no file, or it is invalid."""
    # an invalid file must not fail anything that works without names
    with contextlib.suppress(InvalidArgument):
        if tasks := configured():
            return tasks
    return CollectionTasks(Path(), (), {})


def read_collection_tasks(path: str | Path) -> CollectionTasks:
    """Return the entries of a YAML or JSON file; a file that has not changed is not read again.

    A file that was just written may be half-written. If it is invalid, it is read again, for up to a second.

    :raises InvalidArgument: if the file cannot be read, or is invalid; the error then has the file, the line,
        the key, the value and the rule.
    """
    path = _expanded(path)
    until = time.monotonic() + SETTLE
    while True:
        is_last = time.monotonic() > until
        try:
            version = _version(path)
            age = abs(time.time() - version[0] / 1e9)
            if (cached := _read.get(path)) is None or cached[0] != version:
                content = path.read_bytes()
                # a file that has just changed may not have all of its text yet
                if is_last or (age > PAUSE and _version(path) == version):
                    cached = _read[path] = version, _parsed(path, content)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise InvalidArgument(OPTION, str(path), f"it cannot be read: {reason}") from error
        if cached and cached[0] == version:
            if isinstance(cached[1], CollectionTasks):
                return cached[1]
            if is_last or age > SETTLE:
                # a copy, since the code that catches it may add a note
                raise copy.copy(cached[1])
        time.sleep(PAUSE)


def _expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of ``~``.

    :raises InvalidArgument: if the home folder is not known, for example of a user that does not exist.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InvalidArgument(OPTION, str(path), f"it cannot be read: {error}") from error


def _version(path: Path) -> tuple[int, ...]:
    """Return values that change when the file changes; the first is the time of the last change, in ns."""
    stat = path.stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _parsed(path: Path, content: bytes) -> CollectionTasks | InvalidArgument:
    """Return the entries of a file, or the error in it."""
    is_collecting = gc.isenabled()
    # with thousands of entries, garbage collection among their nodes takes more than half of the time
    gc.disable()
    try:
        return parse(path, content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        text = content.decode(errors="replace").split("\n")[line - 1].strip()
        return InvalidArgument(f"{path}, line {line}", text, f"it is not UTF-8: {error.reason}")
    except InvalidArgument as error:
        return error.with_traceback(None)
    finally:
        if is_collecting:
            gc.enable()


def parse(path: Path, text: str) -> CollectionTasks:
    """Return the entries of the text of a file.

    :param path: the path of the file, for errors; the text is JSON if it has the suffix ``.json``, else YAML.
    :raises InvalidArgument: if the text is invalid.
    """
    entries, seen = [], set[int]()
    defaults_node, nodes = entry_nodes(path, text)
    defaults: dict[str, Any] = {}
    lines_of_defaults: dict[str, int] = {}
    if defaults_node:
        defaults, lines_of_defaults = _plain(path, defaults_node, seen), _lines(defaults_node)
        where = functools.partial(_place, path, lines_of_defaults, defaults_node.start_mark.line + 1)
        if unique := [key for key in defaults if key in _UNIQUE]:
            rule = "only an entry can have this key, not the `defaults` of all"
            raise InvalidArgument(where(unique[0]), defaults[unique[0]], rule)
        make_collection_task({"id": "-", "name": "-", **defaults}, where)
    for node in nodes.value:
        entry = _plain(path, node, seen)
        lines = {**lines_of_defaults, **_lines(node)}
        where = functools.partial(_place, path, lines, node.start_mark.line + 1)
        of_all, own = defaults.get("load"), entry.get("load")
        if isinstance(of_all, dict) and isinstance(own, dict):
            entry["load"] = {**of_all, **own}
        entries.append((make_collection_task({**defaults, **entry}, where), where))
    return CollectionTasks(path, tuple(task for task, _ in entries), by_key(entries))


def _lines(node: yaml.MappingNode) -> dict[str, int]:
    """Return the numbers of the lines of a mapping's keys, by key."""
    return {key.value: key.start_mark.line + 1 for key, _ in node.value}


def _place(path: Path, lines: Mapping[str, int], first: int, key: str) -> str:
    """Return the name of a key for errors; for a missing key, with the line where the mapping begins.

    :param lines: the numbers of the lines of the keys.
    :param first: the number of the line where the mapping begins.
    """
    return f"{path}, line {lines.get(key, first)}, {key}"


def entry_nodes(path: Path, text: str) -> tuple[yaml.MappingNode | None, yaml.SequenceNode]:
    """Return the node of the defaults, or None, and the node of the entries, with their places in the text.

    :raises InvalidArgument: if the text is not YAML or JSON, or is neither a list of mappings nor a mapping
        with ``tasks`` and, optionally, ``defaults``.
    """
    if character := yaml.reader.Reader.NON_PRINTABLE.search(text):
        number = text.count("\n", 0, character.start()) + 1
        raise InvalidArgument(f"{path}, line {number}", character[0], "YAML and JSON have no such character")
    if path.suffix.lower() == ".json":
        # unlike YAML, JSON can have tabs between values, and characters written as two escapes
        text = _TWO_ESCAPES.sub(lambda match: bytes.fromhex(match[1] + match[2]).decode("utf-16-be"), text)
        text = text.replace("\t", " ")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        depth = 0
        for event in yaml.parse(text, Loader=loader):
            # for deeper nodes, libyaml would overflow the stack, which ends the process
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                rule = f"it is nested too deeply: at most {DEEPEST} levels are allowed"
                raise _wrong_line(path, text, event.start_mark, rule)
        root = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as error:
        problem = getattr(error, "problem", None) or error
        mark = getattr(error, "problem_mark", None)
        raise _wrong_line(path, text, mark, f"it cannot be read: {problem}") from error
    defaults, tasks = _parts(path, root)
    if not isinstance(tasks, yaml.SequenceNode) or not tasks.value:
        raise InvalidArgument(OPTION, str(path), "it must be a list of collection tasks, at least one")
    for node in tasks.value:
        if not isinstance(node, yaml.MappingNode):
            rule = "it must be a mapping with `id` and `name`"
            value = node.value if isinstance(node, yaml.ScalarNode) else "[…]"
            raise InvalidArgument(f"{path}, line {node.start_mark.line + 1}", value, rule)
    return defaults, tasks


def _parts(path: Path, root: yaml.Node | None) -> tuple[yaml.MappingNode | None, yaml.Node | None]:
    """Return the nodes of the defaults and of the list of entries."""
    if not isinstance(root, yaml.MappingNode):
        return None, root
    parts = {key.value: value for key, value in root.value if isinstance(key, yaml.ScalarNode)}
    if parts.keys() - {"defaults", "tasks"} or len(parts) < len(root.value):
        rule = "a mapping must have `tasks`, a list of collection tasks, and can have `defaults`, each once"
        raise InvalidArgument(OPTION, str(path), rule)
    defaults = parts.get("defaults")
    if defaults is not None and not isinstance(defaults, yaml.MappingNode):
        line = f"{path}, line {defaults.start_mark.line + 1}, defaults"
        value = defaults.value if isinstance(defaults, yaml.ScalarNode) else "[…]"
        raise InvalidArgument(line, value, "it must be a mapping of keys of the entries")
    return defaults, parts.get("tasks")


def _wrong_line(path: Path, text: str, mark: Any, rule: str) -> InvalidArgument:
    """Return the error for a line of a file, or for the whole file if the line is not known."""
    if mark is None:
        return InvalidArgument(OPTION, str(path), rule)
    lines = text.split("\n")
    # the mark of an error at the end of the text may be after the last line
    number = min(mark.line, len(lines) - 1)
    return InvalidArgument(f"{path}, line {number + 1}", lines[number].strip(), rule)


def _plain(path: Path, node: yaml.Node, seen: set[int], is_typed: bool = False) -> Any:
    """Return the value of a node, with strings as they are written.

    :param seen: the ids of the earlier nodes, since an alias repeats one of them.
    :param is_typed: whether booleans and numbers become values of their types; otherwise, they stay strings.
    """

    def wrong(what: yaml.Node, value: object, rule: str) -> InvalidArgument:
        return InvalidArgument(f"{path}, line {what.start_mark.line + 1}", value, rule)

    if id(node) in seen:
        raise wrong(node, "&…", "anchors and aliases are not supported: write the value out")
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        return [_plain(path, item, seen, is_typed) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise wrong(key_node, "…", "a key must be a text; one in braces needs quotes")
            key = str(key_node.value)
            if key in values:
                raise wrong(key_node, key, "the mapping has this key already")
            is_mapping = isinstance(value_node, yaml.MappingNode)
            is_flag = key == "load" and isinstance(value_node, yaml.ScalarNode)
            may_be_typed = is_typed and (is_mapping or key not in _TEXTS)
            values[key] = _plain(path, value_node, seen, may_be_typed or is_flag or key in _TYPED)
        return values
    assert isinstance(node, yaml.ScalarNode)
    if node.tag.endswith(":null"):
        return None
    return _typed(node) if is_typed else str(node.value)


def _typed(node: yaml.ScalarNode) -> str | bool | int | float:
    """Return the value of a node as a boolean or a number if it is one, otherwise as a string."""
    if node.tag.endswith(":bool"):
        return yaml.constructor.SafeConstructor.bool_values.get(node.value.lower(), str(node.value))
    # a quoted value is a string
    number = None if node.style else _NUMBER.fullmatch(node.value)
    if number is None:
        return str(node.value)
    return float(node.value) if number[1] or number[2] else int(node.value)


def make_collection_task(entry: Mapping[str, Any], where: Callable[[str], str]) -> CollectionTask:
    """Return an entry as a collection task, after all checks.

    :param entry: the entry's values by key.
    :param where: returns the name of a key for errors.
    :raises InvalidArgument: if a key is unknown or missing, or a value breaks a rule.
    """
    for key in entry:
        if key not in _KEYS and not str(key).startswith(OWN):
            known = ", ".join(_KEYS)
            rule = f"a collection task has no such key; it can have {known}, and your own {OWN}…"
            raise InvalidArgument(where(key), entry[key], rule)
    given = {key: entry[key] for key in _KEYS if entry.get(key) is not None}
    options = {name: given.pop(name) for name in _OPTIONS if name in given}
    task = arguments.parse_struct(
        CollectionTask, {"id": None, "name": None, **given, "options": options}, where
    )
    # Airflow renders templates only in the file's folders; a template has its value only in the run
    is_rendered = _TEMPLATE.search(str(options.get("partition")))
    literal = {name: options[name] for name in options if name != "partition" or not is_rendered}
    arguments.parse_struct(SourceOptions, literal, where)
    if "checks" in options:
        with arguments.inside(where("checks")):
            make_checks(options["checks"], make_format())
    if is_id(task.name) and task.name.lower() != task.id.lower():
        raise InvalidArgument(where("name"), task.name, "a UUID is always an id, so it cannot be a name")
    return task


def id_or_name(argument: str, value: object) -> str:
    """Return ``value`` as a string, if it can be the id or the name of a collection task.

    :raises InvalidArgument: if it is not a string, is too long, has unprintable characters, or could be a
        template.
    """
    key = arguments.text(argument, value)
    if len(key) > LONGEST_NAME or not key.isprintable() or _TEMPLATE.search(key):
        rule = f"it must have at most {LONGEST_NAME} printable characters, and no template"
        raise InvalidArgument(argument, value, rule)
    return key


def _destination(argument: str, value: object) -> str:
    text = arguments.text(argument, value)
    if FIELD.search(text):
        raise InvalidArgument(
            argument, text, "{name} and {id} are not filled in here: write the destination out"
        )
    if not ("{{" in text or "{%" in text):
        Location.parse_landed(argument, text)
    return text


def _load(argument: str, value: Any) -> dict[str, Any] | Literal[False]:
    if value is False:
        return False
    if not isinstance(value, Mapping):
        raise InvalidArgument(argument, value, "it must be a mapping of options, or false")
    given = {name: option for name, option in value.items() if option is not None}
    with arguments.inside(argument):
        if "table" in given:
            check_table(FIELD.sub(r"\1", arguments.text("table", given["table"])))
        arguments.parse_struct(LoadOptions, {name: given[name] for name in given if name != "table"})
    return given


def _tags(argument: str, value: object) -> tuple[str, ...]:
    return tuple(arguments.texts(argument, value, may_be_empty=True))


def _loop_items(argument: str, value: Any) -> tuple[dict[str, Any], ...]:
    values = arguments.items(argument, value)
    with arguments.inside(argument):
        update_task_parameters("-", loop_items=values)
    return tuple(values)


def _number(argument: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise InvalidArgument(argument, value, "it must be a number")
    return value


def by_key(entries: Sequence[tuple[CollectionTask, Callable[[str], str]]]) -> dict[str, CollectionTask]:
    """Return the entries by their ids and names, in the form of :func:`folded`.

    :param entries: each entry, with a function that returns the name of a key for errors.
    :raises InvalidArgument: if two entries have the same id, name or folder, or if the name of one entry is
        the id of another.
    """
    owners: dict[tuple[str, str], tuple[int, str]] = {}
    for index, (task, where) in enumerate(entries):
        taken = {("key", folded(task.id)): "id", ("key", folded(task.name)): "name"}
        if task.destination:
            taken["folder", task.destination.rstrip("/")] = "destination"
        for key, field in taken.items():
            owner, other = owners.setdefault(key, (index, where(field)))
            if owner != index:
                rule = f"it must be unique: {other} has the same value"
                raise InvalidArgument(where(field), getattr(task, field), rule)
    return {key: entries[owner][0] for (kind, key), (owner, _) in owners.items() if kind == "key"}
