"""Views of topics: job counts, pause and resume."""

import logging
from typing import Any

from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response

from ... import conf, handlers, topics
from ...admin_log import Action
from ...models import Topic
from ...monitoring import metrics
from ..access.permissions import Right
from ..schema import examples
from ..schema.operations import ANY_POST, ANY_REQUEST, ResponseDoc, operation
from ..serializers.requests import ReasonSerializer, validated
from ..serializers.responses import PausedSerializer, TopicSerializer, TopicsSerializer
from .base import BaseView

logger = logging.getLogger("delaytasks")
UNKNOWN_TOPIC = {404: "Unknown topic: no handler, setting or row has this name."}
NOT_GRANTED = {403: "The caller lacks the right on this topic, whether it exists or not."}


def check_known(topic: str, using: str) -> None:
    """Raise Http404 for an unknown topic. Check the caller's right first: the error reveals if the topic exists."""
    if topic not in handlers.known() and not Topic.objects.using(using).filter(name=topic).exists():
        raise Http404


def _topic_data(name: str, counts: dict[str, Any]) -> dict[str, Any]:
    data = counts | {
        "name": name,
        "delayed_within_horizon": counts["delayed"],
        "horizon_seconds": conf.get().horizon_seconds,
    }
    return dict(TopicSerializer(data).data)


class TopicsView(BaseView):
    @operation(
        "listTopics",
        tag="topics",
        summary="List topics",
        responses={200: ResponseDoc(TopicsSerializer, "The topics that the caller sees, ordered by name.")},
        problems=ANY_REQUEST,
        examples=[examples.response("One topic", {"results": [examples.TOPIC]})],
    )
    def get(self, request: Request) -> Response:
        """List the topics that the caller sees, with current job counts."""
        snapshot = metrics.topics_snapshot(self.using, self.caller.topics(self.using))
        return Response({"results": [_topic_data(name, counts) for name, counts in snapshot.items()]})


class TopicView(BaseView):
    @operation(
        "readTopic",
        tag="topics",
        summary="Read a topic",
        responses={200: ResponseDoc(TopicSerializer, "The topic.")},
        problems={**ANY_REQUEST, **NOT_GRANTED, **UNKNOWN_TOPIC},
        examples=[examples.response("A topic", examples.TOPIC)],
    )
    def get(self, request: Request, topic: str) -> Response:
        """Return a topic with its current job counts."""
        self.caller.require(Right.READ, topic)
        counts = metrics.topics_snapshot(self.using, [topic]).get(topic)
        if counts is None:
            raise Http404
        return Response(_topic_data(topic, counts))


class PauseView(BaseView):
    @operation(
        "pauseTopic",
        tag="topics",
        summary="Pause a topic",
        request=ReasonSerializer,
        responses={200: ResponseDoc(PausedSerializer, "The topic is paused, now or since earlier.")},
        problems={**ANY_POST, **NOT_GRANTED, **UNKNOWN_TOPIC},
        examples=[examples.response("Paused", {"name": "order.close", "paused": True})],
    )
    def post(self, request: Request, topic: str) -> Response:
        """Pause a topic: its jobs become ready but are not given out. Takes effect everywhere within a second.

        Reserved jobs keep running. Requires the right to manage.
        """
        return self.set_paused(request, topic, True)

    def set_paused(self, request: Request, topic: str, paused: bool) -> Response:
        self.caller.require_pause(topic)
        reason = validated(ReasonSerializer, request.data)["reason"]
        check_known(topic, self.using)
        self.caller.require_reason(topic, reason)
        action = Action.PAUSED if paused else Action.RESUMED
        if self.caller.run_audited(lambda: self._set_paused(topic, paused, action, reason), self.using):
            logger.info("Topic %s was %s by %s%s.", topic, action.lower(), self.caller.name, reason and f": {reason}")
        topics.clear_cache()  # effective at once in this process, within a second in others
        return Response({"name": topic, "paused": paused})

    def _set_paused(self, topic: str, paused: bool, action: Action, reason: str) -> bool:
        """Pause or resume the topic, and log it. Return False if this changed nothing."""
        rows, row = Topic.objects.using(self.using), Topic(name=topic)
        rows.bulk_create([row], ignore_conflicts=True)  # REPEATABLE READ: a conflict, not an IntegrityError
        changed = bool(rows.filter(name=topic, paused=not paused).update(paused=paused))
        if changed:
            self.caller.log([row], action, reason)
        return changed


class ResumeView(PauseView):
    @operation(
        "resumeTopic",
        tag="topics",
        summary="Resume a topic",
        request=ReasonSerializer,
        responses={200: ResponseDoc(PausedSerializer, "The topic is not paused, now or since earlier.")},
        problems={**ANY_POST, **NOT_GRANTED, **UNKNOWN_TOPIC},
        examples=[examples.response("Resumed", {"name": "order.close", "paused": False})],
    )
    def post(self, request: Request, topic: str) -> Response:
        """Resume a paused topic. Requires the right to manage."""
        return self.set_paused(request, topic, False)
