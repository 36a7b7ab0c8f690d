"""The OpenAPI document and its Swagger UI page. Both ignore the site's settings of REST framework and drf-spectacular.

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

from ... import __version__, conf
from ...validators import MAX_DEPTH
from ..limits.parsers import MAX_CONTAINERS, MAX_VALUES
from ..views.base import BaseView
from .operations import ANY_REQUEST, ResponseDoc, operation

MEDIA_TYPE = "application/vnd.oai.openapi+json"
TITLE = "delaytasks HTTP API"
DESCRIPTION = f"""\
Business timeouts: jobs that fall due, are never early, and wait to be finished.

A **topic** is a kind of job; a **key** is the business name of one job. There is at most one **live** job per topic and
key. A consumer **reserves** a job and holds it for its TTR. Each reservation is an **attempt**, and its number is the
fencing token: only the holder of (id, attempt) can finish the job.

- **Authentication.** Service accounts send a token (`Authorization: Bearer ...`); staff use Django's session. A token
  has grants for topics: the right to submit, to produce, to consume or to manage. All but submit include reading. All
  other topics are hidden: their jobs are 404, whether they exist or not.
- **Errors** are problem details (RFC 9457). Use `type` in programs; `detail` is for people; `errors` lists fields.
- **Times** are RFC 3339 with an offset; responses use UTC. Names of numbers contain the unit.
- **Unknown fields** are refused, so that misspelt names are noticed.
- **Retries.** Repeat a request that got no response. Creating is idempotent through `on_conflict`. An attempt is
  finished once: if the first request has succeeded, the second gets 409. Running a schedule's job once now is
  not idempotent: two requests make two jobs.
- **Limits.** Requests and bytes per minute, live jobs, and bytes per request are limited per token: 429, usually with
  `Retry-After`, and 413. A request has at most {MAX_CONTAINERS:,} lists and objects and {MAX_VALUES:,} values, counted
  by brackets and commas, also those in strings, and a job's body at most {MAX_DEPTH} levels. More is answered with 400.
"""
TAGS = [
    {"name": "jobs", "description": "Create, read and change jobs."},
    {"name": "consumers", "description": "Reserve ready jobs and finish them."},
    {"name": "topics", "description": "Kinds of jobs; pause and resume them."},
    {"name": "schedules", "description": "Recurring jobs: define, pause, run once now, backfill."},
    {"name": "queue", "description": "The queue protocol: commands in JSON at one URL."},
    {"name": "service", "description": "The service itself."},
]
_NOT_PATCHABLE = ("SERVE_", "DEFAULT_GENERATOR_CLASS")  # refused by patched_settings(), and without effect here


class GeneratorWarnings(Exception):
    """drf-spectacular warned about something that it could not describe."""


def document(prefix: str = "/api") -> dict[str, Any]:
    """Return the OpenAPI document with the limits of this site's settings.

    prefix   URL prefix of the API, without a trailing slash
    """
    limit = conf.get().max_delay_seconds
    with _lock:  # the generator's settings are global to the process: patching must not overlap
        if limit not in _documents:
            _documents.clear()
            _documents[limit] = _generate()
        schema = _documents[limit]
    return schema | {"paths": {prefix + path: item for path, item in schema["paths"].items()}}


_documents: dict[int, dict[str, Any]] = {}  # by MAX_DELAY_SECONDS; without prefix
_lock = threading.Lock()


def mount_path() -> str:
    """Return the URL prefix of the API, without a trailing slash; "/api" if it is mounted in another namespace."""
    try:
        return reverse("delaytasks_api:health").removesuffix("/health/")
    except NoReverseMatch:
        return "/api"


def _generate() -> dict[str, Any]:
    overrides = {
        "TITLE": TITLE,
        "DESCRIPTION": DESCRIPTION,
        "VERSION": __version__,
        "OAS_VERSION": "3.1.1",
        "TAGS": TAGS,
        "SCHEMA_PATH_PREFIX": "",
        "COMPONENT_SPLIT_PATCH": False,  # PATCH serializers have no required fields: one component is enough
        "SORT_OPERATIONS": False,
        "SORT_OPERATION_PARAMETERS": False,
        "POSTPROCESSING_HOOKS": [],
    }
    defaults = {name: value for name, value in SPECTACULAR_DEFAULTS.items() if not name.startswith(_NOT_PATCHABLE)}
    with patched_settings(defaults | overrides), translation.override("en"):
        schema: dict[str, Any] = SchemaGenerator(urlconf="delaytasks.api.urls").get_schema(public=True)
    return schema


def as_yaml() -> str:
    """Return the document as YAML, as in docs/openapi.yaml. Raises GeneratorWarnings if there were warnings."""
    schema = document(mount_path())
    if GENERATOR_STATS:
        raise GeneratorWarnings("drf-spectacular warned; see stderr.")
    text: str = OpenApiYamlRenderer().render(schema).decode()
    return text


class SchemaView(BaseView):
    @operation(
        "openapi",
        tag="service",
        summary="Get the OpenAPI document",
        responses={200: ResponseDoc({"type": "object"}, "An OpenAPI 3.1 document.", MEDIA_TYPE)},
        problems=ANY_REQUEST,
    )
    def get(self, request: Request) -> HttpResponse:
        """Return the OpenAPI document of this API in JSON."""
        prefix = request.path.removesuffix("/schema/")  # a site may mount the API twice, or in a namespace of its own
        text = json.dumps(document(prefix), ensure_ascii=False, separators=(",", ":"))
        return HttpResponse(text, content_type=MEDIA_TYPE)


class DocsView(BaseView):
    """Swagger UI, from static files of the app; it loads nothing from other sites."""

    SETTINGS: ClassVar = {"deepLinking": True, "validatorUrl": None, "displayRequestDuration": True}

    @operation(
        "docs",
        tag="service",
        summary="Show the documentation",
        responses={200: ResponseDoc({"type": "string"}, "An HTML page.", "text/html")},
        problems=ANY_REQUEST,
    )
    def get(self, request: Request) -> HttpResponse:
        """Show Swagger UI, where requests can be tried. The page loads nothing from other sites."""
        files = {
            "favicon_href": "favicon-32x32.png",
            "swagger_ui_css": "swagger-ui.css",
            "swagger_ui_bundle": "swagger-ui-bundle.js",
            "swagger_ui_standalone": "swagger-ui-standalone-preset.js",
        }
        context = {
            **{name: static(f"drf_spectacular_sidecar/swagger-ui-dist/{file}") for name, file in files.items()},
            "title": TITLE,
            "schema_url": self.path_of("schema"),
            "settings": json.dumps(self.SETTINGS),
            "template_name_js": "drf_spectacular/swagger_ui.js",
            "csrf_header_name": settings.CSRF_HEADER_NAME.removeprefix("HTTP_").replace("_", "-"),
            "schema_auth_names": "[]",
        }
        return render(request._request, "drf_spectacular/swagger_ui.html", context)
