from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class ShopConfig(AppConfig):
    name = "project.shop"
    verbose_name = _("Shop")
    default_auto_field = "django.db.models.BigAutoField"
