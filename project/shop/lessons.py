"""Lessons: the class is reminded before the lesson starts. The handler is remind_class() in timeouts.py."""

from django.db import models
from django.utils.translation import gettext_lazy as _


class Lesson(models.Model):
    title = models.CharField(_("title"), max_length=100)
    starts_at = models.DateTimeField(_("starts at"), help_text=_("the students are reminded shortly before"))
    cancelled = models.BooleanField(_("cancelled"), default=False)
    students = models.ManyToManyField("shop.Customer", related_name="lessons", verbose_name=_("students"), blank=True)

    class Meta:
        verbose_name = _("lesson")
        verbose_name_plural = _("lessons")

    def __str__(self) -> str:
        return self.title
