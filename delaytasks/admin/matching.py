"""What "all that match this filter" means at one moment: which jobs, how many, of which topics, and in words.

How all of them are found among millions: wholes.py.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib.admin.views.main import ALL_VAR, SEARCH_VAR
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from .. import bulk
from ..models import Job
from . import filters, wholes
from .changelist import number_of
from .operate import CANCEL, POSTPONE, RETRY, RUN_NOW, Operation

SAMPLE = 10


class Matched(NamedTuple):
    number: int
    topics: Counter[str]
    ids: list[int]  # in the list's order; not of a page that only counts
    ended: int = 0  # how many of them stay as they are whatever is done
    refused: str = ""  # "many": more than one change may have; "wide": too many were to be looked at


def of(jobs: QuerySet) -> Matched:
    """These jobs, which are few: by one query."""
    rows = list(jobs.values_list("pk", "topic", "state"))
    ended = sum(state in wholes.FOR_GOOD for _pk, _topic, state in rows)
    return Matched(len(rows), Counter(topic for _pk, topic, _state in rows), [row[0] for row in rows], ended)


def counted(cl: Any, request: HttpRequest, using: str) -> Matched:
    """How many match what the list was asked for; which, is not asked."""
    way = _way(cl, request, using)
    if not isinstance(way, wholes.Way):
        return _nothing(way)
    found = wholes.count(way)
    alone = _by_number(cl, way)
    topics = found.topics + Counter(job.topic for job in alone)
    ended = found.ended + sum(job.state in wholes.FOR_GOOD for job in alone)
    return _at_most(Matched(topics.total(), topics, [], ended))


def taken(cl: Any, request: HttpRequest, using: str) -> Matched:
    """Which match at this moment."""
    way = _way(cl, request, using)
    if not isinstance(way, wholes.Way):
        return _nothing(way)
    ids, topics = wholes.ids(way)
    alone = _by_number(cl, way)
    topics += Counter(job.topic for job in alone)
    return _at_most(Matched(topics.total(), topics, [*(job.pk for job in alone), *ids]))


def _at_most(found: Matched) -> Matched:
    return found if found.number <= bulk.MOST else _nothing(wholes.MANY)


def _nothing(refused: str) -> Matched:
    return Matched(0, Counter(), [], refused=refused)


def _way(cl: Any, request: HttpRequest, using: str) -> wholes.Way | str:
    wish = cl.wish(request)
    return "" if wish is None else wholes.way(using, wish, bulk.MOST)


def _by_number(cl: Any, way: wholes.Way) -> list[Job]:
    """What is searched for may be a job's own number; the one that has it, unless its key was found to begin so."""
    wish, number = way.search.wish, number_of(way.search.wish.prefix)
    if number is None:
        return []
    found = cl.queryset.using(way.search.using).filter(pk=number).only("topic", "key", "state")
    return [job for job in found if not (job.key.startswith(wish.prefix) and job.topic in (wish.topics or ()))]


def chosen_by(cl: Any) -> dict[str, str]:
    """The filters and the search that narrow the list, as its address has them."""
    values = {spec.parameter_name: spec.value() for spec in cl.filter_specs}
    if cl.query.strip():
        values[SEARCH_VAR] = cl.query.strip()
    return {name: value for name, value in values.items() if value is not None}


def is_narrowed(request: HttpRequest, cl: Any) -> bool:
    """Whether somebody said which jobs: by a filter, by a search, or by saying all."""
    return ALL_VAR in request.GET or bool(chosen_by(cl))


def in_words(choice: Mapping[str, str], request: HttpRequest, job_admin: Any) -> list[tuple[Any, Any]]:
    """A choice as people read it: (name, value) of each filter, and of the search."""
    said = []
    for each in job_admin.list_filter:
        value = choice.get(each.parameter_name)
        if value is not None:
            spec = each(request, {each.parameter_name: [value]}, Job, job_admin)
            said.append((spec.title, dict(spec.lookup_choices).get(value, value)))
    if SEARCH_VAR in choice:
        said.append((_("search"), choice[SEARCH_VAR]))
    return said


def operations(request: HttpRequest) -> list[Operation]:
    """What can succeed: this with the live, that with the dead, and nothing with those that ended otherwise."""
    state = request.GET.get("state")
    if state == "reserved":  # what runs is not disturbed
        return []
    if state == "ready" or request.GET.get("due") == "overdue":  # these need not be made ready
        return [CANCEL, POSTPONE]
    if filters.in_due_order(request):
        return [CANCEL, POSTPONE, RUN_NOW]
    if state == "dead":
        return [RETRY]
    return [] if state in filters.ENDED_CHOICES else [CANCEL, POSTPONE, RUN_NOW, RETRY]
