"""The Lua scripts, each a file named for its verb with its contract on top."""

import functools
import hashlib
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

NAMES = ("add", "promote_due", "reserve", "settle", "take_slot", "call_runner")


def source(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text()


@functools.cache
def _sha(name: str) -> str:
    return hashlib.sha1(source(name).encode(), usedforsecurity=False).hexdigest()


class Scripts:
    """Calls by name; `many` sends the calls for several buckets in one round trip where Redis allows it.

    A script that Redis does not have is loaded and called again. redis-py's own scripts are not used: before each
    pipeline they ask whether Redis has them, another round trip.
    """

    def one(self, client: Any, name: str, keys: list[str], args: list[Any]) -> Any:
        try:
            return client.evalsha(_sha(name), len(keys), *keys, *args)
        except NoScriptError:
            client.script_load(source(name))
            return client.evalsha(_sha(name), len(keys), *keys, *args)

    def many(self, client: Any, name: str, calls: list[tuple[list[str], list[Any]]]) -> list[Any]:
        if len(calls) < 2 or hasattr(client, "nodes_manager"):  # a cluster's pipeline refuses EVALSHA
            return [self.one(client, name, keys, args) for keys, args in calls]
        pipeline = client.pipeline(transaction=False)
        for keys, args in calls:
            pipeline.evalsha(_sha(name), len(keys), *keys, *args)
        answers = pipeline.execute(raise_on_error=False)
        return [self._answer(client, name, call, answer) for call, answer in zip(calls, answers, strict=True)]

    def _answer(self, client: Any, name: str, call: tuple[list[str], list[Any]], answer: Any) -> Any:
        """Only what was refused is called again: what was done is not to be done twice, its answer would be lost."""
        if isinstance(answer, NoScriptError):
            return self.one(client, name, *call)
        if isinstance(answer, Exception):
            raise answer
        return answer
