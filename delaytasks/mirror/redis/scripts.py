"""The Lua scripts: one file per script, with keys, arguments and return value in its header.

A script that Redis does not have is loaded and called again. redis-py's own Script is not used: it checks before each
pipeline whether Redis has the script, which costs another round trip.
"""

import functools
import hashlib
import math
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from ...states import AGE_MS

NAMES = ("add", "promote_due", "reserve", "settle", "take_slot", "call_runner", "extend_lock", "release_lock")
READ_SCORES = {"add", "promote_due", "reserve", "settle"}  # score.lua is put before these scripts


@functools.cache
def source(name: str) -> str:
    folder = files(__package__) / "lua"
    own = (folder / f"{name}.lua").read_text()
    return (folder / "score.lua").read_text() + own if name in READ_SCORES else own


@functools.cache
def _sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


def decode_score(score: float) -> tuple[int, int]:
    """Return the due time, in ms since 1970, and the priority of an entry's score, as score.lua does."""
    due_ms = math.ceil(score)
    priority = int((due_ms - score) * 64)
    if priority > 32:
        priority -= 32
        due_ms += priority * AGE_MS
    return due_ms, priority


def one(client: Any, name: str, keys: list[str], args: list[Any]) -> Any:
    """Call a script by its name, and return its answer."""
    try:
        return client.evalsha(_sha(name), len(keys), *keys, *args)
    except NoScriptError:
        client.script_load(source(name))
        return client.evalsha(_sha(name), len(keys), *keys, *args)


def many(client: Any, name: str, calls: list[tuple[list[str], list[Any]]]) -> list[Any]:
    """Call a script for several buckets in one round trip, except in a Cluster. Return the answers."""
    if len(calls) < 2 or hasattr(client, "nodes_manager"):  # a cluster's pipeline refuses EVALSHA
        return [one(client, name, keys, args) for keys, args in calls]
    pipeline = client.pipeline(transaction=False)
    for keys, args in calls:
        pipeline.evalsha(_sha(name), len(keys), *keys, *args)
    answers = pipeline.execute(raise_on_error=False)
    return [_answer(client, name, call, answer) for call, answer in zip(calls, answers, strict=True)]


def _answer(client: Any, name: str, call: tuple[list[str], list[Any]], answer: Any) -> Any:
    """Return the answer to a call. If its script was missing, repeat only this call: the others have run."""
    if isinstance(answer, NoScriptError):
        return one(client, name, *call)
    if isinstance(answer, Exception):
        raise answer
    return answer
