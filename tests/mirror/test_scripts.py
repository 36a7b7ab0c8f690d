"""The scripts are called by their digest, in one round trip, and loaded again if Redis does not have them."""

from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from delaytasks.mirror.base import Entry
from delaytasks.mirror.redis.client import SCRIPTS, _sha, call_scripts, script_source
from delaytasks.mirror.redis.index import Mirror

NOW = 1_893_456_000_000
CALLS: list[tuple[list[str], list[Any]]] = [([f"key{n}"], [n]) for n in range(3)]


class Fake:
    """A client and its pipeline: the pipeline answers `answers`; a single call answers "again"."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.single_calls: list[Any] = []

    def pipeline(self, *, transaction: bool) -> "Fake":
        pipeline = Fake(*self.answers)
        pipeline.evalsha = lambda *_: None  # type: ignore[method-assign]
        return pipeline

    def execute(self, *, raise_on_error: bool) -> list[Any]:
        return self.answers

    def evalsha(self, sha: str, keys: int, *rest: Any) -> str:
        self.single_calls.append(rest)
        return "again"


@pytest.mark.parametrize("entries", [1, 8])
def test_scripts_that_redis_does_not_have_are_loaded_again(mirror: Mirror, redis_server, entries: int) -> None:
    with redis_server.client() as client:
        client.script_flush()
        assert mirror.add(Entry(job, "t", NOW) for job in range(entries)) == entries
        client.script_flush()
        assert mirror.promote_due(NOW, ["t"]).topics == {"t"}
    assert mirror.ready_counts(["t"]) == {"t": entries}


def test_calls_for_several_buckets_do_not_check_for_the_script_first(mirror: Mirror, redis_server) -> None:
    def script_commands() -> int:
        with redis_server.client() as client:
            return sum(
                n["calls"] for name, n in client.info("commandstats").items() if name.startswith("cmdstat_script")
            )

    mirror.promote_due(NOW, ["t"])
    before = script_commands()
    mirror.promote_due(NOW, ["t"])
    assert script_commands() == before


def test_only_the_calls_that_found_no_script_are_repeated() -> None:
    client = Fake("first", NoScriptError(), "third")
    assert call_scripts(client, "add", CALLS) == ["first", "again", "third"]
    assert client.single_calls == [("key1", 1)]


def test_an_error_of_redis_is_raised() -> None:
    with pytest.raises(ResponseError, match="OOM"):
        call_scripts(Fake("first", ResponseError("OOM"), "third"), "add", CALLS)


def test_the_digest_of_a_script_is_the_one_of_redis(redis_server) -> None:
    with redis_server.client() as client:
        for name in SCRIPTS:
            assert client.script_load(script_source(name)) == _sha(name)
