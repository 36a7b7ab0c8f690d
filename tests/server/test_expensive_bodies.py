"""Attack: a token with ordinary rights sends and lists the bodies that cost most. Others must not wait."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from delaytasks import schedule_many
from delaytasks.api.limits import parsers
from delaytasks.conf import Settings
from tests.support.process_usage import resident_mib
from tests.support.raw_http import exchange, request

MOST = Settings().api_max_request_bytes
BODIES, AT_ONCE = 20, 2
QUICK_SECONDS = 6.0  # a busy machine stands still for 3 s now and then. On an idle one others waited 7 s
# Text of 64 KiB in which most names are not secret, and each has to be looked at.
NAMES = "pin " + "a=" * 32_000
GROWN_MIB = 250  # by all attacks together; a process took 1,800 MiB and kept them


def filled(unit: bytes, count: int) -> bytes:
    """Return a body of a bulk request with so many units, at most as long as a body may be."""
    return b'{"jobs":[' + unit * min(count, (MOST - 20) // len(unit)) + b"0]}"


ATTACKS = {
    "brackets": filled(b"[],", MOST),
    "commas": filled(b"1,", MOST),
    "as many lists as allowed": filled(b"[],", parsers.MAX_CONTAINERS - 2),
    "as many objects as allowed": filled(b'{"a":"bcdefghijklmnopqrstuv"},', parsers.MAX_CONTAINERS - 2),
    "as many numbers as allowed": filled(b"1.25,", parsers.MAX_VALUES - 2),
    "as long as allowed": json.dumps({"jobs": ["x" * (MOST - 20)]}).encode(),
}


@pytest.fixture(scope="module")
def memory_before(world):
    return resident_mib(web(world).pid)


def web(world):
    return next(process for process in world.processes if process.name == "web")


@contextmanager
def quick_for_others(api) -> Iterator[None]:
    """Fail if another caller's request takes longer than QUICK_SECONDS during the block."""
    waits, is_over = [], False

    def ask() -> None:
        while not is_over:
            began = time.monotonic()
            assert api.get("topics/quick/").status == 200
            waits.append(time.monotonic() - began)

    with ThreadPoolExecutor(1) as pool:
        asking: Future[None] = pool.submit(ask)
        try:
            yield
        finally:
            is_over = True
        asking.result()
    assert max(waits) < QUICK_SECONDS


def statuses(here, requests: list[bytes]) -> set[int]:
    """Send the requests, AT_ONCE at the same time."""
    with ThreadPoolExecutor(AT_ONCE) as senders:
        return set(senders.map(lambda data: exchange(here.port, data).status, requests))


@pytest.fixture
def attacker(make_token: Callable[..., str], topic: str) -> str:
    """A token that produces in one topic."""
    return make_token({topic: {"produce": True}})


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_expensive_body_is_refused_and_its_memory_is_given_back(here, api, attacker, attack, memory_before):
    data = request("POST", "/api/jobs/", body=ATTACKS[attack], token=attacker)
    with quick_for_others(api):
        assert statuses(here, [data] * BODIES) <= {400, 429}, "refused, or too many bytes a minute"
    assert resident_mib(web(here).pid) - memory_before < GROWN_MIB


def test_jobs_whose_bodies_are_expensive_to_redact_delay_nobody(here, api, attacker, topic):
    def new(number: int) -> bytes:
        job = {"topic": topic, "key": f"k{number}", "delay_seconds": 3600, "body": NAMES}
        return request("POST", "/api/jobs/", body=json.dumps(job).encode(), token=attacker)

    with quick_for_others(api):
        assert statuses(here, [new(number) for number in range(4 * BODIES)]) == {201}


def test_a_list_of_bodies_that_are_expensive_to_redact_delays_nobody(here, api, attacker, topic):
    schedule_many({"topic": topic, "key": f"k{n}", "delay": 3600, "body": NAMES} for n in range(200))
    data = request("GET", f"/api/jobs/?topic={topic}&limit=200", token=attacker)
    with quick_for_others(api):
        assert statuses(here, [data] * BODIES) == {200}
