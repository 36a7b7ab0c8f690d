"""Views of schedules: create, list, read, change, delete, pause, resume, run now, next runs, backfill."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import PermissionDenied
from django.http import Http404
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from ... import topics
from ...admin_log import Action
from ...db import dialects
from ...db.transitions import produced_by
from ...exceptions import BadSchedule
from ...jobs import audit_log
from ...models import Schedule
from ...recurrence import schedules
from ...recurrence.definition import Definition
from .. import job_list
from ..access import refusals
from ..access.permissions import ScheduleRight
from ..exceptions import ProblemError, problem
from ..limits import live_jobs
from ..schema import examples
from ..schema.operations import ANY_POST, ANY_REQUEST, ResponseDoc, operation
from ..serializers.requests import ReasonSerializer, validated
from ..serializers.responses import JobSerializer
from ..serializers.schedules import (
    BackfilledSerializer,
    BackfillSerializer,
    DeletedScheduleSerializer,
    NewScheduleSerializer,
    NextQuerySerializer,
    NextRunsSerializer,
    PausedScheduleSerializer,
    ScheduleChangeSerializer,
    ScheduleListSerializer,
    ScheduleQuerySerializer,
    ScheduleSerializer,
    shown_runs,
    to_terms,
)
from .base import BaseView

Returned = TypeVar("Returned")
NOT_FOUND = {404: "There is no schedule of this name, or its topic is hidden from the caller."}
IN_CODE = {409: "The schedule is declared in code."}
ANY_SCHEDULE_POST = {**ANY_POST, **NOT_FOUND}
schedule_operation = partial(operation, tag="schedules", problems=ANY_SCHEDULE_POST)


class ScheduleBaseView(BaseView):
    """Base of the views of one schedule."""

    def schedule(self, name: str, right: ScheduleRight = ScheduleRight.READ) -> Schedule:
        """Return the schedule of this name if the caller has the right on its topic.

        Raises Http404 for an unknown name and, alike, for a schedule whose topic is hidden from the caller. Raises
        PermissionDenied if the caller sees the schedule but lacks the right.
        """
        rows = Schedule.objects.using(self.using).filter(name=name)
        topic = rows.values_list("topic", flat=True).first()  # only the topic, as in BaseView.job()
        if topic is None or not self.caller.may_schedule(ScheduleRight.READ, topic):
            raise Http404
        self.caller.require_schedule(right, topic)
        row = rows.first()
        if row is None:
            raise Http404
        return row

    def operate(
        self, name: str, right: ScheduleRight, action: Action, reason: str, do: Callable[[Schedule], Returned]
    ) -> Returned:
        """Call do() with the locked row, and log the change as `action`, in one transaction. Return the result.

        do() may return False if it changed nothing: then nothing is logged.
        """
        self.caller.require_reason(self.schedule(name, right).topic, reason)

        def do_and_log() -> Returned:
            schedules.lock_name(self.using, name)
            row = Schedule.objects.using(self.using).select_for_update().filter(name=name).first()
            if row is None:
                raise Http404
            self.caller.require_schedule(right, row.topic)  # somebody may have changed the topic meanwhile
            before, pk = audit_log.schedule_state(row), row.pk
            with produced_by(self.caller.producer):
                result = do(row)
            if result is not False:
                left = Schedule.objects.using(self.using).filter(pk=pk).first()
                after = None if left is None else audit_log.schedule_state(left)
                self.caller.log([row], action, reason, before=before, after=after)
            return result

        return self.caller.run_audited(do_and_log, self.using)

    @property
    def context(self) -> dict[str, Any]:
        """The context of ScheduleSerializer."""
        return {"now": dialects.database_now(self.using), "caller": self.caller}

    def shown(self, row: Schedule) -> dict[str, Any]:
        return dict(ScheduleSerializer(row, context=self.context).data)


def _require_own(row: Schedule) -> None:
    """Raise a conflict for a schedule of the code: the next `schedules apply` would undo the change."""
    if row.source == Schedule.Source.CODE:
        detail = "It is declared in code, with @recurring. Change it there; here it can be paused and run."
        raise ProblemError(problem("declared-in-code", detail))


class SchedulesView(ScheduleBaseView):
    @schedule_operation(
        "listSchedules",
        summary="List schedules",
        responses={200: ResponseDoc(ScheduleListSerializer, "A page of schedules.")},
        problems={
            **ANY_REQUEST,
            400: "A parameter is invalid.",
            403: "The caller has no rights on a topic in `topic`, whether it exists or not.",
        },
        parameters=[ScheduleQuerySerializer],
        examples=[examples.response("The last page", {"next": None, "results": [examples.SCHEDULE]})],
    )
    def get(self, request: Request) -> Response:
        """List the schedules of the topics that the caller sees, ordered by name, in pages. Follow `next`."""
        query = validated(ScheduleQuerySerializer, job_list.query_of(request))
        rows = list(self._visible(query.get("topic")).filter(name__gt=query["after"])[: query["limit"] + 1])
        page = rows[: query["limit"]]
        page = page[: job_list.count_fitting([row.body for row in page])]
        here = request.get_full_path()
        after = replace_query_param(here, "after", page[-1].name) if len(rows) > len(page) else None
        return Response({"next": after, "results": ScheduleSerializer(page, many=True, context=self.context).data})

    def _visible(self, asked: list[str] | None) -> Any:
        for topic in asked or ():
            self.caller.require_schedule(ScheduleRight.READ, topic)
        names = topics.known(self.using) if asked is None else asked
        seen = [topic for topic in names if self.caller.may_schedule(ScheduleRight.READ, topic)]
        return Schedule.objects.using(self.using).filter(topic__in=seen).order_by("name")

    @schedule_operation(
        "createSchedule",
        summary="Create a schedule",
        request=NewScheduleSerializer,
        responses={201: ResponseDoc(ScheduleSerializer, "The schedule; its first job is made.")},
        problems={**ANY_POST, 409: "There is a schedule of this name, perhaps of a topic hidden from the caller."},
        examples=[
            examples.request("A schedule", examples.NEW_SCHEDULE),
            examples.response("The schedule", examples.SCHEDULE, 201),
        ],
    )
    def post(self, request: Request) -> Response:
        """Create a schedule and its first job, in one transaction. Requires the right to produce on the topic."""
        data = validated(NewScheduleSerializer, request.data)
        self.caller.require_schedule(ScheduleRight.CREATE, data["topic"])
        definition = Definition(**to_terms(data))

        def create_and_log() -> Schedule:
            with produced_by(self.caller.producer):
                row = schedules.create(definition, using=self.using)
            self.caller.log([row], Action.CREATED, added=True, after=audit_log.schedule_state(row))
            return row

        live_jobs.check_schedules(self.caller, self.using)
        with live_jobs.reserve_room(self.caller, 1, self.using):
            row = self.caller.run_audited(create_and_log, self.using)
        location = self.path_of("schedule", schedule=row.name)
        return Response(self.shown(row), status=201, headers={"Location": location})


class ScheduleView(ScheduleBaseView):
    @schedule_operation(
        "readSchedule",
        summary="Read a schedule",
        responses={200: ResponseDoc(ScheduleSerializer, "The schedule.")},
        problems={**ANY_REQUEST, **NOT_FOUND},
        examples=[examples.response("A schedule", examples.SCHEDULE)],
    )
    def get(self, request: Request, schedule: str) -> Response:
        """Return a schedule with its next run."""
        return Response(self.shown(self.schedule(schedule)))

    @schedule_operation(
        "changeSchedule",
        summary="Change a schedule",
        request=ScheduleChangeSerializer,
        responses={200: ResponseDoc(ScheduleSerializer, "The changed schedule.")},
        problems={**ANY_SCHEDULE_POST, **IN_CODE},
        examples=[
            examples.request("Another hour", {"cron": "30 4 * * 1-5"}),
            examples.request("Each ten minutes instead", {"cron": "", "every_seconds": 600}),
            examples.response("The schedule", examples.SCHEDULE),
        ],
    )
    def patch(self, request: Request, schedule: str) -> Response:
        """Change the given fields. The next job is replaced according to the new times; running and overdue jobs stay.

        Requires the right to produce, also on a new topic. If a part of the body is hidden from the caller, a new topic
        requires a new body: callers who may consume the new topic could read the old one.
        """
        found = self.schedule(schedule, ScheduleRight.CHANGE)
        terms = to_terms(validated(ScheduleChangeSerializer, request.data))
        reason = terms.pop("reason")
        if "topic" in terms:
            self.caller.require_schedule(ScheduleRight.CREATE, terms["topic"])
            self.caller.require_reason(terms["topic"], reason)
            self._require_shown_body(found, terms)

        def change(row: Schedule) -> Schedule:
            _require_own(row)
            self._require_shown_body(row, terms)  # somebody may have changed the row meanwhile
            if row.series_key is not None and terms.get("topic", row.topic) != row.topic:
                raise BadSchedule("The topic of a series cannot be changed: delete the series, and start another one.")
            return schedules.change(row, terms, using=self.using)

        row = self.operate(schedule, ScheduleRight.CHANGE, Action.CHANGED, reason, change)
        return Response(self.shown(row))

    def _require_shown_body(self, row: Schedule, terms: Mapping[str, Any]) -> None:
        """Raise PermissionDenied if `terms` moves a body to another topic of which a part is hidden from the caller."""
        is_moved = "body" not in terms and terms.get("topic", row.topic) != row.topic
        if is_moved and self.caller.shown_body(row.body, row.topic) != row.body:
            name = self.caller.name
            refusals.record(self.caller.source, self.caller.signature, f"hidden body of schedule {row.name}", row.topic)
            raise PermissionDenied(
                f"A part of the body is hidden from {name}: to change the topic, give the body as well."
            )

    @schedule_operation(
        "deleteSchedule",
        summary="Delete a schedule",
        responses={200: ResponseDoc(DeletedScheduleSerializer, "The schedule is deleted.")},
        problems={**ANY_SCHEDULE_POST, **IN_CODE},
        parameters=[ReasonSerializer],
        examples=[examples.response("Deleted", {"name": "report.daily", "deleted": True})],
    )
    def delete(self, request: Request, schedule: str) -> Response:
        """Delete a schedule and cancel its jobs that are not due yet. Requires the right to produce or to manage."""
        self.schedule(schedule, ScheduleRight.DELETE)
        reason = validated(ReasonSerializer, job_list.query_of(request))["reason"]

        def delete(row: Schedule) -> None:
            _require_own(row)
            pk = row.pk
            schedules.delete(row, using=self.using)
            row.pk = pk  # deleting has cleared it; the log entry needs it

        self.operate(schedule, ScheduleRight.DELETE, Action.DELETED, reason, delete)
        return Response({"name": schedule, "deleted": True})


class PauseView(ScheduleBaseView):
    @schedule_operation(
        "pauseSchedule",
        summary="Pause a schedule",
        request=ReasonSerializer,
        responses={200: ResponseDoc(PausedScheduleSerializer, "The schedule is paused, now or since earlier.")},
        examples=[examples.response("Paused", {"name": "report.daily", "paused": True})],
    )
    def post(self, request: Request, schedule: str) -> Response:
        """Pause a schedule: no jobs are made, and those that come due are skipped.

        Requires the right to produce or to manage.
        """
        return self.set_paused(request, schedule, True)

    def set_paused(self, request: Request, name: str, paused: bool) -> Response:
        self.schedule(name, ScheduleRight.OPERATE)
        reason = validated(ReasonSerializer, request.data)["reason"]
        action, change = (Action.PAUSED, schedules.pause) if paused else (Action.RESUMED, schedules.resume)
        self.operate(name, ScheduleRight.OPERATE, action, reason, lambda row: change(row.name, using=self.using))
        return Response({"name": name, "paused": paused})


class ResumeView(PauseView):
    @schedule_operation(
        "resumeSchedule",
        summary="Resume a schedule",
        request=ReasonSerializer,
        responses={200: ResponseDoc(PausedScheduleSerializer, "The schedule is not paused, now or since earlier.")},
        examples=[examples.response("Resumed", {"name": "report.daily", "paused": False})],
    )
    def post(self, request: Request, schedule: str) -> Response:
        """Resume a paused schedule. Runs that fell into the pause are not made; backfill makes them.

        Requires the right to produce or to manage.
        """
        return self.set_paused(request, schedule, False)


class RunNowView(ScheduleBaseView):
    @schedule_operation(
        "runSchedule",
        summary="Run a schedule's job once now",
        request=ReasonSerializer,
        responses={201: ResponseDoc(JobSerializer, "The job, which is due now.")},
    )
    def post(self, request: Request, schedule: str) -> Response:
        """Create one extra job of the schedule, due now. A repeated request creates another one.

        Requires the right to produce or to manage.
        """
        self.schedule(schedule, ScheduleRight.OPERATE)
        reason = validated(ReasonSerializer, request.data)["reason"]
        by = self.caller.signature
        with live_jobs.reserve_room(self.caller, 1, self.using):
            job = self.operate(
                schedule, ScheduleRight.OPERATE, Action.RUN_ONCE, reason,
                lambda row: schedules.run_now(row.name, using=self.using, by=by),
            )  # fmt: skip
        location = self.path_of("job", job_id=job.pk)
        return Response(job_list.shown_job(job, self.caller, self.using), status=201, headers={"Location": location})


class NextView(ScheduleBaseView):
    @schedule_operation(
        "listNextRuns",
        summary="List the next runs of a schedule",
        responses={200: ResponseDoc(NextRunsSerializer, "The next runs, earliest first.")},
        problems={**ANY_REQUEST, **NOT_FOUND, 400: "A parameter is invalid, or the schedule's zone is unknown."},
        parameters=[NextQuerySerializer],
        examples=[examples.response("One run", {"results": [examples.NEXT_RUN]})],
    )
    def get(self, request: Request, schedule: str) -> Response:
        """List the next runs by the schedule's times, whether or not it is paused."""
        row = self.schedule(schedule)
        query = validated(NextQuerySerializer, job_list.query_of(request))
        firings = schedules.next_firings(row, query["count"], after=query.get("after"))
        return Response({"results": shown_runs(firings, row.tz)})


