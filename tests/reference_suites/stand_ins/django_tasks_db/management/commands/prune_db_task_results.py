"""Delete old results by the backend's method, in place of that package's command."""

import logging
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from delaytasks.django_tasks.compat import task_backends

logger = logging.getLogger(__name__)


class Command(BaseCommand):
    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--min-age-days", type=int, default=14)

    def handle(self, *args: Any, min_age_days: int, **options: Any) -> None:
        backend: Any = task_backends["default"]
        count = backend.delete_results(timezone.now() - timedelta(days=min_age_days))
        self.stdout.write(f"Deleted {count} task result(s)")
