"""Who is calling and what they may do: a service account with its token, or staff with Django's session."""

import abc
import enum
import logging
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, TypeVar

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, router, transaction
from django.db.models import Q
from django.utils import timezone
from rest_framework import serializers
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission

from .. import conf, engine, rights, stafflog, topics
from ..conflicts import retried_once
from ..models import Topic
from ..redaction import redacted
from .models import Grant, Token, matches

Answered = TypeVar("Answered")
logger = logging.getLogger("delaytasks")
SCHEME = "Bearer"
USED_AGAIN = timedelta(minutes=1)  # last_used_at is written no more often
NOBODY = Token.objects.key_generator.hash("nobody.has this")  # compared with when there is no such token


class Right(enum.StrEnum):
    """What may be granted. READ follows from any other."""

    READ = "read"
    PRODUCE = "produce"
    CONSUME = "consume"
    MANAGE = "manage"


AnyOf = Right | tuple[Right, ...]  # several: one of them is enough
GRANTED = (Right.PRODUCE, Right.CONSUME, Right.MANAGE)


def _each(right: AnyOf) -> tuple[Right, ...]:
    return (right,) if isinstance(right, Right) else right


class Caller(abc.ABC):
    """Who is calling. Answers from what is read once for a request, and says nothing of other topics.

    name                the account's, or the person's: Job.worker begins with it
    signature           what JobEvent.actor keeps; no person's name looks like that of a token
    identity            whom the rate limit counts; never shown
    rate_per_minute     requests
    max_request_bytes   of one request's body
    is_person           whether what they do is in Django's log, too
    """

    is_person = False

    name: str
    signature: str
    identity: str
    rate_per_minute: int
    max_request_bytes: int

    @abc.abstractmethod
    def _has(self, right: Right, topic: str) -> bool:
        """Whether this very right is there; READ is not asked for."""

    @abc.abstractmethod
    def still_valid(self) -> bool:
        """Whether the caller would be let in now, as the database has it. From here on its grants are those of now."""

    @abc.abstractmethod
    def may_pause(self, topic: str) -> bool:
        """Whether the caller may pause and resume the topic."""

    @abc.abstractmethod
    def shown_body(self, body: Any) -> Any:
        """A job's body, as the caller may see it."""

    @abc.abstractmethod
    def require_reason(self, topic: str, reason: str, field: str = "reason") -> None:
        """Nothing, if there is a reason, or none is asked for. Raises ValidationError, which names the field."""

    @abc.abstractmethod
    def logged(self, do: Callable[[], Answered], using: str) -> Answered:
        """What do() answers, which log()s what it did: in one transaction, for those whose doings are logged."""

    @abc.abstractmethod
    def log(self, rows: Iterable[Any], what: str, reason: str = "", *, added: bool = False) -> None:
        """Say in Django's log what the caller did to these rows, if that is a person."""

    def may(self, right: AnyOf, topic: str) -> bool:
        """Whether the caller has the right on the topic; of several, any of them."""
        wanted = _each(right)
        return any(self._has(each, topic) for each in (GRANTED if Right.READ in wanted else wanted))

    def sees(self, topic: str) -> bool:
        """Whether the caller has any right on the topic. Without one it does not exist for them."""
        return self.may(Right.READ, topic)

    def require(self, right: AnyOf, topic: str) -> None:
        """Nothing, if the caller has the right; of several, any.

        Raises PermissionDenied, in the same words whether or not the topic exists.
        """
        if not self.may(right, topic):
            raise self._refusal(" or ".join(_each(right)), topic)

    def require_pause(self, topic: str) -> None:
        """Nothing, if the caller may pause the topic. Raises PermissionDenied as require() does."""
        if not self.may_pause(topic):
            raise self._refusal(Right.MANAGE, topic)

    def _refusal(self, wanted: str, topic: str) -> PermissionDenied:
        if not self.sees(topic):
            return PermissionDenied(f"Nothing is granted to {self.name} on topic {topic!r:.120}.")
        return PermissionDenied(f"{self.name} has no right to {wanted} on topic {topic!r:.120}.")

    def topics(self, using: str, right: AnyOf = Right.READ) -> list[str]:
        """The known topics on which the caller has the right, sorted: with a handler, a setting or a row."""
        known = {*topics.known(), *Topic.objects.using(using).values_list("name", flat=True)}
        return sorted(topic for topic in known if self.may(right, topic))

    def worker(self, consumer: str = "") -> str:
        """What Job.worker keeps of a reservation: the name and, after a slash, which consumer of it."""
        return f"{self.name}/{consumer}" if consumer else self.name


