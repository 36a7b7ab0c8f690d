"""Describe views in the OpenAPI document (document.py): requests, responses and problems.

extend_schema is not used: its result depends on the site's REST_FRAMEWORK setting.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from ..exceptions import MEDIA_TYPE
from ..serializers.fields import MAX_ID, TOPIC_PATTERN
from ..serializers.requests import StrictSerializer
from ..serializers.responses import ProblemSerializer

View = TypeVar("View", bound=Callable[..., Any])

ANY_REQUEST = {
    401: "The request has no valid token and no valid session.",
    429: "The caller sent too many requests in a minute, or has too many live jobs or schedules. "
    "Retry after `Retry-After` seconds; without that header, the same request will be refused again.",
    503: "The database is unavailable. Retry after `Retry-After` seconds.",
}
ANY_POST = {
    **ANY_REQUEST,
    400: "The request is invalid; `errors` names the fields.",
    403: "The caller lacks the required right, or a session request lacks its CSRF token.",
    413: "The request body exceeds the caller's limit.",
    415: "The request body is not `application/json`, or is compressed.",
}
HEADERS: list[tuple[str, str, str, set[int]]] = [
    ("Location", "string", "The URL of the created job or schedule. Missing after a request with many jobs.", {201}),
    ("WWW-Authenticate", "string", "`Bearer`.", {401}),
    ("Retry-After", "integer", "Seconds.", {429, 503}),
]
PATH_PARAMETERS = {
    "job_id": OpenApiParameter(
        "job_id", {"type": "integer", "format": "int64", "minimum": 1, "maximum": MAX_ID}, OpenApiParameter.PATH,
        description="The id of the job.",
    ),
    "topic": OpenApiParameter(
        "topic", {"type": "string", "pattern": TOPIC_PATTERN}, OpenApiParameter.PATH,
        description="A kind of job, for example `order.close`.",
    ),
    "schedule": OpenApiParameter(
        "schedule", {"type": "string", "pattern": TOPIC_PATTERN}, OpenApiParameter.PATH,
        description="The name of the schedule, for example `report.daily`.",
    ),
}  # fmt: skip


class ResponseDoc(NamedTuple):
    """The response for one status code."""

    schema: Any  # a serializer, or a JSON Schema
    description: str
    media_type: str = "application/json"


class Operation(NamedTuple):
    name: str
    tag: str
    summary: str
    request: Any
    responses: Mapping[int, ResponseDoc]
    parameters: Sequence[Any]
    examples: Sequence[OpenApiExample]


def operation(
    name: str,
    *,
    tag: str,
    summary: str,
    request: Any = None,
    responses: Mapping[int, ResponseDoc],
    problems: Mapping[int, str],
    problem: tuple[Any, str] = (ProblemSerializer, MEDIA_TYPE),
    parameters: Sequence[Any] = (),
    examples: Sequence[OpenApiExample] = (),
) -> Callable[[View], View]:
    """Decorate a view's get() or post() with its OpenAPI operation. The method's docstring is the description.

    name       the operationId
    request    serializer of the request body, if any
    responses  by status: successful responses, and problems with extension members
    problems   by status: when they occur. ANY_REQUEST holds those of all requests, ANY_POST those of all POSTs
    problem    serializer and media type of problems, if not those of RFC 9457
    """
    refusals = {status: ResponseDoc(problem[0], when, problem[1]) for status, when in problems.items()}
    description = Operation(
        name, tag, summary, request, dict(sorted({**refusals, **responses}.items())), parameters, examples
    )

    def describe(view: View) -> View:
        view.operation = description  # type: ignore[attr-defined]
        return view

    return describe


class Schema(AutoSchema):
    """Build the schema from @operation and from the rules of StrictSerializer."""

    @property
    def operation(self) -> Operation:
        operation: Operation = getattr(self.view, self.method.lower()).operation
        return operation

    def get_operation_id(self) -> str:
        return self.operation.name

    def get_tags(self) -> list[str]:
        return [self.operation.tag]

    def get_summary(self) -> str:
        return self.operation.summary

    def get_request_serializer(self) -> Any:
        return self.operation.request

    def get_response_serializers(self) -> Any:
        return {
            (status, answer.media_type): OpenApiResponse(answer.schema, answer.description)
            for status, answer in self.operation.responses.items()
        }

    def _get_request_body(self, direction: str = "request") -> dict[str, Any] | None:
        body: dict[str, Any] | None = super()._get_request_body(direction)
        if body and not _body_is_optional(self.operation.request):
            body["required"] = True
        return body

    def get_override_parameters(self) -> list[Any]:
        path_parameters = [parameter for name, parameter in PATH_PARAMETERS.items() if f"{{{name}}}" in self.path]
        return [*path_parameters, *self.operation.parameters, *self._headers()]

    def _headers(self) -> list[OpenApiParameter]:
        return [
            OpenApiParameter(name, {"type": kind}, OpenApiParameter.HEADER, description=what, response=sorted(on))
            for name, kind, what, statuses in HEADERS
            if (on := self.operation.responses.keys() & statuses)
        ]

    def get_examples(self) -> list[OpenApiExample]:
        return list(self.operation.examples)

    def _map_basic_serializer(self, serializer: Any, direction: str) -> dict[str, Any]:
        schema: dict[str, Any] = super()._map_basic_serializer(serializer, direction)
        if isinstance(serializer, StrictSerializer):
            schema |= {"additionalProperties": False, **serializer.rules}
        return schema


def _body_is_optional(request: Any) -> bool:
    """Return whether the request body may be missing: no field is required."""
    strict = isinstance(request, type) and issubclass(request, StrictSerializer)
    return strict and not request.rules and not any(field.required for field in request().fields.values())


class TokenScheme(OpenApiAuthenticationExtension):
    target_class = "delaytasks.api.access.permissions.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "The token of a service account."}


class StaffScheme(OpenApiAuthenticationExtension):
    target_class = "delaytasks.api.access.permissions.StaffAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        description = (
            "Django's session of a staff user, with the same permissions as in the admin: hidden topics are not "
            "found, and a topic can require a reason. Requests other than GET also require the CSRF token."
        )
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME, "description": description}
