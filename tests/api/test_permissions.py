"""Authentication and permissions."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import DatabaseError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import delaytasks
from delaytasks.api.access import permissions, token_cache
from delaytasks.api.access.permissions import Right
from delaytasks.api.models import Grant, ServiceAccount, Token, matches

pytestmark = pytest.mark.urls("tests.api.urls_for_permissions")
EVERYTHING = ("delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic")


def queries(do: Any) -> list[str]:
    """Return the SQL of do(), without parameter values."""
    with CaptureQueriesContext(
        connection,
    ) as captured:
        do()
    return [query["sql"].split("WHERE")[0].split("VALUES")[0] for query in captured]


def the_token() -> Token:
    return Token.objects.get()


# Getting in


def test_token_is_authenticated_as_its_account(make_token: Any, api: Any) -> None:
    answer = api(make_token("php-shop")).get("/probe/")
    assert answer.status_code == 200
    assert answer.json()["name"] == "php-shop"
    assert answer.json()["worker"] == "php-shop/c1"


def refused(how: str, make_token: Any) -> str | None:
    """Return a secret that must not be accepted."""
    secret: str = make_token()
    if how == "revoked":
        Token.objects.update(revoked=True)
    elif how == "expired":
        Token.objects.update(expiry_date=timezone.now() - timedelta(seconds=1))
    elif how == "account inactive":
        ServiceAccount.objects.update(active=False)
    return {
        "none": None,
        "empty": "",
        "unknown": "abcdefgh." + "x" * 32,
        "wrong secret": secret.partition(".")[0] + "." + "x" * 32,
        "prefix alone": secret.partition(".")[0],
        "too long": secret + "x" * 5000,
        "not ascii": secret + "é",
    }.get(how, secret)


HOW = ["none", "empty", "unknown", "wrong secret", "prefix alone", "too long", "not ascii", "revoked", "expired",
       "account inactive"]  # fmt: skip


@pytest.mark.parametrize("how", HOW)
def test_every_invalid_token_gets_the_same_response(how: str, make_token: Any, api: Any) -> None:
    answer = api(refused(how, make_token)).get("/probe/")
    nobody = api().get("/probe/")
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"] == "Bearer"
    assert answer.content == nobody.content
    # Without a token the session is looked at, and Vary says so.
    assert dict(answer.headers) | {"Vary": ""} == dict(nobody.headers) | {"Vary": ""}


@pytest.mark.on_both
@pytest.mark.parametrize("how", ["unknown", "wrong secret", "revoked", "expired", "account inactive"])
def test_every_invalid_token_costs_one_query(how: str, make_token: Any, api: Any) -> None:
    client = api(refused(how, make_token))
    (query,) = [sql for sql in queries(lambda: client.get("/probe/")) if sql.startswith("SELECT")]
    assert "delaytasks_api_token" in query


@pytest.mark.on_both
def test_valid_token_costs_no_query_once_it_was_read(make_token: Any, api: Any) -> None:
    client = api(make_token())
    for _ in range(2):  # the first request reads the mark of the last change, the second one reads the token
        client.get("/may/read/order.close/")
    assert queries(lambda: client.get("/may/read/order.close/")) == []


@pytest.mark.parametrize("header", ["Basic cGhwOnNlY3JldA==", "Api-Key {}", "{}", "Bearer", "Token {}"])
def test_other_authorization_schemes_are_refused(header: str, make_token: Any, api: Any) -> None:
    secret = make_token()
    assert api().request("GET", "/probe/", Authorization=header.format(secret)).status_code == 401


def test_bearer_scheme_is_case_insensitive(make_token: Any, api: Any) -> None:
    assert api().request("GET", "/probe/", Authorization=f"bearer {make_token()}").status_code == 200


@pytest.mark.parametrize(
    "change", [{"revoked": True}, {"expiry_date": timezone.now() - timedelta(days=1)}], ids=["revoked", "expired"]
)
def test_change_to_a_token_applies_to_the_next_request(change: Any, make_token: Any, api: Any) -> None:
    client = api(make_token())
    assert client.get("/probe/").status_code == 200
    Token.objects.update(**change)
    assert client.get("/probe/").status_code == 401


def test_removed_grant_applies_to_the_next_request(make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": "consume"}))
    assert client.get("/may/consume/order.close/").status_code == 200
    Grant.objects.all().delete()
    assert client.get("/may/consume/order.close/").status_code == 403


def test_still_valid_notices_a_revoked_token_or_grant(make_token: Any) -> None:
    make_token(topics={"order.close": "consume"})
    caller = permissions.TokenCaller(the_token(), permissions.Rights(Grant.objects.all()))
    assert caller.still_valid()
    assert caller.may(Right.CONSUME, "order.close")
    Grant.objects.all().delete()
    assert caller.still_valid()
    assert not caller.may(Right.CONSUME, "order.close")
    Token.objects.update(revoked=True)
    assert not caller.still_valid()


def test_still_valid_notices_users_who_are_no_longer_staff(staff_api: Any) -> None:
    caller = permissions.StaffCaller(staff_api().user)
    assert caller.still_valid()
    User.objects.update(is_staff=False)
    assert not caller.still_valid()


# When it was last used


def test_last_use_is_written_once_a_minute(make_token: Any, api: Any) -> None:
    client = api(make_token())
    client.get("/probe/")
    first = the_token().last_used_at
    client.get("/probe/")
    assert first is not None
    assert the_token().last_used_at == first
    Token.objects.update(last_used_at=first - timedelta(seconds=61))
    token_cache.answers.clear()
    client.get("/probe/")
    assert the_token().last_used_at >= first


def test_later_use_is_not_overwritten(make_token: Any) -> None:
    make_token()
    seen = the_token()
    later = timezone.now() + timedelta(seconds=30)
    Token.objects.update(last_used_at=later)
    permissions.record_use(seen)
    assert the_token().last_used_at == later


def test_failed_write_of_the_last_use_does_not_refuse_the_request(make_token: Any, api: Any, caplog: Any) -> None:
    client = api(make_token())

    def read_only(execute: Any, sql: str, *args: Any) -> Any:
        if sql.startswith("UPDATE"):
            raise DatabaseError("cannot execute UPDATE in a read-only transaction")
        return execute(sql, *args)

    with connection.execute_wrapper(read_only):
        assert client.get("/probe/").status_code == 200
    assert "last_used_at" in caplog.text


# What a token may do


@pytest.mark.parametrize(
    ("pattern", "topic", "matched"),
    [
        ("order.close", "order.close", True),
        ("order.close", "order.closed", False),
        ("order.close", "Order.close", False),
        ("order.*", "order.close", True),
        ("order.*", "order.close.late", True),
        ("order.*", "orders", False),
        ("order.*", "order", False),
        ("order.*", "order.", False),
        ("order.*", "myorder.close", False),
        ("order", "order.close", False),
        ("*", "anything", True),
    ],
)
def test_grant_pattern_matches_topics(pattern: str, topic: str, matched: bool) -> None:
    assert matches(pattern, topic) is matched


@pytest.mark.parametrize("granted", ["produce", "consume", "manage"])
@pytest.mark.parametrize("asked", ["produce", "consume", "manage", "read"])
def test_right_grants_itself_and_reading(granted: str, asked: str, make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": granted}))
    answer = client.get(f"/may/{asked}/order.close/")
    assert answer.status_code == (200 if asked in (granted, "read") else 403)


def test_rights_on_different_topics_do_not_add_up(make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.close": "produce", "refund.check": "consume"}))
    assert client.get("/may/consume/order.close/").status_code == 403
    assert client.get("/may/produce/refund.check/").status_code == 403


def test_several_grants_for_one_topic_add_up(make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.close": "produce", "order.*": "consume"}))
    assert client.get("/may/consume/order.close/").status_code == 200
    assert client.get("/may/produce/order.close/").status_code == 200


def test_one_of_several_rights_is_enough(make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": "manage"}))
    assert client.get("/may/produce+manage/order.close/").status_code == 200
    assert client.get("/may/produce+consume/order.close/").status_code == 403


def test_a_missing_right_is_named(make_token: Any, api: Any) -> None:
    answer = api(make_token(topics={"order.*": "produce"})).get("/may/consume/order.close/")
    assert "consume" in answer.json()["detail"]


def test_pausing_requires_manage(make_token: Any, api: Any) -> None:
    assert api(make_token(topics={"order.*": "produce consume"})).post("/pause/order.close/").status_code == 403
    assert api(make_token(topics={"order.*": "manage"})).post("/pause/order.close/").status_code == 200


# Nothing of other topics


def test_token_sees_only_its_topics(make_token: Any, api: Any) -> None:
    delaytasks.models.Topic.objects.create(name="lesson.end")
    assert api(make_token(topics={"lesson.*": "consume"})).get("/probe/").json()["topics"] == [
        "lesson.end",
        "lesson.remind",
    ]
    assert api(make_token(topics={})).get("/probe/").json()["topics"] == []
    assert "refund.check" in api(make_token(topics={"*": "consume"})).get("/probe/").json()["topics"]


@pytest.mark.on_both
def test_refusal_of_a_topic_does_not_depend_on_its_existence(make_token: Any, api: Any) -> None:
    client = api(make_token(topics={"order.*": "consume"}))
    client.get("/probe/")
    there, not_there = "/may/read/refund.check/", "/may/read/refund.chick/"
    assert client.get(there).status_code == 403
    assert client.get(there).content == client.get(not_there).content.replace(b"chick", b"check")
    assert queries(lambda: client.get(there)) == queries(lambda: client.get(not_there))


@pytest.mark.on_both
def test_job_of_a_hidden_topic_is_404(make_token: Any, api: Any) -> None:
    foreign = delaytasks.schedule("refund.check", key="refund:1", delay=60, body={})
    client = api(make_token(topics={"order.*": "produce consume manage"}))
    client.get("/probe/")
    theirs, nobodys = f"/job/{foreign.pk}/manage/", f"/job/{foreign.pk + 1}/manage/"
    assert client.get(theirs).status_code == 404
    assert client.get(theirs).content == client.get(nobodys).content
    assert queries(lambda: client.get(theirs)) == queries(lambda: client.get(nobodys))


def test_visible_job_without_the_right_is_403_with_the_missing_right(make_token: Any, api: Any) -> None:
    job = delaytasks.schedule("order.close", key="order:1", delay=60, body={})
    client = api(make_token(topics={"order.*": "consume"}))
    assert client.get(f"/job/{job.pk}/read/").json() == {"id": job.pk}
    answer = client.get(f"/job/{job.pk}/manage/")
    assert answer.status_code == 403
    assert "manage" in answer.json()["detail"]


@pytest.mark.on_both
@pytest.mark.parametrize("job_id", [0, 2**63, 10**30])
def test_id_out_of_the_databases_range_is_not_found(job_id: int, make_token: Any, api: Any) -> None:
    assert api(make_token()).get(f"/job/{job_id}/read/").status_code == 404


# Staff


def test_session_of_a_non_staff_user_is_not_authenticated(staff_api: Any, api: Any) -> None:
    answer = staff_api(*EVERYTHING, is_staff=False).get("/probe/")
    assert (answer.status_code, answer.content) == (401, api().get("/probe/").content)


def test_session_of_an_inactive_user_is_not_authenticated(staff_api: Any) -> None:
    assert staff_api(*EVERYTHING, is_active=False).get("/probe/").status_code == 401


@pytest.mark.parametrize(
    ("permission", "may"),
    [
        ("delaytasks.view_job", {"read"}),
        ("delaytasks.view_job delaytasks.operate_job", {"read", "submit", "produce", "manage"}),
        ("delaytasks.operate_job", set()),  # who may not look cannot know what they do
        ("delaytasks.change_topic", set()),
    ],
)
def test_staff_have_the_rights_of_their_permissions_and_cannot_consume(
    permission: str, may: set[str], staff_api: Any
) -> None:
    client = staff_api(*permission.split())
    found = {r for r in Right if client.get(f"/may/{r}/order.close/").status_code == 200}
    assert found == may


def test_staff_pause_a_topic_with_the_permission_to_change_it(staff_api: Any) -> None:
    assert staff_api("delaytasks.operate_job").post("/pause/order.close/").status_code == 403
    assert staff_api("delaytasks.change_topic").post("/pause/order.close/").status_code == 200


def test_staff_without_permissions_see_no_topic_and_no_job(staff_api: Any) -> None:
    job = delaytasks.schedule("order.close", key="order:1", delay=60, body={})
    client = staff_api()
    assert client.get("/probe/").json()["topics"] == []
    assert client.get(f"/job/{job.pk}/read/").status_code == 404


def test_staff_need_the_csrf_token_to_change_anything(staff_api: Any) -> None:
    user = staff_api(*EVERYTHING).user
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(user)
    assert browser.get("/probe/").status_code == 200
    answer = browser.post("/probe/", b"{}", content_type="application/json")
    assert answer.status_code == 403
    assert "CSRF" in answer.json()["detail"]


def test_session_does_not_replace_an_invalid_token(staff_api: Any) -> None:
    client = staff_api(*EVERYTHING)
    assert client.request("GET", "/probe/", Authorization="Bearer abcdefgh.nonsense").status_code == 401


def test_a_token_needs_no_csrf_token(make_token: Any, api: Any) -> None:
    client = api(make_token(), Client(enforce_csrf_checks=True))
    assert client.post("/probe/", {}).status_code == 200
