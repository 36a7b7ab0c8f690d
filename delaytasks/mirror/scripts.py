"""The Lua scripts, each a file named for its verb with its contract on top."""

from importlib.resources import files
from typing import Any

NAMES = ("add", "promote_due", "reserve", "settle", "take_slot", "call_runner")


def source(name: str) -> str:
    return (files(__package__) / "lua" / f"{name}.lua").read_text()


class Scripts:
    """Calls by name; `many` sends the calls for several buckets in one round trip where Redis allows it."""

    def __init__(self) -> None:
        self._scripts: dict[str, Any] = {}

    def one(self, client: Any, name: str, keys: list[str], args: list[Any]) -> Any:
        return self._script(client, name)(keys=keys, args=args, client=client)

    def _script(self, client: Any, name: str) -> Any:
        if name not in self._scripts:
            self._scripts[name] = client.register_script(source(name))
        return self._scripts[name]

    def many(self, client: Any, name: str, calls: list[tuple[list[str], list[Any]]]) -> list[Any]:
        if len(calls) < 2 or hasattr(client, "nodes_manager"):  # a cluster's pipeline refuses EVALSHA
            return [self.one(client, name, keys, args) for keys, args in calls]
        pipeline = client.pipeline(transaction=False)
        script = self._script(client, name)
        for keys, args in calls:
            script(keys=keys, args=args, client=pipeline)
        return pipeline.execute()
