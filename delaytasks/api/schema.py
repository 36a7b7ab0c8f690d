"""The OpenAPI document of this API and its page. Both are made from this app alone, whatever the site's settings say.

`python -m delaytasks.api > docs/openapi.yaml` writes the document.
"""

import json
import threading
from typing import Any, ClassVar

from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import render
from django.templatetags.static import static
from django.urls import NoReverseMatch, reverse
from django.utils import translation
from drf_spectacular.drainage import GENERATOR_STATS
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.renderers import OpenApiYamlRenderer
from drf_spectacular.settings import SPECTACULAR_DEFAULTS, patched_settings
from rest_framework.request import Request

from .. import __version__, conf
from .base import BaseView
from .openapi import ANY_REQUEST, Answer, operation

MEDIA_TYPE = "application/vnd.oai.openapi+json"
TITLE = "delaytasks HTTP API"
DESCRIPTION = """\
Business timeouts: jobs that fall due, are never early, and wait to be finished.

A **topic** is a kind of job, a **key** the business name of one. At most one **live** job has a topic and a key. Who
**reserves** a job holds it for its TTR as one **attempt**, whose number is the fence: only who holds (id, attempt) may
finish the job.

- **Who is calling.** A service account by its token (`Authorization: Bearer ...`), or staff by Django's session. A
  token is granted topics, and on each the right to produce, to consume or to manage; any of these lets it read. Of
  other topics it sees nothing: their jobs are 404, whether they exist or not.
- **Errors** are problem details (RFC 9457). Program by `type`, read `detail`; `errors` names the fields.
- **Times** are RFC 3339 with an offset and are given in UTC. A number's unit is in its name.
- **Unknown fields** are refused, so that a misspelt one is not left out silently.
- **Again.** A request that was not answered may be sent again: creating is idempotent through `on_conflict`,
  finishing through the attempt.
- **Limits.** Requests per minute and bytes of a request are limited per token: 429 with `Retry-After`, and 413.
"""
TAGS = [
    {"name": "jobs", "description": "Make promises, look at them, change them."},
    {"name": "consumers", "description": "Take jobs that are ready, and say what became of them."},
    {"name": "topics", "description": "Kinds of jobs, and their pause."},
    {"name": "queue", "description": "The command protocol: one address, JSON in and out."},
    {"name": "service", "description": "The service itself."},
]
_OTHERS = ("SERVE_", "DEFAULT_GENERATOR_CLASS")  # what may not be set for one document, and plays no part in it


class Problems(Exception):
    """The generator found something that it could not describe."""


def document() -> dict[str, Any]:
    """The OpenAPI document, with the addresses that the API has on this site and the limits of its settings."""
    config = conf.get()
    key = (mounted_at(), config.max_delay_seconds)
    with _lock:  # the generator's settings are the process's: two at a time would leave ours behind
        if key not in _documents:
            _documents.clear()
            _documents[key] = _generate(key[0])
        return _documents[key]


_documents: dict[Any, dict[str, Any]] = {}
_lock = threading.Lock()


def mounted_at() -> str:
    """The address below which the API is, without the slash at its end."""
    try:
        return reverse("delaytasks_api:health").removesuffix("/health/")
    except NoReverseMatch:
        return "/api"


def _generate(prefix: str) -> dict[str, Any]:
    ours = {
        "TITLE": TITLE,
        "DESCRIPTION": DESCRIPTION,
        "VERSION": __version__,
        "OAS_VERSION": "3.1.1",
        "TAGS": TAGS,
        "SCHEMA_PATH_PREFIX": "",
        "SCHEMA_PATH_PREFIX_INSERT": prefix,
        "SORT_OPERATIONS": False,
        "SORT_OPERATION_PARAMETERS": False,
        "POSTPROCESSING_HOOKS": [],
    }
    theirs = {name: value for name, value in SPECTACULAR_DEFAULTS.items() if not name.startswith(_OTHERS)}
    with patched_settings(theirs | ours), translation.override("en"):
        made: dict[str, Any] = SchemaGenerator(urlconf="delaytasks.api.urls").get_schema(public=True)
    return made


def as_yaml() -> str:
    """The document as it is committed. Raises Problems if the generator warned of anything."""
    made = document()
    if GENERATOR_STATS:
        raise Problems("The generator warned; what it said is on stderr.")
    text: str = OpenApiYamlRenderer().render(made).decode()
    return text


class SchemaView(BaseView):
    @operation(
        "openapi",
        tag="service",
        summary="This document",
        answers={200: Answer({"type": "object"}, "An OpenAPI 3.1 document.", MEDIA_TYPE)},
        problems=ANY_REQUEST,
    )
    def get(self, request: Request) -> HttpResponse:
        """The OpenAPI document of this API, in JSON."""
        text = json.dumps(document(), ensure_ascii=False, separators=(",", ":"))
        return HttpResponse(text, content_type=MEDIA_TYPE)


class DocsView(BaseView):
    """Swagger UI, from the files that came with the app: its page asks no other site for anything."""

    SETTINGS: ClassVar = {"deepLinking": True, "validatorUrl": None, "displayRequestDuration": True}

    @operation(
        "docs",
        tag="service",
        summary="This document, to read and try",
        answers={200: Answer({"type": "string"}, "A page for people.", "text/html")},
        problems=ANY_REQUEST,
    )
    def get(self, request: Request) -> HttpResponse:
        """A page for people, on which requests can be tried. It asks no other site for anything."""
        files = {
            "favicon_href": "favicon-32x32.png",
            "swagger_ui_css": "swagger-ui.css",
            "swagger_ui_bundle": "swagger-ui-bundle.js",
            "swagger_ui_standalone": "swagger-ui-standalone-preset.js",
        }
        context = {
            **{name: static(f"drf_spectacular_sidecar/swagger-ui-dist/{file}") for name, file in files.items()},
            "title": TITLE,
            "schema_url": reverse("delaytasks_api:schema"),
            "settings": json.dumps(self.SETTINGS),
            "template_name_js": "drf_spectacular/swagger_ui.js",
            "csrf_header_name": settings.CSRF_HEADER_NAME.removeprefix("HTTP_").replace("_", "-"),
            "schema_auth_names": "[]",
        }
        return render(request._request, "drf_spectacular/swagger_ui.html", context)
