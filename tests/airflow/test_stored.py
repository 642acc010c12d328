"""What version 1.0.0 stores is read by every later one, and written as it was.

``stored/`` has the manifest and the progress file of a landing, the asset events, the token and the note on
its renewal, and the arguments and events of triggers. Once 1.0.0 is released, its files stay as they are.
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
from airflow_provider_webcollect.landing.manifest import Manifest, Progress, decode, encode
from airflow_provider_webcollect.service.tokens import MemoryTokenStore, Register, TokenStore
from airflow_provider_webcollect.waiting.conditions import Capacity, Ended, SubTaskStates, TaskStates

STORED = Path(__file__).parent / "stored" / "1.0.0"
#: The conditions of the triggers that are given one.
CONDITIONS = {
    "WebCollectTaskStatusTrigger": TaskStates,
    "WebCollectSubTaskStatusTrigger": SubTaskStates,
    "WebCollectCapacityTrigger": Capacity,
}


def loaded(name: str) -> Any:
    return json.loads((STORED / name).read_text())


@pytest.mark.parametrize(("name", "kind"), [("manifest", Manifest), ("progress", Progress)])
def test_the_files_of_a_landing(name: str, kind: type[Manifest | Progress]) -> None:
    content = (STORED / f"{name}.json").read_bytes()
    assert encode(decode(content, name, kind)) == content


@pytest.mark.parametrize("name", ["event", "event_of_sources"])
def test_asset_events(name: str) -> None:
    event = LandingEvent.of(loaded(f"{name}.json"))
    assert event is not None
    assert event.extra() == loaded(f"{name}.json")


@pytest.mark.parametrize(
    ("register", "load"),
    [
        (Register.TOKEN, TokenStore.load),
        (Register.RENEWAL, TokenStore.load_note),
    ],
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
