"""The board: the page to leave open. It asks for its numbers again and again, without a page load."""

from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.forms import Media
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from .. import engine, rights
from ..models import Board
from . import boardcharts, boardnumbers, shown

EVERY_MS = 5_000
MEDIA = Media(
    css={
        "all": ["delaytasks/vendor/uplot/uPlot.min.css", "delaytasks/admin.css", "delaytasks/board.css"],
    },
    js=[
        "delaytasks/times.js",
        "delaytasks/vendor/uplot/uPlot.iife.min.js",
        "delaytasks/charts.js",
        "delaytasks/board.js",
    ],
)


@admin.register(Board)
class BoardAdmin(admin.ModelAdmin):
    """An entry among the models, so that each admin's sidebar and index lead here; its list is the board."""

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("", wrap(self.changelist_view), name="delaytasks_board_changelist"),
            path("numbers/", wrap(self.numbers_view), name="delaytasks_board_numbers"),
        ]

    # Who may look at jobs may look at the board; there is nothing on it to add, change or delete.

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return request.user.has_perm("delaytasks.view_job")

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """The frame, without a number in it."""
        topics = self._visible(request)
        site = self.admin_site
        request.current_app = site.name
        context = {
            **site.each_context(request),
            "title": _("Board"),
            "opts": self.opts,
            "media": MEDIA,
            "topics": topics,
            "topic": _chosen(request, topics),
            "charts": boardcharts.titles(),
            "can_be_tall": (boardcharts.MINUTES, boardcharts.HOURS),
            "zone_notice": shown.zone_notice(request),
            "config": {
                "url": reverse("admin:delaytasks_board_numbers", current_app=site.name),
                "every_ms": EVERY_MS,
                "words": words(),
            },
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/delaytasks/board.html", context)

    def numbers_view(self, request: HttpRequest) -> JsonResponse:
        """All that is on the board, ready to be shown: words and numbers in the viewer's language and time zone."""
        topic = _chosen(request, self._visible(request))
        using = engine.alias()
        only = [topic] if topic else rights.visible_topics(request.user, using)
        place = partial(_address, self.admin_site.name)
        with timezone.override(shown.viewer_zone(request)):
            found = boardnumbers.of(using, only, place=place, topic=topic)
        return JsonResponse(found)

    def _visible(self, request: HttpRequest) -> list[str]:
        """The topics to choose from. Raises PermissionDenied for those who may not look at jobs."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return rights.topic_rows(request.user, engine.alias())


def _chosen(request: HttpRequest, topics: list[str]) -> str:
    """The topic that the address names, or "". Raises Http404 for one that is not there or not for this person."""
    topic = request.GET.get("topic", "")
    if topic and topic not in topics:
        raise Http404
    return topic


def _address(site_name: str, view: str) -> str:
    """Of a page of the same admin; "" if that has no such page."""
    try:
        return reverse(view, current_app=site_name)
    except NoReverseMatch:
        return ""


def words() -> dict[str, Any]:
    """What the script has to say of itself; the numbers come with words of their own."""
    return {
        "updated": _("Updated at {time}."),
        "stopped": _("Not refreshed since {time}."),
        "lost": _("No answer from the server. These numbers are of {time}. Asking again…"),
        "failed": _("The server answered {status}. These numbers are of {time}. Asking again…"),
        "never": _("No answer from the server. Asking again…"),
        "unknown": _("This could not be counted just now."),
        "stop": _("Stop refreshing"),
        "go": _("Go on refreshing"),
        "time": _("Time"),
        "remark": _("Herd of"),
    }
