"""Safeguards of the package, each with the edits that remove it and the scenario that must then fail.

``pytest tests/system --without NAME`` has the workers and triggerers run a copy of the package without the
safeguard, and passes only if the scenario fails.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import airflow_provider_webcollect

PACKAGE = Path(airflow_provider_webcollect.__file__).parent


@dataclass(frozen=True)
class Edit:
    """A text in a file of the package, and its replacement."""

    file: str
    text: str
    replacement: str


@dataclass(frozen=True)
class Safeguard:
    """A safeguard.

    :param scenario: the test that needs it.
    """

    scenario: str
    edits: tuple[Edit, ...]

    def remove(self, folder: Path) -> None:
        """Put a copy of the package without the safeguard into a folder.

        :raises ValueError: if the package does not have the text that an edit replaces.
        """
        copy = folder / PACKAGE.name
        shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        for edit in self.edits:
            path = copy / edit.file
            source = path.read_text()
            if source.count(edit.text) != 1:
                raise ValueError(
                    f"{edit.file} does not have the text once that is to be replaced: {edit.text}"
                )
            path.write_text(source.replace(edit.text, edit.replacement))


SAFEGUARDS = {
    "single-flight": Safeguard(
        "test_24_tasks_on_both_workers_share_one_token[revoke]",
        (
            Edit(
                "service/tokens/__init__.py",
                "        alone = self._store.write_bound is None\n",
                "        self._claim = RenewalNote(\n"
                "            claimant='', lineage=self._lineage, token=token, state=RenewalState.RELEASED\n"
                "        )\n"
                "        self._began, self.outcome = self._clock(), None\n"
                "        return RenewalState.RELEASED\n",
            ),
        ),
    ),
    "conditional-commit": Safeguard(
        "test_a_suspended_worker_changes_nothing_after_a_takeover",
        (
            Edit("landing/storage/object_stores.py", 'content, mode="create")', "content)"),
            # a landing that has not committed before looks before it writes
            Edit("landing/storage/object_stores.py", "if self.read(path) is not None:", "if False:"),
            # and where the storage ignores conditions, each landing looks
            Edit(
                "landing/storage/object_stores.py",
                "            self._warn()\n            return False\n",
                "            return True\n",
            ),
        ),
    ),
    "baseline": Safeguard(
        "test_200_tasks_are_started_waited_for_landed_and_marked",
        (
            Edit(
                "waiting/runs.py",
                "        case Evidence.SAME_END:\n            return unchanged_for >= status_delay\n",
                "        case Evidence.SAME_END:\n            return True\n",
            ),
        ),
    ),
}
