"""The ASGI application, for any ASGI server: `project.asgi:application`."""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
os.environ["SERVED_BY"] = "asgi"  # the settings, which nobody has read yet, choose how connections are kept

from django.core.asgi import get_asgi_application

from delaytasks.api.bodies import BodyLimit

application = BodyLimit(get_asgi_application(), most=16 * 1024 * 1024)
