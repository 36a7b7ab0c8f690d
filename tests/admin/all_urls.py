"""All URLs of the project's URL configuration, filled with existing rows; and the contents of all tables."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.contrib import admin
from django.contrib.admin.utils import quote
from django.contrib.sessions.models import Session
from django.urls import URLPattern, URLResolver, get_resolver

ANY = "<path:", "<str:", "<int:", "<delaytasks_topic:"


def every(resolver: URLResolver | None = None, before: str = "/") -> Iterator[str]:
    """Yield all routes of the configuration. For a regular expression, a path that matches it."""
    for pattern in (resolver or get_resolver()).url_patterns:
        route = before + as_path(str(pattern.pattern))
        if isinstance(pattern, URLResolver):
            yield from every(pattern, route)
        elif isinstance(pattern, URLPattern):
            yield route


def as_path(route: str) -> str:
    if route.startswith("^(?P<app_label>"):
        return "delaytasks/"
    return {"(?P<url>.*)$": "nowhere", "^(?P<url>.*)$": "nowhere"}.get(route, route)


def filled(route: str, **others: Any) -> list[str]:
    """Return the URLs of a route: in the admin one per row of its model, elsewhere with `others` or 1 as arguments."""
    if not any(mark in route for mark in ANY):
        return [route]
    _, start, app, model, *rest = [*route.split("/"), "", "", ""]
    if start == "admin" and (app, model) in models_of_the_admin():
        keys = apps.get_model(app, model)._base_manager.values_list("pk", flat=True)
        return ["/".join(["", start, app, model, str(quote(key)), *rest[1:-3]]) for key in keys]
    parts = [str(others.get(part.strip("<>").partition(":")[2], 1)) if part.startswith(ANY) else part
             for part in route.split("/")]  # fmt: skip
    return ["/".join(parts)]


def models_of_the_admin() -> set[tuple[str, str]]:
    return {(model._meta.app_label, str(model._meta.model_name)) for model in admin.site._registry}


def stored() -> dict[str, list[Any]]:
    """Return all rows of all tables except sessions: a GET request may start one."""
    return {
        model._meta.label: sorted(model._base_manager.values_list(), key=repr)
        for model in apps.get_models()
        if model is not Session and not model._meta.proxy and model._meta.managed
    }
