"""Django settings that FastPath obeys, cached because each access to django.conf.settings costs a microsecond."""

import functools
from typing import Any, NamedTuple

from django.conf import settings
from django.core.signals import setting_changed


class DjangoSettings(NamedTuple):
    """Django settings in the form in which FastPath needs them: names of headers are in lower case, as in ASGI."""

    script_name: str | None
    middleware: tuple[str, ...]
    refuses_user_agents: bool
    allowed_hosts: tuple[str, ...]
    host_header: str
    ssl_redirect: bool
    ssl_header: str
    ssl_value: str
    session_cookie: str


@functools.cache
def get() -> DjangoSettings:
    """Return the settings, cached until setting_changed is sent, as by override_settings()."""
    header: Any = settings.SECURE_PROXY_SSL_HEADER
    name, value = header or ("", "")
    return DjangoSettings(
        script_name=settings.FORCE_SCRIPT_NAME,
        middleware=tuple(settings.MIDDLEWARE),
        refuses_user_agents=bool(settings.DISALLOWED_USER_AGENTS),
        allowed_hosts=tuple(settings.ALLOWED_HOSTS),
        host_header="x-forwarded-host" if settings.USE_X_FORWARDED_HOST else "host",
        ssl_redirect=settings.SECURE_SSL_REDIRECT,
        ssl_header=name.removeprefix("HTTP_").replace("_", "-").lower(),
        ssl_value=value,
        session_cookie=f"{settings.SESSION_COOKIE_NAME}=",
    )


def _clear_cache(**_: object) -> None:
    get.cache_clear()


setting_changed.connect(_clear_cache, dispatch_uid="delaytasks.api.fast_path.django_settings")
