"""A middleware that keeps NULs away from the database, of which PostgreSQL cannot even be asked: its driver raises.

A cookie that says one, as a session's may that anybody makes up, is as if it had not been sent. An address
that says one is answered with 400, but for the API's, which refuses it by itself and in its own words.
"""

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import BadRequest
from django.http import HttpRequest
from django.utils.decorators import sync_and_async_middleware

API = "/api/"  # as urls.py has it


@sync_and_async_middleware
def no_nul(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    if iscoroutinefunction(get_response):

        async def answer_later(request: HttpRequest) -> Any:
            _check(request)
            return await get_response(request)

        return answer_later

    def answer(request: HttpRequest) -> Any:
        _check(request)
        return get_response(request)

    return answer


def _check(request: HttpRequest) -> None:
    """Raises BadRequest. A path has been unescaped, a query not yet; a cookie writes NUL as an octal number."""
    for name in [name for name, value in request.COOKIES.items() if "\0" in value]:
        del request.COOKIES[name]
    found = "\0" in request.path_info or "%00" in request.META.get("QUERY_STRING", "")
    if found and not request.path_info.startswith(API):
        raise BadRequest("A NUL in an address.")
