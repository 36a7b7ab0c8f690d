"""Devices: each gets its command by HTTP at the time set for it. The handler is tell_device() in timeouts.py."""

import urllib.request

from django.conf import settings
from django.core.validators import URLValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

# Devices are in the local network: ignore proxies from the environment.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Device(models.Model):
    name = models.CharField(_("name"), max_length=100, unique=True)
    address = models.CharField(
        _("address"), max_length=200, validators=[URLValidator(schemes=["http", "https"])],
        help_text=_("the URL to which the command is posted"),
    )  # fmt: skip
    command = models.CharField(_("command"), max_length=100)
    command_at = models.DateTimeField(
        _("set time"), null=True, blank=True, help_text=_("when the command is sent to the device")
    )
    told_at = models.DateTimeField(_("told at"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("device")
        verbose_name_plural = _("devices")

    def __str__(self) -> str:
        return self.name

    def tell(self) -> None:
        """Post the command to the device. Raises OSError or HTTPException if it does not accept it."""
        with _opener.open(self.address, self.command.encode(), timeout=settings.SHOP_GATEWAY_TIMEOUT_SECONDS):
            pass
