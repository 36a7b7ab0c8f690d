"""Authentication and permissions: service accounts with tokens, staff with Django's session."""

import abc
import enum
import functools
import logging
from collections.abc import Callable, Collection, Hashable, Iterable
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

from django.contrib.auth import get_user_model
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, router, transaction
from django.db.models import Q
from django.utils import timezone
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.exceptions import PermissionDenied as RequestDenied
from rest_framework.permissions import BasePermission

from ... import admin_log, conf, databases, permissions, topics
from ...admin_log import Action
from ...db.retries import in_transaction
from ...jobs import audit_log
from ...redaction import HIDDEN, redacted
from ..models import Grant, Token, matches
from . import refusals, token_cache

Returned = TypeVar("Returned")
logger = logging.getLogger("delaytasks")
SCHEME = "Bearer"
MAX_CACHED = 1000  # answers that Rights keeps for one token
LAST_USED_INTERVAL = timedelta(minutes=1)  # minimum time between two writes of last_used_at
# Verified if no token has the prefix, so that the request takes as long as for a wrong secret.
DUMMY_HASH = Token.objects.key_generator.hash("nobody.has this")


class Right(enum.StrEnum):
    """A right on a topic. Each granted right except SUBMIT includes READ."""

    READ = "read"
    SUBMIT = "submit"  # create jobs without seeing any, not even one's own
    PRODUCE = "produce"
    CONSUME = "consume"
    MANAGE = "manage"


class ScheduleRight(enum.Enum):
    """An operation on schedules: the rights of which a token needs one, and the permission that staff need."""

    READ = (Right.READ,), "view"
    CREATE = (Right.PRODUCE,), "add"
    CHANGE = (Right.PRODUCE,), "change"  # its times, its job and its policies
    OPERATE = (Right.PRODUCE, Right.MANAGE), "change"  # pause, resume, run now, backfill
    DELETE = (Right.PRODUCE, Right.MANAGE), "delete"

    @property
    def rights(self) -> tuple[Right, ...]:
        return self.value[0]

    @property
    def permission(self) -> str:
        return f"delaytasks.{self.value[1]}_schedule"

    def is_of(self, rights: Collection[str]) -> bool:
        """Return whether a token with these granted rights may do this."""
        return bool(set(rights) & set(INCLUDING_READ if Right.READ in self.rights else self.rights))

    def allows(self, user: Any) -> bool:
        """Return whether the staff user may do this. As in the admin, the permission to change includes viewing."""
        return user.has_perm(self.permission) or (self is ScheduleRight.READ and ScheduleRight.CHANGE.allows(user))


AnyOf = Right | tuple[Right, ...]  # of a tuple of rights, one is enough
INCLUDING_READ = (Right.PRODUCE, Right.CONSUME, Right.MANAGE)
CREATE = (Right.PRODUCE, Right.SUBMIT)  # one of these is needed to create a job with on_conflict="reject"


def _as_tuple(right: AnyOf) -> tuple[Right, ...]:
    return (right,) if isinstance(right, Right) else right


