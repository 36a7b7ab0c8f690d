"""What every view here has in common. It takes nothing from the site's REST_FRAMEWORK setting."""

from collections.abc import Callable
from typing import Any, ClassVar

from django.db import connections, transaction
from django.http import Http404
from django.utils import translation
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.views import APIView

from .. import engine
from ..models import Job
from . import problems
from .access import AnyOf, Caller, HasCaller, Right, StaffAuthentication, TokenAuthentication
from .limits import CountedRequest, JSONParser, RateLimit
from .openapi import Schema


class PlainJSON(JSONRenderer):
    """Compact JSON in UTF-8, whatever the site's settings say."""

    compact = True
    ensure_ascii = False
    strict = True


class FirstRenderer(BaseContentNegotiation):
    """The view's first renderer, whatever Accept says: there is one representation, and an error has to be readable."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        return DefaultContentNegotiation().select_parser(request, parsers)

    def select_renderer(self, request: Any, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


class BaseView(APIView):
    """A caller is known, counted and let in; errors are problem details.

    caller   who is calling
    using    the database alias of the jobs
    """

    authentication_classes: ClassVar = [TokenAuthentication, StaffAuthentication]
    permission_classes: ClassVar = [HasCaller]
    throttle_classes: ClassVar = [RateLimit]
    parser_classes: ClassVar = [JSONParser]
    renderer_classes: ClassVar = [PlainJSON]
    content_negotiation_class = FirstRenderer
    http_method_names: ClassVar = ["get", "post", "put", "patch", "delete", "head"]  # OPTIONS has nothing to tell
    versioning_class = None
    schema = Schema()

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., Any]:
        """The view, outside ATOMIC_REQUESTS: the engine has transactions of its own, and health none."""
        view = super().as_view(**initkwargs)
        for alias in connections:
            view = transaction.non_atomic_requests(using=alias)(view)
        return view

    @property
    def default_response_headers(self) -> dict[str, str]:
        headers: dict[str, str] = super().default_response_headers
        return headers | {"Cache-Control": "no-store", "Content-Language": "en"}

    @property
    def caller(self) -> Caller:
        caller: Caller = self.request.auth
        return caller

    @property
    def using(self) -> str:
        return engine.alias()

    def job(self, job_id: int, right: AnyOf = Right.READ) -> Job:
        """The job of this id, if the caller has the right on its topic; of several rights, any.

        Raises Http404 in the same way for an unknown id and for a topic that the caller does not see, else
        PermissionDenied.
        """
        jobs = Job.objects.using(self.using).filter(pk=job_id)
        topic = jobs.values_list("topic", flat=True).first()  # and no body, whose size would be felt
        if topic is None or not self.caller.sees(topic):
            raise Http404
        self.caller.require(right, topic)
        return jobs.get()

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """In English, whatever Accept-Language asks for: programs log these sentences, and people search for them."""
        with translation.override("en"):
            return super().dispatch(request, *args, **kwargs)

    def get_format_suffix(self, **kwargs: Any) -> None:
        return None

    def get_exception_handler(self) -> Callable[..., Any]:
        return problems.handler

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> CountedRequest:
        return CountedRequest(
            request,
            parsers=self.get_parsers(),
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
            parser_context=self.get_parser_context(request),
        )
