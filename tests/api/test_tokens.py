"""Create, list and revoke tokens, with the command and in the admin."""

import json
import re
import subprocess
import sys
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.urls import reverse
from django.utils import timezone

from delaytasks.api.access import tokens
from delaytasks.api.apps import ApiConfig
from delaytasks.api.checks import check_shared_cache
from delaytasks.api.models import Grant, ServiceAccount, Token
from delaytasks.models import Topic

pytestmark = pytest.mark.urls("tests.api.urls_for_permissions")


def run(*args: str) -> str:
    out = StringIO()
    call_command("delaytasks", "token", *args, stdout=out)
    return out.getvalue()


def refused(*args: str) -> CommandError:
    with pytest.raises(CommandError) as caught:
        run(*args)
    return caught.value


def made(*args: str) -> str:
    """Create a token with the command and return its secret."""
    secret: str = json.loads(run("make", "--account", "php-shop", *args, "--json"))["secret"]
    return secret


# The rows


def test_secret_is_not_stored(make_token: Any) -> None:
    secret = make_token()
    prefix, _, rest = secret.partition(".")
    row = Token.objects.values().get()
    assert row["prefix"] == prefix
    assert len(rest) >= 32
    assert not any(rest in str(value) for value in row.values())


def test_token_id_does_not_reveal_the_hash(make_token: Any) -> None:
    make_token()
    assert isinstance(Token.objects.get().pk, int)


def test_a_revoked_token_stays_revoked(make_token: Any) -> None:
    make_token(revoked=True)
    token = Token.objects.get()
    token.revoked = False
    with pytest.raises(ValidationError):
        token.save()


@pytest.mark.parametrize(
    "pattern", ["", "orders*", "*.close", "order.*.late", "order close", "**", ".*", "é.*", "a" * 101]
)
def test_grant_topic_is_a_name_a_prefix_or_a_star(pattern: str, make_token: Any) -> None:
    make_token(topics={})
    with pytest.raises(ValidationError) as caught:
        Grant(token=Token.objects.get(), topic=pattern, consume=True).full_clean()
    assert set(caught.value.message_dict) == {"topic"}


def test_grant_without_rights_is_invalid(make_token: Any) -> None:
    make_token(topics={})
    with pytest.raises(ValidationError, match="at least one"):
        Grant(token=Token.objects.get(), topic="order.close").full_clean()
    with pytest.raises(IntegrityError), transaction.atomic():
        Grant.objects.create(token=Token.objects.get(), topic="order.close")


@pytest.mark.parametrize("name", ["celery@host", "php/shop", "", "php shop", "-php", "php\n", "x" * 101])
def test_account_name_cannot_look_like_a_worker_or_a_consumer(name: str) -> None:
    with pytest.raises(ValidationError):
        ServiceAccount(name=name).full_clean()


# The command


def test_created_token_has_the_given_rights(api: Any) -> None:
    client = api(made("--produce", "order.*", "--consume", "order.*", "--manage", "refund.check"))
    for right, topic, status in (
        ("produce", "order.close", 200),
        ("consume", "order.close", 200),
        ("manage", "order.close", 403),
        ("manage", "refund.check", 200),
        ("consume", "refund.check", 403),
    ):
        assert client.get(f"/may/{right}/{topic}/").status_code == status, (right, topic)


def test_the_secret_is_shown_once_with_an_example() -> None:
    text = run("make", "--account", "php-shop", "--produce", "order.close")
    secret = re.search(r"^ +(\w{8}\.\w{32})$", text, re.MULTILINE)
    assert secret
    assert f'curl -H "Authorization: Bearer {secret[1]}"' in text
    assert secret[1].partition(".")[2] not in run("list") + run("list", "--json")


def test_account_is_created_once() -> None:
    made("--produce", "order.close")
    made("--produce", "order.close")
    assert ServiceAccount.objects.get().tokens.count() == 2


