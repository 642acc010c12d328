"""The system tests can remove each safeguard: the package has the text that the removal replaces."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.safeguards import SAFEGUARDS


@pytest.mark.parametrize("name", SAFEGUARDS)
def test_a_safeguard_can_be_removed(name: str, tmp_path: Path) -> None:
    SAFEGUARDS[name].remove(tmp_path)
    for edit in SAFEGUARDS[name].edits:
        changed = next(tmp_path.iterdir()) / edit.file
        compile(changed.read_text(), edit.file, "exec")
