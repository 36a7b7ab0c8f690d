"""Run the test suites of the reference backends of Django's Tasks against ours: `make reference-suites`.

The suites are Django's own, tests/tasks, and that of django-tasks-db. Both come with the source distributions on PyPI
and are laid into a throw-away folder, in which our backend takes the place of theirs (stand_ins/). Each is run on the
Django of this environment and, where Python 3.12 is found, on Django 6; there, our own tests/django_tasks are run, too.
A test without an exclusion that fails, an exclusion whose test passes, and one whose test does not exist fail the
command (status 1). Status 3: something could not be run, because there is no network or no Python 3.12; what could be
run has passed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .exclusions import exclusions
from .judge import Verdict, judge
from .pythons import ROOT, Missing, Python, this_one, with_django_6
from .suites import SUITES, Suite, download, lay

CACHE = ROOT / "var" / "reference-suites"
LIMIT_SECONDS = 600
NOT_RUN = 3


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="tests.reference_suites", description=__doc__.splitlines()[0])
    parser.add_argument("--suites", type=Path, help="folder with django/tests/tasks and django-tasks-db/tests in it")
    parser.add_argument("--python", help="a Python from 3.12 on, for Django 6")
    parser.add_argument("--verbose", action="store_true", help="print each excluded test")
    options = parser.parse_args(arguments)
    pythons, missing = [this_one()], list[str]()
    try:
        sources = {suite: _source(suite, options.suites) for suite in SUITES}
    except Missing as reason:
        return _say_not_run([str(reason)])
    own_tests_pass = True
    try:
        pythons.append(with_django_6(CACHE, options.python))
        own_tests_pass = _run_own_tests(pythons[1])
    except Missing as reason:
        missing.append(str(reason))
    runs = [(suite, python) for python in pythons for suite in SUITES]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(2) as executor:
        verdicts = list(executor.map(lambda run: _run(*run, sources[run[0]], Path(folder)), runs))
    for (suite, python), verdict in zip(runs, verdicts, strict=True):
        _print(suite, python, verdict, verbose=options.verbose)
    good = own_tests_pass and all(verdict.is_good for verdict in verdicts)
    passed, failed = sum(v.counts["passed"] for v in verdicts), sum(len(v.failures) for v in verdicts)
    print(f"{passed} passed, {failed} failed")
    return 1 if not good else _say_not_run(missing) if missing else 0


def _source(suite: Suite, given: Path | None) -> Path:
    """Return the folder with the files of a suite. Raises Missing."""
    folder = given / suite.name if given else download(suite, CACHE)
    if not (folder / suite.folder).is_dir():
        raise Missing(f"{folder} has no {suite.folder}")
    return folder / suite.folder


def _run_own_tests(python: Python) -> bool:
    """Run the tests of the backend with Django 6. Return whether they have passed."""
    print(f"tests/django_tasks on {python.name}:", flush=True)
    command = [python.path, "-m", "pytest", "-n", "0", "-q", "tests/django_tasks"]
    return subprocess.run(command, cwd=ROOT, env=os.environ | {"DELAYTASKS_TEST_DB": "sqlite"}).returncode == 0


def _run(suite: Suite, python: Python, source: Path, folder: Path) -> Verdict:
    target = folder / f"{suite.name}-{'.'.join(map(str, python.django))}"
    lay(suite, source, target, python.django)
    (target / "delaytasks").symlink_to(ROOT / "delaytasks")
    done = subprocess.run(
        [python.path, "run.py", suite.label, "results.json"], cwd=target, text=True, capture_output=True,
        env={"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}, timeout=LIMIT_SECONDS,
    )  # fmt: skip
    if done.returncode:
        return judge({f"{suite.name}: run.py": ("failed", done.stderr)}, {})
    results = json.loads((target / "results.json").read_text())
    return judge(results, exclusions(suite.name, python.django))


def _print(suite: Suite, python: Python, verdict: Verdict, *, verbose: bool) -> None:
    counts = ", ".join(f"{number} {word}" for word, number in verdict.counts.items())
    print(f"{suite.requirement}, {suite.folder}, on {python.name}: {counts}, {len(verdict.failures)} failed")
    table = exclusions(suite.name, python.django)
    for reason, number in Counter(table.values()).items():
        print(f"  {number} excluded: {reason}")
        for test in table:
            if verbose and table[test] == reason:
                print(f"    {test}")
    for test, text in verdict.failures.items():
        print(f"FAILED {test}\n{text}")
    for test in verdict.passing:
        print(f"FAILED {test} passes: delete its exclusion ({table[test]})")
    for test in verdict.unknown:
        print(f"FAILED {test} does not exist: delete its exclusion")


def _say_not_run(missing: list[str]) -> int:
    for reason in missing:
        print(f"NOT RUN: {reason}.", file=sys.stderr)
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
