"""Attacks by staff who manage tokens: minting rights that they do not have, and reading hidden names."""

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core import signing
from django.urls import reverse
from django.utils import timezone

import delaytasks
from delaytasks.api.models import Grant, ServiceAccount, Token
from delaytasks.models import AuditEntry, Topic
from tests.api.test_tokens import ACCOUNTS, MANAGES, token_form
from tests.support.html_forms import unchanged

pytestmark = pytest.mark.urls("project.urls")
TOKENS_ONLY = tuple(each for each in MANAGES if each.endswith("_token"))
SCHEDULES = tuple(f"delaytasks.{verb}_schedule" for verb in ("add", "change", "delete"))
DELETES = ("delaytasks_api.delete_token", "delaytasks_api.delete_serviceaccount")
VIEW, OPERATE, MANAGE, CONSUME = (
    "delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic", "delaytasks_api.grant_consume",
)  # fmt: skip


def mint(browser: Any, topic: str, right: str) -> Any:
    """Try to make a token with this grant. Return the page."""
    account, _made = ServiceAccount.objects.get_or_create(name="php-shop")
    return browser.client.post(reverse("admin:delaytasks_api_token_add"), token_form(account, (topic, right)))


# Nobody grants more than they have


@pytest.mark.parametrize("right", ["produce", "consume", "manage"])
@pytest.mark.parametrize("topic", ["*", "order.*", "order.close"])
def test_staff_who_may_only_add_tokens_grant_nothing(topic: str, right: str, staff_api: Any) -> None:
    mint(staff_api(*TOKENS_ONLY), topic, right)
    assert not Token.objects.exists()


@pytest.mark.parametrize(
    ("permissions", "rights"),
    [
        ([VIEW], []),
        ([OPERATE, MANAGE, *SCHEDULES], []),  # who may not look cannot know what they grant
        ([VIEW, OPERATE], ["submit"]),
        ([VIEW, OPERATE, *SCHEDULES], ["submit", "produce"]),
        ([VIEW, MANAGE, *SCHEDULES], []),
        ([VIEW, OPERATE, MANAGE, *SCHEDULES[1:]], ["submit", "manage"]),
        ([VIEW, OPERATE, MANAGE, *SCHEDULES], ["submit", "produce", "manage"]),
        ([VIEW, CONSUME], []),
        ([VIEW, CONSUME, "delaytasks.view_schedule"], ["consume"]),
        ([VIEW, OPERATE, MANAGE, CONSUME, *SCHEDULES], ["submit", "produce", "consume", "manage"]),
    ],
    ids=str,
)
def test_each_right_needs_the_permission_for_it(permissions: list[str], rights: list[str], staff_api: Any) -> None:
    browser = staff_api(*TOKENS_ONLY, *permissions)
    granted = []
    for right in ("submit", "produce", "consume", "manage"):
        page = mint(browser, "order.close", right)
        if Token.objects.exists():
            granted.append(right)
            Token.objects.all().delete()
        else:
            assert b"errorlist" in page.content
    assert granted == rights


@pytest.mark.parametrize("missing", SCHEDULES)
def test_who_may_not_define_schedules_mints_no_token_that_does(missing: str, staff_api: Any) -> None:
    everything = [VIEW, OPERATE, MANAGE, *SCHEDULES]
    page = mint(staff_api(*TOKENS_ONLY, *(each for each in everything if each != missing)), "order.close", "produce")
    assert not Token.objects.exists()
    assert "You lack permissions on schedules that this right includes." in page.content.decode()


def test_a_star_is_for_users_who_see_every_topic(staff_api: Any) -> None:
    Topic.objects.create(name="secret.topic", visible_to=[999])
    browser = staff_api(*MANAGES)
    for topic in ("*", "secret.*", "secret.topic"):
        mint(browser, topic, "manage")
    assert not Token.objects.exists()
    browser.user.is_superuser = True
    browser.user.save()
    mint(browser, "*", "manage")
    assert Grant.objects.get().topic == "*"


def test_a_grant_can_be_narrowed_or_widened_only_by_what_the_user_has(staff_api: Any, make_token: Any) -> None:
    make_token(topics={"order.close": "consume"})
    token, grant = Token.objects.get(), Grant.objects.get()
    browser = staff_api(*TOKENS_ONLY, VIEW, OPERATE, *SCHEDULES)
    address = reverse("admin:delaytasks_api_token_change", args=[token.pk])
    own = {"grants-0-id": str(grant.pk), "grants-0-token": str(token.pk)}

    def change_to(*rights: str, topic: str = "order.close") -> list[str]:
        form = token_form(token.account, (topic, rights[0]), first=1) | own
        browser.client.post(address, form | {f"grants-0-{right}": "on" for right in rights})
        return list(Grant.objects.get().rights)

    assert change_to("consume", "produce") == ["produce", "consume"]
    assert change_to("consume", "manage") == ["produce", "consume"]
    assert change_to("consume", topic="refund.check") == ["produce", "consume"]
    assert change_to("produce") == ["produce"]
    assert change_to("consume") == ["produce"]