def test_created_token_has_the_given_options() -> None:
    made("--produce", "order.close", "--expires-days", "1.5", "--rate-per-minute", "7", "--name", "web-1")
    token = Token.objects.get()
    assert (token.rate_per_minute, token.name) == (7, "web-1")
    assert abs(token.expiry_date - timezone.now() - timedelta(days=1.5)) < timedelta(minutes=1)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["make", "--account", "php-shop"], "Give at least one of"),
        (["make", "--account", "php shop", "--produce", "order.close"], "--account: "),
        (["make", "--account", "php-shop", "--produce", "order*"], "TOPIC: 'order*'"),
        (["make", "--account", "php-shop", "--produce", "*", "--name", "x" * 51], "--name: "),
        (["revoke"], "PREFIX"),
        (["revoke", "abcdefgh", "--account", "a"], "PREFIX"),
    ],
)
def test_invalid_input_is_named_and_nothing_is_created(args: list[str], said: str) -> None:
    error = refused(*args)
    assert said in str(error)
    assert error.returncode == 2
    assert not Token.objects.exists()
    assert not ServiceAccount.objects.exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--produce", "*"], "--account"),
        (["--account", "a", "--produce", "*", "--expires-days", "0"], "'0' is not a number of days"),
        (["--account", "a", "--produce", "*", "--expires-days", "nan"], "'nan' is not a number of days"),
        (["--account", "a", "--produce", "*", "--rate-per-minute", "0"], "'0' is not a whole number"),
    ],
)
def test_invalid_argument_is_named(args: list[str], said: str) -> None:
    assert said in str(refused("make", *args))
    assert not ServiceAccount.objects.exists()


def test_an_inactive_account_gets_no_token() -> None:
    ServiceAccount.objects.create(name="php-shop", active=False)
    error = refused("make", "--account", "php-shop", "--produce", "*")
    assert "not active" in str(error)
    assert error.returncode == 2


def test_token_list_shows_grants_and_status(make_token: Any) -> None:
    make_token("php-shop", topics={"order.*": "produce consume"})
    make_token("old-shop", topics={"*": "manage"}, revoked=True)
    make_token("late-shop", expiry_date=timezone.now() - timedelta(days=1))
    lines = run("list").splitlines()
    assert [line.split()[1] for line in lines] == ["account", "late-shop", "old-shop", "php-shop"]
    assert [word in line for word, line in zip(("expired", "revoked", "accepted"), lines[1:], strict=True)] == [
        True
    ] * 3
    assert "order.*: produce consume" in lines[3]
    (only,) = json.loads(run("list", "--account", "old-shop", "--json"))
    assert only["grants"] == [{"topic": "*", "rights": ["manage"]}]
    assert only["status"] == "revoked"
    assert run("list", "--account", "nobody") == "No tokens.\n"


def test_json_option_is_accepted_before_and_after_the_inner_verb() -> None:
    assert json.loads(run("--json", "list")) == json.loads(run("list", "--json")) == []


def test_one_token_is_revoked_by_its_prefix(make_token: Any, api: Any) -> None:
    first, second = make_token(), make_token()
    prefix = first.partition(".")[0]
    assert run("revoke", prefix) == f"revoked: {prefix}\n"
    assert api(first).get("/probe/").status_code == 401
    assert api(second).get("/probe/").status_code == 200


def test_all_tokens_of_an_account_are_revoked_at_once(make_token: Any, api: Any) -> None:
    mine, also_mine, other = make_token("php-shop"), make_token("php-shop"), make_token("go-shop")
    assert len(json.loads(run("revoke", "--account", "php-shop", "--json"))["revoked"]) == 2
    assert [api(each).get("/probe/").status_code for each in (mine, also_mine, other)] == [401, 401, 200]


def test_revoking_missing_or_revoked_tokens_says_so(make_token: Any) -> None:
    error = refused("revoke", "abcdefgh")
    assert (str(error), error.returncode) == ("There is no token with the prefix 'abcdefgh'.", 1)
    make_token("php-shop", revoked=True)
    error = refused("revoke", "--account", "php-shop")
    assert (str(error), error.returncode) == ("All tokens with the account 'php-shop' are revoked already.", 1)


def test_without_the_app_the_command_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "delaytasks.api")
    for args in (["list"], ["revoke", "abcdefgh"], ["make", "--account", "a", "--produce", "*"]):
        error = refused(*args)
        assert '"delaytasks.api" to INSTALLED_APPS' in str(error)
        assert error.returncode == 1


