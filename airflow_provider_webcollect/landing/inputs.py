"""The check of inputs: whether each word or URL in the list of a task's loop has a row."""

from __future__ import annotations

import hashlib
import re
from array import array
from bisect import bisect_left
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING
from unicodedata import normalize
from urllib.parse import quote, unquote_to_bytes, urlsplit

from airflow_provider_webcollect.landing.checks import INPUTS, CheckOutcome
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

#: Maximum number of inputs without a row that are kept, and of their characters in all: they are part of
#: results and events.
MOST_MISSING, MOST_CHARACTERS = 1000, 100_000
#: Maximum number of these inputs that the outcome names, and of characters that it shows of each.
_NAMED, _LONGEST = 10, 100
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*:)?//", re.IGNORECASE)
_PORTS = {"http": {80}, "https": {443}, "": {80, 443}}


def text_key(text: str) -> str:
    """Return a key that is the same for equal inputs; blanks at the ends and letter case do not count."""
    return normalize("NFC", text.strip()).casefold()


def url_key(text: str) -> str:
    """Return a key that is the same for equal URLs; for a text that is not a URL, its :func:`text_key`.

    Blanks at the ends, the scheme and its usual port, the letter case of the host, a trailing slash, the
    fragment, the order of the query, and differences in percent-encoding do not count.
    """
    text = text.strip()
    try:
        url = urlsplit(text if _SCHEME.match(text) else f"//{text}")
        host, port = ".".join(map(_label, (url.hostname or "").rstrip(".").split("."))), url.port
    except ValueError:
        return text_key(text)
    if port in _PORTS.get(url.scheme, ()):
        port = None
    path = "/".join(map(_encoded, url.path.split("/"))).removesuffix("/")
    pairs = (pair.replace("+", " ").partition("=") for pair in url.query.split("&") if pair)
    query = sorted((_encoded(name), _encoded(value)) for name, _, value in pairs)
    return repr((url.netloc.rpartition("@")[0], host, port, path, query))


def _label(label: str) -> str:
    return label[4:].encode().decode("punycode") if label.startswith("xn--") else label


def _encoded(text: str) -> str:
    return quote(unquote_to_bytes(text), safe="")


