"""Staff say in the admin where a topic is forwarded, while a worker runs: its due jobs arrive there."""

import json
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import User
from django.test import Client

from delaytasks import schedule, topics
from delaytasks.models import Job, Topic
from delaytasks.states import State

from ..forwarding.conftest import Receiver
from ..support.installation import World

WEBHOOKS = {"local": {"allow_http": True, "allow_networks": ["127.0.0.0/8"]}}
BOUND_SECONDS = topics.TARGET_SECONDS + 10  # the second part is for a busy machine


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver(tls=False)
    yield receiver
    receiver.stop()


@pytest.mark.parametrize("mirror", [True, False], ids=["mirror", "no-mirror"])
def test_a_running_worker_learns_of_a_new_a_changed_and_a_removed_target(
    world: World, receiver: Receiver, settings, mirror: bool
) -> None:
    world.env["DELAYTASKS_OVERRIDES"] = json.dumps({"WEBHOOKS": WEBHOOKS})
    settings.DELAYTASKS = {**settings.DELAYTASKS, "WEBHOOKS": WEBHOOKS}
    if not mirror:
        world.env["CELERY_BROKER_URL"] = world.env.pop("REDIS_URL")
    world.start_all()
    staff = Client()
    staff.force_login(User.objects.create_superuser("ann"))
    staff.post("/admin/delaytasks/topic/add/", {"name": "order.remind"})
    ready = schedule("order.remind", key="order:1", delay=0, body={"order": 1})

    def set_target(path: str | None) -> None:
        page = staff.get("/admin/delaytasks/topic/order.remind/change/").context["adminform"].form
        sent = {box.html_name: box.value() for box in page} | {box.html_initial_name: box.initial for box in page}
        chosen = {
            "target_kind": "" if path is None else "webhook", "webhook_url": f"http://localhost:{receiver.port}{path}",
            "webhook_settings": "local", "target_format": "json",
        }  # fmt: skip
        sent = {name: value for name, value in sent.items() if value not in (None, False, [])}
        assert staff.post("/admin/delaytasks/topic/order.remind/change/", sent | chosen).status_code == 302

    def arrived(count: int) -> None:
        world.until(
            lambda: len(receiver.requests) == count, seconds=BOUND_SECONDS, what=f"request {count} to the receiver"
        )

    set_target("/hooks")
    arrived(1)
    job = schedule("order.remind", key="order:2", delay=0.1, body={"order": 2})
    arrived(2)
    assert [(r.path, r.headers["webhook-id"], r.body) for r in receiver.requests] == [
        ("/hooks", str(ready.pk), b'{"order":1}'), ("/hooks", str(job.pk), b'{"order":2}'),
    ]  # fmt: skip
    world.until(lambda: world.ended(2, state=State.FINISHED), seconds=10, what="both jobs to be finished")

    set_target("/other")
    world.until(lambda: _reaches(receiver, "/other"), seconds=BOUND_SECONDS, what="a request to the other path")

    set_target(None)
    assert Topic.objects.get(name="order.remind").target is None
    world.until(lambda: _is_left_alone(receiver), seconds=BOUND_SECONDS, what="the jobs to be left alone")
    schedule("quick", key="k", delay=0)
    world.until(lambda: world.effects("quick"), seconds=15, what="a topic with a handler to run")


def _reaches(receiver: Receiver, path: str) -> bool:
    """Schedule one more job and return whether any has reached the path."""
    schedule("order.remind", key=f"order:{Job.objects.count() + 1}", delay=0)
    return receiver.requests[-1].path == path


def _is_left_alone(receiver: Receiver) -> bool:
    """Schedule one more job and return whether one that was due for three seconds was not begun."""
    job = schedule("order.remind", key=f"order:{Job.objects.count() + 1}", delay=0)
    oldest = Job.objects.live().filter(topic="order.remind", attempt=0).order_by("due_at").first()
    return oldest is not None and (job.due_at - oldest.due_at).total_seconds() > 3
