"""Jobs on the page of their subject, and the link from a job to its subject."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import include, path
from django.utils import timezone

from delaytasks.admin import TimeoutsMixin, subjects
from delaytasks.models import Job, Topic
from delaytasks.states import State
from project.shop.models import Customer, Order
from tests.timeouts.app.models import Ticket

from .conftest import make_job

SECTION = 'class="module dt-timeouts"'
VIEW = ("shop.view_order", "delaytasks.view_job")


class TicketAdmin(TimeoutsMixin, admin.ModelAdmin):
    pass


other_site = admin.AdminSite(name="other")  # without the list of jobs
other_site.register(Ticket, TicketAdmin)
urlpatterns = [
    path("other/", other_site.urls),
    path("admin/", admin.site.urls),
    path("i18n/", include("django.conf.urls.i18n")),  # for the header of the example's admin
]


@pytest.fixture
def order() -> Order:
    customer = Customer.objects.create(name="Ann <b>", email="ann@shop.example")
    return Order.objects.create(customer=customer, pay_by=timezone.now())


def about(order: Order, key: str, state: State = State.DELAYED, **columns: Any) -> Job:
    return make_job(key, state, subject_label="shop.order", subject_pk=str(order.pk), **columns)


def section_of(client: Any, order: Order) -> str:
    response = client.get(f"/admin/shop/order/{order.pk}/change/")
    assert response.status_code == 200
    return response.content.decode().partition(SECTION)[2].partition("</section>")[0]


def test_the_subjects_page_shows_live_jobs_by_due_time_and_then_ended_ones(admin_client: Any, order: Order) -> None:
    about(order, "ended", State.FINISHED)
    about(order, "later", due=timedelta(hours=2))
    about(order, "soon")
    make_job("of another")
    section = section_of(admin_client, order)
    assert re.findall(r'/change/">(.*?)</a>', section) == ["soon", "later", "ended"]
    assert "finished" in section.lower()


def test_a_subject_without_jobs_has_no_section(admin_client: Any, order: Order) -> None:
    assert section_of(admin_client, order) == ""


def test_the_number_of_jobs_and_queries_is_limited(admin_client: Any, order: Order) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            section_of(admin_client, order)
        return len(queries)

    about(order, "first")
    section_of(admin_client, order)
    few = count()
    for n in range(49):
        about(order, f"k{n}", due=timedelta(hours=2))
    section = section_of(admin_client, order)
    assert (section.count('name="_selected_action"'), "More jobs are not shown." in section) == (50, False)
    about(order, "ended", State.FINISHED)
    assert count() <= few
    section = section_of(admin_client, order)
    assert (section.count('name="_selected_action"'), "More jobs are not shown." in section) == (50, True)


def test_no_heading_of_the_table_is_empty(admin_client: Any, order: Order) -> None:
    about(order, "one")
    assert not re.search(r"<th[^>]*>\s*</th>", section_of(admin_client, order))


def test_jobs_of_hidden_topics_are_not_shown(staff: Any, order: Order) -> None:
    about(order, "one")
    about(order, "hidden", topic="test.secret")
    Topic.objects.create(name="test.secret", visible_to=[99])
    section = section_of(staff(*VIEW), order)
    assert ("one" in section, "hidden" in section) == (True, False)


def test_a_user_who_may_not_view_jobs_sees_none(staff: Any, order: Order) -> None:
    about(order, "one")
    assert section_of(staff("shop.view_order"), order) == ""


def test_only_a_user_who_may_operate_has_actions(staff: Any, order: Order) -> None:
    about(order, "one")
    assert "<button" not in section_of(staff(*VIEW), order)
    assert "<button" in section_of(staff(*VIEW, "delaytasks.operate_job"), order)


@pytest.mark.parametrize(("action", "state", "after"), [
    ("cancel_jobs", State.DELAYED, State.CANCELLED), ("cancel_jobs", State.DEAD, State.CANCELLED),
    ("retry_jobs", State.DEAD, State.DELAYED),
])  # fmt: skip
def test_the_actions_change_the_selected_jobs(
    staff: Any, order: Order, action: str, state: State, after: State
) -> None:
    job, other = about(order, "one", state), about(order, "two", state)
    client = staff(*VIEW, "delaytasks.operate_job")
    section = section_of(client, order)
    assert f'value="{action}"' in section
    address = re.search(r'<form method="post" action="(.*?)"', section)
    assert address is not None
    seen = re.findall(r'name="seen" value="(.*?)"', section)
    form = {"action": action, "_selected_action": [job.pk], "seen": seen, "index": 0}
    if action == "cancel_jobs":
        assert client.post(address[1], form).status_code == 200  # asks for confirmation
        assert Job.objects.get(pk=job.pk).state == state
    client.post(address[1], form | {"confirmed": "1"})
    assert [Job.objects.get(pk=each.pk).state for each in (job, other)] == [after, state]


def test_the_mixin_keeps_the_media_of_the_model_admin(order: Order) -> None:
    class OrderAdmin(TimeoutsMixin, admin.ModelAdmin):
        class Media:
            js = ("own.js",)

    files = str(OrderAdmin(Order, admin.site).media)
    assert all(name in files for name in ("own.js", "delaytasks/times.js", "delaytasks/admin.css"))


@pytest.mark.urls(__name__)
def test_a_subjects_page_of_a_site_without_the_list_of_jobs_shows_none(admin_client: Any) -> None:
    ticket = Ticket.objects.create(code="room")
    make_job("one", subject_label="declared.ticket", subject_pk="room")
    response = admin_client.get(f"/other/declared/ticket/{ticket.pk}/change/")
    assert response.status_code == 200
    assert SECTION not in response.content.decode()


# The job's page


def subject_field(client: Any, job: Job) -> str:
    page = client.get(f"/admin/delaytasks/job/{job.pk}/change/").content.decode()
    return page.partition("field-linked_subject")[2].partition("readonly")[2].partition(">")[2].partition("</div>")[0]


def test_the_jobs_page_links_to_its_subject(admin_client: Any, order: Order) -> None:
    field = subject_field(admin_client, about(order, "one"))
    assert f'<a href="/admin/shop/order/{order.pk}/change/">order {order.pk}</a>' in field


@pytest.mark.urls(__name__)
@pytest.mark.parametrize("code", ["room_24", "room/24", 'room "24"'])
def test_the_link_leads_to_a_subject_with_any_primary_key(admin_client: Any, admin_user: Any, code: str) -> None:
    Ticket.objects.create(code=code)
    job = make_job("one", subject_label="declared.ticket", subject_pk=code)
    address = re.search(r'href="(.*?)"', subjects.link(job, other_site, admin_user))
    assert address is not None
    assert admin_client.get(address[1]).context["original"].pk == code


def test_a_subject_that_the_user_may_not_view_is_not_linked(staff: Any, order: Order) -> None:
    field = subject_field(staff("delaytasks.view_job"), about(order, "one"))
    assert "<a " not in field
    assert f"shop.order {order.pk}" in field


def test_a_deleted_subject_is_named(admin_client: Any, order: Order) -> None:
    job, pk = about(order, "one"), order.pk
    order.delete()
    assert f"shop.order {pk}, which no longer exists" in subject_field(admin_client, job)


def test_a_job_without_subject_shows_a_dash(admin_client: Any) -> None:
    assert "–" in subject_field(admin_client, make_job("one"))


def test_the_live_page_refreshes_the_subject_too(admin_client: Any, order: Order) -> None:
    job = about(order, "one")
    fields = admin_client.get(f"/admin/delaytasks/job/{job.pk}/now/").json()["fields"]
    assert f"order {order.pk}" in fields["linked_subject"]
