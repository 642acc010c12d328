"""Landings: a source's rows in a folder, exactly once (docs/contributing/landing-protocol.md)."""

#: The file that lists the parts of a landing, for readers.
MANIFEST = "_manifest.json"
