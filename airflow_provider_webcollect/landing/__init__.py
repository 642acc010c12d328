"""Landings: a source's rows in a folder, exactly once (docs/explanation/landing-protocol.md)."""
