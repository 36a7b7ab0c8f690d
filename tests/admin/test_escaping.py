"""Stored text is escaped on every page of the admin and the shop."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.auth.models import Group, User
from django.contrib.contenttypes.models import ContentType
from django.db import models
from django.utils import timezone

from delaytasks import handlers
from delaytasks.api.access import tokens
from delaytasks.api.models import ServiceAccount
from delaytasks.bulk import changes
from delaytasks.clock import to_ms
from delaytasks.models import BulkChange, CalendarDay, Job, Schedule, Topic
from delaytasks.states import Outcome, State
from project.shop.models import Customer, Order, OrderLine, Payment, Product, Refund

from .all_urls import every, filled
from .conftest import TOPIC, make_event, make_job

ROOT = Path(__file__).parents[2]
APPS = ("delaytasks", "delaytasks_api", "shop")
OTHERS = (LogEntry, User, Group)
AS_IT_IS = {  # needed to find the row, or not shown
    "user.password", "logentry.object_id", "order.state", "refund.state", "token.hashed_key",
}  # fmt: skip


def hostile(tag: str, most: int | None = None) -> str:
    """Return text that closes an element, an attribute and a script string, and names its column."""
    return f"<script>{tag}</script>\" onmouseover=\"x' onfocus='x"[:most]


def columns() -> list[models.Field]:
    """Return all text columns of our models, and those of Django's models that our pages show."""
    owners = [model for app in APPS for model in apps.get_app_config(app).get_models() if not model._meta.proxy]
    kinds = (models.CharField, models.TextField, models.JSONField)
    return [field for model in [*owners, *OTHERS] for field in model._meta.local_fields if isinstance(field, kinds)]


def name_of(field: models.Field) -> str:
    return f"{field.model._meta.model_name}.{field.name}"


X = hostile("json")
JSON: dict[str, Any] = {  # hostile values for JSON columns, in the shape that their readers expect
    "job.body": {X: [X, {X: X}]},
    "job.again_body": {X: X},
    "topic.visible_to": [X],
    "topic.slots": {X: 1},
    "topic.target": {"kind": "webhook", "url": X, "settings": X, "format": X, "source": X, "timeout": X},
    "mirrormark.masters": {X: X},
    "mirrormark.audit": {X: X},
    "bulkchange.selection": {"filters": {"q": X, "topic": X, "state": X}, "topics": {X: 1}, X: X},
    "bulkchange.ids": [1],
    "bulkchange.put_off": [],
    "bulkchange.outcomes": {"cancelled": 1, X: 1},
    "bulkchange.samples": {"cancelled": [[1, X, X]], X: [[1, X, X]]},
    "loadchunk.replaced_ids": [1],
    "schedule.body": {X: X},
    "timeoutmark.position": [X, X],
    "auditentry.before": {X: X},
    "auditentry.after": {X: X},
}


def wicked(job: Any) -> None:
    """A handler."""


wicked.__doc__ = f"{hostile('docstring')}\n\n{hostile('docstring')}"


def create_rows() -> None:
    """Create a row of each model, and several if pages differ by state."""
    for state in State:
        job = make_job(f"k:{state.word}", state, error="e")
        make_event(job, Outcome.FAILED, attempt=1, reserved_ms=to_ms(job.due_at) + 5)
    changes.start("cancel", [Job.objects.first().pk], by="b", reason="r", selection={})
    BulkChange.objects.update(state="failed", position=1)
    tokens.create("account", {"produce": ["*"]}, name="n")
    Topic.objects.get_or_create(name="other")
    CalendarDay.objects.create(calendar="c", day=timezone.now())
    Schedule.objects.create(name="s", topic=TOPIC, tz="UTC", start_at=timezone.now(), made_until=timezone.now())
    customer = Customer.objects.create(name="c", email="c@shop.example")
    product = Product.objects.create(name="p", price=1, stock=3)
    order = Order.objects.create(customer=customer, pay_by=timezone.now(), external_id="x")
    OrderLine.objects.create(order=order, product=product, quantity=1, price=1)
    Payment.objects.create(order=order, amount=1)
    Refund.objects.create(order=order, amount=1, reference="r", ask_until=timezone.now())
    Group.objects.create(name="g")
    for row in (
        Job.objects.first(),
        Topic.objects.get(pk="other"),
        BulkChange.objects.first(),
        *ServiceAccount.objects.all(),
    ):
        kind = ContentType.objects.get_for_model(row)
        LogEntry.objects.create(
            user=User.objects.get(), content_type=kind, object_id=row.pk, object_repr="o", action_flag=CHANGE,
            change_message="Cancelled: because",
        )  # fmt: skip


