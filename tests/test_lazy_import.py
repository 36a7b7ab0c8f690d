"""`import delaytasks` and ready() load no settings, models or Redis client, and use no network."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.dispatch import Signal

import delaytasks
from delaytasks import exceptions
from delaytasks import signals as delaytasks_signals

ROOT = Path(__file__).parents[1]
PUBLIC = {  # name -> its module
    "Calendar": "calendars.calendar", "CancelResult": "outcomes", "Retry": "handlers", "RunningJob": "worker.attempt",
    "Skip": "handlers", "Snooze": "handlers", "cancel": "jobs.control", "cancel_many": "jobs.cancellation",
    "forward": "forwarding.registration", "levels": "polling.levels", "poll": "polling.poll",
    "sla": "service_levels.sla",
    "timeout": "timeouts.timeout",
    "handler": "handlers", "jobs_of": "jobs.subjects", "recurring": "recurrence.decorator",
    "reschedule": "jobs.control", "retry_dead": "jobs.control", "run_now": "jobs.control",
    "schedule": "jobs.schedule", "schedule_many": "jobs.schedule",
    "acancel": "jobs.asynchronous", "acancel_many": "jobs.asynchronous", "areschedule": "jobs.asynchronous",
    "aretry_dead": "jobs.asynchronous", "arun_now": "jobs.asynchronous", "aschedule": "jobs.asynchronous",
    "aschedule_many": "jobs.asynchronous",
}  # fmt: skip
HEAVY = ("redis", "celery", "kombu", "psycopg", "sqlite3", "django.db", "django.conf", "rest_framework", "pyspark")


def run_without_django(program: str, **environment: str) -> Any:
    """Return the JSON that a program prints in a process without Django's settings."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"import json, sys\n{program}"],
        capture_output=True, text=True, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_importing_delaytasks_loads_no_django_and_no_dependency() -> None:
    loaded = run_without_django("import delaytasks; print(json.dumps(sorted(sys.modules)))")
    assert [name for name in loaded if name.startswith("delaytasks")] == ["delaytasks"]
    assert not [name for name in loaded if name.partition(".")[0] == "django"]
    assert not set(loaded) & set(HEAVY)


@pytest.mark.parametrize("name", ["handler", "Snooze", "Retry"])
def test_handler_snooze_and_retry_can_be_imported_before_the_apps_are_loaded(name: str) -> None:
    loaded = run_without_django(f"from delaytasks import {name}; print(json.dumps(sorted(sys.modules)))")
    assert not {"redis", "celery", "delaytasks.models", "delaytasks.jobs.schedule"} & set(loaded)


def test_a_handler_can_be_registered_without_settings() -> None:
    program = (
        "from delaytasks import handler, handlers\n"
        "handler('order.close', ttr=5)(lambda job: None)\n"
        "print(json.dumps(handlers.handled()))"
    )
    assert run_without_django(program) == ["order.close"]


def test_inspecting_the_package_imports_no_submodule() -> None:
    program = (
        "import delaytasks, inspect\n"
        "names = dir(delaytasks), delaytasks.__all__, delaytasks.__version__, delaytasks.__doc__\n"
        "print(json.dumps([m for m in sys.modules if m.startswith('delaytasks.')]))"
    )
    assert run_without_django(program) == []


@pytest.mark.parametrize("name", delaytasks.__all__)
def test_each_public_name_is_resolved_lazily_from_its_module(name: str) -> None:
    home = import_module(f"delaytasks.{PUBLIC[name]}")
    assert getattr(delaytasks, name) is getattr(home, name)
    assert name in dir(delaytasks)
    assert name not in vars(delaytasks), "resolved each time, so that a reload or a patch of its module is seen"


def test_the_public_names_are_the_documented_ones() -> None:
    assert sorted(PUBLIC) == sorted(delaytasks.__all__)