class BackfillView(ScheduleBaseView):
    @schedule_operation(
        "backfillSchedule",
        summary="Make the missing runs of a range in the past",
        request=BackfillSerializer,
        responses={200: ResponseDoc(BackfilledSerializer, "How many jobs were made, due now.")},
        examples=[
            examples.request("Four days", {"first_at": "2031-05-01T00:00:00Z", "last_at": "2031-05-05T00:00:00Z"}),
            examples.response("Made", {"name": "report.daily", "made": 3}),
        ],
    )
    def post(self, request: Request, schedule: str) -> Response:
        """Make the runs of a range in the past that never ran, due now. A repeated request makes none of them twice.

        The range may have at most 10,000 runs, including those that ran. All of them count towards the caller's limit
        of live jobs.

        Requires the right to produce or to manage.
        """
        row = self.schedule(schedule, ScheduleRight.OPERATE)
        data = validated(BackfillSerializer, request.data)
        span = data["first_at"], data["last_at"]
        number = len(schedules.past_firings(row, *span, using=self.using))
        with live_jobs.reserve_room(self.caller, number, self.using):
            made = self.operate(
                schedule, ScheduleRight.OPERATE, Action.BACKFILLED, data["reason"],
                lambda row: schedules.backfill(row.name, *span, using=self.using),
            )  # fmt: skip
        return Response({"name": schedule, "made": made})
