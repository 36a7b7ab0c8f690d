"""Which faults are combined."""

import random

import pytest

from ..torture import trial
from ..torture.environment import Arena
from ..torture.faults import Fault, load_all
from ..torture.series import AT_ONCE, combination

pytestmark = pytest.mark.tools


def _fault(name: str, uses: str) -> Fault:
    def inflict(arena: Arena) -> None:
        raise NotImplementedError

    return Fault(name, "area", inflict, frozenset(uses.split()), (), "plain", ("postgres", "sqlite"), False)


def test_faults_that_use_the_same_part_are_not_combined() -> None:
    faults = [
        _fault("a", "redis broker"),
        _fault("b", "redis"),
        _fault("c", "broker"),
        _fault("d", "web"),
        _fault("e", ""),
    ]
    combinations = set()
    for seed in range(200):
        chosen = combination(faults, random.Random(seed))
        uses = [part for fault in chosen for part in fault.uses]
        assert len(uses) == len(set(uses))
        assert 2 <= len(chosen) <= AT_ONCE
        combinations.add(frozenset(fault.name for fault in chosen))
    assert {"b", "c", "d"} in combinations
    assert {"a", "d", "e"} in combinations


def test_a_fault_about_neighbours_is_combined_with_no_other() -> None:
    plain = [fault for fault in load_all().values() if not fault.alone]
    neighbours = [fault for fault in plain if fault.area == "neighbours"]
    assert neighbours
    for fault in neighbours:
        assert [other.name for other in plain if other is not fault and not fault.uses & other.uses] == []


@pytest.mark.only_on("postgresql")
def test_calls_without_an_answer_need_a_fault_that_explains_them() -> None:
    redis, web = _fault("a", "redis broker"), _fault("b", "web")
    assert trial.unanswered(3, [redis]).startswith("3 calls had no answer")
    assert trial.unanswered(0, [redis]) == trial.unanswered(3, [redis, web]) == ""


def test_a_seed_chooses_the_same_faults_each_time() -> None:
    faults = [fault for fault in load_all().values() if not fault.alone]
    first, again = ([combination(faults, chance) for _ in range(20)] for chance in (random.Random(5), random.Random(5)))
    assert first == again


def test_the_names_of_faults_fit_into_a_table() -> None:
    for name in load_all():
        assert "|" not in name
        assert not name.endswith(".")
