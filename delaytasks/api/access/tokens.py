"""Create, list and revoke tokens, for the command and the admin."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import router, transaction
from django.db.models import QuerySet
from django.utils import timezone

from ... import admin_log
from ...admin_log import Action
from ...jobs import audit_log
from ..models import Grant, ServiceAccount, Token


def create(
    account: str,
    grants: Mapping[str, Iterable[str]],
    *,
    name: str,
    expires_days: float | None = None,
    rate_per_minute: int | None = None,
    max_request_bytes: int | None = None,
    max_live_jobs: int | None = None,
    by: str = "",
) -> tuple[Token, str]:
    """Create a token, and its service account if missing. Return the token and its secret, which is not stored.

    grants        topics by right: {"produce": ["order.close", "refund.*"], "consume": [], "manage": ["*"]}
    expires_days  days until the token expires; None: it never expires
    by            who creates it; stored with the token and in the audit log

    Raises ValidationError; nothing is created then.
    """
    using = router.db_for_write(Token)
    with transaction.atomic(using):
        owner = _account(using, account)
        expiry = None if expires_days is None else timezone.now() + timedelta(days=expires_days)
        token = Token(
            account=owner, name=name, expiry_date=expiry, rate_per_minute=rate_per_minute,
            max_request_bytes=max_request_bytes, max_live_jobs=max_live_jobs, created_by=by,
        )  # fmt: skip
        secret = Token.objects.assign_key(token)
        token.full_clean()
        token.save(using=using)
        for topic, rights in _by_topic(grants).items():
            grant = Grant(token=token, topic=topic, **dict.fromkeys(rights, True))
            grant.full_clean()
            grant.save(using=using)
        admin_log.write_audit(by, [token], "added", after=state(token))
    return token, secret


def _account(using: str, name: str) -> ServiceAccount:
    service_account = ServiceAccount.objects.using(using).filter(name=name).first()
    if service_account is None:
        service_account = ServiceAccount(name=name)
        try:
            service_account.full_clean()
        except ValidationError as error:
            raise ValidationError({"account": error.messages}) from error
        service_account.save(using=using)
    elif not service_account.active:
        raise ValidationError({"account": f"The account {name} is not active, so its tokens would not be accepted."})
    return service_account


def _by_topic(grants: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """Group rights by topic: {"order.close": ["produce", "consume"]}. There is one grant per topic."""
    by_topic: dict[str, list[str]] = {}
    for right, topics in grants.items():
        for topic in topics:
            by_topic.setdefault(topic, []).append(right)
    return by_topic


def list_tokens(account: str | None = None) -> QuerySet[Token]:
    """Return tokens with their account and grants, ordered by account; only those of `account` if given."""
    tokens = Token.objects.using(router.db_for_write(Token)).select_related("account").prefetch_related("grants")
    return tokens.filter(**({} if account is None else {"account__name": account})).order_by("account__name", "pk")


def revoke(tokens: QuerySet[Token], by: str = "", source: audit_log.Source | None = None) -> list[str]:
    """Revoke these tokens permanently. Return the prefixes of the tokens that were not revoked before.

    by, source   who does it, and from where; stored with the tokens and in the audit log
    """
    using = router.db_for_write(Token)
    with transaction.atomic(using):
        chosen = tokens.using(using).filter(revoked=False).select_for_update(of=("self",))
        prefixes = dict(chosen.values_list("pk", "prefix"))
        revoked = Token.objects.using(using).filter(pk__in=prefixes)
        revoked.update(revoked=True, revoked_by=by, revoked_at=timezone.now())
        admin_log.write_audit(by, revoked.order_by("pk"), Action.REVOKED, source=source)
    return sorted(prefixes.values())


def state(token: Token) -> dict[str, Any]:
    """Return the values of a token that the audit log stores: its account, terms and grants, read from the database."""
    grants = Grant.objects.using(token._state.db).filter(token=token.pk).order_by("topic")
    return {
        "account": token.account.name,
        "name": token.name,
        "revoked": token.revoked,
        "expires_at": token.expiry_date and token.expiry_date.isoformat(),
        "rate_per_minute": token.rate_per_minute,
        "max_request_bytes": token.max_request_bytes,
        "max_live_jobs": token.max_live_jobs,
        "grants": {grant.topic: grant.rights for grant in grants},
    }


def status(token: Token) -> str:
    """Return "accepted", or why the token is not: "revoked", "expired" or "account inactive"."""
    if token.revoked:
        return "revoked"
    if token.has_expired:
        return "expired"
    return "accepted" if token.account.active else "account inactive"


def data(token: Token) -> dict[str, Any]:
    """Return the public data of a token, without its hash."""
    return {
        "prefix": token.prefix,
        "account": token.account.name,
        "name": token.name,
        "status": status(token),
        "grants": [{"topic": grant.topic, "rights": grant.rights} for grant in token.grants.all()],
        "rate_per_minute": token.rate_per_minute,
        "max_request_bytes": token.max_request_bytes,
        "max_live_jobs": token.max_live_jobs,
        "created_at": token.created,
        "expires_at": token.expiry_date,
        "last_used_at": token.last_used_at,
        "created_by": token.created_by,
        "revoked_at": token.revoked_at,
        "revoked_by": token.revoked_by,
    }
