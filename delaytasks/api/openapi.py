"""How a view's method says in OpenAPI what it takes, gives and refuses. The document itself is made in schema.py.

Not by extend_schema: what that makes of a view depends on the site's REST_FRAMEWORK setting.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from django.conf import settings
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from .answers import ProblemSerializer
from .fields import MAX_ID, TOPIC_PATTERN
from .problems import MEDIA_TYPE
from .serializers import Strict

View = TypeVar("View", bound=Callable[..., Any])

ANY_REQUEST = {
    401: "No token and no session came with the request, or one that is not accepted.",
    429: "The caller has sent too many requests in a minute. `Retry-After` says when to ask again.",
    503: "The database does not answer. `Retry-After` says when to ask again.",
}
ANY_POST = {
    **ANY_REQUEST,
    400: "The request is not as described here; `errors` names the fields.",
    403: "The caller lacks the right that this needs, or a session came without its CSRF token.",
    413: "The request's body is larger than the caller may send.",
    415: "The request's body is not `application/json`.",
}
HEADERS: list[tuple[str, str, str, set[int]]] = [
    ("Location", "string", "The address of the job, if it is one.", {201}),
    ("WWW-Authenticate", "string", "`Bearer`.", {401}),
    ("Retry-After", "integer", "Seconds.", {429, 503}),
]
IN_PATH = {
    "job_id": OpenApiParameter(
        "job_id", {"type": "integer", "format": "int64", "minimum": 1, "maximum": MAX_ID}, OpenApiParameter.PATH,
        description="The number that the job was given when it was created.",
    ),
    "topic": OpenApiParameter(
        "topic", {"type": "string", "pattern": TOPIC_PATTERN}, OpenApiParameter.PATH,
        description="A kind of job, for example `order.close`.",
    ),
}  # fmt: skip


class Answer(NamedTuple):
    """What comes with a status."""

    of: Any  # a serializer, or a JSON Schema
    description: str
    media_type: str = "application/json"


class Operation(NamedTuple):
    name: str
    tag: str
    summary: str
    request: Any
    answers: Mapping[int, Answer]
    parameters: Sequence[Any]
    examples: Sequence[OpenApiExample]


def operation(
    name: str,
    *,
    tag: str,
    summary: str,
    request: Any = None,
    answers: Mapping[int, Answer],
    problems: Mapping[int, str],
    problem: tuple[Any, str] = (ProblemSerializer, MEDIA_TYPE),
    parameters: Sequence[Any] = (),
    examples: Sequence[OpenApiExample] = (),
) -> Callable[[View], View]:
    """Describe a view's get or post. Its docstring is the description.

    name       the operationId
    request    the serializer of the request's body, if it takes one
    answers    by status: what is no problem, and problems that have members of their own
    problems   by status: when they occur. ANY_REQUEST and ANY_POST are what any request and any POST may get
    problem    the serializer and the media type of problems, where they are not those of RFC 9457
    """
    refusals = {status: Answer(problem[0], when, problem[1]) for status, when in problems.items()}
    known = Operation(name, tag, summary, request, dict(sorted({**refusals, **answers}.items())), parameters, examples)

    def describe(view: View) -> View:
        view.operation = known  # type: ignore[attr-defined]
        return view

    return describe


class Schema(AutoSchema):
    """Reads what `operation` says, and what the serializers refuse beyond their fields."""

    @property
    def operation(self) -> Operation:
        found: Operation = getattr(self.view, self.method.lower()).operation
        return found

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
            (status, answer.media_type): OpenApiResponse(answer.of, answer.description)
            for status, answer in self.operation.answers.items()
        }

    def _get_request_body(self, direction: str = "request") -> dict[str, Any] | None:
        body: dict[str, Any] | None = super()._get_request_body(direction)
        if body and not _may_be_empty(self.operation.request):
            body["required"] = True
        return body

    def get_override_parameters(self) -> list[Any]:
        in_path = [parameter for name, parameter in IN_PATH.items() if f"{{{name}}}" in self.path]
        return [*in_path, *self.operation.parameters, *self._headers()]

    def _headers(self) -> list[OpenApiParameter]:
        return [
            OpenApiParameter(name, {"type": kind}, OpenApiParameter.HEADER, description=what, response=sorted(on))
            for name, kind, what, statuses in HEADERS
            if (on := self.operation.answers.keys() & statuses)
        ]

    def get_examples(self) -> list[OpenApiExample]:
        return list(self.operation.examples)

    def _map_basic_serializer(self, serializer: Any, direction: str) -> dict[str, Any]:
        schema: dict[str, Any] = super()._map_basic_serializer(serializer, direction)
        if isinstance(serializer, Strict):
            schema |= {"additionalProperties": False, **serializer.rules}
        return schema


def _may_be_empty(request: Any) -> bool:
    """Whether a request without a body says enough."""
    strict = isinstance(request, type) and issubclass(request, Strict)
    return strict and not request.rules and not any(field.required for field in request().fields.values())


class TokenScheme(OpenApiAuthenticationExtension):
    target_class = "delaytasks.api.access.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "The token of a service account."}


class StaffScheme(OpenApiAuthenticationExtension):
    target_class = "delaytasks.api.access.StaffAuthentication"
    name = "session"

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        description = (
            "Django's session of staff, who see and may do what they do in the admin: jobs of topics that are for "
            "others are not there, and a topic may ask for a reason. What is not a GET needs the CSRF token, too."
        )
        return {"type": "apiKey", "in": "cookie", "name": settings.SESSION_COOKIE_NAME, "description": description}