LATER, EARLIER = timezone.now() + timedelta(days=400), timezone.now() + timedelta(days=200)


def change_token(browser: Any, token: Token, **terms: Any) -> Any:
    """Post the form of the token's page, with these terms in place of the current ones. Return the answer."""
    names = ("name", "expiry_date", "rate_per_minute", "max_request_bytes", "max_live_jobs")
    form = token_form(token.account)
    for name, value in ({name: getattr(token, name) for name in names} | terms).items():
        if name == "expiry_date":
            moment = value and timezone.localtime(value)
            form |= {"expiry_date_0": f"{moment:%Y-%m-%d}", "expiry_date_1": f"{moment:%H:%M:%S}"} if moment else {}
        else:
            form[name] = "" if value is None else str(value)
    return browser.client.post(reverse("admin:delaytasks_api_token_change", args=[token.pk]), form)


@pytest.mark.parametrize("expires", [timezone.now() - timedelta(days=1), timezone.now() + timedelta(days=300)])
@pytest.mark.parametrize("new", [None, LATER])
def test_staff_cannot_prolong_a_token_with_more_rights_than_they_have(
    expires: Any, new: Any, make_token: Any, staff_api: Any
) -> None:
    make_token(topics={"*": "manage"}, expiry_date=expires)
    token = Token.objects.get()
    browser = staff_api(*TOKENS_ONLY)
    page = change_token(browser, token, expiry_date=new)
    assert "This token has rights that you may not grant" in page.content.decode()
    assert Token.objects.get().expiry_date == expires
    browser.user.is_superuser = True
    browser.user.save()
    assert change_token(browser, token, expiry_date=new).status_code == 302
    assert Token.objects.get().expiry_date != expires


@pytest.mark.parametrize("name", ["rate_per_minute", "max_request_bytes", "max_live_jobs"])
def test_staff_cannot_raise_the_limits_of_a_token_with_more_rights_than_they_have(
    name: str, make_token: Any, staff_api: Any
) -> None:
    make_token(topics={"*": "manage"}, **{name: 10})
    browser = staff_api(*TOKENS_ONLY)
    for higher in (11, None):
        assert change_token(browser, Token.objects.get(), **{name: higher}).status_code == 200
    assert change_token(browser, Token.objects.get(), **{name: 9}).status_code == 302
    assert getattr(Token.objects.get(), name) == 9


def test_the_check_includes_grants_that_the_user_does_not_see(make_token: Any, staff_api: Any) -> None:
    Topic.objects.create(name="secret.topic", visible_to=[999])
    make_token(topics={"secret.topic": "produce", "open.topic": "produce"}, expiry_date=EARLIER)
    page = change_token(staff_api(*MANAGES), Token.objects.get(), expiry_date=LATER)
    assert page.status_code == 200
    assert "secret.topic" not in page.content.decode()


def test_staff_can_restrict_a_token_with_more_rights_than_they_have(make_token: Any, staff_api: Any) -> None:
    make_token(topics={"*": "manage"}, expiry_date=LATER)
    browser = staff_api(*TOKENS_ONLY)
    for terms in ({"expiry_date": EARLIER}, {"name": "web-2"}, {"rate_per_minute": 1}, {"revoked": "on"}):
        assert change_token(browser, Token.objects.get(), **terms).status_code == 302, terms
    token = Token.objects.get()
    assert (token.name, token.rate_per_minute, token.revoked) == ("web-2", 1, True)
    assert token.expiry_date < LATER
    token = Token.objects.create(account=token.account, name="never", prefix="never", hashed_key="x")
    Grant.objects.create(token=token, topic="*", manage=True)
    assert change_token(browser, token, expiry_date=EARLIER).status_code == 302


def test_staff_can_prolong_a_token_whose_rights_they_have(make_token: Any, staff_api: Any) -> None:
    make_token(topics={"order.close": "produce"}, expiry_date=EARLIER)
    browser = staff_api(*TOKENS_ONLY, VIEW, OPERATE, *SCHEDULES)
    assert change_token(browser, Token.objects.get(), expiry_date=None).status_code == 302
    assert Token.objects.get().expiry_date is None


def set_active(browser: Any, account: ServiceAccount, active: bool, note: str = "") -> Any:
    address = reverse("admin:delaytasks_api_serviceaccount_change", args=[account.pk])
    return browser.client.post(address, {"note": note} | ({"active": "on"} if active else {}))


