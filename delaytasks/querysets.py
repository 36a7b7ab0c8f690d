"""Reading jobs, for people. What changes a job is in statements.py."""

from datetime import datetime
from typing import Any, NoReturn, Self

from django.db import connections, models

from .states import STORED_LIVE, State


class JobQuerySet(models.QuerySet):
    def live(self) -> "JobQuerySet":
        return self.filter(ended_at__isnull=True)

    def in_state(self, state: State, now: datetime) -> "JobQuerySet":
        """Jobs in `state` as people see it at `now` (aware): delayed and ready are told apart by the due time."""
        if state is State.READY:
            return self.live().filter(state=State.DELAYED, due_at__lte=now)
        if state is State.DELAYED:
            return self.live().filter(state=State.DELAYED, due_at__gt=now)
        if state in STORED_LIVE:
            return self.live().filter(state=state)
        if state is State.DEAD:
            return self.filter(died_at__isnull=False)
        return self.filter(state=state)

    def overdue(self, now: datetime) -> "JobQuerySet":
        return self.live().filter(due_at__lte=now)

    def key_starts(self, prefix: str, *, topics: list[str] | None = None) -> "JobQuerySet":
        """Jobs, live and ended, whose key begins with `prefix`.

        topics   the topics to look in; the index leads with the topic, so naming them keeps this
                 fast among millions of rows. None asks for those that the Topic table has.
        """
        found = self
        if topics is None:
            from .models import Topic  # the model of this queryset lives there

            topics = list(Topic.objects.using(self.db).values_list("name", flat=True))
        found = found.filter(topic__in=topics)
        if connections[self.db].vendor == "sqlite":  # LIKE cannot use an index there; a range can
            return found.filter(key__gte=prefix, key__lt=prefix + "\U0010ffff")
        return found.filter(key__startswith=prefix)


class EventQuerySet(models.QuerySet):
    def newest_of(self, job_id: int) -> Self:
        """The events of a job, newest first."""
        # Not by the bare id: to find fifty of many, PostgreSQL would read its index backwards past everybody's events.
        return self.filter(job_id=job_id).order_by((models.F("id") + 0).desc())

    def update(self, **kwargs: Any) -> NoReturn:
        raise TypeError("JobEvent is append-only.")

    def delete(self) -> NoReturn:
        raise TypeError("JobEvent is append-only: it goes only with its job.")
