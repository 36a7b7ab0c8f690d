"""The checker, on forged evidence: every reason that it can give is given, for the job in question and no other."""

import ast
import inspect

import pytest

from . import checker, forged, stories, terms
from .forged import Breach, Build, lost
from .forged.forge import TOPIC, Forge
from .stories import Violation

forged.load_all()


def checked(build: Build) -> list[Violation]:
    """What is found among jobs of which all the others went as they should."""
    forge = Forge()
    forge.done(901)
    forge.consumed(902)
    forge.cancelled(903)
    forge.pending(904)
    forge.held(905)
    build(forge)
    return checker.check(forge.evidence)


@pytest.mark.parametrize("breach", forged.BREACHES, ids=lambda breach: breach.build.__name__)
def test_a_breach_is_found_for_its_job_and_nothing_else_is(breach: Breach) -> None:
    found = checked(breach.build)
    assert [(each.kind, each.why, each.job) for each in found] == [(breach.kind, breach.why, breach.job)]
    assert found[0].key in ("k1", "")


@pytest.mark.parametrize("build", forged.SOUND, ids=lambda build: build.__name__)
def test_what_is_allowed_is_no_breach(build: Build) -> None:
    assert checked(build) == []


def test_every_kind_of_breach_is_forged() -> None:
    assert {breach.kind for breach in forged.BREACHES} == set(checker.KINDS)


def test_every_reason_that_the_checker_can_give_is_forged() -> None:
    said = [breach.why for breach in forged.BREACHES]
    for module in (checker, stories):
        for reason in _reasons(inspect.getsource(module)):
            assert any(all(piece in why for piece in reason) for why in said), reason


def _reasons(source: str) -> list[list[str]]:
    """The fixed pieces of each text that a rule yields, as itself or as the last argument of a violation."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Yield) and node.value is not None:
            text = node.value.args[-1] if isinstance(node.value, ast.Call) and node.value.args else node.value
            pieces = text.values if isinstance(text, ast.JoinedStr) else [text]
            fixed = [p.value for p in pieces if isinstance(p, ast.Constant) and isinstance(p.value, str)]
            found += [fixed] if fixed else []
    return found


def test_a_job_is_stuck_only_when_it_has_been_quiet_for_long_enough() -> None:
    forge = Forge()
    forge.pending(1, due=50_000)
    assert checker.check(forge.evidence, quiet_ms=51_000) == []
    assert [each.kind for each in checker.check(forge.evidence, quiet_ms=49_000)] == ["stuck"]


def test_a_topic_of_its_own_terms_may_give_up_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(terms.FEWER_ATTEMPTS, TOPIC, 1)
    assert checked(lost.given_up_too_soon) == []
