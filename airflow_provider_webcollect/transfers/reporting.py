"""What a transfer says while it runs and once it has ended: log lines, metrics, summaries, asset events."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_webcollect.landing.manifest import MANIFEST

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterable, Mapping, Sequence

    from airflow.providers.common.compat.sdk import Context

    from airflow_provider_webcollect.landing.manifest import Manifest, Mode, Part
    from airflow_provider_webcollect.transfers.sources import Place

#: Seconds between two lines of progress in the log.
PROGRESS_INTERVAL = 5.0
METRICS = "webcollect.landing"
#: The key of the cursor in the state store of an outlet asset.
CURSOR_KEY = "webcollect_next_offset"


class Stopped(Exception):
    """The task was ended while this was landing."""


@dataclass
class Watch:
    """Follows one landing: counts what it asks for, and logs how far it is every few seconds.

    :param log: where to.
    :param name: what each line begins with.
    :param stop: ends the landing when it is set.
    """

    log: Any
    name: str = ""
    stop: threading.Event | None = None
    requests: int = 0
    pages: int = 0
    _first: tuple[float, int] | None = None
    _logged: float = field(default_factory=time.monotonic)

    def sent(self) -> None:
        """Take note of a request."""
        self.requests += 1

    def advanced(self, rows: int, total: int) -> None:
        """Take note of the rows written so far, and of how many there are to be."""
        if self.stop is not None and self.stop.is_set():
            raise Stopped("the task was ended")
        now = time.monotonic()
        if self._first is None:
            self._first = (now, rows)
        if now - self._logged < PROGRESS_INTERVAL:
            return
        self._logged = now
        began, before = self._first
        rate = (rows - before) / (now - began) if now > began else 0.0
        left = f", {(total - rows) / rate:.0f} s left" if rate else ""
        self.log.info("%s%d of %d rows, %.0f rows/s%s", self.name, rows, total, rate, left)


@dataclass(frozen=True, slots=True)
class Landed:
    """A landing that was committed.

    :param own: whether the commit is this run's own; if not, an incremental landing has found nothing new.
    :param duration: seconds.
    """

    place: Place
    manifest: Manifest
    mode: Mode
    own: bool
    duration: float

    def added(self) -> Sequence[Part]:
        """Return the parts that this run has added."""
        return self.manifest.added() if self.own else ()

    def summary(self) -> dict[str, Any]:
        """Return the facts, for XCom."""
        folder = str(self.place.folder)
        parts = self.added() if self.mode == "incremental" else self.manifest.parts
        facts = {
            "destination": folder,
            "manifest": f"{folder.rstrip('/')}/{MANIFEST}",
            "rows": sum(part.rows for part in parts),
            "bytes": sum(part.bytes for part in parts),
            "parts": len(parts),
            "duration": round(self.duration, 3),
        }
        return facts if self.mode == "full" else {**facts, "total_rows": self.manifest.rows}


def totals_of(destination: object, found: Iterable[Landed], began: float) -> dict[str, Any]:
    """Return the facts of several landings: the sums, and those of each."""
    summaries = [
        {
            "collection_task_id": landed.place.source.collection_task_id,
            "lotno": landed.place.source.lotno,
            **landed.summary(),
        }
        for landed in found
    ]
    sums = {
        name: sum(facts[name] for facts in summaries)
        for name in ("rows", "bytes", "parts", "total_rows")
        if all(name in facts for facts in summaries)
    }
    return {
        "destination": str(destination),
        "sources": summaries,
        **sums,
        "duration": round(time.monotonic() - began, 3),
    }


def count(found: Iterable[Landed], watches: Sequence[Watch]) -> None:
    """Hand the counts of what was landed and asked for to Airflow's metrics."""
    from airflow.providers.common.compat.sdk import Stats

    parts = [part for landed in found for part in landed.added()]
    pages = sum(watch.pages for watch in watches)
    retries = max(0, sum(watch.requests for watch in watches) - pages)
    counts = {
        "rows": sum(part.rows for part in parts),
        "bytes": sum(part.bytes for part in parts),
        "pages": pages,
        "retries": retries,
    }
    for name, number in counts.items():
        Stats.incr(f"{METRICS}.{name}", number)


def tell_outlets(context: Context, outlets: Iterable[Any], facts: Mapping[str, Any]) -> None:
    """Put the facts into the events of the task's outlet assets; of several sources, only the sums."""
    events: Any = context.get("outlet_events")
    assets = [outlet for outlet in outlets if hasattr(outlet, "uri")]
    if events is None:
        return
    told = {name: value for name, value in facts.items() if name != "sources"}
    if "sources" in facts:
        told["manifests"] = [each["manifest"] for each in facts["sources"]]
    for asset in assets:
        events[asset].extra.update(told)


def store_cursor(context: Context, outlets: Iterable[Any], cursor: int) -> None:
    """Put the cursor into the state store of the outlet assets, where Airflow (3.3) has one.

    It is there to be looked at: what counts is the one in the manifest.
    """
    store: Any = context.get("asset_state_store")
    if store is None:
        return
    for asset in outlets:
        if hasattr(asset, "uri"):
            store[asset].set(CURSOR_KEY, cursor)
