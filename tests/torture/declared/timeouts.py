"""The handlers of the histories, and the declared timeout."""

from typing import Any

from django.db.models import Q

from delaytasks import handler, timeout
from tests.timeouts.app.models import Ticket

from .histories import ANSWER, ANSWER_WITHIN, STEADY, TOPICS

for _topic, (_function, _options) in TOPICS.items():
    handler(_topic, backoff=STEADY, **_options)(_function)


@timeout(Ticket, on="opened_at", after=ANSWER_WITHIN, while_=Q(deleted=False), topic=ANSWER)
def escalate(ticket: Ticket, job: Any) -> None:
    """Do nothing: a declaration fires once for each due time."""
