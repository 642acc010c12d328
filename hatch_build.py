"""Makes the long description for a package index of README.md, whose relative links lead nowhere there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

# Code comes first, so that nothing in it is taken for a link.
LINK = re.compile(
    r"^```.*?^```|`[^`\n]+`|(?P<image>!?)\[(?P<text>[^\[\]]*)\]\((?!\w+:|#)(?P<target>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)


class LongDescription(MetadataHookInterface):
    """Sets ``readme``: relative links become links to this version's tag in the repository, or plain text.

    The repository is ``Repository`` of ``[project.urls]``. Without it links become their text, and
    pictures are left out.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field ``readme``."""
        repository = metadata.get("urls", {}).get("Repository", "").rstrip("/")

        def replace(link: re.Match[str]) -> str:
            if link["target"] is None:
                return link[0]
            if not repository:
                return "" if link["image"] else link["text"]
            kind = "raw" if link["image"] else "blob"
            url = f"{repository}/{kind}/v{metadata['version']}/{link['target']}"
            return f"{link['image']}[{link['text']}]({url})"

        text = LINK.sub(replace, Path(self.root, "README.md").read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
