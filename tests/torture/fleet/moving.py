"""Move a tenant from one database to another while it works. docs/howto/databases.md has the same code."""

import time
from datetime import datetime
from typing import Any

from django.db import transaction

from delaytasks import Skip, Snooze, cancel_many, schedule, schedule_many
from delaytasks.models import Job

from . import TENANT_TOPIC
from .models import Effect, Home


class NotHere(Exception):
    """The tenant has another home, or is moving to it: look for its home again."""


def lock(tenant: str, using: str) -> str:
    """Return what the tenant is in this database. It stays that until the end of the transaction."""
    return Home.objects.using(using).select_for_update().get(pk=tenant).state


def schedule_timeout(tenant: str, name: str, due_at: datetime, using: str) -> None:
    """Schedule in the database that the caller holds for the tenant's home. Raises NotHere."""
    with transaction.atomic(using=using):
        if lock(tenant, using) != "here":
            raise NotHere(tenant)
        schedule(TENANT_TOPIC, key=f"{tenant}:{name}", due_at=due_at, using=using)


def act(job: Any) -> Snooze | Skip | None:
    """The handler."""
    tenant = job.key.partition(":")[0]
    state = lock(tenant, job.using)
    if state == "leaving":
        return Snooze(1)  # the job stays live, so that it is copied
    if state == "away":
        return Skip("the tenant has moved")
    Effect.objects.using(job.using).create(key=job.key, at_ms=time.time_ns() // 1_000_000)
    return None


def move(tenant: str, source: str, target: str) -> None:
    """Move a tenant. Call it again after a crash: it goes on where it was."""
    homes = Home.objects.filter(pk=tenant)
    jobs = Job.objects.using(source).filter(topic=TENANT_TOPIC, key__startswith=f"{tenant}:", ended_at=None)
    with transaction.atomic(using=source):
        if lock(tenant, source) == "here":
            homes.using(source).update(state="leaving")
    with transaction.atomic(using=source), transaction.atomic(using=target):  # the target is committed first
        if lock(tenant, source) != "leaving":
            return  # it has been moved already
        if lock(tenant, target) == "away":
            copies = [{"topic": job.topic, "key": job.key, "due_at": job.due_at, "body": job.body} for job in jobs]
            schedule_many(copies, using=target)
            # Copy the tenant's own rows here.
            homes.using(target).update(state="here")
    while True:
        with transaction.atomic(using=source):
            if lock(tenant, source) != "leaving":
                return
            cancel_many(topic=TENANT_TOPIC, key_prefix=f"{tenant}:", using=source)
            if not jobs.all().exists():  # not the cached jobs of before
                # Delete the tenant's own rows here.
                homes.using(source).update(state="away")
                return
        time.sleep(0.2)  # a job is running; its handler snoozes it, and then it is cancelled
