#!/usr/bin/env python
"""Django's command line for the example project. While `make run` runs, it talks to the same Redis."""

import os
import sys
from pathlib import Path

VAR = Path(os.environ.get("VAR_DIR") or Path(__file__).resolve().parent / "var")


def join_the_running_copy() -> None:
    """Use the Redis that `make run` started, unless the environment names another one or another database."""
    note = VAR / "run" / "redis_url"
    if note.exists() and not os.environ.get("DATABASE_URL") and not os.environ.get("REDIS_URL"):
        os.environ["REDIS_URL"] = note.read_text().strip()


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    VAR.mkdir(parents=True, exist_ok=True)
    join_the_running_copy()
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
