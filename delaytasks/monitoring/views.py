"""Views for the probes of load balancers and orchestrators. They need no REST API, session or user."""

from collections.abc import Callable

from django.db import connections, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from .. import databases
from . import readiness
from .readiness import FAILED

View = Callable[[HttpRequest], HttpResponse]


def non_atomic(view: View) -> View:
    """Exempt the view from ATOMIC_REQUESTS, which would connect to each database before the view is called."""
    for alias in connections:
        view = transaction.non_atomic_requests(using=alias)(view)
    return view


@non_atomic
@never_cache
@require_safe
def livez(request: HttpRequest) -> HttpResponse:
    """Answer 200 as long as this process can answer. Uses neither the database nor Redis."""
    return JsonResponse({"status": "ok"})


@non_atomic
@never_cache
@require_safe
def readyz(request: HttpRequest) -> HttpResponse:
    """Answer 200, or 503 if a check fails or cannot be made because the database does not answer.

    The answer has the state of each check, but no numbers or names.

    check     query parameter, may be repeated: run only these checks. For a web process, `database` is enough
    database  query parameter, may be repeated: check only these databases of DATABASES
    """
    names, aliases = request.GET.getlist("check"), request.GET.getlist("database")
    unknown = sorted(set(names) - set(readiness.NAMES))
    if unknown:
        known = ", ".join(readiness.NAMES)
        return JsonResponse({"error": f"Unknown check {unknown[0]!r:.80}. Known checks: {known}."}, status=400)
    unknown = sorted(set(aliases) - set(databases.aliases()))
    if unknown:
        return JsonResponse({"error": f"Unknown database {unknown[0]!r:.80}."}, status=400)
    results = [check for using in aliases or databases.aliases() for check in readiness.run(using, names)]
    states = {
        name: readiness.worst(check.state for check in results if check.name == name)
        for name in dict.fromkeys(check.name for check in results)
    }
    status = readiness.worst(states.values())
    response = JsonResponse({"status": status, "checks": states}, status=503 if status in FAILED else 200)
    response._has_been_logged = True  # type: ignore[attr-defined]  # or Django logs an error at each failing probe
    return response


@non_atomic
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Answer with all metrics in the text format of Prometheus. Needs no login: allow only Prometheus to reach it."""
    # Imported late: prometheus_client decides at its import whether it counts for one process or for a pool. A worker
    # imports the URLs for the system checks, and sets the pool's directory only afterwards.
    from . import prometheus

    return prometheus.view(request)
