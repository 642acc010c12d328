"""The command line, ``webcollect``, see ``docs/reference/command-line.md``.

The modules import neither Airflow nor what sends requests until a command needs it, so that help and what
reads landings start at once.
"""