def test_staff_cannot_reactivate_an_account_with_more_rights_than_they_have(make_token: Any, staff_api: Any) -> None:
    make_token(topics={"order.close": "produce"})
    make_token(topics={"order.close": "manage"})
    account = ServiceAccount.objects.get()
    browser = staff_api(*ACCOUNTS, VIEW, OPERATE, *SCHEDULES)
    assert set_active(browser, account, True, "still active").status_code == 302
    assert set_active(browser, account, False).status_code == 302
    assert set_active(browser, account, False, "broken into").status_code == 302
    page = set_active(browser, account, True)
    assert "This account has tokens with rights that you may not grant" in page.content.decode()
    assert not ServiceAccount.objects.get().active
    Token.objects.filter(grants__manage=True).update(revoked=True)
    assert set_active(browser, account, True).status_code == 302
    assert ServiceAccount.objects.get().active


def test_an_expired_token_does_not_keep_an_account_inactive(make_token: Any, staff_api: Any) -> None:
    make_token(topics={"*": "manage"}, expiry_date=timezone.now() - timedelta(days=1))
    ServiceAccount.objects.update(active=False)
    assert set_active(staff_api(*ACCOUNTS), ServiceAccount.objects.get(), True).status_code == 302


# Reading by a token


def test_tokens_that_do_not_consume_see_no_secrets_of_bodies(make_token: Any, api: Any) -> None:
    """Otherwise staff, who see no secrets, would read them with a token that they may grant."""
    job = delaytasks.schedule("order.close", key="order:1", delay=60, body={"order": 7, "password": "hunter2"})
    for right, seen in (("produce", "••••••"), ("manage", "••••••"), ("consume", "hunter2")):
        client = api(make_token(topics={"order.close": right}))
        assert client.get(f"/api/jobs/{job.pk}/").json()["body"] == {"order": 7, "password": seen}
        peeked = client.post("/api/queue/", {"command": "peek", "id": "order:1"}).json()
        assert peeked["value"]["body"] == {"order": 7, "password": seen}


def test_a_topic_can_hide_everything(make_token: Any, api: Any, staff_api: Any) -> None:
    Topic.objects.update_or_create(name="order.close", defaults={"hide_bodies": True})
    job = delaytasks.schedule("order.close", key="order:1", delay=60, body={"order": 7041})
    address = f"/api/jobs/{job.pk}/"
    for client in (api(make_token(topics={"order.*": "produce manage"})), staff_api(VIEW)):
        assert client.get(address).json()["body"] == "••••••"
        assert "7041" not in client.get("/api/jobs/", topic="order.close").content.decode()
    assert api(make_token(topics={"order.*": "consume"})).get(address).json()["body"] == {"order": 7041}
    page = staff_api(VIEW, OPERATE).client.get(reverse("admin:delaytasks_job_change", args=[job.pk]))
    assert page.status_code == 200
    assert "7041" not in page.content.decode()


# A secret, and names of topics


def test_a_new_secret_is_in_no_cookie_and_in_no_other_page(staff_api: Any) -> None:
    browser = staff_api(*MANAGES)
    page = mint(browser, "order.close", "produce")
    prefix = Token.objects.get().prefix
    assert f"<code>{prefix}." in page.content.decode()
    cookies = [morsel.value for morsel in [*page.cookies.values(), *browser.client.cookies.values()]]
    assert not any(prefix in value or prefix in decoded(value) for value in cookies)
    assert "no-store" in page.headers["Cache-Control"]
    assert f"{prefix}." not in browser.client.get(reverse("admin:delaytasks_api_token_changelist")).content.decode()


def decoded(value: str) -> str:
    try:
        return str(signing.loads(value, salt="django.contrib.messages"))
    except signing.BadSignature:
        return ""


@pytest.fixture
def hidden_token(make_token: Any) -> Token:
    """A token with grants of a hidden and of a visible topic."""
    Topic.objects.create(name="secret.topic", visible_to=[999])
    Topic.objects.create(name="open.topic")
    make_token(topics={"secret.topic": "consume", "secret.*": "manage", "open.topic": "produce"})
    return Token.objects.get()


