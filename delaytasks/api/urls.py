"""URLs of the HTTP API. Mount them anywhere: path("api/", include("delaytasks.api.urls"))."""

from django.urls import path, re_path, register_converter
from django.urls.converters import StringConverter

from .queue_protocol import views
from .schema import document
from .serializers.fields import TOPIC_PATTERN
from .views import consumers, health, jobs, schedules, topics


class TopicConverter(StringConverter):
    """Match a valid name of a topic or of a schedule; other names give 404."""

    regex = TOPIC_PATTERN.strip("^$")


register_converter(TopicConverter, "delaytasks_topic")
app_name = "delaytasks_api"
urlpatterns = [
    path("queue/", views.QueueView.as_view(), name="queue"),
    path("jobs/", jobs.JobsView.as_view(), name="jobs"),
    path("jobs/<int:job_id>/", jobs.JobView.as_view(), name="job"),
    path("jobs/<int:job_id>/cancel/", jobs.CancelView.as_view(), name="cancel"),
    path("jobs/<int:job_id>/reschedule/", jobs.RescheduleView.as_view(), name="reschedule"),
    path("jobs/<int:job_id>/run-now/", jobs.RunNowView.as_view(), name="run-now"),
    path("jobs/<int:job_id>/retry/", jobs.RetryView.as_view(), name="retry"),
    path("jobs/<int:job_id>/finish/", consumers.FinishView.as_view(), name="finish"),
    path("jobs/<int:job_id>/release/", consumers.ReleaseView.as_view(), name="release"),
    path("jobs/<int:job_id>/touch/", consumers.TouchView.as_view(), name="touch"),
    path("jobs/<int:job_id>/bury/", consumers.BuryView.as_view(), name="bury"),
    path("topics/", topics.TopicsView.as_view(), name="topics"),
    path("topics/<delaytasks_topic:topic>/", topics.TopicView.as_view(), name="topic"),
    path("topics/<delaytasks_topic:topic>/pause/", topics.PauseView.as_view(), name="pause"),
    path("topics/<delaytasks_topic:topic>/resume/", topics.ResumeView.as_view(), name="resume"),
    path("topics/<delaytasks_topic:topic>/reserve/", consumers.ReserveView.as_view(), name="reserve"),
    path("schedules/", schedules.SchedulesView.as_view(), name="schedules"),
    path("schedules/<delaytasks_topic:schedule>/", schedules.ScheduleView.as_view(), name="schedule"),
    path("schedules/<delaytasks_topic:schedule>/pause/", schedules.PauseView.as_view(), name="pause-schedule"),
    path("schedules/<delaytasks_topic:schedule>/resume/", schedules.ResumeView.as_view(), name="resume-schedule"),
    path("schedules/<delaytasks_topic:schedule>/run-now/", schedules.RunNowView.as_view(), name="run-schedule"),
    path("schedules/<delaytasks_topic:schedule>/next/", schedules.NextView.as_view(), name="next-runs"),
    path("schedules/<delaytasks_topic:schedule>/backfill/", schedules.BackfillView.as_view(), name="backfill"),
    path("health/", health.HealthView.as_view(), name="health"),
    path("schema/", document.SchemaView.as_view(), name="schema"),
    path("docs/", document.DocsView.as_view(), name="docs"),
    re_path("", jobs.NotFoundView.as_view(), name="nowhere"),
]
