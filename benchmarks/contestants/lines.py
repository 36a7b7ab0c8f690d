"""The protocol of the drivers: one JSON object per line, each answered with one line of JSON."""

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Command = Callable[..., dict[str, Any] | None]


def serve(commands: dict[str, Command]) -> None:
    """Answer commands from standard input until `bye` or end of file.

    {"do": "fill", "due": [...]} calls commands["fill"](due=[...]). An exception is answered as `error`; its traceback
    and all other output of the process go to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        message = json.loads(line)
        name = message.pop("do")
        answers.write(json.dumps(_answer(commands, name, message)) + "\n")
        if name == "bye":
            break


def _answer(commands: dict[str, Command], name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    if name == "bye" and name not in commands:
        return {}
    try:
        return commands[name](**arguments) or {}
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{name}: {type(error).__name__}: {error}"}


@contextmanager
def timed() -> Iterator[dict[str, Any]]:
    """Yield an answer; its `seconds` is set to the duration of the block."""
    answer: dict[str, Any] = {}
    begun = time.perf_counter()
    yield answer
    answer["seconds"] = time.perf_counter() - begun


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