class Inputs:
    """Judges whether each input of a task has a row, from the list of its loop and the rows of a run.

    A run repeats an earlier run of the same DAG run if its list has only inputs that the earlier run has
    missed, or cannot be read. The outcome is then for both runs together.

    :param read: returns the loops of the task, as the service has them now.
    :param run: the run whose rows are judged.
    :param before: the inputs that an earlier run of the same DAG run has missed; None for none.
    :param is_own: whether an earlier attempt of this run has recorded ``before``.
    :raises InvalidArgument: if the task does not have the loop, or has several loops to choose from.
    :raises WebCollectError: if the loops cannot be read now. If a retry cannot read them either, the check is
        skipped instead.
    :ivar before: the missing inputs of the run that this run repeats; None if it repeats none.
    """

    def __init__(
        self,
        checks: InputChecks,
        read: Callable[[], Sequence[Action]],
        run: Run,
        before: MissingInputs | None,
        *,
        is_own: bool,
    ) -> None:
        self._checks = checks
        self._run = run
        self._read = read
        self._key = url_key if checks.match == "url" else text_key
        items, self._reason = self._read_list()
        self._digest = _digest(items)
        keys = self._keys(items)
        missed = self._keys(before.inputs) if before else set()
        # without a list there are no keys, and the run counts as a repetition: nothing shows another list
        repeats = missed.issuperset(keys)
        if before and is_own and not repeats:
            repeats = before.run != run
            if not repeats and not self._reason:
                repeats = missed <= keys and (before.of, before.count) == (len(keys), len(before.inputs))
                self._reason = "" if repeats else "an earlier attempt had another list, or one too long"
        self.before = before if repeats else None
        # a list may have 100,000 URLs: the two arrays take nine bytes for each
        self._inputs = array("q", sorted(keys | missed if repeats else keys))
        self._has_row = bytearray(len(self._inputs))
        self._has_column = False
        self._others = 0

    def _keys(self, items: Sequence[str]) -> set[int]:
        return {hash(self._key(item)) for item in items if item.strip()}

    def _read_list(self) -> tuple[tuple[str, ...], str]:
        """Return the list of the checked loop, and the reason if there is none; otherwise an empty text."""
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
        """Record which inputs have a row.

        :param texts: the values that some rows have in the column of inputs, as texts.
        """
        self._has_column = True
        for text, rows in Counter(texts).items():
            if (place := self._place(text)) is None:
                self._others += rows
            else:
                self._has_row[place] = True

    def _place(self, text: str) -> int | None:
        """Return the index of an input in the sorted list; None if the text is not an input."""
        key = hash(self._key(text))
        place = bisect_left(self._inputs, key)
        return place if place < len(self._inputs) and self._inputs[place] == key else None

    def judge(self, rows: int, unread: int) -> tuple[CheckOutcome, MissingInputs | None]:
        """Return the outcome, and the inputs without a row; None if they are not known.

        :param rows: the number of the run's rows.
        :param unread: the number of these rows that cannot be decoded.
        """
        share, before, reason, run = self._checks.missing, self.before, self._reason, self._run
        otherwise: State = "warning" if self._checks.on_missing == "warn" else "failed"
        expected = "a row of each input"
        if share:
            expected = f"at most {share * 100:g} % of the inputs without a row"
        if rows > unread and not self._has_column and (before or not reason):
            found = f"no row has the column {quoted(self._checks.column)}"
            return CheckOutcome(INPUTS, otherwise, expected, found), before
        if before:
            left: Sequence[str] = self._named(before.inputs)
            count, of, run = before.count - len(before.inputs) + len(left), before.of, before.run
        else:
            count, of, left = self._has_row.count(False), len(self._inputs), ()
        if count and unread:
            reason = f"{counted(unread, 'row')} cannot be decoded"
        elif count and not (before or reason):
            # read the list again, for the names of the inputs, and since a person may have changed it
            items, reason = self._read_list()
            if _digest(items) != self._digest and not reason:
                reason = "the list was changed during the landing"
            left = self._named(items)
        found = f"{count:,} of {counted(of, 'input')} have no row"
        if names := [quoted(item[:_LONGEST]) for item in left[:_NAMED]]:
            more = count - len(names)
            found += f": {', '.join(names)}" + (f" and {more:,} more" if more else "")
        if self._others:
            found += f"; {counted(self._others, 'row')} matching no input"
        is_right = count <= Fraction(str(share)) * of
        missing = MissingInputs(run=run, count=count, inputs=_kept(left), of=of)
        if reason and (is_right or not before):
            return CheckOutcome(INPUTS, "skipped", expected, reason), missing if before else None
        return CheckOutcome(INPUTS, "passed" if is_right else otherwise, expected, found), missing

    def _named(self, items: Sequence[str]) -> list[str]:
        """Return the inputs without a row, each once, in the order of the list."""
        named, is_named = list[str](), bytearray(self._has_row)
        for item in items:
            if (place := self._place(item)) is not None and not is_named[place]:
                is_named[place] = True
                named.append(item)
        return named


def _kept(items: Sequence[str]) -> tuple[str, ...]:
    """Return the first inputs, up to the maximum number of inputs and of characters."""
    kept, characters = list[str](), 0
    for item in items[:MOST_MISSING]:
        if (characters := characters + len(item)) > MOST_CHARACTERS:
            break
        kept.append(item)
    return tuple(kept)


def _digest(items: Sequence[str]) -> bytes:
    digest = hashlib.sha256()
    for item in items:
        digest.update(b"%d:" % len(item) + item.encode(errors="surrogatepass"))
    return digest.digest()
