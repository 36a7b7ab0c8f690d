"""The changelist of jobs: pages that go on from a position, in an order that an index has, and never a COUNT."""

from typing import Any

from django.contrib import messages
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models.expressions import Combinable
from django.db.models.functions import Right
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext as _

from .. import rights
from ..exceptions import BadCursor
from ..models import Job
from . import cursors, filters, lateness, shown, walks

ERROR_TAIL = 400  # characters of the error that a list needs
PAGE_VARS = (PAGE_VAR,)  # what in an address only says which page
MAX_ID = 2**63 - 1
FEW = 200


def number_of(text: str) -> int | None:
    """The job number that `text` is, or None."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= MAX_ID else None


class FirstFew(Paginator):
    """Pages of what matches, as far as people look; beyond that nothing is counted. Not for the list: it has walks."""

    object_list: Any

    @cached_property
    def count(self) -> int:
        return len(self.object_list.values_list("pk")[:FEW])


class JobChangeList(ChangeList):
    """Newest first; live jobs by due time; what is searched for by key.

    `queryset` is all that matches, for actions. What the page shows is found by walks.py, which is quick
    however many match, and fetched by number.
    """

    model_admin: Any

    def get_ordering(self, request: HttpRequest, queryset: Any) -> list[str | Combinable]:
        walk = self._walk(request)
        columns = walk.columns if walk.name == "due" else ("id",)
        return [f"-{column}" if walk.down else column for column in columns]

    def get_results(self, request: HttpRequest) -> None:
        self.list_per_page = min(self.list_per_page, getattr(request, "_delaytasks_rows", self.list_per_page))
        self._find(request)
        now = shown.seen_at(request, self.queryset.db)
        self.result_list = self._fetch()
        for job in self.result_list:
            job.seen_at = now
        lateness.note(self.result_list, now)
        # Django's templates offer "select all N" and "N results" where these differ: nobody counted, so they do not.
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.result_list)
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(self.result_list, self.list_per_page)
        self.zone_notice = shown.zone_notice(request)

    # Which jobs

    def wish(self, request: HttpRequest) -> walks.Wish | None:
        """What all its pages together show; None: nothing."""
        if self.queryset.query.is_empty():
            return None
        wish = self._wish(request, self._walk(request))
        return None if wish.topics == () else wish  # else the cursor to the next page would tell what is hidden

    def _walk(self, request: HttpRequest) -> walks.Walk:
        column, down = self._sort()
        if self.query.strip() or (column == "linked_key" and request.GET.get("topic") is not None):
            return walks.KEY._replace(down=down and column == "linked_key")
        if filters.in_due_order(request):
            return walks.DUE._replace(down=down)
        return walks.NEW

    def _sort(self) -> tuple[str, bool]:
        """(the column that a click on a heading chose, whether downwards); what was typed there may be anything."""
        asked = self.params.get(ORDER_VAR, "").partition(".")[0]
        number = number_of(asked.removeprefix("-"))
        known = number is not None and number < len(self.list_display)
        return (str(self.list_display[number]) if known else ""), asked.startswith("-")  # type: ignore[index]

    def _wish(self, request: HttpRequest, walk: walks.Walk) -> walks.Wish:
        user, using, topic = request.user, self.queryset.db, request.GET.get("topic")
        if topic is None:
            topics = rights.visible_topics(user, using)
        else:
            topics = [topic] if rights.may_see(user, topic, using) else []
        if topics is None and walk.name == "key":
            topics = rights.known_topics(user, using)
        due = filters.window(request, using) or filters.Window()
        return walks.Wish(
            shown.seen_at(request, using),
            "live" if request.GET.get("due") and not request.GET.get("state") else request.GET.get("state", ""),
            None if topics is None else tuple(topics),
            self.query.strip(),
            due.after,
            due.until,
        )

    def _find(self, request: HttpRequest) -> None:
        """The numbers of the page's jobs, and the links to the pages around it."""
        self.next_url = self.previous_url = self.first_url = self.further_url = self.by_key_url = ""
        self.short, self.ids = False, []
        walk, wish = self._walk(request), self.wish(request)
        if wish is None:  # a filter that leaves nothing
            return
        start, back = self._start(request, walk)
        found = self._look(walk, wish, start, back)
        if back and found.end is None and len(found.positions) < self.list_per_page:
            first = self._look(walk, wish, None, False)
            if len(first.positions) >= len(found.positions):  # the beginning is reached: better a full page of it
                found, start, back = first, None, False
        self.ids = found.ids[::-1] if back else found.ids
        self._link(request, walk, found, start, back)
        number = number_of(wish.prefix)
        if start is None and number is not None:
            self._put_first(number)

    def _look(self, walk: walks.Walk, wish: walks.Wish, start: walks.Position | None, back: bool) -> walks.Found:
        return walks.find(self.queryset.db, walk.reverse if back else walk, wish, start, self.list_per_page)

    def _start(self, request: HttpRequest, walk: walks.Walk) -> tuple[walks.Position | None, bool]:
        cursor = request.GET.get(PAGE_VAR)
        if not cursor:
            return None, False
        try:
            return cursors.read(cursor, walk)
        except BadCursor:
            messages.warning(request, _("The address names no page of this list. This is the first one."))
            return None, False

    def _put_first(self, number: int) -> None:
        """A number that is searched for may be a job's own."""
        if self.queryset.filter(pk=number).exists():
            self.ids = [number, *(each for each in self.ids if each != number)]

    def _fetch(self) -> list[Any]:
        """The jobs of these numbers, in their order; one that was pruned a moment ago is left out."""
        # A body may hold 64 KiB and an error a traceback: a hundred of them are not for a list.
        jobs = self.root_queryset.defer("body", "error").annotate(error_tail=Right("error", ERROR_TAIL))
        by_number: dict[int, Job] = jobs.in_bulk(self.ids) if self.ids else {}
        return [by_number[number] for number in self.ids if number in by_number]

    # Where to go from here

    def _link(
        self, request: HttpRequest, walk: walks.Walk, found: walks.Found, start: walks.Position | None, back: bool
    ) -> None:
        first, last = self._ends(walk, found, start, back)
        forward, backward = (last, found.end) if back else (found.end, first if start else None)
        if forward is not None:
            self.next_url = self._page_url(cursors.write(walk, forward))
        if backward is not None:
            self.previous_url = self._page_url(cursors.write(walk, backward, back=True))
        if start is not None:
            self.first_url = self.get_query_string(remove=[PAGE_VAR])
        if found.end is not None and len(found.positions) < self.list_per_page:  # it looked at enough and paused
            self.short, self.further_url = True, self.previous_url if back else self.next_url
            if walk.name == "new" and request.GET.get("topic") is not None:
                column = list(self.list_display).index("linked_key")
                self.by_key_url = self.get_query_string({ORDER_VAR: str(column)})

    def _ends(
        self, walk: walks.Walk, found: walks.Found, start: walks.Position | None, back: bool
    ) -> tuple[walks.Position | None, walks.Position | None]:
        """The positions of the page's first and last row; an empty page stands where it began."""
        if found.positions:
            ends = (found.positions[0], found.positions[-1])
            return ends[::-1] if back else ends
        if start is None:
            return None, None
        # One beside it, so that the row at `start` is seen again by whoever turns round here.
        beside = [*start[:-1], max(start[-1] + (1 if walk.down == back else -1), 0)]
        return beside, beside

    def _page_url(self, cursor: str) -> str:
        return self.get_query_string({PAGE_VAR: cursor})
