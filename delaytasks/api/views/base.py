"""Base class of the API's views. It ignores the site's REST_FRAMEWORK setting."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, ClassVar

from django.db import connections, transaction
from django.http import Http404
from django.urls import reverse
from django.utils import translation
from rest_framework.exceptions import ValidationError
from rest_framework.negotiation import BaseContentNegotiation, DefaultContentNegotiation
from rest_framework.renderers import JSONRenderer
from rest_framework.views import APIView

from ... import databases, tracing
from ...models import Job
from ...monitoring import requests
from .. import exceptions
from ..access.permissions import AnyOf, Caller, HasCaller, Right, StaffAuthentication, TokenAuthentication
from ..access.throttling import RateLimit
from ..limits.parsers import CountedRequest, JSONParser
from ..schema.operations import Schema
from ..serializers.requests import MAX_ERRORS


class PlainJSON(JSONRenderer):
    """Render compact JSON in UTF-8, independent of the site's settings."""

    compact = True
    ensure_ascii = False
    strict = True


class FirstRenderer(BaseContentNegotiation):
    """Use the view's only renderer, whatever the header Accept says: errors must be readable, too."""

    def select_parser(self, request: Any, parsers: Any) -> Any:
        return DefaultContentNegotiation().select_parser(request, parsers)

    def select_renderer(self, request: Any, renderers: Any, format_suffix: str | None = None) -> Any:
        return renderers[0], renderers[0].media_type


def count_request(began: float, request: Any, response: Any) -> None:
    """Count a request in the metrics. `began` is what requests.began() returned for it."""
    if began:
        endpoint = request.resolver_match.url_name if request.resolver_match else ""
        requests.ended(began, request.method, endpoint, response.status_code)


class BaseView(APIView):
    """Authenticate and throttle the caller; return errors as problem details.

    caller   the authenticated caller
    using    the database alias of the jobs
    """

    authentication_classes: ClassVar = [TokenAuthentication, StaffAuthentication]
    permission_classes: ClassVar = [HasCaller]
    throttle_classes: ClassVar = [RateLimit]
    parser_classes: ClassVar = [JSONParser]
    renderer_classes: ClassVar = [PlainJSON]
    content_negotiation_class = FirstRenderer
    bulk = False  # whether the address takes many jobs at once: its bodies may be larger
    http_method_names: ClassVar = ["get", "post", "put", "patch", "delete", "head"]  # OPTIONS would have no content
    versioning_class = None
    schema = Schema()

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., Any]:
        """Exempt the view from ATOMIC_REQUESTS: the engine opens its own transactions, and health checks need none."""
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
        return databases.alias()

    def path_of(self, name: str, **arguments: Any) -> str:
        """Return the path of a view of the API, also if the site has mounted the API in a namespace of its own."""
        return reverse(f"{self.request.resolver_match.namespace}:{name}", kwargs=arguments)

    def job(self, job_id: int, right: AnyOf = Right.READ) -> Job:
        """Return the job with this id if the caller has the right on its topic; of a tuple of rights, one is enough.

        Raises Http404 for an unknown id and, alike, for a job whose topic is hidden from the caller. Raises
        PermissionDenied if the caller sees the topic but lacks the right.
        """
        jobs = Job.objects.using(self.using).filter(pk=job_id)
        # Read only the topic: the time to read a large body would reveal that a hidden job exists.
        topic = jobs.values_list("topic", flat=True).first()
        if topic is None or not self.caller.sees(topic):
            raise Http404
        self.caller.require(right, topic)
        return jobs.get()

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Answer in English, independent of Accept-Language: programs log the messages, and people search for them."""
        began = getattr(request, "scope", {}).get(requests.BEGAN) or requests.began()
        with translation.override("en"), ExitStack() as self._admitted:
            response = super().dispatch(request, *args, **kwargs)
        if getattr(response, "wait", None) is None:
            count_request(began, request, response)
        else:  # a long poll, which LongPoll counts at its end
            response.wait.began = began
        return response

    def initial(self, request: Any, *args: Any, **kwargs: Any) -> None:
        super().initial(request, *args, **kwargs)
        # After authentication, because strangers must not choose the trace.
        self._admitted.enter_context(tracing.continuing(request.headers))
        is_served = hasattr(self, request.method.lower())  # otherwise the answer is 404 or 405
        if request.method in ("POST", "PATCH") and is_served and request.query_params:
            names = list(request.query_params)[:MAX_ERRORS]
            raise ValidationError(dict.fromkeys(names, "Send it in the body, not in the URL."))

    def get_format_suffix(self, **kwargs: Any) -> None:
        return None

    def get_exception_handler(self) -> Callable[..., Any]:
        return exceptions.handler

    def initialize_request(self, request: Any, *args: Any, **kwargs: Any) -> CountedRequest:
        counted = CountedRequest(
            request,
            parsers=self.get_parsers(),
            authenticators=self.get_authenticators(),
            negotiator=self.get_content_negotiator(),
            parser_context=self.get_parser_context(request),
        )
        counted.bulk = self.bulk
        return counted
