"""Fixtures: clients of service accounts and of staff, in this process."""

import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.http import HttpResponse
from django.test import Client

from delaytasks.api.access import refusals, token_cache
from delaytasks.api.limits import live_jobs, portions
from delaytasks.api.models import Grant, ServiceAccount, Token
from tests.api.rest_client import TOPICS, Rest
from tests.support import asgi_client


class ApiClient:
    """A JSON client with the Bearer header of a token or the session of a user.

    An answer is Django's response; .json() reads it. `**headers` as in {"Accept": "..."}, with "_" for "-".
    """

    fast = False  # send POST requests of tokens through FastPath

    def __init__(self, secret: str | None = None, client: Client | None = None) -> None:
        self.client = client or Client()
        self.headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}

    def request(self, method: str, path: str, data: Any = None, **headers: str) -> HttpResponse:
        body = data if isinstance(data, bytes) else b"" if data is None else json.dumps(data).encode()
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        content_type = sent.pop("Content-Type", "application/json")
        if self.fast and method == "POST" and "Authorization" in sent:
            asgi_client.clear_caches()
            return asgi_client.request(method, path, body, content_type, sent)
        return self.client.generic(method, path, body, content_type=content_type, headers=sent)  # type: ignore[return-value]

    def get(self, path: str, **query: Any) -> HttpResponse:
        """GET; a query's list is given repeatedly."""
        return self.client.get(path, query, headers=self.headers)  # type: ignore[return-value]

    def post(self, path: str, data: Any = None, **headers: str) -> HttpResponse:
        return self.request("POST", path, data, **headers)


@pytest.fixture(autouse=True)
def _database(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests commit. Counts of refusals are cleared, and no token is in the cache."""
    token_cache.answers.clear()
    monkeypatch.setattr(refusals, "limiter", refusals.Limiter())
    portions.clear_cache()
    live_jobs.clear_cache()


@pytest.fixture
def make_token() -> Callable[..., str]:
    """make_token("php-shop", topics={"order.*": "produce consume"}, rate_per_minute=5) returns the secret."""

    def make(account: str = "php-shop", *, topics: Mapping[str, str] | None = None, **fields: Any) -> str:
        owner, _made = ServiceAccount.objects.get_or_create(name=account)
        token, secret = Token.objects.create_key(**{"name": "test", "account": owner} | fields)
        for topic, rights in ({"order.*": "produce consume"} if topics is None else topics).items():
            Grant.objects.create(token=token, topic=topic, **dict.fromkeys(rights.split(), True))
        return secret

    return make


# The modules whose tests run twice: through the views, and through FastPath in front of them.
BOTH_PATHS = {
    "test_bulk", "test_consumers", "test_fencing", "test_jobs", "test_lifecycle", "test_live_jobs", "test_lookup",
    "test_release_and_delete", "test_requests", "test_submit",
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.module.__name__.rpartition(".")[2] in BOTH_PATHS and "views_only" not in metafunc.fixturenames:
        metafunc.parametrize("_path", ["views", "fast"], indirect=True)


@pytest.fixture
def views_only() -> None:
    """For tests that replace a step of the views: test_groups.py has the same races of the fast path."""


@pytest.fixture(autouse=True)
def _path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the POST requests of tokens through FastPath if the parameter is "fast"."""
    monkeypatch.setattr(ApiClient, "fast", getattr(request, "param", "views") == "fast")


@pytest.fixture
def api() -> Callable[..., ApiClient]:
    """api(secret): a client of that token; api(): an unauthenticated client."""
    return ApiClient


@pytest.fixture
def staff_api() -> Callable[..., ApiClient]:
    """staff_api("delaytasks.view_job", ...): a client of a staff user with these permissions; .user is the user."""

    def make(*permissions: str, is_staff: bool = True, is_active: bool = True) -> ApiClient:
        user = User.objects.create_user(f"anna-{uuid4().hex[:6]}", password="x", is_staff=is_staff)
        for permission in permissions:
            app, codename = permission.split(".")
            user.user_permissions.add(Permission.objects.get(content_type__app_label=app, codename=codename))
        client = Client()
        client.force_login(user)
        if not is_active:
            User.objects.filter(pk=user.pk).update(is_active=False)
        found = ApiClient(client=client)
        found.user = user  # type: ignore[attr-defined]
        return found

    return make


# REST


@pytest.fixture
def rest_topics(settings: Any) -> None:
    """The topics mail.send, mail.print and sms.send are known by the settings only."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": TOPICS}


@pytest.fixture
def rest_of(make_token: Callable[..., str], api: Callable[..., ApiClient], rest_topics: None) -> Callable[..., Rest]:
    """rest_of("produce", "go"): a client of the account "go" with these rights on mail.* only."""

    def make(rights: str = "produce consume manage", account: str = "php") -> Rest:
        return Rest(api(make_token(account, topics={"mail.*": rights})))

    return make


@pytest.fixture
def rest(rest_of: Callable[..., Rest], db_clock: Any) -> Rest:
    """A client of php with every right on mail.*, with the database clock stopped."""
    return rest_of()
