"""Service accounts, their tokens, and the topics and rights granted to each token."""

import re
from typing import Any, ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MinValueValidator, RegexValidator
from django.db import models, router
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from rest_framework_api_key.models import AbstractAPIKey, BaseAPIKeyManager

from .access.token_cache import PublishingQuerySet

EVERY_TOPIC = "*"
RIGHTS = {"submit": _("submit"), "produce": _("produce"), "consume": _("consume"), "manage": _("manage")}
_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(\.\*)?")
# No "@" and no "/": in Job.worker an account name cannot be mistaken for a Celery worker (celery@host)
# or for another account's consumer (account/consumer).
account_name = RegexValidator(
    r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", _("Use A-Z a-z 0-9 . _ -, the first a letter or digit.")
)


def check_pattern(pattern: str) -> None:
    """Validate the topic of a grant: a name, "order.*", or "*". Raises ValidationError."""
    if pattern != EVERY_TOPIC and not (len(pattern) <= 100 and _PATTERN.fullmatch(pattern)):
        raise ValidationError(
            _("%(pattern)s is neither a topic's name (order.close), nor a prefix (order.*), nor * for every topic."),
            code="pattern",
            params={"pattern": repr(pattern[:120])},
        )


def matches(pattern: str, topic: str) -> bool:
    """Return whether a grant for `pattern` covers `topic`. "order.*" covers "order.close", not "orders" or "order"."""
    if pattern == EVERY_TOPIC:
        return True
    if pattern.endswith(".*"):
        return topic.startswith(pattern[:-1]) and topic != pattern[:-1]
    return topic == pattern


class ServiceAccount(models.Model):
    """A program that uses the API. Events record its name; its tokens hold its rights."""

    name = models.CharField(
        _("name"),
        max_length=100,
        unique=True,
        validators=[account_name],
        help_text=_("recorded for each job that it changes"),
    )
    active = models.BooleanField(_("active"), default=True, help_text=_("if unchecked, all its tokens are refused"))
    note = models.TextField(_("note"), blank=True, default="", help_text=_("its owner, and whom to contact"))
    created_at = models.DateTimeField(_("made"), default=timezone.now, editable=False)

    objects: ClassVar[Any] = PublishingQuerySet.as_manager()

    class Meta:
        verbose_name = _("service account")
        verbose_name_plural = _("service accounts")
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class TokenManager(BaseAPIKeyManager):
    """The key manager of djangorestframework-api-key, changed to use an integer primary key."""

    def get_queryset(self) -> models.QuerySet:
        return PublishingQuerySet(self.model, using=self._db)

    def assign_key(self, obj: Any) -> str:
        """Set prefix and hash of a new token. Return the secret, which is not stored."""
        secret: str = super().assign_key(obj)
        obj.pk = None  # the database assigns an integer: the library's id has the hash, and ids appear in URLs
        return secret

    def usable(self) -> models.QuerySet:
        """Return the tokens that are valid now, from the write database: a replica may lag behind a revocation."""
        return self.unexpired().filter(account__active=True).select_related("account")

    def unexpired(self) -> models.QuerySet:
        """Return the tokens that are valid if their accounts are active, from the write database."""
        unexpired = Q(expiry_date__isnull=True) | Q(expiry_date__gt=timezone.now())
        return self.using(router.db_for_write(self.model)).filter(unexpired, revoked=False)


class Token(AbstractAPIKey):
    """A secret of a service account. Only its hash is stored. Revoking it is final."""

    id = models.BigAutoField(primary_key=True)  # type: ignore[assignment]
    # The library's fields with our own texts, so that changes to the library's texts need no migration here.
    name = models.CharField(_("name"), max_length=50, help_text=_("its purpose, or where it is stored"))
    revoked = models.BooleanField(_("revoked"), default=False, help_text=_("takes effect at once and cannot be undone"))
    expiry_date = models.DateTimeField(
        _("expires"),
        null=True,
        blank=True,
        help_text=_("the token is refused from this time on; empty: it never expires"),
    )
    account = models.ForeignKey(
        ServiceAccount, models.CASCADE, related_name="tokens", verbose_name=_("service account")
    )
    rate_per_minute = models.PositiveIntegerField(
        _("requests per minute"), null=True, blank=True, validators=[MinValueValidator(1)],
        help_text=_("empty: the value of API_RATE_PER_MINUTE"),
    )  # fmt: skip
    max_request_bytes = models.PositiveIntegerField(
        _("largest request in bytes"), null=True, blank=True, validators=[MinValueValidator(1)],
        help_text=_("empty: the value of API_MAX_REQUEST_BYTES"),
    )  # fmt: skip
    max_live_jobs = models.PositiveIntegerField(
        _("live jobs at most"), null=True, blank=True, validators=[MinValueValidator(1)],
        help_text=_("empty: the value of API_MAX_LIVE_JOBS"),
    )  # fmt: skip
    last_used_at = models.DateTimeField(_("last used"), null=True, editable=False, help_text=_("to the minute"))
    created_by = models.CharField(_("created by"), max_length=255, default="", db_default="", editable=False)
    revoked_by = models.CharField(_("revoked by"), max_length=255, default="", db_default="", editable=False)
    revoked_at = models.DateTimeField(_("revoked at"), null=True, editable=False)

    objects: ClassVar[Any] = TokenManager()

    class Meta(AbstractAPIKey.Meta):
        abstract = False
        verbose_name = _("token")  # type: ignore[assignment]
        verbose_name_plural = _("tokens")  # type: ignore[assignment]
        permissions: ClassVar = [("grant_consume", "Can grant tokens the right to consume")]

    def __str__(self) -> str:
        return f"{self.prefix} ({self.name})"


class Grant(models.Model):
    """The rights of a token on one topic, or on all topics with a prefix. All but `submit` include reading."""

    token = models.ForeignKey(Token, models.CASCADE, related_name="grants")
    topic = models.CharField(
        _("topic"), max_length=100, validators=[check_pattern], help_text=_("order.close, order.* or *")
    )
    submit = models.BooleanField(
        _("submit"), default=False, db_default=False, help_text=_("create jobs, without seeing any")
    )
    produce = models.BooleanField(_("produce"), default=False, help_text=_("create, cancel, postpone"))
    consume = models.BooleanField(_("consume"), default=False, help_text=_("reserve and finish"))
    manage = models.BooleanField(_("manage"), default=False, help_text=_("cancel, postpone, run now, retry, pause"))

    objects: ClassVar[Any] = PublishingQuerySet.as_manager()

    class Meta:
        verbose_name = _("grant")
        verbose_name_plural = _("grants")
        ordering: ClassVar = ["topic"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["token", "topic"], name="delaytasks_api_grant_one_per_topic"),
            models.CheckConstraint(
                condition=Q(submit=True) | Q(produce=True) | Q(consume=True) | Q(manage=True),
                name="delaytasks_api_grant_of_something",
                violation_error_message=_("Grant at least one of submit, produce, consume, manage."),
            ),
        ]

    def __str__(self) -> str:
        rights = " ".join(str(RIGHTS[right]) for right in self.rights)
        return _("%(topic)s: %(rights)s") % {"topic": self.topic, "rights": rights}

    @property
    def rights(self) -> list[str]:
        """Names of the granted rights: ["produce", "consume"]."""
        return [right for right in RIGHTS if getattr(self, right)]
