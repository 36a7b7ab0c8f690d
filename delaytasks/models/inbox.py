"""Messages of a broker whose job is stored, so that a repetition is recognized."""

from typing import ClassVar

from django.db import models


class InboxMessage(models.Model):
    """A message that an inbox has stored, in the transaction of its job. The sweep deletes it some days later."""

    id = models.BigAutoField(primary_key=True)
    inbox = models.CharField(max_length=100)
    source = models.CharField(max_length=255, default="")  # the source of a CloudEvent; "" for other messages
    message_id = models.CharField(max_length=255)
    digest = models.CharField(max_length=64)  # hash of the message's content, apart from its format
    received_at = models.DateTimeField()

    class Meta:
        default_permissions = ()  # not shown
        verbose_name = "message of an inbox"
        verbose_name_plural = "messages of inboxes"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["inbox", "message_id", "source"], name="delaytasks_inboxmessage_once"),
        ]
        indexes: ClassVar = [
            models.Index(fields=["received_at"], name="delaytasks_inboxmessage_age"),
        ]

    def __str__(self) -> str:
        return f"{self.inbox} {self.message_id}"
