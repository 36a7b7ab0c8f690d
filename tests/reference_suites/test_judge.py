"""The command `make reference-suites`, without the suites themselves, which come from PyPI."""

import sys

import pytest

from tests.reference_suites import __main__ as command
from tests.reference_suites import pythons, suites
from tests.reference_suites.exclusions import exclusions
from tests.reference_suites.judge import judge

PASSED, FAILED, SKIPPED = ("passed", ""), ("failed", "Traceback"), ("skipped", "not on SQLite")


def test_a_failure_with_an_exclusion_is_good():
    verdict = judge({"a": PASSED, "b": FAILED, "c": SKIPPED}, {"b": "why"})
    assert verdict.is_good
    assert verdict.counts == {"passed": 1, "excluded": 1, "skipped": 1}


@pytest.mark.parametrize(
    ("results", "excluded", "found"),
    [
        ({"a": PASSED, "b": FAILED}, {}, ({"b": "Traceback"}, [], [])),
        ({"a": PASSED, "b": PASSED}, {"b": "why"}, ({}, ["b"], [])),
        ({"a": PASSED}, {"gone": "why"}, ({}, [], ["gone"])),
    ],
    ids=["fails without an exclusion", "passes with one", "does not exist"],
)
def test_what_is_not_as_the_table_says_fails_the_command(results, excluded, found):
    verdict = judge(results, excluded)
    assert not verdict.is_good
    assert (verdict.failures, verdict.passing, verdict.unknown) == found


def test_a_suite_of_which_nothing_passed_is_not_good():
    assert not judge({}, {}).is_good
    assert not judge({"a": FAILED}, {"a": "why"}).is_good


def test_before_django_6_there_are_further_exclusions():
    for suite in suites.SUITES:
        older, newer = exclusions(suite.name, (5, 2)), exclusions(suite.name, (6, 0))
        assert newer.items() < older.items()


@pytest.fixture
def laid(tmp_path):
    """A function that lays a module of Django's suite with a text into a folder, and returns its new text."""

    def lay(text, version):
        source, target = tmp_path / "source", tmp_path / f"{version}"
        source.mkdir(exist_ok=True)
        (source / "test_it.py").write_text(text)
        suites.lay(suites.SUITES[0], source, target, version)
        return (target / "tasks" / "test_it.py").read_text()

    return lay


def test_ours_take_the_place_of_djangos_backends(laid):
    text = (
        'from django.tasks.backends.dummy import DummyBackend\nB = "django.tasks.backends.immediate.ImmediateBackend"\n'
    )
    for version in ((5, 2), (6, 0)):
        assert laid(text, version) == (
            'from stand_ins.backends import DummyBackend\nB = "stand_ins.backends.ImmediateBackend"\n'
        )


def test_before_django_6_the_package_takes_the_place_of_django_tasks(laid):
    text = "from django.tasks.exceptions import InvalidTask, TaskResultMismatch\nraises(InvalidTask, x)\n"
    assert laid(text, (6, 0)) == text
    assert laid(text, (5, 2)) == (
        "from django_tasks.exceptions import InvalidTaskError as InvalidTask, TaskResultMismatch\n"
        "raises(InvalidTask, x)\n"
    )


def test_without_an_index_of_packages_nothing_is_run_and_that_is_said(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(command, "CACHE", tmp_path)
    monkeypatch.setattr(suites, "PIP_DOWNLOAD", [sys.executable, "-c", "import sys; sys.exit('no network')"])
    assert command.main([]) == command.NOT_RUN
    error = capsys.readouterr().err
    assert "NOT RUN: Django==6.0.10 could not be downloaded: no network." in error


def test_a_folder_without_a_suite_is_named(tmp_path, capsys):
    assert command.main(["--suites", str(tmp_path)]) == command.NOT_RUN
    assert f"{tmp_path / 'django'} has no tests/tasks" in capsys.readouterr().err


@pytest.mark.parametrize("interpreter", ["no-such-python", "false"])
def test_an_interpreter_that_does_not_work_is_named(tmp_path, interpreter):
    with pytest.raises(pythons.Missing, match=f"{interpreter} is not a Python from 3\\.12 on"):
        pythons.with_django_6(tmp_path, interpreter)


def test_without_python_3_12_the_reason_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(pythons, "NAMES", ("python3.99",))
    with pytest.raises(
        pythons.Missing, match=r"Django 6 needs Python 3\.12 or newer, and there is none of python3\.99"
    ):
        pythons.with_django_6(tmp_path)