def test_command_does_not_import_the_api() -> None:
    code = (
        "import sys, django\n"
        "from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django.contrib.contenttypes', 'delaytasks'])\n"
        "django.setup()\n"
        "import delaytasks.management.commands.delaytasks\n"
        "print([m for m in sys.modules if m.startswith(('rest_framework', 'drf_spectacular', 'delaytasks.api'))])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_missing_library_app_is_named(monkeypatch: Any) -> None:
    monkeypatch.setattr(apps, "is_installed", lambda name: name != "rest_framework_api_key")
    with pytest.raises(
        ImproperlyConfigured, match=r"delaytasks\.api requires rest_framework_api_key in INSTALLED_APPS"
    ):
        ApiConfig.create("delaytasks.api").import_models()


@pytest.mark.parametrize(
    ("backend", "warned"), [("locmem.LocMemCache", True), ("dummy.DummyCache", True), ("redis.RedisCache", False)]
)
def test_unshared_cache_gives_a_warning(backend: str, warned: bool, settings: Any) -> None:
    settings.CACHES = {"default": {"BACKEND": f"django.core.cache.backends.{backend}", "LOCATION": "redis://x"}}
    assert [message.id for message in check_shared_cache()] == (["delaytasks.W011"] if warned else [])


# The admin

ADMIN = pytest.mark.urls("project.urls")
MANAGES = (
    *(f"delaytasks_api.{verb}_token" for verb in ("view", "add", "change")),
    "delaytasks_api.grant_consume", "delaytasks.view_job", "delaytasks.operate_job", "delaytasks.change_topic",
    "delaytasks.add_schedule", "delaytasks.change_schedule", "delaytasks.delete_schedule",
)  # fmt: skip
ACCOUNTS = tuple(f"delaytasks_api.{verb}_serviceaccount" for verb in ("view", "add", "change"))


def token_form(account: ServiceAccount, *grants: tuple[str, str], first: int = 0, **fields: str) -> dict[str, str]:
    """Return the form data of a token's page."""
    data = {"account": str(account.pk), "name": "web-1", "expiry_date_0": "", "expiry_date_1": ""} | fields
    data |= {"grants-TOTAL_FORMS": str(len(grants)), "grants-INITIAL_FORMS": str(first)}
    for number, (topic, right) in enumerate(grants):
        data |= {f"grants-{number}-topic": topic, f"grants-{number}-{right}": "on"}
    return data


@ADMIN
def test_token_created_in_the_admin_shows_its_secret_once(staff_api: Any, api: Any) -> None:
    browser = staff_api(*MANAGES, *ACCOUNTS).client
    form = token_form(ServiceAccount.objects.create(name="php-shop"), ("order.*", "consume"))
    page = browser.post(reverse("admin:delaytasks_api_token_add"), form)
    (secret,) = re.findall(r"<code>(\w{8}\.\w{32})</code>", page.content.decode())
    assert tokens.list_tokens().get().prefix == secret.partition(".")[0]
    from delaytasks.api.access.permissions import find_token

    assert find_token(secret)
    assert secret not in browser.get(reverse("admin:delaytasks_api_token_changelist")).content.decode()


@ADMIN
def test_the_admin_never_shows_the_hash(staff_api: Any, make_token: Any) -> None:
    make_token()
    token = Token.objects.get()
    browser = staff_api(*MANAGES).client
    for page in (
        browser.get(reverse("admin:delaytasks_api_token_changelist")),
        browser.get(reverse("admin:delaytasks_api_token_change", args=[token.pk])),
    ):
        assert page.status_code == 200
        assert token.prefix in page.content.decode()
        assert token.hashed_key.partition("$$")[2] not in page.content.decode()


@pytest.mark.on_both
@ADMIN
def test_admin_list_of_tokens_needs_a_constant_number_of_queries(
    staff_api: Any, make_token: Any, django_assert_max_num_queries: Any
) -> None:
    for number in range(10):
        make_token(f"shop-{number}")
    browser = staff_api(*MANAGES).client
    with django_assert_max_num_queries(12):
        page = browser.get(reverse("admin:delaytasks_api_token_changelist")).content.decode()
    assert "order.*: produce consume" in page


@ADMIN
def test_revoking_tokens_in_the_admin_is_logged(staff_api: Any, make_token: Any) -> None:
    make_token()
    make_token(revoked=True)
    browser = staff_api(*MANAGES).client
    form = {"action": "revoke", "_selected_action": [str(token.pk) for token in Token.objects.all()]}
    page = browser.post(reverse("admin:delaytasks_api_token_changelist"), form, follow=True)
    assert "1 token revoked" in page.content.decode()
    assert not Token.objects.filter(revoked=False).exists()
    assert [entry.change_message for entry in LogEntry.objects.all()] == ["Revoked."]


@ADMIN
def test_view_permission_does_not_allow_revoking_or_changing(staff_api: Any, make_token: Any) -> None:
    make_token()
    token = Token.objects.get()
    browser = staff_api("delaytasks_api.view_token").client
    form = {"action": "revoke", "_selected_action": [str(token.pk)]}
    browser.post(reverse("admin:delaytasks_api_token_changelist"), form)
    address = reverse("admin:delaytasks_api_token_change", args=[token.pk])
    page = browser.get(address)
    assert page.status_code == 200
    assert b'value="order.*"' not in page.content
    assert browser.post(address, token_form(token.account)).status_code == 403
    token.refresh_from_db()
    assert not token.revoked


@ADMIN
def test_permission_to_change_a_token_includes_its_grants(staff_api: Any, make_token: Any) -> None:
    make_token(topics={"order.*": "consume"})
    token = Token.objects.get()
    browser = staff_api(*MANAGES).client
    form = token_form(token.account, ("order.close", "produce"), first=1)
    form |= {"grants-0-id": str(Grant.objects.get().pk), "grants-0-token": str(token.pk)}
    address = reverse("admin:delaytasks_api_token_change", args=[token.pk])
    assert browser.post(address, form).status_code == 302
    grant = Grant.objects.get()
    assert (grant.topic, grant.rights) == ("order.close", ["produce"])


@pytest.fixture
def limited(staff_api: Any) -> Any:
    """A client of a user who manages tokens and does not see secret.topic."""
    Topic.objects.create(name="secret.topic", visible_to=[999])
    Topic.objects.create(name="open.topic")
    return staff_api(*MANAGES, *ACCOUNTS, "delaytasks_api.delete_token").client


@ADMIN
@pytest.mark.parametrize(
    ("topic", "granted"),
    [("*", False), ("secret.*", False), ("open.*", False), ("secret.topic", False), ("no.such", False),
     ("open.topic", True)],
)  # fmt: skip
def test_users_cannot_grant_hidden_topics(limited: Any, topic: str, granted: bool) -> None:
    """A prefix is always refused, so that the response does not reveal hidden topics."""
    form = token_form(ServiceAccount.objects.create(name="php-shop"), (topic, "manage"))
    page = limited.post(reverse("admin:delaytasks_api_token_add"), form)
    assert Token.objects.exists() is granted
    if not granted:
        assert "You do not see every topic" in page.content.decode()


@ADMIN
def test_grant_of_a_hidden_topic_is_neither_shown_nor_changed(limited: Any, make_token: Any) -> None:
    make_token(topics={"secret.topic": "consume", "open.topic": "consume"})
    token = Token.objects.get()
    hidden, seen = Grant.objects.get(topic="secret.topic"), Grant.objects.get(topic="open.topic")
    address = reverse("admin:delaytasks_api_token_change", args=[token.pk])
    assert "secret.topic" not in limited.get(address).content.decode()
    for grant in (seen, hidden):
        own = {"grants-0-id": str(grant.pk), "grants-0-token": str(token.pk), "grants-0-manage": "on"}
        limited.post(address, token_form(token.account, (grant.topic, "consume"), first=1) | own)
        limited.post(
            address, token_form(token.account, (grant.topic, "consume"), first=1) | own | {"grants-0-DELETE": "1"}
        )
    assert [(grant.topic, grant.rights) for grant in Grant.objects.all()] == [("secret.topic", ["consume"])]
    limited.post(address, token_form(token.account, name="web-2"))
    assert Token.objects.get().name == "web-2"


@ADMIN
def test_users_who_see_every_topic_can_grant_any(limited: Any, staff_api: Any) -> None:
    client = staff_api(*MANAGES, *ACCOUNTS)
    client.user.is_superuser = True
    client.user.save()
    form = token_form(ServiceAccount.objects.create(name="php-shop"), ("*", "manage"))
    client.client.post(reverse("admin:delaytasks_api_token_add"), form)
    assert Grant.objects.get().topic == "*"


@ADMIN
def test_a_token_revoked_while_its_page_is_saved_stays_revoked(
    staff_api: Any, make_token: Any, monkeypatch: Any
) -> None:
    make_token()
    token = Token.objects.get()
    save = Token.save

    def revoked_first(self: Token, **kwargs: Any) -> None:
        Token.objects.filter(pk=self.pk).update(revoked=True)
        save(self, **kwargs)

    monkeypatch.setattr(Token, "save", revoked_first)
    address = reverse("admin:delaytasks_api_token_change", args=[token.pk])
    staff_api(*MANAGES).client.post(address, token_form(token.account, name="web-2"))
    token.refresh_from_db()
    assert (token.revoked, token.name) == (True, "web-2")


@ADMIN
def test_account_name_cannot_be_changed(staff_api: Any, make_token: Any) -> None:
    make_token("php-shop")
    account = ServiceAccount.objects.get()
    address = reverse("admin:delaytasks_api_serviceaccount_change", args=[account.pk])
    staff_api(*ACCOUNTS).client.post(address, {"name": "go-shop", "note": "ask Anna"})
    account.refresh_from_db()
    assert (account.name, account.note, account.active) == ("php-shop", "ask Anna", False)


@ADMIN
def test_accounts_are_listed_with_the_number_of_their_tokens(staff_api: Any, make_token: Any) -> None:
    make_token("php-shop")
    make_token("php-shop")
    page = staff_api(*ACCOUNTS).client.get(reverse("admin:delaytasks_api_serviceaccount_changelist"))
    assert f'?account__id__exact={ServiceAccount.objects.get().pk}">2</a>' in page.content.decode()
