"""The scripts are called by their digest, in one round trip; a Redis that forgot them gets them again."""

from typing import Any

import pytest
from redis.exceptions import NoScriptError, ResponseError

from delaytasks.mirror import scripts
from delaytasks.mirror.index import Mirror
from delaytasks.mirror.scripts import Scripts
from delaytasks.places import Entry

NOW = 1_893_456_000_000
CALLS: list[tuple[list[str], list[Any]]] = [([f"key{n}"], [n]) for n in range(3)]


class Fake:
    """A client and its pipeline: `answers` are those of the pipeline; what is called alone answers "again"."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.alone: list[Any] = []

    def pipeline(self, *, transaction: bool) -> "Fake":
        pipeline = Fake(*self.answers)
        pipeline.evalsha = lambda *_: None  # type: ignore[method-assign]
        return pipeline

    def execute(self, *, raise_on_error: bool) -> list[Any]:
        return self.answers

    def evalsha(self, sha: str, keys: int, *rest: Any) -> str:
        self.alone.append(rest)
        return "again"


@pytest.mark.parametrize("entries", [1, 8])
def test_a_redis_that_forgot_the_scripts_gets_them_again(mirror: Mirror, redis_server, entries: int) -> None:
    with redis_server.client() as client:
        client.script_flush()
        assert mirror.add(Entry(job, "t", NOW) for job in range(entries)) == entries
        client.script_flush()
        assert mirror.promote_due(NOW, ["t"]).topics == {"t"}
    assert mirror.ready_counts(["t"]) == {"t": entries}


def test_several_buckets_are_one_round_trip_that_asks_for_no_script(mirror: Mirror, redis_server) -> None:
    def asked() -> int:
        with redis_server.client() as client:
            return sum(
                n["calls"] for name, n in client.info("commandstats").items() if name.startswith("cmdstat_script")
            )

    mirror.promote_due(NOW, ["t"])
    before = asked()
    mirror.promote_due(NOW, ["t"])
    assert asked() == before


def test_only_the_calls_that_found_no_script_are_made_again() -> None:
    client = Fake("first", NoScriptError(), "third")
    assert Scripts().many(client, "add", CALLS) == ["first", "again", "third"]
    assert client.alone == [("key1", 1)]


def test_what_redis_refuses_is_raised() -> None:
    with pytest.raises(ResponseError, match="OOM"):
        Scripts().many(Fake("first", ResponseError("OOM"), "third"), "add", CALLS)


def test_the_digest_is_the_one_that_redis_knows_a_script_by(redis_server) -> None:
    with redis_server.client() as client:
        for name in scripts.NAMES:
            assert client.script_load(scripts.source(name)) == scripts._sha(name)