class Caller(abc.ABC):
    """The authenticated caller of a request. Rights are read once per request; topics without rights stay hidden.

    name                name of the account or the user; Job.worker begins with it
    signature           stored in JobEvent.actor; a user's name never looks like a token's signature
    identity            key of the rate limit; never shown
    rate_per_minute     limit of requests
    max_request_bytes   limit of one request's body
    producer            stored with each job that the caller creates; None: its jobs are not counted
    max_live_jobs       limit of live jobs of this producer
    is_person           whether changes are also written to Django's admin log
    source              address and path of the request, for the audit log
    """

    is_person = False
    source = audit_log.Source()
    producer: str | None = None
    max_live_jobs = 0

    name: str
    signature: str
    identity: str
    rate_per_minute: int
    max_request_bytes: int

    @abc.abstractmethod
    def _has(self, right: Right, topic: str) -> bool:
        """Return whether the caller has exactly this right. For tokens, `right` is never READ: see may()."""

    @abc.abstractmethod
    def still_valid(self) -> bool:
        """Read the caller and its grants again from the database. Return whether the caller is still accepted."""

    def is_current(self) -> bool:
        """Return whether no token, grant or account is known to have changed since the caller was read."""
        return True

    @abc.abstractmethod
    def may_pause(self, topic: str) -> bool:
        """Return whether the caller may pause and resume the topic."""

    @abc.abstractmethod
    def may_schedule(self, right: ScheduleRight, topic: str) -> bool:
        """Return whether the caller may do this operation on schedules of the topic."""

    @functools.cached_property
    def hidden_topics(self) -> set[str]:
        """The topics whose bodies are hidden. All callers have the same."""
        return permissions.topics_hiding_bodies(databases.alias())

    def shown_body(self, body: Any, topic: str) -> Any:
        """Return the body of a job of this topic, redacted for this caller."""
        return HIDDEN if topic in self.hidden_topics else redacted(body, conf.get().redact)

    @abc.abstractmethod
    def require_reason(self, topic: str, reason: str, field: str = "reason") -> None:
        """Raise ValidationError for `field` if the topic requires a reason from this caller and `reason` is empty."""

    @abc.abstractmethod
    def run_logged(self, do: Callable[[], Returned], using: str) -> Returned:
        """Call do(), which calls log(), and return the result of do(). For staff, this is one transaction."""

    def run_audited(self, do: Callable[[], Returned], using: str) -> Returned:
        """Call do(), which calls log(), in one transaction, and return the result of do()."""
        return in_transaction(using, do)

    @abc.abstractmethod
    def log(self, rows: Iterable[Any], action: Action, reason: str = "", *, added: bool = False, **state: Any) -> None:
        """Write an action on these rows to the audit log and, if the caller is a person, to Django's admin log.

        state   before, after: values of the row for the audit log
        """

    def may(self, right: AnyOf, topic: str) -> bool:
        """Return whether the caller has the right on the topic; of a tuple of rights, one is enough."""
        rights = {*_as_tuple(right)}
        if Right.READ in rights:
            rights = {*rights - {Right.READ}, *INCLUDING_READ}
        return any(self._has(each, topic) for each in rights)

    def sees(self, topic: str) -> bool:
        """Return whether the caller may read the topic's jobs. Otherwise they are hidden from it."""
        return self.may(Right.READ, topic)

    def require(self, right: AnyOf, topic: str) -> None:
        """Raise PermissionDenied unless the caller has the right on the topic; of a tuple of rights, one is enough.

        The message is the same whether or not the topic exists.
        """
        if not self.may(right, topic):
            self._refuse(" or ".join(_as_tuple(right)), topic)

    def require_pause(self, topic: str) -> None:
        """Raise PermissionDenied, as require() does, unless the caller may pause and resume the topic."""
        if not self.may_pause(topic):
            self._refuse(Right.MANAGE, topic)

    def require_schedule(self, right: ScheduleRight, topic: str) -> None:
        """Raise PermissionDenied, as require(), unless the caller may do this operation on schedules of the topic."""
        if not self.may_schedule(right, topic):
            self._refuse(" or ".join(right.rights), topic)

    def require_create(self, topic: str, on_conflict: str) -> None:
        """Raise PermissionDenied, as require() does, unless the caller may create a job with this on_conflict.

        Only "reject" leaves a live job alone and does not show it: the other modes need the right to produce.
        """
        self.require(CREATE if on_conflict == "reject" else Right.PRODUCE, topic)

    def _refuse(self, rights: str, topic: str) -> NoReturn:
        refusals.record(self.source, self.signature, f"right {rights}", topic)
        if not self.may((Right.READ, Right.SUBMIT), topic):
            raise PermissionDenied(f"{self.name} has no rights on topic {topic!r:.120}.")
        raise PermissionDenied(f"{self.name} lacks the right to {rights} on topic {topic!r:.120}.")

    def visible(self, topics: frozenset[str]) -> frozenset[str]:
        """Return those of the topics that the caller sees."""
        return frozenset(filter(self.sees, topics))

    def topics(self, using: str, right: AnyOf = Right.READ) -> list[str]:
        """Return the names of the known topics on which the caller has the right, sorted.

        A topic is known if it has a handler, a setting or a row.
        """
        return sorted(topic for topic in topics.known(using) if self.may(right, topic))

    def worker(self, consumer: str = "") -> str:
        """Return the value of Job.worker for a reservation: the caller's name, or name/consumer."""
        return f"{self.name}/{consumer}" if consumer else self.name


