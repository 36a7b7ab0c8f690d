"""Attack: a token with ordinary rights sends the bodies that cost most, twenty of each."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from delaytasks.api.limits import parsers
from delaytasks.conf import Settings
from tests.support.process_usage import resident_mib
from tests.support.raw_http import exchange, request

MOST = Settings().api_max_request_bytes
BODIES, AT_ONCE = 20, 2
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


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_expensive_body_is_refused_and_its_memory_is_given_back(here, api, attack, memory_before):
    data = request("POST", "/api/jobs/", body=ATTACKS[attack], token=api.token)
    with ThreadPoolExecutor(AT_ONCE) as senders:
        statuses = list(senders.map(lambda _: exchange(here.port, data).status, range(BODIES)))
    assert set(statuses) <= {400, 429}, "refused, or too many bytes a minute"
    assert resident_mib(web(here).pid) - memory_before < GROWN_MIB
    assert api.get("topics/quick/").status == 200
