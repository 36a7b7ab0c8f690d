"""System checks of the targets stored in Topic rows, and of DELAYTASKS["WEBHOOKS"]."""

from collections.abc import Iterator, Sequence
from typing import Any

from django.core.checks import CheckMessage, Error, Tags, Warning, register

from ... import conf, handlers
from ...databases import is_migrated

TAG = "delaytasks"


@register(TAG)
def check_webhooks(**_kwargs: Any) -> list[CheckMessage]:
    """E060: DELAYTASKS["WEBHOOKS"] has settings that Webhook does not accept, such as a secret that is not base64."""
    config = conf.get_if_valid()
    problems = {name: problem for name in config.webhooks if (problem := _problem(name))} if config else {}
    return [
        Error(f"DELAYTASKS['WEBHOOKS'][{name!r}]: {problem}", hint="docs/howto/webhooks.md lists what it may contain.",
              id="delaytasks.E060")
        for name, problem in problems.items()
    ]  # fmt: skip


def _problem(name: str) -> str | None:
    from ..webhook import Webhook
    from .targets import webhook_options

    try:
        Webhook("https://receiver.invalid/", **webhook_options(name))
    except (ValueError, TypeError) as error:
        return str(error)
    return None


@register(TAG, Tags.database)
def check_stored_targets(*, databases: Sequence[str] | None = None, **_kwargs: Any) -> list[CheckMessage]:
    """W060: the target stored in a Topic row is not used. Runs with --database only."""
    return [
        Warning(f"Topic {topic!r} of the database {alias!r}: the target of its row is not used: {why}",
                hint="Change or remove it on the topic's page in the admin.", id="delaytasks.W060")
        for alias in databases or ()
        for topic, why in _unused(alias)
    ]  # fmt: skip


def _unused(alias: str) -> Iterator[tuple[str, str]]:
    from ...models import Topic
    from .targets import BadTarget, build

    if not is_migrated(alias, Topic):
        return
    stored: Any
    for topic, stored in Topic.objects.using(alias).exclude(target=None).values_list("name", "target"):
        handler = handlers.find(topic)
        if handler is not None:
            yield topic, f"the topic is handled in code, by {handler.name}."
            continue
        try:
            build(stored)
        except BadTarget as error:
            yield topic, str(error)
