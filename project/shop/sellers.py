"""Sellers: one who has offered nothing for a while is reminded. The handler is remind_seller() in timeouts.py."""

from datetime import timedelta

from django.core.validators import MaxValueValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _


class Seller(models.Model):
    name = models.CharField(_("name"), max_length=100, unique=True)
    email = models.EmailField(_("email"))
    offered_at = models.DateTimeField(_("last offer at"), default=timezone.now)
    remind_after = models.DurationField(
        _("remind after"),
        default=timedelta(days=30),
        validators=[MaxValueValidator(timedelta(days=3650))],
        help_text=_("time without an offer, such as 30 00:00:00 for 30 days; a number alone means seconds"),
    )

    class Meta:
        verbose_name = _("seller")
        verbose_name_plural = _("sellers")

    def __str__(self) -> str:
        return self.name