class Rights:
    """The rights of a token, with a cache of answers. Requests with this token share the object for some seconds."""

    def __init__(self, grants: Iterable[Grant]) -> None:
        self._grants = list(grants)
        self._known: dict[Hashable, Any] = {}

    def include(self, right: Right, topic: str) -> bool:
        return any(getattr(grant, right) and matches(grant.topic, topic) for grant in self._grants)

    def cached(self, question: Hashable, answer: Callable[[], Returned]) -> Returned:
        """Return the cached answer to the question, or that of answer(). Answers may depend only on the grants."""
        found: Returned | None = self._known.get(question)
        if found is None:
            found = answer()
            if len(self._known) >= MAX_CACHED:  # a client that names ever new topics must not fill the memory
                self._known.clear()
            self._known[question] = found
        return found


class TokenCaller(Caller):
    """A service account, authenticated by a token. It need not give reasons.

    Bodies are redacted, as for staff, unless the token may consume the topic: only consumers need a job's secrets.
    """

    def __init__(self, token: Token, rights: Rights, change: int | None = None) -> None:
        config = conf.get()
        self.token = token
        self._rights = rights
        self._change = change
        self.name = token.account.name
        self.signature = f"{self.name} (token {token.prefix})"
        self.identity = f"token:{token.prefix}"
        self.rate_per_minute = token.rate_per_minute or config.api_rate_per_minute
        self.max_request_bytes = token.max_request_bytes or config.api_max_request_bytes
        self.producer = token.prefix
        self.max_live_jobs = token.max_live_jobs or config.api_max_live_jobs

    def _has(self, right: Right, topic: str) -> bool:
        return self._rights.include(right, topic)

    def may(self, right: AnyOf, topic: str) -> bool:
        return self._rights.cached((right, topic), lambda: super(TokenCaller, self).may(right, topic))

    def visible(self, topics: frozenset[str]) -> frozenset[str]:
        return self._rights.cached(topics, lambda: super(TokenCaller, self).visible(topics))

    def may_pause(self, topic: str) -> bool:
        return self.may(Right.MANAGE, topic)

    def may_schedule(self, right: ScheduleRight, topic: str) -> bool:
        return self.may(right.rights, topic)

    def is_current(self) -> bool:
        return self._change == token_cache.answers.change

    def still_valid(self) -> bool:
        self._change = token_cache.answers.change
        valid = Token.objects.usable().filter(pk=self.token.pk).exists()
        self._rights = _rights(self.token) if valid else Rights([])
        return bool(valid)

    def shown_body(self, body: Any, topic: str) -> Any:
        return body if self._has(Right.CONSUME, topic) else super().shown_body(body, topic)

    def require_reason(self, topic: str, reason: str, field: str = "reason") -> None:
        return

    def run_logged(self, do: Callable[[], Returned], using: str) -> Returned:
        return do()

    def log(self, rows: Iterable[Any], action: Action, reason: str = "", *, added: bool = False, **state: Any) -> None:
        if action not in (Action.SCHEDULED, Action.REPLACED):  # schedule() writes the audit entries for these two
            admin_log.write_audit(self.signature, rows, action, reason, source=self.source, **state)


class StaffCaller(Caller):
    """A staff user, authenticated by session, with the permissions in delaytasks/permissions.py. Cannot consume."""

    is_person = True

    def __init__(self, user: Any) -> None:
        config = conf.get()
        self.user, self.using = user, databases.alias()
        self.name = self.signature = user.get_username()
        self.identity = f"staff:{user.pk}"
        self.rate_per_minute = config.api_rate_per_minute
        self.max_request_bytes = config.api_max_request_bytes

    def may(self, right: AnyOf, topic: str) -> bool:
        return any(self._has(each, topic) for each in _as_tuple(right))

    def _has(self, right: Right, topic: str) -> bool:
        allowed = permissions.can_view if right is Right.READ else permissions.can_operate
        return right is not Right.CONSUME and allowed(self.user) and self._may_see(topic)

    def may_pause(self, topic: str) -> bool:
        return permissions.can_manage(self.user) and self._may_see(topic)

    def may_schedule(self, right: ScheduleRight, topic: str) -> bool:
        """Return whether the user has the permission, as in the admin, and sees the topic."""
        return right.allows(self.user) and self._may_see(topic)

    def _may_see(self, topic: str) -> bool:
        return permissions.can_see_topic(self.user, topic, self.using)

    def still_valid(self) -> bool:
        users = get_user_model()._default_manager.using(self.user._state.db)
        now = users.filter(pk=self.user.pk, is_active=True, is_staff=True).first()
        self.user = now or AnonymousUser()  # a new instance, because the old one caches permissions
        return now is not None

    def require_reason(self, topic: str, reason: str, field: str = "reason") -> None:
        if not reason and permissions.topics_requiring_reason(self.using, [topic]):
            raise ValidationError({field: f"Topic {topic} requires a reason."})

    def run_logged(self, do: Callable[[], Returned], using: str) -> Returned:
        return self.run_audited(do, using)

    def log(self, rows: Iterable[Any], action: Action, reason: str = "", *, added: bool = False, **state: Any) -> None:
        flag = admin_log.ADDED if added else admin_log.CHANGED
        admin_log.write(self.user.pk, rows, action, reason, flag=flag, **state)