def test_type_checkers_see_the_names_that_are_imported() -> None:
    tree = ast.parse((ROOT / "delaytasks" / "__init__.py").read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert {alias.name: node.module for node in imports for alias in node.names} == delaytasks._HOMES == PUBLIC


@pytest.mark.parametrize("name", ["exceptions", "signals", "client", "backoff", *sorted(set(PUBLIC.values()))])
def test_public_modules_can_be_imported_without_settings(name: str) -> None:
    assert (
        run_without_django(f"import delaytasks.{name}; print(json.dumps('delaytasks.models' in sys.modules))") is False
    )


@pytest.mark.parametrize(
    "program",
    [
        "import delaytasks, pydoc; text = pydoc.render_doc(delaytasks, renderer=pydoc.plaintext)",
        "import subprocess; text = subprocess.check_output([sys.executable, '-m', 'pydoc', 'delaytasks'], text=True)",
    ],
    ids=["help", "pydoc"],
)
def test_help_shows_the_signature_and_docstring_of_each_public_name(program: str) -> None:
    text = run_without_django(f"{program}\nprint(json.dumps(text))")
    assert "Business timeouts for Django" in text
    for name in PUBLIC:
        assert re.search(rf"^    (class |async )?{name}\(", text, re.MULTILINE), f"{name} is missing:\n{text}"
    text = " ".join(text.split())
    assert re.search(r"cancel\( ?topic: str, key: str, \*, running: ", text)
    for sentence in (
        "Schedule a job. It is live as soon as the caller's transaction commits.",
        "Raises NotLive (finished, cancelled, dead or unknown)",
        "int from 1 on: the number of failed or timed-out attempts after which the job is dead;",
        "The job that a handler receives, with the attempt that is running.",
        "Restart the TTR from now, which moves `deadline`.",
    ):
        assert sentence in text
    assert "import_module" not in text


def test_all_public_names_can_be_imported_before_the_apps_are_loaded() -> None:
    program = "from delaytasks import *\nprint(json.dumps(sorted(globals())))"
    assert set(PUBLIC) <= set(run_without_django(program))


def test_each_signal_and_exception_is_in_all_and_documented() -> None:
    signals = [name for name, value in vars(delaytasks_signals).items() if isinstance(value, Signal)]
    assert sorted(signals) == sorted(delaytasks_signals.__all__)
    source = Path(delaytasks_signals.__file__).read_text()
    assert [name for name in signals if not re.search(rf'^{name} = Signal\(\)\n"""', source, re.MULTILINE)] == []
    classes = [name for name, value in vars(exceptions).items() if isinstance(value, type)]
    assert sorted(classes) == sorted(exceptions.__all__)
    assert [name for name in classes if name not in (exceptions.__doc__ or "")] == []


def test_the_default_message_of_an_exception_is_the_first_line_of_its_docstring() -> None:
    assert str(exceptions.NotDead()) == "Only a dead job can be retried."
    assert str(exceptions.NotDead("This one is live.")) == "This one is live."


def test_an_unknown_name_raises_an_error_that_names_it() -> None:
    with pytest.raises(AttributeError, match="module 'delaytasks' has no attribute 'shedule'"):
        _ = delaytasks.shedule
    with pytest.raises(ImportError, match="shedule"):
        exec("from delaytasks import shedule")


def test_the_lower_modules_import_no_django_at_module_level() -> None:
    for name in ("states", "exceptions", "clock", "backoff", "mirror/base", "worker/mover", "worker/ttr"):
        tree = ast.parse((ROOT / "delaytasks" / f"{name}.py").read_text())
        imported = [
            getattr(node, "module", None) or node.names[0].name
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
        ]
        assert not [module for module in imported if module.partition(".")[0] == "django"], name


READY = """
connections = []
def hook(event, args):
    if event in ("socket.connect", "socket.getaddrinfo", "sqlite3.connect", "socket.__new__"):
        connections.append(event)
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
after_setup = list(connections)
heavy = {"redis", "celery", "kombu", "delaytasks.mirror.redis.index"}
loaded = sorted(heavy & set(sys.modules))
from delaytasks import schedule
from delaytasks.mirror import connect
connect()
after_connect = list(connections)
try:
    connect().due_count()
except Exception as error:
    failed = type(error).__name__
print(json.dumps([after_setup, loaded, after_connect, failed, sorted(set(connections))]))
"""


def test_loading_the_app_opens_no_connection_and_the_first_command_does() -> None:
    after_setup, loaded, after_connect, failed, after_use = run_without_django(READY)
    assert (after_setup, loaded) == ([], [])
    assert after_connect == [], "a client connects with its first command"
    assert failed == "MirrorDown"
    assert "socket.connect" in after_use, "the audit hook records connections"


def test_a_process_of_the_project_loads_the_serializers_only_when_it_serves_the_api() -> None:
    """They load an HTTP client, forms and templates: a quarter of the start of a worker or a command."""
    program = (
        "import django\n"
        "django.setup()\n"
        "loaded = {'rest_framework.serializers', 'requests'} & {*sys.modules}\n"
        "import project.urls\n"
        "print(json.dumps([sorted(loaded), 'rest_framework.serializers' in sys.modules]))"
    )
    assert run_without_django(program, DJANGO_SETTINGS_MODULE="project.settings") == [[], True]
