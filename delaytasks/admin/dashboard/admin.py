"""The board: a dashboard that refreshes its numbers without a page load."""

from functools import partial
from typing import Any

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.forms import Media
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils import timezone
from django.utils.translation import gettext as _

from ... import databases, permissions
from ...models import Board
from .. import display
from . import charts, data
from .glossary import glossary

POLL_MS = 5_000
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
    """Add the board to the admin's index and sidebar. Its changelist is the board."""

    def get_urls(self) -> list[URLPattern]:
        wrap = self.admin_site.admin_view
        return [
            path("", wrap(self.changelist_view), name="delaytasks_board_changelist"),
            path("numbers/", wrap(self.numbers_view), name="delaytasks_board_numbers"),
        ]

    # The permission to view jobs is required. The board is read-only.

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
        """Return the page without its numbers; board.js fetches the numbers."""
        topics = self._visible(request)
        site = self.admin_site
        request.current_app = site.name
        context = {
            **site.each_context(request),
            "title": _("Board"),
            "opts": self.opts,
            "media": MEDIA,
            "topics": topics,
            "topic": _chosen_topic(request, topics),
            "charts": charts.titles(),
            "can_be_tall": (charts.MINUTES, charts.HOURS),
            "glossary": glossary(),
            "zone_notice": display.zone_notice(request),
            "config": {
                "url": reverse("admin:delaytasks_board_numbers", current_app=site.name),
                "every_ms": POLL_MS,
                "words": script_texts(),
            },
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/delaytasks/board.html", context)

    def numbers_view(self, request: HttpRequest) -> JsonResponse:
        """Return the contents of the board as JSON, formatted in the viewer's language and time zone."""
        topic = _chosen_topic(request, self._visible(request))
        using = databases.alias()
        topics = [topic] if topic else permissions.visible_topics(request.user, using)
        list_url = partial(self._list_url, request)
        with timezone.override(display.viewer_zone(request)):
            board = data.build(using, topics, list_url=list_url, topic=topic)
        return JsonResponse(board)

    def _list_url(self, request: HttpRequest, model: type[Model]) -> str:
        """Return the URL of a model's list; "" if this site does not have it, or the user may not view it."""
        site = self.admin_site
        if not site.is_registered(model) or not site.get_model_admin(model).has_view_or_change_permission(request):
            return ""
        return reverse(f"admin:delaytasks_{model._meta.model_name}_changelist", current_app=site.name)

    def _visible(self, request: HttpRequest) -> list[str]:
        """Return the topics that the user can choose. Raises PermissionDenied if the user may not view jobs."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        return permissions.topic_rows(request.user, databases.alias())


def _chosen_topic(request: HttpRequest, topics: list[str]) -> str:
    """Return the topic in the URL, or "" without one. Raises Http404 if the topic is not in `topics`."""
    topic = request.GET.get("topic", "")
    if topic and topic not in topics:
        raise Http404
    return topic


def script_texts() -> dict[str, Any]:
    """Return the texts that belong to board.js itself. All other texts come with the numbers."""
    return {
        "updated": _("Updated at {time}."),
        "stopped": _("Not refreshed since {time}."),
        "lost": _("No response from the server. These numbers are from {time}. Retrying…"),
        "failed": _("The server responded with {status}. These numbers are from {time}. Retrying…"),
        "never": _("No response from the server. Retrying…"),
        "unknown": _("These numbers are not available right now."),
        "stop": _("Stop refreshing"),
        "go": _("Resume refreshing"),
        "time": _("Time"),
        "remark": _("Herd of"),
    }
