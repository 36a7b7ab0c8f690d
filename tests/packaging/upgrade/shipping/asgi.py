"""The ASGI application that each release's README asks for."""

from django.core.asgi import get_asgi_application

from delaytasks.api.bodies import BodyLimit

django_application = get_asgi_application()
try:
    from delaytasks.api.fast_path.application import FastPath
except ImportError:  # the old release has none
    application = BodyLimit(django_application, most=16 * 1024 * 1024)
else:
    application = BodyLimit(FastPath(django_application), most=16 * 1024 * 1024)
