"""Problem details (RFC 9457) for exceptions: a status, a machine-readable type, a title and a sentence.

`classify` maps an exception to a Problem, `render` makes the response. A view with its own response format calls only
`classify`.
"""

import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import InterfaceError, InternalError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions as drf
from rest_framework.response import Response
from rest_framework.settings import api_settings

from .. import exceptions as engine_exceptions
from ..models import Job
from ..outcomes import REFUSALS
from .limits.parsers import RequestTooLarge

logger = logging.getLogger("delaytasks")
MEDIA_TYPE = "application/problem+json"
URN = "urn:delaytasks:problem:"
READ_ONLY = "25006"  # SQLSTATE read_only_sql_transaction
RETRY_AFTER_SECONDS = 5  # sent with status 503
NO_TOPIC = "Unknown topic: no handler, setting or row has this name."
SEND_JSON = "Send uncompressed JSON with the header `Content-Type: application/json`."
NO_TOKEN = "Send a valid token in the header `Authorization: Bearer <token>`."


# The problems that are no exceptions of the engine: status and title by kind.
PROBLEMS: Mapping[str, tuple[int, str]] = {
    "declared-in-code": (409, "The schedule is declared in code."),
    "forbidden": (403, "Permission denied."),
    "internal-error": (500, "Internal server error."),
    "invalid-request": (400, "The request is invalid."),
    "malformed-request": (400, "The request cannot be read."),
    "method-not-allowed": (405, "Method not allowed at this URL."),
    "not-cancelled": (409, "The job was not cancelled."),
    "not-found": (404, "Not found."),
    "request-too-large": (413, "The request is too large."),
    "too-many-live-jobs": (429, "Too many live jobs."),
    "too-many-requests": (429, "Too many requests."),
    "too-many-schedules": (429, "Too many schedules."),
    "unauthorized": (401, "Authentication required."),
    "unavailable": (503, "Service unavailable."),
    "unsupported-media-type": (415, "Unsupported media type."),
}


class Problem(NamedTuple):
    """The content of one problem document. For those of PROBLEMS, problem() makes it.

    kind      last part of the type, for example "key-is-live"
    title     the same for every problem of this kind
    detail    a sentence about this occurrence
    errors    invalid fields: [{"field": "jobs[3].due_at", "detail": "..."}]
    headers   response headers
    extras    extension members: {"result": "running"}
    """

    status: int
    kind: str
    title: str
    detail: str
    errors: tuple[Mapping[str, str], ...] = ()
    headers: Mapping[str, str] = {}
    extras: Mapping[str, Any] = {}

    @property
    def data(self) -> dict[str, Any]:
        """The members of the problem document."""
        members = {"type": URN + self.kind, "title": self.title, "status": self.status, "detail": self.detail}
        return {**self.extras, **members, **({"errors": list(self.errors)} if self.errors else {})}


def problem(kind: str, detail: str, **members: Any) -> Problem:
    """Return the Problem of this kind, which is one of PROBLEMS."""
    status, title = PROBLEMS[kind]
    return Problem(status, kind, title, detail, **members)


class ProblemError(Exception):
    """Raised by a view to return this Problem."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def classify(error: Exception) -> Problem | None:
    """Return the Problem for an exception, or None for an unexpected one."""
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, engine_exceptions.DelaytasksError):
        return _from_engine(error)
    if isinstance(error, OperationalError | InterfaceError) or _is_read_only(error):
        logger.warning("Request failed: the database is unavailable.", exc_info=error)
        return unavailable("The database is not available at the moment.")
    if isinstance(error, RequestTooLarge | RequestDataTooBig):
        return problem("request-too-large", str(error))
    if isinstance(error, UnreadablePostError):
        return problem("malformed-request", "The request body is incomplete.")
    if isinstance(error, SuspiciousOperation | BadRequest):  # too many parameters, for example
        return problem("malformed-request", str(error))
    return _from_framework(error)


def _is_read_only(error: Exception) -> bool:
    """Return whether PostgreSQL is read-only: after a failover, its host name may lead to a standby for a while."""
    return isinstance(error, InternalError) and getattr(error.__cause__, "sqlstate", None) == READ_ONLY


def render(problem: Problem) -> Response:
    """Return the response for a Problem."""
    headers = dict(problem.headers)
    return Response(problem.data, status=problem.status, headers=headers, content_type=MEDIA_TYPE)


def internal_error(error: Exception, context: Mapping[str, Any]) -> Problem:
    """Log an unexpected exception, send got_request_exception and return the 500 Problem."""
    logger.error("A request failed: %r", error, exc_info=error)
    got_request_exception.send(sender=handler, request=context.get("request"))
    return problem("internal-error", "The error was logged.")


def handler(error: Exception, context: Mapping[str, Any]) -> Response:
    """REST framework's exception handler for the views of this API."""
    return render(classify(error) or internal_error(error, context))


