"""Days of business calendars with other hours than usual, and recurring jobs. New tables: nothing else is touched."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0014_audit_log"),
    ]

    operations = [
        migrations.CreateModel(
            name="Schedule",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                ("name", models.CharField(max_length=100, unique=True, verbose_name="name")),
                ("topic", models.CharField(max_length=100, verbose_name="topic")),
                ("body", models.JSONField(blank=True, default=dict, verbose_name="body")),
                ("ttr_ms", models.BigIntegerField(blank=True, null=True, verbose_name="TTR in ms")),
                (
                    "tz",
                    models.CharField(
                        help_text="IANA name, such as Europe/Berlin", max_length=64, verbose_name="time zone"
                    ),
                ),
                (
                    "cron",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="five fields, such as 30 2 * * 1-5",
                        max_length=255,
                        verbose_name="cron",
                    ),
                ),
                ("every_ms", models.BigIntegerField(blank=True, null=True, verbose_name="every, in ms")),
                (
                    "rrule",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="such as FREQ=MONTHLY;BYDAY=-1FR",
                        max_length=1000,
                        verbose_name="recurrence rule",
                    ),
                ),
                ("delay_ms", models.BigIntegerField(blank=True, null=True, verbose_name="delay, in ms")),
                ("period_ms", models.BigIntegerField(blank=True, null=True, verbose_name="period, in ms")),
                (
                    "repeat",
                    models.IntegerField(
                        blank=True, help_text="empty: without end", null=True, verbose_name="repetitions"
                    ),
                ),
                ("start_at", models.DateTimeField(verbose_name="start")),
                (
                    "gap",
                    models.CharField(
                        choices=[("run", "run at its end"), ("skip", "skip")],
                        default="run",
                        max_length=4,
                        verbose_name="if clocks skip the time",
                    ),
                ),
                (
                    "overlap",
                    models.CharField(
                        choices=[("once", "run the first time"), ("both", "run both times")],
                        default="once",
                        max_length=4,
                        verbose_name="if clocks show the time twice",
                    ),
                ),
                (
                    "missed",
                    models.CharField(
                        choices=[("all", "run all"), ("last", "run the last"), ("none", "run none")],
                        default="last",
                        max_length=4,
                        verbose_name="missed runs",
                    ),
                ),
                (
                    "within_ms",
                    models.BigIntegerField(
                        blank=True,
                        help_text="what begins later is skipped; empty: no limit",
                        null=True,
                        verbose_name="begin within, in ms",
                    ),
                ),
                (
                    "running",
                    models.CharField(
                        choices=[("skip", "skip"), ("queue", "wait"), ("allow", "run beside it")],
                        default="skip",
                        max_length=5,
                        verbose_name="if a run is still running",
                    ),
                ),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                (
                    "source",
                    models.CharField(
                        choices=[("code", "code"), ("staff", "staff")],
                        default="staff",
                        max_length=5,
                        verbose_name="defined by",
                    ),
                ),
                ("made_until", models.DateTimeField(verbose_name="made until")),
                ("made_label", models.CharField(db_default="", default="", max_length=40)),
                ("version", models.BigIntegerField(db_default=0, default=0)),
                ("ended", models.BooleanField(db_default=False, default=False, verbose_name="ended")),
                (
                    "problem",
                    models.CharField(blank=True, db_default="", default="", max_length=255, verbose_name="problem"),
                ),
            ],
            options={
                "verbose_name": "schedule",
                "verbose_name_plural": "schedules",
            },
        ),
        migrations.CreateModel(
            name="CalendarDay",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                (
                    "calendar",
                    models.CharField(
                        help_text="the name of a Calendar in the code", max_length=100, verbose_name="calendar"
                    ),
                ),
                ("day", models.DateField(verbose_name="day")),
                (
                    "hours",
                    models.CharField(
                        blank=True,
                        db_default="",
                        default="",
                        help_text="such as 09:00-12:00,13:00-17:00; empty: closed",
                        max_length=255,
                        verbose_name="open hours",
                    ),
                ),
                ("note", models.CharField(blank=True, db_default="", default="", max_length=255, verbose_name="note")),
            ],
            options={
                "verbose_name": "calendar exception",
                "verbose_name_plural": "calendar exceptions",
                "constraints": [models.UniqueConstraint(fields=("calendar", "day"), name="delaytasks_calendarday_one")],
            },
        ),
        migrations.CreateModel(
            name="ScheduleRun",
            fields=[
                (
                    "schedule",
                    models.OneToOneField(
                        on_delete=django.db.models.deletion.CASCADE,
                        primary_key=True,
                        related_name="run",
                        serialize=False,
                        to="delaytasks.schedule",
                    ),
                ),
                ("job_id", models.BigIntegerField(null=True)),
                ("attempt", models.IntegerField(default=0)),
            ],
            options={
                "verbose_name": "running job of a schedule",
                "verbose_name_plural": "running jobs of schedules",
                "default_permissions": (),
            },
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("ended", False), ("paused", False)),
                fields=["made_until", "id"],
                name="delaytasks_schedule_due",
            ),
        ),
    ]
