"""Every later version reads what version 1.0.0 stores, and writes it in the same form.

``stored/`` has the log of a landing, its manifest and what an attempt has staged, the asset events, the token
and the note on its renewal, and the arguments and events of triggers. Once 1.0.0 is released, its files stay
as they are.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from airflow_provider_webcollect.assets import LandingEvent
from airflow_provider_webcollect.landing.log.commits import Commit, Manifest, decode, encode
from airflow_provider_webcollect.landing.log.fold import fold
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, TokenStore
from airflow_provider_webcollect.waiting.conditions import Capacity, Ended, SubTaskStates, TaskStates

STORED = Path(__file__).parent / "stored" / "1.0.0"
LANDING = STORED / "landing"
#: The conditions of the triggers that take one.
CONDITIONS = {
    "WebCollectTaskStatusTrigger": TaskStates,
    "WebCollectSubTaskStatusTrigger": SubTaskStates,
    "WebCollectCapacityTrigger": Capacity,
}


def loaded(name: str) -> Any:
    return json.loads((STORED / name).read_text())


@pytest.mark.parametrize(
    ("names", "kind"), [("_commits/*", Commit), ("_manifest.json", Manifest), ("_staged/*", Commit)]
)
def test_the_files_of_a_landing(names: str, kind: type[Commit | Manifest]) -> None:
    files = sorted(LANDING.glob(names))
    assert files
    for file in files:
        content = file.read_bytes()
        assert encode(decode(content, file.name, kind)) == content


def test_what_the_log_of_a_landing_says() -> None:
    """The log has rows that were landed, quarantined, decided on, marked, replaced, landed after a reset."""
    contents = [file.read_bytes() for file in sorted(LANDING.glob("_commits/*"))]
    commits = [decode(content, "", Commit) for content in contents]
    state = fold(None, commits)
    assert state is not None
    assert encode(state) == (LANDING / "_manifest.json").read_bytes()


@pytest.mark.parametrize("name", ["event", "event_of_sources"])
def test_asset_events(name: str) -> None:
    event = LandingEvent.of(loaded(f"{name}.json"))
    assert event is not None
    assert event.extra() == loaded(f"{name}.json")


@pytest.mark.parametrize(
    ("register", "load"), [(Register.TOKEN, TokenStore.load), (Register.RENEWAL, TokenStore.load_note)]
)
def test_what_a_token_store_keeps(register: Register, load: Callable[[TokenStore], Any]) -> None:
    content = loaded(f"{register}.json")
    store, other = MemoryTokenStore("stored"), MemoryTokenStore("written")
    store.write(register, json.dumps(content))
    other.save(load(store))
    assert json.loads(other.read(register) or "") == content


@pytest.mark.parametrize(("path", "arguments"), loaded("triggers.json"))
def test_the_arguments_of_triggers(path: str, arguments: dict[str, Any]) -> None:
    module, _, name = path.rpartition(".")
    trigger = getattr(importlib.import_module(module), name)(**arguments)
    assert json.loads(json.dumps(trigger.serialize())) == [path, arguments]
    if condition := CONDITIONS.get(name):
        stored = msgspec.convert(arguments["condition"], condition).as_json()
        assert json.loads(json.dumps(stored)) == arguments["condition"]


@pytest.mark.parametrize("payload", loaded("trigger_events.json"))
def test_the_events_of_triggers(payload: dict[str, Any]) -> None:
    assert msgspec.to_builtins(msgspec.convert(payload, Ended)) == payload
