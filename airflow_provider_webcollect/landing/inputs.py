"""The check of inputs: whether each word or URL in the list of a task's loop has a row."""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_left
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from airflow_provider_webcollect.landing.checks import INPUTS, CheckOutcome
from airflow_provider_webcollect.landing.formats.profile import percent
from airflow_provider_webcollect.landing.log.commits import MissingInputs, counted
from airflow_provider_webcollect.service.errors import (
    InvalidArgument,
    ResponseTooLarge,
    WebCollectError,
    quoted,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from airflow_provider_webcollect.landing.checks import InputChecks, State
    from airflow_provider_webcollect.landing.log.commits import Run
    from airflow_provider_webcollect.service.models import Action

#: How many inputs without a row are kept; how many the outcome names, and how many characters of each.
MOST_MISSING, _NAMED, _LONGEST = 1000, 10, 100
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_DEFAULT_PORTS = {None, 80, 443}


def text_key(text: str) -> str:
    """Return what equal inputs have in common: blanks at the ends and letter case do not count."""
    return text.strip().casefold()


def url_key(text: str) -> str:
    """Return what equal URLs have in common; of a text that is no URL, what :func:`text_key` returns.

    Blanks at the ends, the scheme and its port, the letter case of the host, a last slash, the fragment, the
    order of the query, and how a character is percent-encoded do not count.
    """
    from requests.utils import requote_uri

    text = text.strip()
    try:
        url = urlsplit(text if _SCHEME.match(text) else f"//{text}")
        host = (url.hostname or "").encode("idna").decode()
        place = host if url.port in _DEFAULT_PORTS else f"{host}:{url.port}"
    except ValueError:
        return text_key(text)
    path = re.sub("%[0-9a-f]{2}", lambda code: code[0].upper(), requote_uri(url.path))
    return repr((place, path.removesuffix("/"), sorted(parse_qsl(url.query, keep_blank_values=True))))


class Inputs:
    """Judges whether each input of a task has a row, from the list of its loop and the rows of a run.

    :param read: returns the loops of the task, as the service has them now.
    :raises InvalidArgument: if the task has no such loop, or several to choose from.
    :raises WebCollectError: if the loops cannot be read now; if they never can, the check is skipped.
    :ivar column: of the rows, which has their inputs.
    """

    def __init__(self, checks: InputChecks, read: Callable[[], Sequence[Action]]) -> None:
        self.column = checks.column
        self._checks = checks
        self._read = read
        self._key = url_key if checks.match == "url" else text_key
        items, self._reason = self._read_list()
        self._digest = _digest(items)
        # nine bytes for each input, since a list may have 100,000 URLs
        self._inputs = array("q", sorted({hash(key) for key in map(self._key, items) if key}))
        self._has_row = bytearray(len(self._inputs))
        self._has_column = False
        self._others = 0

    def _read_list(self) -> tuple[tuple[str, ...], str]:
        """Return the list of the loop that is checked; if there is none, also the reason."""
        try:
            loops = self._read()
        except WebCollectError as error:
            if error.permanent or isinstance(error, ResponseTooLarge):
                return (), f"the list cannot be read: {error}"
            raise
        chosen = self._checks.action_id
        named = [loop for loop in loops if loop.action_id == chosen]
        if chosen is None:
            named = [loop for loop in loops if loop.loop_items] or [*loops[:1]]
        if len(named) != 1:
            rule = "the task has no such loop"
            if named:
                rule = "it must be set, since several loops of the task have a list"
            ids = ", ".join(quoted(loop.action_id) for loop in loops) or "none"
            argument = "checks['inputs']['action_id']"
            raise InvalidArgument(argument, chosen, f"{rule}; its loops: {ids}")
        items = named[0].loop_items or ()
        return items, "" if items else "the service shows no list of the loop"

    def see(self, texts: Sequence[str]) -> None:
        """Look at the values of the column in some rows, as texts."""
        self._has_column = True
        for text, rows in Counter(texts).items():
            if (place := self._place(text)) is None:
                self._others += rows
            else:
                self._has_row[place] = True

    def _place(self, text: str) -> int | None:
        """Return the place of an input among the sorted ones; None if the text is none."""
        key = hash(self._key(text))
        place = bisect_left(self._inputs, key)
        return place if place < len(self._inputs) and self._inputs[place] == key else None

    def repeats(self, run: Run, before: MissingInputs | None) -> bool:
        """Return whether a run collects again what one of the same DAG run has missed, and no more.

        :param before: what the last run has missed, which may be an earlier attempt of this one.
        """
        if before is None or (before.run.dag_id, before.run.run_id) != (run.dag_id, run.run_id):
            return False
        missed = {hash(self._key(item)) for item in before.inputs}
        return before.run == run or (bool(self._inputs) and missed.issuperset(self._inputs))

    def judge(
        self, run: Run, rows: int, unread: int, before: MissingInputs | None
    ) -> tuple[CheckOutcome, MissingInputs | None]:
        """Return the outcome, and the inputs without a row; None if they are not known.

        :param rows: of the run; ``unread`` of them cannot be decoded.
        :param before: what the run has missed that this one repeats, for the outcome of both; None for none.
        """
        share = self._checks.missing
        expected = f"at most {percent(share)} of the inputs without a row" if share else "a row of each input"
        reason, left = self._reason, list[str]()
        if not reason and rows and not self._has_column:
            found = f"no row has the column {quoted(self.column)}"
            return CheckOutcome(INPUTS, "failed", expected, found), None
        count, of = self._has_row.count(False), len(self._inputs)
        if count and unread:
            reason = f"{counted(unread, 'row')} cannot be decoded"
        elif count:
            # their names; and a person may be changing the list
            items, reason = self._read_list()
            if _digest(items) != self._digest and not reason:
                reason = "the list was changed during the landing"
            left = self._named(items)
        if reason:
            return CheckOutcome(INPUTS, "skipped", expected, reason), None
        if before:
            left = [item for item in before.inputs if not self._found(item)]
            count, of, run = before.count - len(before.inputs) + len(left), before.of, before.run
        found = f"{count:,} of {counted(of, 'input')} have no row"
        if count:
            names = ", ".join(quoted(item[:_LONGEST]) for item in left[:_NAMED])
            found += f": {names}" + (f" and {count - _NAMED:,} more" if count > _NAMED else "")
        if self._others:
            found += f"; {counted(self._others, 'row')} of no input"
        missing = MissingInputs(run=run, count=count, inputs=tuple(left[:MOST_MISSING]), of=of)
        state: State = "warning" if self._checks.on_missing == "warn" else "failed"
        if count <= Fraction(str(share)) * of:
            state = "passed"
        return CheckOutcome(INPUTS, state, expected, found), missing

    def _found(self, item: str) -> bool:
        place = self._place(item)
        return place is not None and bool(self._has_row[place])

    def _named(self, items: Sequence[str]) -> list[str]:
        """Return the inputs without a row, each once, in the order of the list."""
        named, is_named = list[str](), bytearray(self._has_row)
        for item in items:
            if (place := self._place(item)) is not None and not is_named[place]:
                is_named[place] = True
                named.append(item)
        return named


def _digest(items: Sequence[str]) -> bytes:
    digest = hashlib.sha256()
    for item in items:
        digest.update(b"%d:" % len(item) + item.encode(errors="surrogatepass"))
    return digest.digest()
