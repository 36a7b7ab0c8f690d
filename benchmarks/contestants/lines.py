"""The way a driver is spoken to: one JSON object per line, each answered by one line of JSON."""

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
    """Answer commands from standard input until `bye` or its end.

    {"do": "fill", "due": [...]} becomes commands["fill"](due=[...]). What a command raises is answered as `error`, with
    the traceback on standard error; whatever a library prints goes there too.
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
    """An answer whose `seconds` is how long the block took."""
    answer: dict[str, Any] = {}
    begun = time.perf_counter()
    yield answer
    answer["seconds"] = time.perf_counter() - begun


def chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    return (items[start : start + size] for start in range(0, len(items), size))
