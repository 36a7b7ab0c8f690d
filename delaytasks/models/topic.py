"""The settings of a topic that staff can change at runtime."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _


class Topic(models.Model):
    """Settings of a topic that staff can change at runtime."""

    name = models.CharField(_("topic"), max_length=100, primary_key=True)
    paused = models.BooleanField(_("paused"), default=False, help_text=_("its jobs become ready, but do not run"))
    concurrency = models.PositiveSmallIntegerField(
        _("concurrency"),
        null=True,
        blank=True,
        help_text=_("number of run slots; empty: the concurrency of its handler"),
    )
    ask_reason = models.BooleanField(
        _("ask for a reason"), default=False, db_default=False,
        help_text=_("staff who change its jobs or pause it must say why, here and over HTTP; programs are not asked"),
    )  # fmt: skip
    # A list of group ids, not a relation, because this app also runs without django.contrib.auth.
    visible_to = models.JSONField(
        _("visible to"), default=list, db_default=[], blank=True,
        help_text=_("groups that may see its jobs; none: everybody who may see jobs"),
    )  # fmt: skip
    hide_bodies = models.BooleanField(
        _("hide bodies"), default=False, db_default=False,
        help_text=_("the bodies of its jobs are hidden from staff and from programs that do not consume the topic"),
    )  # fmt: skip
    keep_bodies = models.BooleanField(
        _("keep replaced bodies"), default=False, db_default=False,
        help_text=_("the audit log keeps the bodies of replaced jobs, and not only their hashes"),
    )  # fmt: skip
    # In the format of delaytasks.forwarding.stored, without credentials.
    target = models.JSONField(
        _("target"), null=True, default=None, editable=False,
        help_text=_("where its jobs are forwarded if no code handles the topic; empty: not forwarded"),
    )  # fmt: skip
    # While the target accepts no jobs (delaytasks.forwarding): since when the jobs are held, why, and when the next job
    # tests the target.
    held_since = models.DateTimeField(_("held since"), null=True, editable=False)
    held_why = models.TextField(_("held because"), default="", db_default="", editable=False)
    held_until = models.DateTimeField(null=True, editable=False)
    # Jobs of schedules that ended up to this time may have been deleted: which of them ran is unknown.
    runs_deleted_until = models.DateTimeField(null=True, editable=False)
    # The run slots that are taken while there is no mirror: token -> expiry in ms since 1970.
    slots = models.JSONField(default=dict, editable=False)

    class Meta:
        verbose_name = _("topic")
        verbose_name_plural = _("topics")
        permissions: ClassVar = [("forward_topic", "Can change where the jobs of a topic are forwarded")]

    def __str__(self) -> str:
        return self.name
