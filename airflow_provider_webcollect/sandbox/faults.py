"""Responses that fail on demand."""

from __future__ import annotations

import random
from typing import Annotated, Literal

import msgspec

Kind = Literal[
    "status",
    "html",
    "broken_json",
    "cut_body",
    "drop",
    "no_answer",
    "slow",
    "drip",
    "error_200",
    "redirect",
    "raw",
]
_CODES = {401: "Invalid.Token", 403: "PermissionDenied", 429: "TooManyRequests"}


class Fault(msgspec.Struct, forbid_unknown_fields=True):
    """
    One planned failure; see :meth:`Control.fail` for what the kinds do.

    :param path: the contract's path, or ``*`` for all.
    :param times: number of responses that fail; ``None``: all from then on.
    :param after: number of responses to let pass first.
    :param probability: probability that each response fails; ``None``: every response fails.
    """

    path: str
    kind: Kind = "status"
    times: Annotated[int, msgspec.Meta(ge=1)] | None = 1
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    probability: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    status: Annotated[int, msgspec.Meta(ge=200, le=599)] | None = None
    code: str | None = None
    message: str = "Planned by the sandbox."
    headers: dict[str, str] = {}
    body: bytes = b""
    done: bool = False
    seconds: Annotated[float, msgspec.Meta(ge=0)] = 1.0
    to: str = "/"

    def status_or(self, default: int) -> int:
        """Return the given HTTP status, or the default."""
        return default if self.status is None else self.status

    def error_code(self, status: int) -> str:
        """Return the given error code, or the one for the status."""
        return self.code or _CODES.get(status, "ServerError")


class Faults:
    """The planned failures, oldest first."""

    def __init__(self, seed: int) -> None:
        self._planned: list[Fault] = []
        self._chance = random.Random(seed)

    def add(self, fault: Fault) -> None:
        """Plan a failure."""
        self._planned.append(fault)

    def clear(self) -> None:
        """Remove all planned failures."""
        self._planned.clear()

    def next(self, path: str) -> Fault | None:
        """Return the failure for this request, if any, and count it as used."""
        for fault in self._planned:
            if fault.path not in ("*", path):
                continue
            if fault.after > 0:
                fault.after -= 1
            elif fault.probability is None or self._chance.random() < fault.probability:
                self._use(fault)
                return fault
        return None

    def _use(self, fault: Fault) -> None:
        if fault.times is not None:
            fault.times -= 1
            if fault.times == 0:
                self._planned.remove(fault)
