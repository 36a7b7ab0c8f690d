"""The changelist of jobs: keyset pagination in an order that an index provides, without a COUNT."""

from typing import Any

from django.contrib import messages
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models.expressions import Combinable
from django.db.models.functions import Right
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from .. import permissions
from ..db import pagination
from ..db.pagination import Cursor, Page
from ..db.scans import DUE, KEY, NEWEST, JobFilter, Order, Position
from ..exceptions import BadCursor
from ..querysets import LARGE_COLUMNS
from ..states import State
from . import display, filters, lateness

ERROR_TAIL = 400  # number of characters that the list reads from the end of each error
MAX_ID = 2**63 - 1
MAX_COUNT = 200


def parse_id(text: str) -> int | None:
    """Return the ID in `text`, or None if `text` is not a valid ID."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_ID else None


class LimitedPaginator(Paginator):
    """A paginator that counts at most MAX_COUNT rows, for autocomplete fields. The list of jobs does not use it."""

    object_list: Any

    @cached_property
    def count(self) -> int:
        return len(self.object_list.values_list("pk")[:MAX_COUNT])


class JobChangeList(ChangeList):
    """The list of jobs. Live jobs are in order of due time, search results in order of key, others newest first.

    `queryset` contains all matches, for actions. db/pagination.py finds the ids of the jobs on the page, which is fast
    regardless of the number of matches.
    """

    model_admin: Any

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[str | Combinable]:
        order = self._order(request)
        columns = order.columns if order.name == "due" else ("id",)
        return [f"-{column}" if order.descending else column for column in columns]

    def get_results(self, request: HttpRequest) -> None:
        self.list_per_page = min(self.list_per_page, getattr(request, "_delaytasks_rows", self.list_per_page))
        self._load_page(request)
        now = display.request_time(request, self.queryset.db)
        self.result_list = self._fetch()
        for job in self.result_list:
            job.seen_at = now
        lateness.annotate(self.result_list, now)
        # The matches are not counted. Equal numbers keep Django's templates from showing "select all N", "N results".
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.result_list)
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(self.result_list, self.list_per_page)
        self.zone_notice = display.zone_notice(request)

    # The filter

    def job_filter(self, request: HttpRequest) -> JobFilter | None:
        """Return the filter of the list, or None if no job can match."""
        if self.queryset.query.is_empty():
            return None
        job_filter = self._filter(request, self._order(request))
        # None if no topic is visible: otherwise a cursor in the URL could reveal hidden jobs.
        return None if job_filter.topics == () else job_filter

    def _order(self, request: HttpRequest) -> Order:
        column, descending = self._sort()
        if self.query.strip() or (column == "linked_key" and request.GET.get("topic") is not None):
            return KEY._replace(descending=descending and column == "linked_key")
        return DUE._replace(descending=descending) if filters.in_due_order(request) else NEWEST

    def _sort(self) -> tuple[str, bool]:
        """Return (column to sort by, whether descending). The column is "" without a valid URL parameter."""
        value = self.params.get(ORDER_VAR, "").partition(".")[0]
        index = parse_id(value.removeprefix("-"))
        is_known = index is not None and index < len(self.list_display)
        return (str(self.list_display[index]) if is_known else ""), value.startswith("-")  # type: ignore[index]

    def _filter(self, request: HttpRequest, order: Order) -> JobFilter:
        user, using, topic = request.user, self.queryset.db, request.GET.get("topic")
        if topic is None:
            topics = permissions.visible_topics(user, using)
        else:
            topics = [topic] if permissions.can_see_topic(user, topic, using) else []
        if topics is None and order.name == "key":
            topics = permissions.known_topics(user, using)
        (due_from, due_until), state = filters.due_range(request, using), request.GET.get("state", "")
        return JobFilter(
            display.request_time(request, using),
            None if topics is None else tuple(topics),
            state=State[state.upper()] if state not in ("", filters.LIVE_VALUE) else None,
            live=state == filters.LIVE_VALUE or (not state and bool(request.GET.get("due"))),
            key_prefix=self.query.strip(),
            due_from=due_from,
            due_until=due_until,
        )

    def _load_page(self, request: HttpRequest) -> None:
        """Set the ids of the page's jobs and the links to other pages."""
        self.next_url = self.previous_url = self.first_url = self.continue_url = self.by_key_url = ""
        self.is_partial, self.ids = False, []
        order, job_filter = self._order(request), self.job_filter(request)
        if job_filter is None:
            return
        start = self._start(request, order)
        page = self._page(order, job_filter, start)
        if start.backwards and page.end is None and len(page.positions) < self.list_per_page:
            first = self._page(order, job_filter, Cursor())
            if len(first.positions) >= len(page.positions):  # the beginning of the list is reached: show a full page
                page, start = first, Cursor()
        self.ids = page.ids[::-1] if start.backwards else page.ids
        self._set_links(request, order, page, start)
        job_id = parse_id(job_filter.key_prefix)
        if start.after is None and job_id is not None:
            self._put_first(job_id)

    def _page(self, order: Order, job_filter: JobFilter, start: Cursor) -> Page:
        direction = order.reverse if start.backwards else order
        return pagination.find(self.queryset.db, direction, job_filter, start.after, self.list_per_page)

    def _start(self, request: HttpRequest, order: Order) -> Cursor:
        cursor = request.GET.get(PAGE_VAR)
        if not cursor:
            return Cursor()
        try:
            return pagination.decode(cursor, order)
        except BadCursor:
            messages.warning(request, _("The page in the URL is not valid. Showing the first page."))
            return Cursor()

    def _put_first(self, job_id: int) -> None:
        """Put the job with this ID first on the page if it exists: a search term may be a job ID."""
        if self.queryset.filter(pk=job_id).exists():
            self.ids = [job_id, *(each for each in self.ids if each != job_id)]

    def _fetch(self) -> list[Any]:
        # A body may have 64 KiB and an error a whole traceback: too much for a list of a hundred jobs.
        jobs = self.root_queryset.defer(*LARGE_COLUMNS).annotate(error_tail=Right("error", ERROR_TAIL))
        return pagination.fetch(jobs, self.ids)

    # Links

    def _set_links(self, request: HttpRequest, order: Order, page: Page, start: Cursor) -> None:
        first, last = self._first_and_last(order, page, start)
        if start.backwards:
            forward, backward = last, page.end
        else:
            forward, backward = page.end, first if start.after else None
        if forward is not None:
            self.next_url = self._page_url(order, Cursor(forward))
        if backward is not None:
            self.previous_url = self._page_url(order, Cursor(backward, backwards=True))
        if start.after is not None:
            self.first_url = self.get_query_string(remove=[PAGE_VAR])
        if page.end is not None and len(page.positions) < self.list_per_page:  # the search stopped at its row limit
            self.is_partial, self.continue_url = True, self.previous_url if start.backwards else self.next_url
            if order == NEWEST and request.GET.get("topic") is not None:
                column = list(self.list_display).index("linked_key")
                self.by_key_url = self.get_query_string({ORDER_VAR: str(column)})

    def _first_and_last(self, order: Order, page: Page, start: Cursor) -> tuple[Position | None, Position | None]:
        """Return the positions of the first and the last row.

        For an empty page, both are the position where it starts, or None if it starts at the beginning of the list.
        """
        if page.positions:
            ends = (page.positions[0], page.positions[-1])
            return ends[::-1] if start.backwards else ends
        if start.after is None:
            return None, None
        # Move the position by one ID, so that the page in the other direction includes the row at the position.
        *values, pk = start.after
        position = [*values, max(pk + (1 if order.descending == start.backwards else -1), 0)]
        return position, position

    def _page_url(self, order: Order, cursor: Cursor) -> str:
        return self.get_query_string({PAGE_VAR: pagination.encode(order, cursor)})
