"""Topics: their jobs in numbers, and their pause."""

import logging
from typing import Any

from django.db import transaction
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from .. import bells, conf, metrics, topics
from ..models import Topic
from . import examples
from .access import Right
from .answers import PausedSerializer, TopicSerializer, TopicsSerializer
from .base import BaseView
from .openapi import ANY_POST, ANY_REQUEST, Answer, operation
from .serializers import ReasonSerializer, checked

logger = logging.getLogger("delaytasks")
NOT_KNOWN = {404: "No handler, no setting and no row knows this topic."}
NOT_GRANTED = {403: "The caller lacks the right on this topic, whether it exists or not."}


def check_known(topic: str, using: str) -> None:
    """Raises Http404 for a topic that nobody knows. Ask for the caller's right first."""
    if topic not in topics.known() and not Topic.objects.using(using).filter(name=topic).exists():
        raise Http404


def _shown(name: str, numbers: dict[str, Any]) -> dict[str, Any]:
    data = numbers | {
        "name": name,
        "delayed_within_horizon": numbers["delayed"],
        "horizon_seconds": conf.get().horizon_seconds,
    }
    return dict(TopicSerializer(data).data)


class TopicsView(BaseView):
    @operation(
        "listTopics",
        tag="topics",
        summary="List topics",
        answers={200: Answer(TopicsSerializer, "The topics that the caller sees, by name.")},
        problems=ANY_REQUEST,
        examples=[examples.answer("One topic", {"results": [examples.TOPIC]})],
    )
    def get(self, request: Request) -> Response:
        """The topics that the caller sees, each with its jobs in numbers as they are now."""
        found = metrics.topics_snapshot(self.using, self.caller.topics(self.using))
        return Response({"results": [_shown(name, numbers) for name, numbers in found.items()]})


class TopicView(BaseView):
    @operation(
        "readTopic",
        tag="topics",
        summary="Read a topic",
        answers={200: Answer(TopicSerializer, "The topic.")},
        problems={**ANY_REQUEST, **NOT_GRANTED, **NOT_KNOWN},
        examples=[examples.answer("A topic", examples.TOPIC)],
    )
    def get(self, request: Request, topic: str) -> Response:
        """A topic, with its jobs in numbers as they are now."""
        self.caller.require(Right.READ, topic)
        numbers = metrics.topics_snapshot(self.using, [topic]).get(topic)
        if numbers is None:
            raise Http404
        return Response(_shown(topic, numbers))


class PauseView(BaseView):
    @operation(
        "pauseTopic",
        tag="topics",
        summary="Pause a topic",
        request=ReasonSerializer,
        answers={200: Answer(PausedSerializer, "The topic is paused; also if it was before.")},
        problems={**ANY_POST, **NOT_GRANTED, **NOT_KNOWN},
        examples=[examples.answer("Paused", {"name": "order.close", "paused": True})],
    )
    def post(self, request: Request, topic: str) -> Response:
        """Let the topic's jobs wait, within a second everywhere: they become ready and nobody gets them.

        What is reserved already is not disturbed. Needs the right to manage.
        """
        return self.set_paused(request, topic, True)

    def set_paused(self, request: Request, topic: str, paused: bool) -> Response:
        self.caller.require_pause(topic)
        reason = checked(ReasonSerializer, request.data)["reason"]
        check_known(topic, self.using)
        self.caller.require_reason(topic, reason)
        what = "Paused" if paused else "Resumed"
        if self.caller.logged(lambda: self._set_paused(topic, paused, what, reason), self.using):
            logger.info("Topic %s was %s by %s%s.", topic, what.lower(), self.caller.name, reason and f": {reason}")
        bells.forget_terms()  # others learn of it within a second; whoever asks this process, at once
        return Response({"name": topic, "paused": paused})

    def _set_paused(self, topic: str, paused: bool, what: str, reason: str) -> bool:
        """Whether it was not so before."""
        rows = Topic.objects.using(self.using)
        with transaction.atomic(self.using):
            row, made = rows.get_or_create(name=topic, defaults={"paused": paused})
            changed = bool(rows.filter(name=topic, paused=not paused).update(paused=paused)) or (made and paused)
            if changed:
                self.caller.log([row], what, reason)
        return changed


class ResumeView(PauseView):
    @operation(
        "resumeTopic",
        tag="topics",
        summary="Resume a topic",
        request=ReasonSerializer,
        answers={200: Answer(PausedSerializer, "The topic is not paused; also if it was not before.")},
        problems={**ANY_POST, **NOT_GRANTED, **NOT_KNOWN},
        examples=[examples.answer("Resumed", {"name": "order.close", "paused": False})],
    )
    def post(self, request: Request, topic: str) -> Response:
        """Give out the topic's jobs again, the oldest due first. Needs the right to manage."""
        return self.set_paused(request, topic, False)