# -- the engine's exceptions --------------------------------------------------------------------


STATE_CONFLICTS = (*REFUSALS, engine_exceptions.NotLive, engine_exceptions.LeaseLost)


def _from_engine(error: engine_exceptions.DelaytasksError) -> Problem | None:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()
    title = (type(error).__doc__ or "").strip().partition("\n")[0]  # as in its default message
    if isinstance(error, engine_exceptions.MirrorDown):
        return unavailable("Redis is not available at the moment.")
    if isinstance(error, engine_exceptions.UnknownTopic):
        return Problem(400, kind, title, NO_TOPIC)  # not the exception's message: it may list hidden topics
    if isinstance(error, engine_exceptions.ScheduleExists):
        return Problem(409, kind, title, str(error))
    if isinstance(error, engine_exceptions.BodyTooLarge):
        return Problem(413, kind, title, str(error))
    if isinstance(error, engine_exceptions.BadInput):
        return Problem(400, kind, title, str(error))
    if isinstance(error, STATE_CONFLICTS):
        return Problem(409, kind, title, str(error))
    if isinstance(error, engine_exceptions.ArchiveUnreadable):
        return unavailable("The archive of ended jobs cannot be read at the moment.")
    return None


def unavailable(detail: str) -> Problem:
    """Return a Problem with status 503."""
    headers = {"Retry-After": str(RETRY_AFTER_SECONDS)}
    return problem("unavailable", detail, headers=headers)


# -- the framework's ----------------------------------------------------------------------------

_FRAMEWORK: Mapping[type[Exception], str] = {
    drf.ParseError: "malformed-request",
    drf.MethodNotAllowed: "method-not-allowed",
}


def _from_framework(error: Exception) -> Problem | None:
    if isinstance(error, Http404 | drf.NotFound | Job.DoesNotExist):  # DoesNotExist: deleted after its lookup
        return problem("not-found", "There is no such resource, or the caller may not see it.")
    if isinstance(error, PermissionDenied | drf.PermissionDenied):
        return problem("forbidden", str(error) or "The caller lacks permission.")
    if isinstance(error, drf.NotAuthenticated | drf.AuthenticationFailed):
        header = getattr(error, "auth_header", "Bearer")
        return problem("unauthorized", NO_TOKEN, headers={"WWW-Authenticate": header})
    if isinstance(error, drf.Throttled):
        return _throttled(error.wait)
    if isinstance(error, drf.ValidationError):
        return _invalid(error)
    if isinstance(error, drf.UnsupportedMediaType):
        return problem("unsupported-media-type", f"{error} {SEND_JSON}")
    kind = _FRAMEWORK.get(type(error))
    return None if kind is None else problem(kind, str(error))


def _throttled(wait: float | None) -> Problem:
    seconds = max(1, math.ceil(wait or 1))
    detail = f"Rate limit exceeded. Retry in {seconds} s."
    return problem("too-many-requests", detail, headers={"Retry-After": str(seconds)})


def _invalid(error: drf.ValidationError) -> Problem:
    errors = tuple({"field": field, "detail": detail} for field, detail in flatten(error.detail))
    named = "; ".join(f"{each['field']}: {each['detail']}".removeprefix(": ") for each in errors[:3])
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return problem("invalid-request", named + more, errors=errors)


def flatten(detail: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield (field, message) for each error of a serializer: ("jobs[3].due_at", "This field is required.").

    For an error of a whole object, the field is the path of that object; for the whole request, it is "".
    """
    if isinstance(detail, dict):
        for key, value in detail.items():
            yield from flatten(value, _join(path, key))
    elif isinstance(detail, list | tuple):
        for index, value in enumerate(detail):
            yield from flatten(value, path if isinstance(value, str) else _join(path, index))
    else:
        yield path, str(detail)


def _join(path: str, key: object) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    if key == api_settings.NON_FIELD_ERRORS_KEY:
        return path
    return f"{path}.{key}" if path else str(key)
