"""Create the tables and rows of a site with django-celery-beat, and carry them over. Prints JSON."""

import json
import os
from datetime import UTC, datetime

import django
from django.core.management import call_command

os.environ["DJANGO_SETTINGS_MODULE"] = "tests.celery.beat_site.settings"


def main() -> None:
    django.setup()
    from django_celery_beat.models import (
        ClockedSchedule,
        CrontabSchedule,
        IntervalSchedule,
        PeriodicTask,
        SolarSchedule,
    )

    from delaytasks import handler
    from delaytasks.models import Schedule

    @handler("shop.report")
    def report(job: object) -> None: ...

    for app in ("delaytasks", "django_celery_beat"):
        call_command("migrate", app, verbosity=0)
    hourly, _ = IntervalSchedule.objects.get_or_create(every=1, period="hours")
    nightly, _ = CrontabSchedule.objects.get_or_create(
        minute="30", hour="2", day_of_week="mon-fri", timezone="Asia/Tokyo"
    )
    once, _ = ClockedSchedule.objects.get_or_create(clocked_time=datetime(2099, 1, 1, tzinfo=UTC))
    sunset, _ = SolarSchedule.objects.get_or_create(event="sunset", latitude=51, longitude=9)
    never = CrontabSchedule.objects.create(minute="99")
    for name, more in {
        "hourly": {"interval": hourly, "args": "[1]", "expire_seconds": 90, "enabled": False},
        "turned off": {"interval": hourly, "enabled": False},  # by staff; beat has copied the entry of beat_schedule
        "nightly": {"crontab": nightly, "queue": "slow", "priority": 3},
        "once": {"clocked": once, "one_off": True},
        "sunset": {"solar": sunset},
        "bad kwargs": {"interval": hourly, "kwargs": "{'to': 'anna'}"},
        "bad times": {"crontab": never, "enabled": False},
        "another task": {"interval": hourly, "task": "shop.other"},
    }.items():
        PeriodicTask.objects.create(**{"name": name, "task": "shop.report", **more})
    call_command("delaytasks", "schedules", "from-beat", "--write", "--json")
    columns = (
        "name",
        "topic",
        "cron",
        "every_ms",
        "tz",
        "delay_ms",
        "within_ms",
        "running",
        "paused",
        "body",
        "source",
    )
    print(json.dumps(list(Schedule.objects.order_by("name").values(*columns))))


main()
