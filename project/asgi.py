"""The ASGI application, for any ASGI server: `project.asgi:application`."""

import gc
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
os.environ["SERVED_BY"] = "asgi"  # settings.py then pools connections to PostgreSQL

from django.core.asgi import get_asgi_application

from delaytasks.api.middleware import BodyLimit


def make_application() -> BodyLimit:
    django_application = get_asgi_application()
    from delaytasks.api.fast_path.application import FastPath  # imports models: after Django has loaded the apps

    # reject_nul looks at addresses and cookies: those that FastPath serves are fixed, and no cookie is read.
    fast_path = FastPath(django_application, bypassed=["project.middleware.reject_nul"])
    return BodyLimit(fast_path, most=16 * 1024 * 1024)


def exempt_from_collection() -> None:
    """Freeze what is imported: the garbage collector, which runs twice a second under load, would scan it each time."""
    from django.urls import get_resolver

    _ = get_resolver().url_patterns  # imports the views, which the first request would do
    gc.collect()
    gc.freeze()


application = make_application()
exempt_from_collection()
