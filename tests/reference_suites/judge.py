"""Compare the results of a suite with the table of exclusions."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Verdict:
    """counts   of the outcomes: passed, excluded, skipped (by the suite itself)
    failures    tests that failed without an exclusion: id -> traceback
    passing     excluded tests that passed
    unknown     excluded tests that the suite does not have
    """

    counts: Mapping[str, int]
    failures: Mapping[str, str]
    passing: list[str]
    unknown: list[str]

    @property
    def is_good(self) -> bool:
        return bool(self.counts["passed"]) and not (self.failures or self.passing or self.unknown)


def judge(results: Mapping[str, tuple[str, str]], excluded: Mapping[str, str]) -> Verdict:
    """Return the verdict.

    results   id of a test -> outcome ("passed", "failed" or "skipped") and its traceback or reason
    excluded  id of a test -> reason
    """
    failed = {test: text for test, (outcome, text) in results.items() if outcome == "failed"}
    passed = {test for test, (outcome, _) in results.items() if outcome == "passed"}
    return Verdict(
        counts=Counter(
            passed=len(passed - excluded.keys()),
            excluded=len(failed.keys() & excluded.keys()),
            skipped=len(results) - len(failed) - len(passed),
        ),
        failures={test: text for test, text in failed.items() if test not in excluded},
        passing=sorted(passed & excluded.keys()),
        unknown=sorted(excluded.keys() - results.keys()),
    )
