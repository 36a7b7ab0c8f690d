"""Callers: service accounts with tokens, staff, and a small client for either, in this process."""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.auth.models import Permission, User
from django.core.cache import cache
from django.http import HttpResponse
from django.test import Client

from delaytasks import bells
from delaytasks.api.models import Grant, ServiceAccount, Token
from tests.api.rest_client import TOPICS, Rest


class ApiClient:
    """JSON both ways, with the Bearer header of one token or the session of one person.

    An answer is Django's response; .json() reads it. `**headers` as in {"Accept": "..."}, with "_" for "-".
    """

    def __init__(self, secret: str | None = None, client: Client | None = None) -> None:
        self.client = client or Client()
        self.headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}

    def request(self, method: str, path: str, data: Any = None, **headers: str) -> HttpResponse:
        body = data if isinstance(data, bytes) else b"" if data is None else json.dumps(data).encode()
        sent = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        content_type = sent.pop("Content-Type", "application/json")
        return self.client.generic(method, path, body, content_type=content_type, headers=sent)  # type: ignore[return-value]

    def get(self, path: str, **query: Any) -> HttpResponse:
        """GET; a query's list is given repeatedly."""
        return self.client.get(path, query, headers=self.headers)  # type: ignore[return-value]

    def post(self, path: str, data: Any = None, **headers: str) -> HttpResponse:
        return self.request("POST", path, data, **headers)


@pytest.fixture(autouse=True)
def _database(transactional_db: None) -> Iterator[None]:
    """Requests commit; and no test inherits the counts of another."""
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def make_token() -> Callable[..., str]:
    """make_token("php-shop", topics={"order.*": "produce consume"}, rate_per_minute=5) -> its secret."""

    def make(account: str = "php-shop", *, topics: Mapping[str, str] | None = None, **fields: Any) -> str:
        owner, _made = ServiceAccount.objects.get_or_create(name=account)
        token, secret = Token.objects.create_key(**{"name": "test", "account": owner} | fields)
        for topic, rights in ({"order.*": "produce consume"} if topics is None else topics).items():
            Grant.objects.create(token=token, topic=topic, **dict.fromkeys(rights.split(), True))
        return secret

    return make


@pytest.fixture
def api() -> Callable[..., ApiClient]:
    """api(secret) -> a client of that token; api() -> of nobody."""
    return ApiClient


@pytest.fixture
def staff_api() -> Callable[..., ApiClient]:
    """staff_api("delaytasks.view_job", ...) -> a client of a staff user with these permissions; .user is who."""

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
def rest_topics(settings: Any) -> Iterator[None]:
    """mail.send, mail.print and sms.send are known, by the settings alone."""
    settings.DELAYTASKS = {**settings.DELAYTASKS, "TOPICS": TOPICS}
    bells.forget_terms()
    yield
    bells.forget_terms()


@pytest.fixture
def rest_of(make_token: Callable[..., str], api: Callable[..., ApiClient], rest_topics: None) -> Callable[..., Rest]:
    """rest_of("produce", "go") -> an account of that name with these rights on mail.*, and none on any other topic."""

    def make(rights: str = "produce consume manage", account: str = "php") -> Rest:
        return Rest(api(make_token(account, topics={"mail.*": rights})))

    return make


@pytest.fixture
def rest(rest_of: Callable[..., Rest], db_clock: Any) -> Rest:
    """php, with every right on mail.*, at a time that stands still."""
    return rest_of()
