"""The changelist of jobs: one bounded query in an order that an index has, and never a COUNT."""

from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.db.models.functions import Right
from django.http import HttpRequest

from . import filters, shown

LAST_PAGE = 100  # an OFFSET reads what it skips; whoever wants more than this should filter
ERROR_TAIL = 400  # characters of the error that a list needs


class JobChangeList(ChangeList):
    """Newest first; live jobs by due time. Fetches one row more than it shows to know whether there is a next page."""

    def get_queryset(self, request: HttpRequest, *args: Any, **kwargs: Any) -> QuerySet:
        found = super().get_queryset(request, *args, **kwargs)
        # A body may hold 64 KiB and an error a traceback: a hundred of them are not for a list.
        return found.defer("body", "error").annotate(error_tail=Right("error", ERROR_TAIL))

    def get_ordering(self, request: HttpRequest, queryset: QuerySet) -> list[str | Combinable]:
        if not filters.in_due_order(request):
            return ["-id"]
        latest_first = self.params.get(ORDER_VAR, "").startswith("-")
        return ["-due_at", "-id"] if latest_first else ["due_at", "id"]

    def get_results(self, request: HttpRequest) -> None:
        if not 1 <= self.page_num <= LAST_PAGE:
            raise IncorrectLookupParameters
        start = (self.page_num - 1) * self.list_per_page
        rows = list(self.queryset[start : start + self.list_per_page + 1])
        now = shown.seen_at(request, self.queryset.db)
        for job in rows:
            job.seen_at = now
        self.result_list = rows[: self.list_per_page]
        self.more = len(rows) > self.list_per_page
        self.first_number, self.last_number = start + 1, start + len(self.result_list)
        self._page_links()
        # Django's templates offer "select all N" and "N results" where these differ: nobody counted, so they do not.
        self.result_count = self.full_result_count = len(self.result_list)
        self.show_full_result_count = False
        self.show_admin_actions = bool(self.result_list)
        self.can_show_all = self.multi_page = False
        self.paginator = Paginator(self.result_list, self.list_per_page)

    def _page_links(self) -> None:
        self.at_last_page = self.more and self.page_num == LAST_PAGE
        self.next_url = self.previous_url = ""
        if self.more and not self.at_last_page:
            self.next_url = self.get_query_string({PAGE_VAR: self.page_num + 1})
        if self.page_num > 1:
            self.previous_url = self.get_query_string({PAGE_VAR: self.page_num - 1})
