"""The columns of a landing."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow_provider_webcollect.landing.formats.rows import Batches


class Columns:
    """Names of columns in order: the user's own, or every key of the rows in order of first appearance.

    Names are only ever added at the end, so an earlier part's columns are the first ones of these.

    :param names: the names so far.
    :param fixed: whether no names may be added; other keys are then dropped.
    """

    def __init__(self, names: Iterable[str] = (), *, fixed: bool = False) -> None:
        self._names = dict.fromkeys(names)
        self.fixed = fixed

    @property
    def names(self) -> tuple[str, ...]:
        """The names so far."""
        return tuple(self._names)

    def missing(self, page: Batches) -> list[str]:
        """Return the keys of ``page`` that still need a column."""
        if self.fixed:
            return []
        keys = dict.fromkeys(chain.from_iterable(chain.from_iterable(page)))
        return [key for key in keys if key not in self._names]

    def add(self, names: Iterable[str]) -> None:
        """Append columns."""
        self._names.update(dict.fromkeys(names))
