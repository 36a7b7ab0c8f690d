"""The addresses of the HTTP side. Mount them where you like: path("api/", include("delaytasks.api.urls"))."""

from django.urls import path, re_path, register_converter
from django.urls.converters import StringConverter

from . import consumers, health, jobs, queue, schema, topics
from .fields import TOPIC_PATTERN


class TopicConverter(StringConverter):
    """A topic's name; anything else is no address here."""

    regex = TOPIC_PATTERN.strip("^$")


register_converter(TopicConverter, "delaytasks_topic")
app_name = "delaytasks_api"
urlpatterns = [
    path("queue/", queue.QueueView.as_view(), name="queue"),
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
    path("health/", health.HealthView.as_view(), name="health"),
    path("schema/", schema.SchemaView.as_view(), name="schema"),
    path("docs/", schema.DocsView.as_view(), name="docs"),
    re_path("", jobs.NowhereView.as_view(), name="nowhere"),
]
