"""A project written for the old release, with all the settings that its README asks for.

PARCELS_DATABASE   Django's settings of the default database, as JSON
PARCELS_REDIS      a Redis URL without the number of a database
PARCELS_QUEUE      the Celery queue that this process sends to; default: celery
"""

import json
import os

SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "rest_framework_api_key",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "delaytasks",
    "delaytasks.api",
    "parcels",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
ROOT_URLCONF = "shipping.urls"
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

REDIS = os.environ["PARCELS_REDIS"]
DATABASES = {"default": json.loads(os.environ["PARCELS_DATABASE"])}
CACHES = {"default": {"BACKEND": "parcels.caches.RecordingCache", "LOCATION": f"{REDIS}/2"}}

CELERY_BROKER_URL = f"{REDIS}/1"
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = os.environ.get("PARCELS_QUEUE", "celery")

DELAYTASKS = {
    "REDIS_URL": f"{REDIS}/0",
    # Short periods, so that the guards of both releases run at the same time.
    "SWEEP_SECONDS": 1,
    "AUDIT_SECONDS": 1,
    # One topic for each step with HTTP consumers.
    "TOPICS": {f"letter.{name}": {"ttr": 60, "max_attempts": 1} for name in ("before", "beside", "after", "http")},
}
