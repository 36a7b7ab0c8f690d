from django.apps import AppConfig

from .rules import FACTOR


class GamedayConfig(AppConfig):
    name = "tests.gameday"
    label = "gameday"

    def ready(self) -> None:
        """Shorten two limits that are no settings, as the rules are: a health check's, and a scrape's."""
        from delaytasks.celery import metrics_server
        from delaytasks.monitoring import readiness

        metrics_server.prepare()  # before prometheus_client is imported, or a worker would count without its pool
        from delaytasks.monitoring import job_collector

        readiness.MIN_SWEEP_AGE_MS //= FACTOR
        # A scrape may take 2 s here and 10 s by default; while a database hangs, it has to end with an answer.
        job_collector.READ_SECONDS = 1
