"""Landings: a source's rows in a folder or table, exactly once (docs/contributing/landing-protocol.md)."""

#: Name of the file that lists the parts of a landing for readers.
MANIFEST = "_manifest.json"