def make_hostile(field: models.Field) -> None:
    """Set the column to hostile text in every row. One row per topic keeps the name that has a handler."""
    name, rows = name_of(field), field.model._base_manager.all()
    if isinstance(field, models.JSONField):
        rows.update(**{field.name: JSON[name]})
        return
    if name == "topic.name":
        rows = rows.filter(pk="other")
    text = hostile(name, field.max_length)
    if name in ("job.error", "jobevent.error"):
        text = f"{text}\n{text}"
    if not field.unique and name != "job.key":
        rows.update(**{field.name: text})
        return
    for number, row in enumerate(rows.order_by("pk")):
        other = hostile(f"{name}.{number}" if (field.max_length or 99) > 40 else f"{number}", field.max_length)
        field.model._base_manager.filter(pk=row.pk).update(**{field.name: other})


@pytest.fixture
def pages(admin_client: Any, monkeypatch: pytest.MonkeyPatch, db_clock: Any) -> dict[str, Any]:
    """The responses of all URLs of the project and of some forms, by name."""
    monkeypatch.setattr(changes, "send", lambda pk, using: None)
    handlers.unregister(TOPIC)
    handlers.handler(TOPIC, ttr=60, max_attempts=3)(wicked)
    create_rows()
    for field in columns():
        if name_of(field) not in AS_IT_IS and not field.choices:
            make_hostile(field)
    User.objects.update(is_active=True)
    jobs = Job.objects.exclude(pk=Job.objects.first().pk)
    topic = Job.objects.first().topic
    jobs.filter(state=State.DELAYED).update(topic=TOPIC)
    job = Job.objects.first()
    LogEntry.objects.create(user=User.objects.get(), object_id=X, object_repr=X, action_flag=CHANGE, change_message=X)

    found: dict[str, Any] = {}
    for address in (address for route in set(every()) for address in filled(route, topic=TOPIC, job_id=job.pk)):
        if not address.endswith(("/logout/", "/r/1/1/")):
            found[address] = admin_client.get(address)
    lists = [{"q": X}, {"topic": topic}, {"topic": topic, "state": "live"}, {"state": X}, {"due": X}, {X: X}, {"e": X}]
    for query in lists:
        for path in ("job/", "job/all/", "topic/", "bulkchange/", "board/", "board/numbers/"):
            found[f"{path} {query}"] = admin_client.get(f"/admin/delaytasks/{path}", query)
    all_ids = list(Job.objects.values_list("pk", flat=True))
    for action in ("postpone_jobs", "cancel_jobs", "retry_jobs", "run_jobs_now", X):
        sent = {"action": action, "_selected_action": all_ids, "index": 0, "reason": X * 9, "amount": X, "unit": X}
        found[f"{action} asks"] = admin_client.post("/admin/delaytasks/job/", sent, follow=True)
        found[f"{action} is done"] = admin_client.post(
            "/admin/delaytasks/job/", sent | {"reason": X, "confirmed": 1}, follow=True
        )
    sent = {"what": X, "amount": X, "unit": X, "reason": X * 9, "shown": X}
    found["all"] = admin_client.post("/admin/delaytasks/job/all/?state=live", sent, follow=True)
    found["add topic"] = admin_client.post("/admin/delaytasks/topic/add/", {"name": X})
    found["add account"] = admin_client.post("/admin/delaytasks_api/serviceaccount/add/", {"name": X, "note": X})
    sent = {"name": X, "account": ServiceAccount.objects.get().pk, "grants-TOTAL_FORMS": 1, "grants-INITIAL_FORMS": 0,
            "grants-0-topic": "a.*", "grants-0-produce": "on"}  # fmt: skip
    found["add token"] = admin_client.post("/admin/delaytasks_api/token/add/", sent, follow=True)
    return found


