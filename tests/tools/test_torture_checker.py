"""The checker on forged evidence: it gives each of its reasons, and only for the job at fault."""

import ast
import inspect

import pytest

from ..torture import checker, constants, forged, forwarded_jobs, job_histories
from ..torture.forged import Breach, Build, lost
from ..torture.forged.forge import TOPIC, Forge
from ..torture.job_histories import Violation

pytestmark = pytest.mark.tools

forged.load_all()


def checked(build: Build) -> list[Violation]:
    """Return the violations found in this evidence and five jobs without any."""
    forge = Forge()
    forge.done(901)
    forge.consumed(902)
    forge.cancelled(903)
    forge.pending(904)
    forge.held(905)
    build(forge)
    return checker.check(forge.evidence)


@pytest.mark.parametrize("breach", forged.BREACHES, ids=lambda breach: breach.build.__name__)
def test_only_the_forged_breach_is_found(breach: Breach) -> None:
    found = checked(breach.build)
    assert [(each.kind, each.why, each.job) for each in found] == [(breach.kind, breach.why, breach.job)]
    assert found[0].key in ("k1", "")


@pytest.mark.parametrize("build", forged.SOUND, ids=lambda build: build.__name__)
def test_an_allowed_history_is_not_a_breach(build: Build) -> None:
    assert checked(build) == []


def test_every_kind_of_breach_is_forged() -> None:
    assert {breach.kind for breach in forged.BREACHES} == set(checker.KINDS)


def test_every_reason_of_the_checker_is_forged() -> None:
    reasons = [breach.why for breach in forged.BREACHES]
    for module in (checker, forwarded_jobs, job_histories):
        for reason in _reasons(inspect.getsource(module)):
            assert any(all(piece in why for piece in reason) for why in reasons), reason


def _reasons(source: str) -> list[list[str]]:
    """Return the constant parts of each reason that a rule yields, directly or as the last argument of a violation."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Yield) and node.value is not None:
            text = node.value.args[-1] if isinstance(node.value, ast.Call) and node.value.args else node.value
            pieces = text.values if isinstance(text, ast.JoinedStr) else [text]
            fixed = [p.value for p in pieces if isinstance(p, ast.Constant) and isinstance(p.value, str)]
            found += [fixed] if fixed else []
    return found


def test_a_job_is_stuck_only_after_the_quiet_time() -> None:
    forge = Forge()
    forge.pending(1, due=50_000)
    assert checker.check(forge.evidence, quiet_ms=51_000) == []
    assert [each.kind for each in checker.check(forge.evidence, quiet_ms=49_000)] == ["stuck"]


def test_a_topic_may_have_fewer_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(constants.FEWER_ATTEMPTS, TOPIC, 1)
    assert checked(lost.given_up_too_soon) == []
