"""Landings: a source's rows in a folder, exactly once (docs/contributing/landing-protocol.md)."""