def test_each_json_column_has_a_hostile_value() -> None:
    assert {name_of(field) for field in columns() if isinstance(field, models.JSONField)} == set(JSON)


SHOWN_AS_HTML = {"now", "timeline", "fields", "lists", "pieces"}  # parts of JSON that scripts insert as HTML


def html_of(answer: Any) -> str:
    """Return the HTML of a response: the page, or the parts that a script inserts.

    JSON for scripts in the page is left out: nothing in it can end its element.
    """
    text = answer.getvalue().decode()
    if not answer["Content-Type"].startswith("application/json"):
        return re.sub(r'(<script id="[a-z-]+" type="application/json">)[^<>&]*(</script>)', r"\1\2", text)
    data = json.loads(text)
    parts = {name: data[name] for name in SHOWN_AS_HTML & data.keys()} if isinstance(data, dict) else {}
    return "\n".join(texts_in(parts))


def texts_in(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict | list):
        for each in data.values() if isinstance(data, dict) else data:
            yield from texts_in(each)


# Pages on which each text must appear; otherwise this test checks nothing.
SEEN = {
    "job.key", "job.topic", "job.worker", "job.error", "jobevent.worker", "jobevent.error", "jobevent.actor",
    "jobevent.reason", "bulkchange.by", "bulkchange.reason", "bulkchange.error", "logentry.object_repr",
    "logentry.change_message", "serviceaccount.name", "serviceaccount.note", "token.name", "topic.name", "group.name",
    "user.username", "customer.name", "product.name", "docstring", "json", "grant.topic", "refund.reference",
    "calendarday.note", "calendarday.calendar", "schedule.name", "schedule.problem",
}  # fmt: skip


def test_no_stored_text_becomes_markup(pages: dict[str, Any]) -> None:
    seen = set()
    for name, answer in pages.items():
        assert answer.status_code < 500 or name == "/readyz", name  # 503: no worker runs here
        if answer.streaming or answer.status_code in (301, 302, 405):
            continue
        html = html_of(answer)
        for raw in (r"<script>[a-z]+[.<]", r"\" onmouseover=", r"' onfocus="):
            found = re.search(".{0,80}" + raw + ".{0,80}", html)
            assert found is None, (name, found)
        seen |= {tag.rstrip(".0123456789") for tag in re.findall(r"&lt;script&gt;([a-z_.0-9]+)", html)}
    assert seen >= SEEN, SEEN - seen

    fetched = {name: each for name, each in pages.items() if "json" in each["Content-Type"]}
    assert {name.rstrip("/").split("/")[-1] for name in fetched} >= {"numbers", "progress", "now"}
    assert {each["X-Content-Type-Options"] for each in fetched.values()} == {"nosniff"}, (
        "JSON is never taken for a page"
    )


def test_our_scripts_set_text_instead_of_markup() -> None:
    """Two scripts insert markup; it comes from our templates (see above)."""
    markup = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|createContextual"
    )
    scripts = [path for part in ("delaytasks", "project") for path in (ROOT / part).rglob("static/**/*.js")]
    found = {path.name for path in scripts if "vendor" not in path.parts and markup.search(path.read_text())}
    assert len(scripts) > 5
    assert found == {"shop.js", "job.js"}


def test_our_templates_never_disable_escaping() -> None:
    trusted = re.compile(r"\|\s*safe\b|autoescape\s+off|safeseq|mark_safe|SafeString\(")
    files = [*(ROOT / "templates").rglob("*.html"), *(ROOT / "delaytasks").rglob("*.html")]
    files += [path for part in ("delaytasks", "project") for path in (ROOT / part).rglob("*.py")]
    assert [str(path) for path in files if trusted.search(path.read_text())] == []
