"""Settings of the example project. What differs between machines comes from environment variables.

DATABASE_URL        default: SQLite in var/db.sqlite3; `postgres://user:password@host/name` for PostgreSQL
DATABASE_POOL_SIZE  maximum number of PostgreSQL connections per ASGI process; default: 10
REDIS_URL           Redis for the mirror and the cache; without it, due jobs are found by polling the database
CELERY_BROKER_URL   default: REDIS_URL
SECRET_KEY          default: the content of var/secret_key, which `make run` writes, or a random key per process
HTTPS               1 in production behind a TLS proxy: secure cookies, HSTS, a redirect from http to https;
                    requires SECRET_KEY in the environment
FORWARDED_ALLOW_IPS read by uvicorn: the addresses of proxies whose X-Forwarded- headers count; default: 127.0.0.1
METRICS_PORT        port on which each worker serves metrics for Prometheus; the web process then has them at /metrics
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
    """Return an environment variable, or `default` if it is unset or empty."""
    return os.environ.get(name) or default


def secret_key() -> str:
    path = VAR / "secret_key"
    return env("SECRET_KEY") or (path.read_text().strip() if path.exists() else "") or get_random_secret_key()


HTTPS = env("HTTPS").lower() in {"1", "true", "yes", "on"}
if HTTPS and not env("SECRET_KEY"):
    raise ImproperlyConfigured("HTTPS=1 requires SECRET_KEY in the environment.")
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

# All of these are async-capable. With a synchronous middleware, each waiting long poll would occupy a thread.
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "project.middleware.reject_nul",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

if HTTPS:
    SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https")  # the proxy must overwrite this header
    SECURE_SSL_REDIRECT = True
    SECURE_REDIRECT_EXEMPT = [r"^(api/health/|livez|readyz|metrics)$"]  # probes do not go through the proxy
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


def positive_int(name: str, default: str) -> int:
    """Return an environment variable as an integer above 0. Raises ImproperlyConfigured."""
    text = env(name, default)
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise ImproperlyConfigured(f"{name}={text} is not a whole number above 0.")
    return int(text)


def database() -> dict:
    """Return the settings of the default database, for SQLite with options for concurrent processes."""
    config: dict = {"ENGINE": "django.db.backends.sqlite3", "NAME": VAR / "db.sqlite3"}
    if env("DATABASE_URL"):
        try:
            config = dict(dj_database_url.parse(env("DATABASE_URL")))
        except ValueError as error:
            raise ImproperlyConfigured("DATABASE_URL must look like postgres://user:password@host/name.") from error
    if config["ENGINE"] == "django.db.backends.sqlite3":
        # IMMEDIATE: take the write lock at BEGIN; a later lock upgrade could fail in mid-transaction.
        # WAL: readers do not wait for the writer. NORMAL: no fsync per commit; only a power loss can lose commits.
        config["OPTIONS"] = {
            "timeout": 5,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        } | config.get("OPTIONS", {})
    else:
        # Without it, a process waits two minutes for a host that drops packets. DATABASE_URL can set another value.
        config["OPTIONS"] = {"connect_timeout": 3} | config.get("OPTIONS", {})
    return config | persistent_connections(config)


def persistent_connections(config: dict) -> dict:
    """Return the options that keep connections open between requests: per thread under WSGI, pooled under ASGI.

    Django runs each ASGI request in a new thread, so a connection kept per thread would never be reused. On
    PostgreSQL the process shares a pool; on SQLite a new connection takes less than a millisecond.
    """
    if env("SERVED_BY") != "asgi":
        return {"CONN_MAX_AGE": 600, "CONN_HEALTH_CHECKS": True}
    options = {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": True}
    if config["ENGINE"] == "django.db.backends.postgresql":
        size = positive_int("DATABASE_POOL_SIZE", "10")
        # timeout: fail a request while its client still waits for the response.
        # reconnect_timeout: after this time the pool stops trying, and connects again at the next request. Otherwise it
        # doubles its delay after each failed attempt, and a web process could be down twice as long as the database.
        pool = {"min_size": min(2, size), "max_size": size, "timeout": 10, "reconnect_timeout": 2}
        options["OPTIONS"] = config.get("OPTIONS", {}) | {"pool": pool}
    return options


DATABASES = {"default": database()}

REDIS_URL = env("REDIS_URL")
DELAYTASKS = {
    "REDIS_URL": REDIS_URL or None,
    "LAKE": env("LAKE") or str(VAR / "lake"),  # folder of the data pipeline
    # Each worker serves metrics for Prometheus on this port, and the web process at /metrics. Needs prometheus-client.
    "METRICS_PORT": positive_int("METRICS_PORT", "0") if env("METRICS_PORT") else 0,
    # A program in another language consumes this topic over HTTP and asks customers for reviews.
    "TOPICS": {"review.ask": {"ttr": 30, "max_attempts": 5}},
}


def cache(url: str) -> dict:
    """Return the settings of the cache for rate limits. Without Redis, each process counts its own requests."""
    if not url.startswith(("redis://", "rediss://", "unix://")):  # Django's Redis cache does not support Sentinel
        return {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}
    return {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": url,
        "KEY_PREFIX": "shop",
        "OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1},
    }


CACHES = {"default": cache(REDIS_URL)}

CELERY_BROKER_URL = env("CELERY_BROKER_URL", REDIS_URL)
if CELERY_BROKER_URL.startswith("unix://"):  # kombu and redis-py use different schemes for unix sockets
    CELERY_BROKER_URL = "redis+socket://" + CELERY_BROKER_URL.removeprefix("unix://")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None  # retry for as long as the broker is down
CELERY_WORKER_CANCEL_LONG_RUNNING_TASKS_ON_CONNECTION_LOSS = False
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_BACKEND = None
CELERY_TIMEZONE = "UTC"
CELERY_WORKER_HIJACK_ROOT_LOGGER = False  # workers use LOGGING below, too

AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]

# The language comes from a cookie, set in the header of the shop or the admin, or from Accept-Language.
LANGUAGE_CODE = "en"
LANGUAGES = [("en", "English"), ("zh-hans", "简体中文")]  # each language is named in itself
LANGUAGE_COOKIE_SAMESITE, LANGUAGE_COOKIE_HTTPONLY = "Lax", True
USE_I18N = True
USE_TZ = True
TIME_ZONE = env("TIME_ZONE", "UTC")

STATIC_URL = "static/"
STATIC_ROOT = env("STATIC_ROOT") or None  # if it is set, run collectstatic; the files are served from there
SERVESTATIC_USE_FINDERS = not STATIC_ROOT  # otherwise the files are served from the apps

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "root": {"handlers": ["console"], "level": env("LOG_LEVEL", "INFO")},
    # At INFO these loggers write two lines per task. Tasks run every second, so other messages would be hard to find.
    "loggers": {name: {"level": "WARNING"} for name in ("celery.worker.strategy", "celery.app.trace")},
}


def durations(name: str, default: str) -> list[float]:
    """Return an environment variable, such as "5,30,120", as a list of seconds. Raises ImproperlyConfigured."""
    try:
        seconds = [float(part) for part in env(name, default).split(",")]
    except ValueError:
        seconds = [math.nan]
    if not all(0 < part < math.inf for part in seconds):
        raise ImproperlyConfigured(f"{name}={env(name)} is not a number of seconds above 0.")
    return seconds


# The example shop in project/shop/. `make run` sets shorter times.
SHOP_PAY_WITHIN_SECONDS = durations("SHOP_PAY_WITHIN_SECONDS", "1800")[0]
SHOP_REFUND_LADDER_SECONDS = durations("SHOP_REFUND_LADDER_SECONDS", "5,30,120,600,1800,7200")
SHOP_REFUND_GIVE_UP_SECONDS = durations("SHOP_REFUND_GIVE_UP_SECONDS", "259200")[0]
SHOP_CHARGE_AFTER_SECONDS = durations("SHOP_CHARGE_AFTER_SECONDS", "600")[0]
SHOP_CART_REMINDER_SECONDS = durations("SHOP_CART_REMINDER_SECONDS", "1200")[0]
SHOP_LESSON_REMINDER_SECONDS = durations("SHOP_LESSON_REMINDER_SECONDS", "900")[0]
SHOP_REVIEW_AFTER_SECONDS = durations("SHOP_REVIEW_AFTER_SECONDS", "3600")[0]
SHOP_ABSENCE_SECONDS = durations("SHOP_ABSENCE_SECONDS", "1296000")[0]
SHOP_ESCALATION_SECONDS = durations("SHOP_ESCALATION_SECONDS", "86400")[0]
SHOP_GATEWAY_URL = env("SHOP_GATEWAY_URL", "http://127.0.0.1:8399")
SHOP_GATEWAY_TIMEOUT_SECONDS = durations("SHOP_GATEWAY_TIMEOUT_SECONDS", "5")[0]
