"""The ASGI application, for any ASGI server: `project.asgi:application`."""

import gc
import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
os.environ["SERVED_BY"] = "asgi"  # settings.py then pools connections to PostgreSQL

from django.core.asgi import get_asgi_application

from delaytasks.api.limits.pipelining import limit_pipelining
from delaytasks.api.middleware import BodyLimit


def make_application() -> BodyLimit:
    django_application = get_asgi_application()
    from delaytasks.api.fast_path.application import FastPath  # imports models: after Django has loaded the apps

    # FastPath does not need reject_nul, which checks URLs and cookies: its URLs are fixed, and it reads no cookies.
    fast_path = FastPath(django_application, bypassed=["project.middleware.reject_nul"])
    return BodyLimit(fast_path, most=16 * 1024 * 1024)


def exempt_from_collection() -> None:
    """Exempt imported objects from garbage collection, which would scan them twice a second under load."""
    from django.urls import get_resolver

    _ = get_resolver().url_patterns  # imports the views, which the first request would do
    gc.collect()
    gc.freeze()


limit_pipelining()
application = make_application()
exempt_from_collection()
