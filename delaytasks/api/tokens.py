"""Making, listing and revoking tokens, for the command and the admin."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import router, transaction
from django.db.models import QuerySet
from django.utils import timezone

from .models import Grant, ServiceAccount, Token


def make(
    account: str,
    grants: Mapping[str, Iterable[str]],
    *,
    name: str,
    expires_days: float | None = None,
    rate_per_minute: int | None = None,
    max_request_bytes: int | None = None,
) -> tuple[Token, str]:
    """A new token of the service account, which is made if it is missing, and its secret: it is stored nowhere.

    grants        by right: {"produce": ["order.close", "refund.*"], "consume": [], "manage": ["*"]}
    expires_days  from now on; None: never

    Raises ValidationError. Nothing is left behind then.
    """
    using = router.db_for_write(Token)
    with transaction.atomic(using):
        owner = _account(using, account)
        expiry = None if expires_days is None else timezone.now() + timedelta(days=expires_days)
        token = Token(
            account=owner, name=name, expiry_date=expiry, rate_per_minute=rate_per_minute,
            max_request_bytes=max_request_bytes,
        )  # fmt: skip
        secret = Token.objects.assign_key(token)
        token.full_clean()
        token.save(using=using)
        for topic, rights in _by_topic(grants).items():
            grant = Grant(token=token, topic=topic, **dict.fromkeys(rights, True))
            grant.full_clean()
            grant.save(using=using)
    return token, secret


def _account(using: str, name: str) -> ServiceAccount:
    found = ServiceAccount.objects.using(using).filter(name=name).first()
    if found is None:
        found = ServiceAccount(name=name)
        found.full_clean()
        found.save(using=using)
    elif not found.active:
        raise ValidationError({"account": f"{name} is not active: none of its tokens would be accepted."})
    return found


def _by_topic(grants: Mapping[str, Iterable[str]]) -> dict[str, list[str]]:
    """{"order.close": ["produce", "consume"]}: one grant for each topic, however often it was named."""
    found: dict[str, list[str]] = {}
    for right, topics in grants.items():
        for topic in topics:
            found.setdefault(topic, []).append(right)
    return found


def every(account: str | None = None) -> QuerySet[Token]:
    """Tokens with their account and grants, by account; those of one account only, if it is named."""
    found = Token.objects.using(router.db_for_write(Token)).select_related("account").prefetch_related("grants")
    return found.filter(**({} if account is None else {"account__name": account})).order_by("account__name", "pk")


def revoke(tokens: QuerySet[Token]) -> list[str]:
    """Revoke these at once and for good; the prefixes of those that were not revoked before."""
    using = router.db_for_write(Token)
    with transaction.atomic(using):
        chosen = tokens.using(using).filter(revoked=False).select_for_update(of=("self",))
        prefixes = dict(chosen.values_list("pk", "prefix"))
        Token.objects.using(using).filter(pk__in=prefixes).update(revoked=True)
    return sorted(prefixes.values())


def standing(token: Token) -> str:
    """One word for people: "accepted", or why it is not."""
    if token.revoked:
        return "revoked"
    if token.has_expired:
        return "expired"
    return "accepted" if token.account.active else "account inactive"


def data(token: Token) -> dict[str, Any]:
    """What may be told of a token. Never its secret, which nobody has, nor its hash."""
    return {
        "prefix": token.prefix,
        "account": token.account.name,
        "name": token.name,
        "standing": standing(token),
        "grants": [{"topic": grant.topic, "rights": grant.rights} for grant in token.grants.all()],
        "rate_per_minute": token.rate_per_minute,
        "max_request_bytes": token.max_request_bytes,
        "created_at": token.created,
        "expires_at": token.expiry_date,
        "last_used_at": token.last_used_at,
    }
