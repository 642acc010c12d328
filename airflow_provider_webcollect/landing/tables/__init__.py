"""Landings that are tables of a table format instead of folders with a manifest."""