class TokenCaller(Caller):
    """A service account, by one of its tokens. Nobody asks it why, and what it does is in the events alone."""

    def __init__(self, token: Token, grants: Iterable[Grant]) -> None:
        config = conf.get()
        self.token = token
        self.grants = list(grants)
        self.name = token.account.name
        self.signature = f"{self.name} (token {token.prefix})"
        self.identity = f"token:{token.prefix}"
        self.rate_per_minute = token.rate_per_minute or config.api_rate_per_minute
        self.max_request_bytes = token.max_request_bytes or config.api_max_request_bytes

    def _has(self, right: Right, topic: str) -> bool:
        return any(getattr(grant, right) and matches(grant.topic, topic) for grant in self.grants)

    def may_pause(self, topic: str) -> bool:
        return self.may(Right.MANAGE, topic)

    def still_valid(self) -> bool:
        valid = Token.objects.usable().filter(pk=self.token.pk).exists()
        self.grants = _grants(self.token) if valid else []
        return bool(valid)

    def shown_body(self, body: Any) -> Any:
        return body

    def require_reason(self, topic: str, reason: str, field: str = "reason") -> None:
        return

    def logged(self, do: Callable[[], Answered], using: str) -> Answered:
        return do()

    def log(self, rows: Iterable[Any], what: str, reason: str = "", *, added: bool = False) -> None:
        return


class StaffCaller(Caller):
    """A person of the staff, by Django's session: what rights.py lets them see and do, and never as a consumer."""

    is_person = True

    def __init__(self, user: Any) -> None:
        config = conf.get()
        self.user, self.using = user, engine.alias()
        self.name = self.signature = user.get_username()
        self.identity = f"staff:{user.pk}"
        self.rate_per_minute = config.api_rate_per_minute
        self.max_request_bytes = config.api_max_request_bytes

    def may(self, right: AnyOf, topic: str) -> bool:
        return any(self._has(each, topic) for each in _each(right))

    def _has(self, right: Right, topic: str) -> bool:
        allowed = rights.views if right is Right.READ else rights.operates
        return right is not Right.CONSUME and allowed(self.user) and self._may_see(topic)

    def may_pause(self, topic: str) -> bool:
        return rights.manages(self.user) and self._may_see(topic)

    def _may_see(self, topic: str) -> bool:
        return rights.may_see(self.user, topic, self.using)

    def still_valid(self) -> bool:
        users = get_user_model()._default_manager.using(self.user._state.db)
        now = users.filter(pk=self.user.pk, is_active=True, is_staff=True).first()
        self.user = now or AnonymousUser()  # as read now: what it was asked before is not remembered
        return now is not None

    def shown_body(self, body: Any) -> Any:
        return redacted(body, conf.get().redact)

    def require_reason(self, topic: str, reason: str, field: str = "reason") -> None:
        if not reason and rights.asking(self.using, [topic]):
            raise serializers.ValidationError({field: f"Topic {topic} asks for a reason: say why."})

    def logged(self, do: Callable[[], Answered], using: str) -> Answered:
        def whole() -> Answered:
            with transaction.atomic(using):
                return do()

        return retried_once(whole, using)

    def log(self, rows: Iterable[Any], what: str, reason: str = "", *, added: bool = False) -> None:
        stafflog.write(self.user.pk, rows, what, reason, flag=stafflog.ADDED if added else stafflog.CHANGED)


def _grants(token: Token) -> list[Grant]:
    return list(Grant.objects.using(token._state.db).filter(token=token.pk))


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <token>`. Whatever is wrong with a token, the answer is the same."""

    def authenticate(self, request: Any) -> tuple[AnonymousUser, Caller] | None:
        scheme, _space, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            return None
        token = find_token(secret.strip())
        if token is None:
            raise AuthenticationFailed
        note_use(token)
        return AnonymousUser(), TokenCaller(token, _grants(token))

    def authenticate_header(self, request: Any) -> str:
        return SCHEME


class StaffAuthentication(SessionAuthentication):
    """Django's session, with its CSRF token, of active staff. For anybody else there is no session here."""

    def authenticate(self, request: Any) -> tuple[Any, Caller] | None:
        user = getattr(request._request, "user", None)
        if user is None or not (user.is_active and user.is_staff):
            return None
        self.enforce_csrf(request)
        return user, StaffCaller(user)


class HasCaller(BasePermission):
    """Nobody comes in without a token or as staff."""

    def has_permission(self, request: Any, view: Any) -> bool:
        return isinstance(request.auth, Caller)


def find_token(secret: str) -> Token | None:
    """The token that this is the secret of, if it is accepted now; None whatever is wrong with it.

    One query and one comparison either way: how long it takes does not tell which prefixes exist.
    """
    prefix = secret.partition(".")[0]
    plausible = len(secret) <= 150 and secret.isascii() and secret.isprintable()
    token = Token.objects.usable().filter(prefix=prefix if plausible else "").first()
    if token is None:
        Token.objects.key_generator.verify(secret, NOBODY)
        return None
    return token if token.is_valid(secret) else None


def note_use(token: Token) -> None:
    """Write down that the token was used, once a minute. That it cannot be written is no reason to turn it away."""
    now = timezone.now()
    unused = Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - USED_AGAIN)
    if token.last_used_at is not None and token.last_used_at > now - USED_AGAIN:
        return
    using = router.db_for_write(Token)
    try:
        with transaction.atomic(using):
            Token.objects.using(using).filter(unused, pk=token.pk).update(last_used_at=now)
    except DatabaseError:
        logger.warning("last_used_at of token %s could not be written", token.prefix, exc_info=True)
