"""All jobs that match the list's filters at one moment: their ids, their number, their topics, and the filters as text.

The queries are in delaytasks/db/selection.py.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib.admin.views.main import ALL_VAR, SEARCH_VAR
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ...bulk import changes
from ...db import selection
from ...db.selection import Selection
from ...models import Job
from .. import filters
from ..changelist import parse_id
from ..job_actions import CANCEL, POSTPONE, RETRY, RUN_NOW, Operation

SAMPLE = 10


class Matches(NamedTuple):
    number: int
    topics: Counter[str]
    ids: list[int]  # ids of the jobs in the list's order; empty if the jobs were only counted
    ended: int = 0  # finished or cancelled jobs, which no operation changes
    refused: str = ""  # "many": more jobs than a change may have; "wide": too many rows to read; or ""


def from_queryset(jobs: QuerySet) -> Matches:
    """Return the matches of a small queryset. Uses one query."""
    rows = list(jobs.values_list("pk", "topic", "state"))
    ended = sum(state in selection.FINAL for _pk, _topic, state in rows)
    return Matches(len(rows), Counter(topic for _pk, topic, _state in rows), [row[0] for row in rows], ended)


def count(cl: Any, request: HttpRequest, using: str) -> Matches:
    """Return the matches without ids: the jobs are only counted."""
    selected = _select(cl, request, using)
    if not isinstance(selected, Selection):
        return _refusal(selected)
    counts = selection.count(selected)
    by_id = _found_by_id(cl, selected)
    topics = counts.topics + Counter(job.topic for job in by_id)
    ended = counts.ended + sum(job.state in selection.FINAL for job in by_id)
    return _limited(Matches(topics.total(), topics, [], ended))


def fetch(cl: Any, request: HttpRequest, using: str) -> Matches:
    """Return the matches with ids. Ended jobs are not counted: `ended` is 0."""
    selected = _select(cl, request, using)
    if not isinstance(selected, Selection):
        return _refusal(selected)
    ids, topics = selection.read_ids(selected)
    by_id = _found_by_id(cl, selected)
    topics += Counter(job.topic for job in by_id)
    return _limited(Matches(topics.total(), topics, [*(job.pk for job in by_id), *ids]))


def _limited(matches: Matches) -> Matches:
    return matches if matches.number <= changes.MAX_JOBS else _refusal(selection.TOO_MANY)


def _refusal(refused: str) -> Matches:
    return Matches(0, Counter(), [], refused=refused)


def _select(cl: Any, request: HttpRequest, using: str) -> Selection | str:
    job_filter = cl.job_filter(request)
    return "" if job_filter is None else selection.select(using, job_filter, changes.MAX_JOBS)


def _found_by_id(cl: Any, selected: Selection) -> list[Job]:
    """Return [the job whose ID is the search term]. Return [] if there is none, or if its key matches as well."""
    prefix, topics = selected.scan.job_filter.key_prefix, selected.scan.job_filter.topics or ()
    job_id = parse_id(prefix)
    if job_id is None:
        return []
    jobs = cl.queryset.using(selected.scan.using).filter(pk=job_id).only("topic", "key", "state")
    return [job for job in jobs if not (job.key.startswith(prefix) and job.topic in topics)]


def active_filters(cl: Any) -> dict[str, str]:
    """Return the active filters and the search term of the list as {URL parameter: value}."""
    values = {spec.parameter_name: spec.value() for spec in cl.filter_specs}
    if cl.query.strip():
        values[SEARCH_VAR] = cl.query.strip()
    return {name: value for name, value in values.items() if value is not None}


def is_explicit(request: HttpRequest, cl: Any) -> bool:
    """Return whether the user chose the jobs by a filter, by a search, or by asking for all jobs."""
    return ALL_VAR in request.GET or bool(active_filters(cl))


def describe(active: Mapping[str, str], request: HttpRequest, job_admin: Any) -> list[tuple[Any, Any]]:
    """Return (title, value) of each active filter and of the search term, for display."""
    described = []
    for each in job_admin.list_filter:
        value = active.get(each.parameter_name)
        if value is not None:
            spec = each(request, {each.parameter_name: [value]}, Job, job_admin)
            described.append((spec.title, dict(spec.lookup_choices).get(value, value)))
    if SEARCH_VAR in active:
        described.append((_("search"), active[SEARCH_VAR]))
    return described


def operations(request: HttpRequest) -> list[Operation]:
    """Return the operations that can succeed for jobs that match the list's filters."""
    state = request.GET.get("state")
    if state == "reserved":  # running jobs are not changed
        return []
    if state == "ready" or request.GET.get("due") == "overdue":  # these jobs are ready already
        return [CANCEL, POSTPONE]
    if filters.in_due_order(request):
        return [CANCEL, POSTPONE, RUN_NOW]
    if state == "dead":
        return [RETRY]
    return [] if state in filters.ENDED_CHOICES else [CANCEL, POSTPONE, RUN_NOW, RETRY]
