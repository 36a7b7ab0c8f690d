"""What "all that match this filter" means at one moment: which jobs, how many, of which topics, and in words."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from django.contrib.admin.views.main import ALL_VAR, SEARCH_VAR
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from .. import bulk
from ..models import Job
from ..states import ENDED, State
from . import filters
from .operate import CANCEL, POSTPONE, RETRY, RUN_NOW, Operation

SAMPLE = 10
FOR_GOOD = {int(state) for state in ENDED if state is not State.DEAD}


class Matched(NamedTuple):
    ids: list[int]  # in the queryset's order; MOST and one more if there are too many
    topics: Counter[str]
    ended: int = 0  # how many of them stay as they are whatever is done

    @property
    def too_many(self) -> bool:
        return len(self.ids) > bulk.MOST


def of(jobs: QuerySet) -> Matched:
    """These jobs, by one query that is bounded."""
    rows = list(jobs.values_list("pk", "topic", "state")[: bulk.MOST + 1])
    ended = sum(state in FOR_GOOD for _pk, _topic, state in rows)
    return Matched([pk for pk, _topic, _state in rows], Counter(topic for _pk, topic, _state in rows), ended)


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
    if state == "ready" or request.GET.get("due") == "overdue":  # these need not be made ready
        return [CANCEL, POSTPONE]
    if filters.in_due_order(request):
        return [CANCEL, POSTPONE, RUN_NOW]
    if state == "dead":
        return [RETRY]
    return [] if state in filters.ENDED_CHOICES else [CANCEL, POSTPONE, RUN_NOW, RETRY]