def _rights(token: Token) -> Rights:
    return Rights(Grant.objects.using(token._state.db).filter(token=token.pk))


class TokenAuthentication(BaseAuthentication):
    """Authenticate `Authorization: Bearer <token>`. The error is the same for every kind of invalid token."""

    def authenticate(self, request: Any) -> tuple[AnonymousUser, Caller] | None:
        scheme, _space, secret = request.META.get("HTTP_AUTHORIZATION", "").partition(" ")
        if scheme.lower() != SCHEME.lower():
            return None
        source = audit_log.source_of(request)
        caller = find_caller(secret.strip())
        if caller is None:
            refusals.record(source, f"token {_prefix(secret)}", "token not accepted")
            raise AuthenticationFailed
        caller.source = source
        audit_log.set_source(source)
        record_use(caller.token)
        return AnonymousUser(), caller

    def authenticate_header(self, request: Any) -> str:
        return SCHEME


class StaffAuthentication(SessionAuthentication):
    """Authenticate active staff by Django's session and CSRF token. Sessions of other users are ignored."""

    def authenticate(self, request: Any) -> tuple[Any, Caller] | None:
        user = getattr(request._request, "user", None)
        if user is None or not (user.is_active and user.is_staff):
            return None
        caller = StaffCaller(user)
        caller.source = audit_log.source_of(request)
        audit_log.set_source(caller.source)
        try:
            self.enforce_csrf(request)
        except RequestDenied:
            refusals.record(caller.source, caller.signature, "CSRF token missing or wrong")
            raise
        return user, caller


class HasCaller(BasePermission):
    """Allow authenticated callers only."""

    def has_permission(self, request: Any, view: Any) -> bool:
        if isinstance(request.auth, Caller):
            return True
        refusals.record(audit_log.source_of(request), "", "no token and no session of staff")
        return False


def find_caller(secret: str) -> TokenCaller | None:
    """Return the caller with this secret, or None. Looks in the token cache first, and then in the database."""
    return caller_of(token_cache.answers.get_or_ask(secret, _ask))


def caller_of(answer: token_cache.Answer) -> TokenCaller | None:
    """Return the caller for an answer of the token cache; None if it has no token or the token has expired."""
    if answer.token is None or answer.token.has_expired:
        return None
    return TokenCaller(answer.token, answer.rights, answer.change)


def _ask(secret: str) -> tuple[Token | None, Rights | None]:
    token = find_token(secret)
    return token, None if token is None else _rights(token)


def find_token(secret: str) -> Token | None:
    """Return the valid token with this secret, or None.

    Runs exactly one query and one hash comparison, so that the duration does not reveal which prefixes exist.
    """
    token = Token.objects.usable().filter(prefix=_prefix(secret)).first()
    if token is None:
        Token.objects.key_generator.verify(secret, DUMMY_HASH)
        return None
    return token if token.is_valid(secret) else None


def _prefix(secret: str) -> str:
    """Return the public part of a secret, or "" if it cannot be the secret of a token."""
    secret = secret.strip()
    plausible = len(secret) <= 150 and secret.isascii() and secret.isprintable()
    prefix, dot, _ = secret.partition(".")
    return prefix if plausible and dot and len(prefix) <= 8 else ""


def record_use(token: Token) -> None:
    """Update last_used_at, at most once a minute. A failed write is logged and does not reject the request."""
    now = timezone.now()
    unused = Q(last_used_at__isnull=True) | Q(last_used_at__lte=now - LAST_USED_INTERVAL)
    if token.last_used_at is not None and token.last_used_at > now - LAST_USED_INTERVAL:
        return
    using = router.db_for_write(Token)
    try:
        with transaction.atomic(using):
            Token.objects.using(using).filter(unused, pk=token.pk).update(last_used_at=now)
        token.last_used_at = now  # the token cache returns this object for the next requests, too
    except DatabaseError:
        logger.warning("Could not write last_used_at of token %s", token.prefix, exc_info=True)
