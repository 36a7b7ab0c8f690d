"""Reject NUL bytes in a request before they reach the database: psycopg raises ValueError for them.

A cookie with a NUL, for example a forged session id, is dropped. A request with a NUL in its path or query string
gets status 400, except under /api/, where the API returns its own error.
"""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

API = "/api/"  # the prefix in urls.py


@sync_and_async_middleware
def reject_nul(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    if iscoroutinefunction(get_response):

        async def async_middleware(request: HttpRequest) -> Any:
            _check(request)
            return await get_response(request)

        return async_middleware

    def middleware(request: HttpRequest) -> Any:
        _check(request)
        return get_response(request)

    return middleware


def _check(request: HttpRequest) -> None:
    """Drop cookies with a NUL. Raise BadRequest if the path or the query string has a NUL.

    Django has already decoded the path and the cookies, but not the query string.
    """
    for name in [name for name, value in request.COOKIES.items() if "\0" in value]:
        del request.COOKIES[name]
    has_nul = "\0" in request.path_info or "%00" in request.META.get("QUERY_STRING", "")
    if has_nul and not request.path_info.startswith(API):
        raise BadRequest("The address contains a NUL byte.")
