"""What went wrong, as RFC 9457 has it: a status, a type to program by, a title and a sentence for people.

`classify` says what an exception is, `render` writes it down. A view with an envelope of its own takes the first alone.
"""

import logging
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.core.exceptions import BadRequest, PermissionDenied, RequestDataTooBig, SuspiciousOperation
from django.core.signals import got_request_exception
from django.db import InterfaceError, OperationalError
from django.http import Http404, UnreadablePostError
from rest_framework import exceptions as drf
from rest_framework.response import Response
from rest_framework.settings import api_settings

from .. import exceptions as ours
from .limits import RequestTooLarge

logger = logging.getLogger("delaytasks")
MEDIA_TYPE = "application/problem+json"
URN = "urn:delaytasks:problem:"
AGAIN_SECONDS = 5  # Retry-After of what is down
NO_TOPIC = "The topic is not known here: no handler, no setting and no row has its name."
NO_TOKEN = "Send a valid token, as `Authorization: Bearer <token>`."


class Problem(NamedTuple):
    """One thing that went wrong.

    kind      the word that ends the type: "key-is-live"
    title     the same for every problem of this kind
    detail    a sentence about this one
    errors    which fields are wrong: [{"field": "jobs[3].due_at", "detail": "..."}]
    headers   of the answer
    extras    further members, by kind: {"result": "running"}
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


class ProblemError(Exception):
    """Raised by a view that knows its problem already."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


def conflict(kind: str, title: str, detail: str, **extras: Any) -> ProblemError:
    """A refusal by what the job is now, to be raised: 409."""
    return ProblemError(Problem(409, kind, title, detail, extras=extras))


def classify(error: Exception) -> Problem | None:
    """What this exception is to the caller; None if it is nothing that was foreseen."""
    if isinstance(error, ProblemError):
        return error.problem
    if isinstance(error, ours.DelaytasksError):
        return _of_engine(error)
    if isinstance(error, OperationalError | InterfaceError):
        logger.warning("The database did not answer a request.", exc_info=error)
        return _unavailable("The database does not answer at the moment.")
    if isinstance(error, RequestTooLarge | RequestDataTooBig):
        return Problem(413, "request-too-large", "The request is too large.", str(error))
    if isinstance(error, UnreadablePostError):
        return Problem(400, "malformed-request", "The request cannot be read.", "The request's body broke off.")
    if isinstance(error, SuspiciousOperation | BadRequest):  # too many parameters, for example
        return Problem(400, "malformed-request", "The request cannot be read.", str(error))
    return _of_framework(error)


def render(problem: Problem) -> Response:
    """The answer that carries this problem."""
    headers = dict(problem.headers)
    return Response(problem.data, status=problem.status, headers=headers, content_type=MEDIA_TYPE)


def unforeseen(error: Exception, context: Mapping[str, Any]) -> Problem:
    """A fault of ours: told to the log and to whoever listens for such, and to the caller in their own format."""
    logger.error("A request failed: %r", error, exc_info=error)
    got_request_exception.send(sender=handler, request=context.get("request"))
    return Problem(500, "internal-error", "Something is wrong on this side.", "The fault was logged.")


def handler(error: Exception, context: Mapping[str, Any]) -> Response:
    """The framework's exception handler of our views."""
    return render(classify(error) or unforeseen(error, context))


# -- the engine's exceptions --------------------------------------------------------------------


_BY_STATE = (ours.KeyIsLive, ours.NotLive, ours.NotDead, ours.Reserved, ours.MovedMeanwhile, ours.LeaseLost)


def _of_engine(error: ours.DelaytasksError) -> Problem | None:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(error).__name__).lower()
    title = " ".join((type(error).__doc__ or "").split())
    if isinstance(error, ours.MirrorDown):
        return _unavailable("Redis does not answer at the moment.")
    if isinstance(error, ours.UnknownTopic):  # its own words name the topics that are known
        return Problem(400, kind, title, NO_TOPIC)
    if isinstance(error, ours.BodyTooLarge):
        return Problem(413, kind, title, str(error))
    if isinstance(error, ours.BadInput):
        return Problem(400, kind, title, str(error))
    if isinstance(error, _BY_STATE):
        return Problem(409, kind, title, str(error))
    if isinstance(error, ours.ArchiveUnreadable):
        return _unavailable("The archive of what has ended cannot be read at the moment.")
    return None


def _unavailable(detail: str) -> Problem:
    headers = {"Retry-After": str(AGAIN_SECONDS)}
    return Problem(503, "unavailable", "Something that this needs is down.", detail, headers=headers)


# -- the framework's ----------------------------------------------------------------------------

_FRAMEWORK: dict[type[Exception], tuple[str, str]] = {
    drf.ParseError: ("malformed-request", "The request cannot be read."),
    drf.MethodNotAllowed: ("method-not-allowed", "This address does not take this method."),
    drf.NotAcceptable: ("not-acceptable", "None of the media types asked for is there."),
    drf.UnsupportedMediaType: ("unsupported-media-type", "The request's media type is not taken."),
}


def _of_framework(error: Exception) -> Problem | None:
    if isinstance(error, Http404 | drf.NotFound):
        return Problem(404, "not-found", "There is nothing here.", "Not found.")
    if isinstance(error, PermissionDenied | drf.PermissionDenied):
        return Problem(403, "forbidden", "The caller may not do this.", str(error) or "This is not permitted.")
    if isinstance(error, drf.NotAuthenticated | drf.AuthenticationFailed):
        header = getattr(error, "auth_header", "Bearer")
        return Problem(401, "unauthorized", "Nobody is known to be calling.", NO_TOKEN,
                       headers={"WWW-Authenticate": header})  # fmt: skip
    if isinstance(error, drf.Throttled):
        return _throttled(error.wait)
    if isinstance(error, drf.ValidationError):
        return _invalid(error)
    if isinstance(error, drf.APIException):
        kind, title = _FRAMEWORK.get(type(error), ("refused", "The request was refused."))
        return Problem(error.status_code, kind, title, str(error.detail))
    return None


def _throttled(wait: float | None) -> Problem:
    seconds = max(1, math.ceil(wait or 1))
    detail = f"This caller may ask again in {seconds} s."
    return Problem(429, "too-many-requests", "Too many requests.", detail, headers={"Retry-After": str(seconds)})


def _invalid(error: drf.ValidationError) -> Problem:
    errors = tuple({"field": field, "detail": detail} for field, detail in flat(error.detail))
    named = "; ".join(f"{each['field']}: {each['detail']}".removeprefix(": ") for each in errors[:3])
    more = f"; and {len(errors) - 3} more" if len(errors) > 3 else ""
    return Problem(400, "invalid-request", "The request is not as it must be.", named + more, errors=errors)


def flat(detail: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """(field, sentence) for each thing that a serializer found wrong: ("jobs[3].due_at", "This field is required.").

    What concerns a whole object has its path; the request as a whole has "".
    """
    if isinstance(detail, dict):
        for key, value in detail.items():
            yield from flat(value, _below(path, key))
    elif isinstance(detail, list | tuple):
        for index, value in enumerate(detail):
            yield from flat(value, path if isinstance(value, str) else _below(path, index))
    else:
        yield path, str(detail)


def _below(path: str, key: object) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    if key == api_settings.NON_FIELD_ERRORS_KEY:
        return path
    return f"{path}.{key}" if path else str(key)