@pytest.mark.parametrize("page", ["list", "change", "delete", "delete account", "delete selected", "history"])
def test_no_page_of_a_token_names_topics_that_its_reader_may_not_see(
    page: str, hidden_token: Token, staff_api: Any
) -> None:
    browser = staff_api(*MANAGES, *ACCOUNTS, *DELETES).client
    if page == "history":
        boss = staff_api()
        boss.user.is_superuser = True
        boss.user.save()
        form = token_form(hidden_token.account, ("secret.other", "produce"))
        boss.client.post(reverse("admin:delaytasks_api_token_change", args=[hidden_token.pk]), form)
        assert LogEntry.objects.exists()
        assert Grant.objects.filter(topic="secret.other").exists()
    addresses = {
        "list": reverse("admin:delaytasks_api_token_changelist"),
        "change": reverse("admin:delaytasks_api_token_change", args=[hidden_token.pk]),
        "delete": reverse("admin:delaytasks_api_token_delete", args=[hidden_token.pk]),
        "delete account": reverse("admin:delaytasks_api_serviceaccount_delete", args=[hidden_token.account_id]),
        "history": reverse("admin:delaytasks_api_token_history", args=[hidden_token.pk]),
    }
    if page == "delete selected":
        form = {"action": "delete_selected", "_selected_action": [str(hidden_token.pk)]}
        answer = browser.post(addresses["list"], form)
    else:
        answer = browser.get(addresses[page])
    text = answer.content.decode()
    assert answer.status_code == 200
    assert "secret" not in text
    assert page == "delete account" or hidden_token.prefix in text
    if page == "list":
        assert "open.topic: produce" in text
        assert "2 hidden topics" in text


def test_who_sees_every_topic_sees_every_grant(hidden_token: Token, staff_api: Any) -> None:
    boss = staff_api()
    boss.user.is_superuser = True
    boss.user.save()
    text = boss.client.get(reverse("admin:delaytasks_api_token_changelist")).content.decode()
    assert "secret.topic: consume" in text
    assert "secret.*: manage" in text


def test_who_may_see_no_jobs_and_no_topics_sees_no_grants(make_token: Any, staff_api: Any) -> None:
    make_token(topics={"order.close": "consume"})
    text = staff_api("delaytasks_api.view_token").client.get(reverse("admin:delaytasks_api_token_changelist"))
    assert "order.close" not in text.content.decode()


# A page that is older than the row undoes no emergency measure


def test_an_account_stays_inactive_if_the_page_is_older(make_token: Any, staff_api: Any) -> None:
    make_token(topics={"order.close": "produce"})
    account = ServiceAccount.objects.get()
    browser = staff_api(*ACCOUNTS, VIEW, OPERATE, CONSUME, *SCHEDULES).client
    address = reverse("admin:delaytasks_api_serviceaccount_change", args=[account.pk])
    older = unchanged(browser.get(address))
    ServiceAccount.objects.update(active=False)
    assert browser.post(address, older | {"note": "ask Anna"}).status_code == 302
    account.refresh_from_db()
    assert (account.active, account.note) == (False, "ask Anna")
    changed: Any = AuditEntry.objects.get(action="account.changed").after
    assert (changed["active"], changed["note"]) == (False, "ask Anna")
    older = unchanged(browser.get(address))
    ServiceAccount.objects.update(active=True)
    assert browser.post(address, older | {"active": "on"}).status_code == 302  # both have done the same
    assert ServiceAccount.objects.get().active


def test_a_token_keeps_its_new_terms_and_grants_if_the_page_is_older(make_token: Any, staff_api: Any) -> None:
    make_token(topics={"order.close": "produce consume", "order.pay": "produce"}, rate_per_minute=60)
    token = Token.objects.get()
    browser = staff_api(*MANAGES, *ACCOUNTS, VIEW, OPERATE, MANAGE, CONSUME, *SCHEDULES).client
    address = reverse("admin:delaytasks_api_token_change", args=[token.pk])
    older = unchanged(browser.get(address))
    assert older["grants-0-topic"] == "order.close"
    expiry = timezone.now().replace(microsecond=7)
    Token.objects.update(expiry_date=expiry, rate_per_minute=1)
    Grant.objects.filter(topic="order.close").update(consume=False)
    page = browser.post(address, older | {"name": "web-2", "max_live_jobs": "5", "grants-0-manage": "on"})
    assert page.status_code == 302, page.context["errors"]
    token.refresh_from_db()
    assert (token.name, token.max_live_jobs, token.rate_per_minute, token.expiry_date) == ("web-2", 5, 1, expiry)
    assert [grant.rights for grant in Grant.objects.order_by("topic")] == [["produce", "manage"], ["produce"]]
    changed: Any = AuditEntry.objects.get(action="token.changed").after
    assert changed["rate_per_minute"] == 1


@pytest.mark.parametrize("kept", [True, False])
def test_a_forged_form_does_not_reactivate_an_account(kept: bool, make_token: Any, staff_api: Any) -> None:
    make_token(topics={"order.close": "manage"})
    ServiceAccount.objects.update(active=False)
    address = reverse("admin:delaytasks_api_serviceaccount_change", args=[ServiceAccount.objects.get().pk])
    forged = {"note": "", "initial-note": "", "active": "on", "initial-active": str(kept)}
    staff_api(*ACCOUNTS, VIEW, OPERATE, *SCHEDULES).client.post(address, forged)
    assert not ServiceAccount.objects.get().active
