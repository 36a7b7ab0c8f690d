"""`import delaytasks` is safe anywhere: no settings, no models, no Redis, no network; nor in ready()."""

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import delaytasks

ROOT = Path(__file__).parents[2]
HEAVY = ("redis", "celery", "kombu", "psycopg", "sqlite3", "django.db", "django.conf", "rest_framework", "pyspark")


def bare(program: str, **environment: str) -> Any:
    """What a program prints as JSON in an interpreter without Django's settings."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import json, sys\n{program}"],
        capture_output=True, text=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_delaytasks_in_a_bare_interpreter_loads_nothing_heavy() -> None:
    loaded = bare("import delaytasks; print(json.dumps(sorted(sys.modules)))")
    assert [name for name in loaded if name.startswith("delaytasks")] == ["delaytasks"]
    assert not [name for name in loaded if name.partition(".")[0] == "django"]
    assert not set(loaded) & set(HEAVY)


@pytest.mark.parametrize("name", ["handler", "Snooze", "Retry"])
def test_what_a_module_of_handlers_needs_is_there_before_djangos_apps_are_loaded(name: str) -> None:
    loaded = bare(f"from delaytasks import {name}; print(json.dumps(sorted(sys.modules)))")
    assert not {"redis", "celery", "delaytasks.models", "delaytasks.scheduling"} & set(loaded)


def test_a_handler_can_be_registered_without_settings() -> None:
    program = (
        "from delaytasks import handler, topics\n"
        "handler('order.close', ttr=5)(lambda job: None)\n"
        "print(json.dumps(topics.handled()))"
    )
    assert bare(program) == ["order.close"]


def test_looking_at_the_package_resolves_nothing() -> None:
    program = (
        "import delaytasks, inspect\n"
        "names = dir(delaytasks), delaytasks.__all__, delaytasks.__version__, delaytasks.__doc__\n"
        "print(json.dumps([m for m in sys.modules if m.startswith('delaytasks.')]))"
    )
    assert bare(program) == []


@pytest.mark.parametrize("name", delaytasks.__all__)
def test_each_public_name_is_found_lazily_and_is_the_one_at_home(name: str) -> None:
    home = import_module(f"delaytasks.{delaytasks._HOMES[name]}")
    assert getattr(delaytasks, name) is getattr(home, name)
    assert name in dir(delaytasks)
    assert name not in vars(delaytasks), "resolved each time, so that a reload or a patch at home is seen"


def test_the_public_names_are_the_documented_ones() -> None:
    documented = {"handler", "schedule", "schedule_many", "cancel", "reschedule", "run_now", "retry_dead", "Snooze"}
    assert documented | {"Retry", "CancelResult"} == set(delaytasks.__all__)


def test_an_unknown_name_is_an_attribute_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'delaytasks' has no attribute 'shedule'"):
        _ = delaytasks.shedule
    with pytest.raises(ImportError, match="shedule"):
        exec("from delaytasks import shedule")


def test_the_modules_that_promise_it_import_no_django_at_their_top() -> None:
    for name in ("states", "exceptions", "clock", "backoff", "places", "mover", "ttr"):
        tree = ast.parse((ROOT / "delaytasks" / f"{name}.py").read_text())
        imported = [
            getattr(node, "module", None) or node.names[0].name
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not [module for module in imported if module.partition(".")[0] == "django"], name


READY = """
touched = []
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect", "socket.__new__"):
        touched.append(event)
sys.addaudithook(hook)
import django
from django.conf import settings
settings.configure(
    INSTALLED_APPS=["django.contrib.contenttypes", "delaytasks"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    DELAYTASKS={"REDIS_URL": "redis://127.0.0.1:1"},
    USE_TZ=True,
)
django.setup()
before_use = list(touched)
heavy = {"redis", "celery", "delaytasks.mirror.index", "delaytasks.scheduling"}
loaded = sorted(heavy & set(sys.modules))
from delaytasks import schedule
from delaytasks.mirror import connect
connect()
made = list(touched)
try:
    connect().due_count()
except Exception as error:
    failed = type(error).__name__
print(json.dumps([before_use, loaded, made, failed, sorted(set(touched))]))
"""


def test_loading_the_app_touches_no_database_no_redis_and_no_network_and_the_first_use_does() -> None:
    before_use, loaded, made, failed, after = bare(READY)
    assert (before_use, loaded) == ([], [])
    assert made == [], "a client connects when it is first asked"
    assert failed == "MirrorDown"
    assert "socket.connect" in after, "the hook does see a connection"
