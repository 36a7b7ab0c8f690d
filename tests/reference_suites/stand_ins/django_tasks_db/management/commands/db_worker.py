"""Run the due tasks of some queues and end: in place of that package's worker. Ours are Celery's."""

from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from stand_ins.engine import run_due

from delaytasks.django_tasks import DelaytasksBackend
from delaytasks.django_tasks.compat import task_backends


class Command(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue-name", default="default")
        parser.add_argument("--exclude-queues", default="")
        parser.add_argument("--backend", dest="backend_name", default="default")
        # What the suite says and an engine without a loop has no use for.
        parser.add_argument("--batch", action="store_true")
        parser.add_argument("--no-startup-delay", dest="startup_delay", action="store_false")
        parser.add_argument("--worker-id")
        parser.add_argument("--interval")

    def handle(self, *args: Any, queue_name: str, exclude_queues: str, backend_name: str, **options: Any) -> None:
        backend = task_backends[backend_name]
        if isinstance(backend, DelaytasksBackend):
            queues = set(backend.queues if queue_name == "*" else queue_name.split(","))
            topics = {backend.topic(queue) for queue in queues - set(exclude_queues.split(","))}
            run_due(topics.__contains__)
