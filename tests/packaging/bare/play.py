"""Schedule a job, run it through the mirror with a mover and a worker pass, and view it in the admin."""

import os
from pathlib import Path

import django

import delaytasks

assert Path(delaytasks.__file__).is_relative_to(os.environ["BARE_INSTALLED"]), delaytasks.__file__


def run_a_job() -> None:
    from remind.timeouts import seen

    from delaytasks import mirror, schedule, tasks
    from delaytasks.models import Job
    from delaytasks.states import State

    index = mirror.connect()
    schedule("lesson.remind", key="lesson:7", delay=0, body={"lesson": 7})
    assert index.due_count() == 1, "the job is not in the mirror"
    tasks.move_due.apply(throw=True)
    assert index.due_count() == 0
    assert index.ready_counts(["lesson.remind"]) == {"lesson.remind": 1}
    tasks.run_topic.apply(args=["lesson.remind"], throw=True)
    assert seen == [7]
    assert Job.objects.get().state == State.FINISHED
    assert index.ready_counts(["lesson.remind"]) == {}


def view_in_the_admin() -> None:
    from django.contrib.auth.models import User
    from django.test import Client

    from delaytasks.models import Job

    client = Client()
    client.force_login(User.objects.create_superuser("ada"))
    for page in ("/admin/delaytasks/job/", f"/admin/delaytasks/job/{Job.objects.get().pk}/change/"):
        answer = client.get(page)
        assert answer.status_code == 200, (page, answer.status_code)
        assert "lesson:7" in answer.content.decode(), page


django.setup()
run_a_job()
view_in_the_admin()
print("all went well")
