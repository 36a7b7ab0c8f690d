"""Find the ended jobs that a declaration still needs: for each key whose row matches, the newest with a declared time.

That job records that the timeout has fired for the row's due time. Without it the row would get another job. Retention
keeps these jobs. The pipeline's archive keeps jobs with a declared time in the database; before it runs,
forget_others() clears the declared time of those that no declaration needs.
"""

from collections.abc import Sequence
from datetime import datetime

from django.db import connections
from django.db.models import Exists, OuterRef

from ..clock import to_ms
from ..maintenance.retention import PAGE, EndedJob, keep
from ..models import Job
from . import declarations
from .declarations import Declaration
from .desired_jobs import desired_sql
from .sync import aliases_of, keys_of

_COLUMNS = ("id", "topic", "key", "state", "ended_at")


@keep
def keep_done(using: str, jobs: Sequence[EndedJob]) -> set[int]:
    """Return the ids of those ended jobs that declarations need."""
    declared = [each for each in declarations.declarations() if using in aliases_of(each)]
    topics = {each.topic for each in declared}
    newest = _newest_of_keys(using, [job.id for job in jobs if job.topic in topics])
    kept: set[int] = set()
    for each in declared:
        kept |= _of_matching_rows(each, [job for job in jobs if job.id in newest and job.topic == each.topic], using)
    return kept


def _newest_of_keys(using: str, ids: Sequence[int]) -> set[int]:
    """Return the ids of those jobs that are, for their key, the newest ended job with a declared time.

    Live jobs do not count, because a live job loses its declared time if the declaration cancels it.
    """
    done = Job.objects.using(using).filter(declared_due__isnull=False, ended_at__isnull=False)
    later = done.filter(topic=OuterRef("topic"), key=OuterRef("key"), pk__gt=OuterRef("pk"))
    return set(done.filter(~Exists(later), pk__in=ids).values_list("pk", flat=True)) if ids else set()


def forget_others(using: str, before: datetime) -> None:
    """Clear the declared time of the jobs that ended before `before` and that no declaration needs."""
    last = 0
    ended = Job.objects.using(using).filter(declared_due__isnull=False, ended_at__lt=before).order_by("pk")
    while page := list(ended.filter(pk__gt=last).values_list(*_COLUMNS)[:PAGE]):
        jobs = [EndedJob(pk, topic, key, state, to_ms(ended_at)) for pk, topic, key, state, ended_at in page]
        others = {job.id for job in jobs} - keep_done(using, jobs)
        Job.objects.using(using).filter(pk__in=others, ended_at__isnull=False).update(declared_due=None)
        last = page[-1][0]


def _of_matching_rows(declaration: Declaration, jobs: Sequence[EndedJob], using: str) -> set[int]:
    texts = {text: job.id for job in jobs if (text := declaration.pk_of(job.key)) is not None}
    keys = keys_of(declaration, texts)
    if not keys:
        return set()
    sql, params = desired_sql(declaration, [pk for _, pk in keys], using)
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        matching = {row[0] for row in cursor.fetchall()}
    return {job_id for text, job_id in texts.items() if text in matching}
