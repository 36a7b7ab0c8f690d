"""The system check of inboxes: E050."""

from typing import Any

from django.core.checks import CheckMessage, Error, register

from .. import conf
from ..exceptions import BadInput
from . import declarations

HINT = (
    'Example: {"shop": {"kafka": "delays", "topics": ["order.close"], "dead_letter": "delays.dead"}}, '
    'and the broker in DELAYTASKS["BROKERS"].'
)


@register("delaytasks")
def check_inboxes(**_kwargs: Any) -> list[CheckMessage]:
    """E050: an inbox has a wrong option or an unknown broker, or needs a library that is not installed."""
    if conf.get_if_valid() is None:
        return []
    problems = filter(None, map(_problem, declarations.names()))
    return [Error(problem, hint=HINT, id="delaytasks.E050") for problem in problems]


def _problem(name: str) -> str:
    try:
        inbox = declarations.find(name)
        inbox.broker_options()
        inbox.check_libraries()
    except BadInput as error:
        return str(error)
    return ""
