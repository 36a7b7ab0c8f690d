"""Functions that the test calls in a process with one release installed.

Reads one JSON line per call, [name, arguments, options], and answers with one JSON line. Both releases must have
the names that it imports from delaytasks. Only do_half_of_the_bulk_change() and mirrored() need the old release.
"""

import contextlib
import io
import json
import os
import re
import sys
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

from django.contrib.auth.models import User
from django.core.management import call_command
from django.db.models import F
from django.test import Client
from django.utils import timezone
from parcels.caches import unreadable
from parcels.models import Effect
from shipping import app

import delaytasks
from delaytasks.models import BulkChange, Job, JobEvent
from delaytasks.states import State

SOON = timedelta(minutes=15)


# Changes


def schedule(items: list[dict[str, Any]], **options: Any) -> list[int]:
    return list(delaytasks.schedule_many(items, **options))


def cancel(topic: str, keys: list[str]) -> list[str]:
    return [str(delaytasks.cancel(topic, key=key)) for key in keys]


def reschedule(topic: str, keys: list[str], delay: float) -> None:
    for key in keys:
        delaytasks.reschedule(topic, key, delay=delay)


def run_now(topic: str, keys: list[str]) -> None:
    for key in keys:
        delaytasks.run_now(topic, key)


def retry_dead(topic: str, key: str) -> None:
    delaytasks.retry_dead(topic, key)


def check() -> None:
    call_command("check", fail_level="WARNING", databases=["default"], stdout=sys.stderr)


def command(*arguments: str) -> str:
    """Return what `manage.py delaytasks ...` prints."""
    output = io.StringIO()
    call_command("delaytasks", *arguments, stdout=output)
    return output.getvalue()


def sweep_until_dead(topic: str, key: str) -> bool:
    """Sweep once; return whether the job is dead."""
    command("sweep")
    return state(topic, key) == "dead"


def send_messages() -> dict[str, str]:
    """Send the engine's periodic tasks and a run_topic; return {task name: message id}."""
    messages = {"delaytasks.run_topic": ("parcel.note", "default"), "delaytasks.move_due": (), "delaytasks.sweep": ()}
    return {name: app.tasks[name].apply_async(arguments).id for name, arguments in messages.items()}


# Queries


def jobs() -> list[dict[str, Any]]:
    columns = ("id", "topic", "key", "state", "attempt", "failures", "error")
    return [row | {"state": State(row["state"]).name.lower()} for row in Job.objects.order_by("id").values(*columns)]


def state(topic: str, key: str) -> str:
    return State(Job.objects.filter(topic=topic, key=key).latest("id").state).name.lower()


def live() -> int:
    """Return the number of live jobs due soon, without those due days later."""
    return Job.objects.filter(ended_at=None, due_at__lt=timezone.now() + SOON).count()


def effects() -> list[dict[str, Any]]:
    return list(Effect.objects.order_by("id").values("job_id", "topic", "key", "attempt", "release"))


def begun_early() -> list[list[Any]]:
    """Return attempts that started before their due time, according to events and effects."""
    events = JobEvent.objects.filter(reserved_ms__lt=F("due_ms")).values_list("job_id", "attempt")
    # Compared in Python: SQLite compares texts, of which its own clock writes fewer digits than Django.
    early = [[effect.job_id, effect.attempt] for effect in Effect.objects.all() if effect.at < effect.due_at]
    return [*map(list, events), *early]


def one_of_each() -> list[dict[str, Any]]:
    """Return one job of each topic and state, and all letters."""
    examples = {(job["topic"], job["state"], job["topic"].startswith("letter.") and job["id"]): job for job in jobs()}
    return list(examples.values())


def bulk_states() -> list[list[Any]]:
    return [[change["state"], change["position"], change["total"]] for change in bulk_changes()]


def bulk_changes() -> list[dict[str, Any]]:
    return list(BulkChange.objects.order_by("id").values("id", "state", "position", "total"))


# The admin and the API


def staff() -> Client:
    client = Client()
    client.force_login(User.objects.get_or_create(username="ada", is_staff=True, is_superuser=True)[0])
    return client


def page(path: str) -> str:
    response = staff().get(path)
    assert response.status_code == 200, (path, response.status_code)
    return response.content.decode()


def cancel_all(prefix: str) -> None:
    """Cancel all jobs whose key has this prefix in the admin, as one bulk change."""
    client, path = staff(), f"/admin/delaytasks/job/all/?topic=parcel.note&q={prefix}"
    form = client.get(path).content.decode()
    hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    response = client.post(
        path, {name: unescape(value) for name, value in hidden} | {"what": "cancel", "unit": "hours"}
    )
    assert response.status_code == 302, response.content.decode()


def api(secret: str, path: str, data: dict[str, Any]) -> Any:
    response = Client().post(f"/api/{path}", data, "application/json", headers={"Authorization": f"Bearer {secret}"})
    assert response.status_code == 200, (path, response.status_code, response.content)
    return response.json() if response.content else None


def unreadable_keys() -> list[str]:
    """Return the cached values that this process could not unpickle."""
    return unreadable


# Only for the old release


def do_half_of_the_bulk_change() -> None:
    """Process the first batch of the only bulk change, like a worker that is killed after it."""
    from delaytasks import bulk

    assert bulk.work(BulkChange.objects.get().pk, using="default", seconds=0)


def mirrored() -> int:
    """Return the number of delayed jobs in the mirror."""
    from delaytasks import mirror

    return mirror.connect().due_count()


def answer(line: str) -> str:
    name, arguments, options = json.loads(line)
    with contextlib.redirect_stdout(sys.stderr):  # the log
        result = globals()[name](*arguments, **options)
    return json.dumps(result)


def serve() -> None:
    app.loader.import_default_modules()  # register the tasks, as a worker does
    assert Path(delaytasks.__file__).is_relative_to(os.environ["PARCELS_INSTALLED"]), delaytasks.__file__
    for line in sys.stdin:
        print(answer(line), flush=True)
