"""Settings of the example project. Everything that differs between two machines comes from the environment.

DATABASE_URL        default: SQLite in var/db.sqlite3; `postgres://user:password@host/name` for PostgreSQL
DATABASE_POOL_SIZE  connections to PostgreSQL that one ASGI process has at most; default: 10
REDIS_URL           the mirror and the cache; without it the database is asked instead: slower, still correct
CELERY_BROKER_URL   default: REDIS_URL
SECRET_KEY          default: var/secret_key, which `make run` writes; without either, a new one in each process
HTTPS               1 in production, behind a proxy that speaks TLS: secure cookies, HSTS, a redirect for plain
                    http, and no start without a SECRET_KEY in the environment
DEBUG, ALLOWED_HOSTS, TIME_ZONE, LOG_LEVEL, STATIC_ROOT, VAR_DIR, LAKE, SHOP_...: see below
"""

import math
import os
from pathlib import Path

import dj_database_url
from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

BASE_DIR = Path(__file__).resolve().parent.parent
VAR = Path(os.environ.get("VAR_DIR") or BASE_DIR / "var")


def env(name: str, default: str = "") -> str:
    """The variable's text; `default` when it is unset or empty."""
    return os.environ.get(name) or default


def secret_key() -> str:
    kept = VAR / "secret_key"
    return env("SECRET_KEY") or (kept.read_text().strip() if kept.exists() else "") or get_random_secret_key()


HTTPS = env("HTTPS").lower() in {"1", "true", "yes", "on"}
if HTTPS and not env("SECRET_KEY"):
    raise ImproperlyConfigured("HTTPS=1 is for production, which takes its SECRET_KEY from the environment.")
SECRET_KEY = secret_key()
DEBUG = env("DEBUG").lower() in {"1", "true", "yes", "on"}
ALLOWED_HOSTS = env("ALLOWED_HOSTS", "localhost,127.0.0.1,[::1]").split(",")

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "servestatic",
    "rest_framework",
    "rest_framework_api_key",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "delaytasks",
    "delaytasks.api",
    "project.shop",
]

# Each of them can run in the event loop: one that cannot would hold a thread for every poll that waits.
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "project.nul.no_nul",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

if HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")  # the proxy must set it, whatever its caller sent
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^api/health/$"]  # asked from within, past the proxy
    SECURE_HSTS_SECONDS = 31_536_000
    SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = True
    SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = LANGUAGE_COOKIE_SECURE = True

ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
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


def number(name: str, default: str) -> int:
    """A whole number above 0."""
    text = env(name, default)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ImproperlyConfigured(f"{name}={text} is not a whole number above 0.")
    return int(text)


def database() -> dict:
    """The default database. SQLite gets what several processes on one file need."""
    config: dict = {"ENGINE": "django.db.backends.sqlite3", "NAME": VAR / "db.sqlite3"}
    if env("DATABASE_URL"):
        try:
            config = dict(dj_database_url.parse(env("DATABASE_URL")))
        except ValueError as error:
            raise ImproperlyConfigured("DATABASE_URL is not like postgres://user:password@host/name.") from error
    if config["ENGINE"] == "django.db.backends.sqlite3":
        # IMMEDIATE: a transaction that reads first and writes later cannot be refused half way.
        # WAL: readers do not wait for the writer. NORMAL: no fsync for each commit, safe with WAL but for power loss.
        config["OPTIONS"] = {
            "timeout": 5,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        } | config.get("OPTIONS", {})
    return config | kept_connections(config)


def kept_connections(config: dict) -> dict:
    """How connections outlive a request: with their thread, or in a pool where no thread outlives it.

    Django gives each ASGI request a thread of its own: a connection that stayed open with it would never be used
    again. A file is opened anew in less than a millisecond; to PostgreSQL the whole process shares a pool.
    """
    if env("SERVED_BY") != "asgi":
        return {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
    kept = {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
    if config["ENGINE"] == "django.db.backends.postgresql":
        size = number("DATABASE_POOL_SIZE", "10")
        # Whoever gets none in time is told so while somebody is still there to hear it.
        # A pool that keeps trying doubles its rest each time: a web process would be away twice as long as its
        # database. One that gives up soon tries again when the next request comes.
        pool = {"min_size": min(2, size), "max_size": size, "timeout": 10, "reconnect_timeout": 2}
        kept["OPTIONS"] = config.get("OPTIONS", {}) | {"pool": pool}
    return kept


DATABASES = {"default": database()}

REDIS_URL = env("REDIS_URL")
DELAYTASKS = {
    "REDIS_URL": REDIS_URL or None,
    "LAKE": env("LAKE") or str(VAR / "lake"),  # of `manage.py delaytasks pipeline`
    # Taken by a service in another language, over HTTP: it writes to the customer and asks how it was.
    "TOPICS": {"review.ask": {"ttr": 30, "max_attempts": 5}},
}


def cache(url: str) -> dict:
    """Where requests are counted for the rate limits: one place for all web processes, if there is a Redis."""
    if not url.startswith(("redis://", "rediss://", "unix://")):  # Django's cache does not speak Sentinel
        return {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    return {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": url,
        "KEY_PREFIX": "shop",
        "OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1},
    }


CACHES = {"default": cache(REDIS_URL)}

CELERY_BROKER_URL = env("CELERY_BROKER_URL", REDIS_URL)
if CELERY_BROKER_URL.startswith("unix://"):  # redis-py and kombu spell a unix socket differently
    CELERY_BROKER_URL = "redis+socket://" + CELERY_BROKER_URL.removeprefix("unix://")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # an outage of the broker is waited out, however long it takes
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_BACKEND = None
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False  # LOGGING below is for the workers, too

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# As the browser asks, or as somebody chose in the header of the shop or the admin (a cookie).
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]  # each in its own words: it is chosen by who reads it
LANGUAGE_COOKIE_SAMESITE, LANGUAGE_COOKIE_HTTPONLY = "Lax", True
USE_I18N = True
USE_TZ = True
TIME_ZONE = env("TIME_ZONE", "UTC")

STATIC_URL = "static/"
STATIC_ROOT = env("STATIC_ROOT") or None  # set it and run collectstatic where files are to be collected once
SERVESTATIC_USE_FINDERS = not STATIC_ROOT  # otherwise they are served from where the apps keep them

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env("LOG_LEVEL", "INFO")},
    # Two lines for each message, every second: what the engine itself has to say would drown in them.
    "loggers": {name: {"level": "WARNING"} for name in ("celery.worker.strategy", "celery.app.trace")},
}


def seconds(name: str, default: str) -> list[float]:
    """One or more lengths of time, separated by commas."""
    try:
        found = [float(part) for part in env(name, default).split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 < part < math.inf for part in found):
        raise ImproperlyConfigured(f"{name}={env(name)} is not a number of seconds above 0.")
    return found


# The example business, project/shop/. `make run` shortens these, so that there is something to see.
SHOP_PAY_WITHIN_SECONDS = seconds("SHOP_PAY_WITHIN_SECONDS", "1800")[0]
SHOP_REFUND_LADDER_SECONDS = seconds("SHOP_REFUND_LADDER_SECONDS", "5,30,120,600,1800,7200")
SHOP_REFUND_GIVE_UP_SECONDS = seconds("SHOP_REFUND_GIVE_UP_SECONDS", "259200")[0]
SHOP_GATEWAY_URL = env("SHOP_GATEWAY_URL", "http://127.0.0.1:8399")
SHOP_GATEWAY_TIMEOUT_SECONDS = seconds("SHOP_GATEWAY_TIMEOUT_SECONDS", "5")[0]
