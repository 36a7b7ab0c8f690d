"""Clearer help texts. No SQL: the tables stay the same."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0036_one_job_constraint"),
    ]

    operations = [
        migrations.AlterField(
            model_name="declaration",
            name="overdue",
            field=models.CharField(
                choices=[("run", "run"), ("skip", "skip"), ("spread", "spread")],
                default="run",
                help_text="what to do with jobs that were overdue when it was applied",
                max_length=6,
            ),
        ),
        migrations.AlterField(
            model_name="loadchunk",
            name="kept",
            field=models.IntegerField(help_text="jobs that were live already and were not changed"),
        ),
        migrations.AlterField(
            model_name="loadchunk",
            name="low_id",
            field=models.BigIntegerField(help_text="lowest id of the inserted jobs", null=True),
        ),
        migrations.AlterField(
            model_name="loadchunk",
            name="mirrored",
            field=models.BooleanField(
                db_column="told",
                default=False,
                help_text="whether the chunk's jobs that are due within the horizon are in the mirror",
            ),
        ),
        migrations.AlterField(
            model_name="loadchunk",
            name="refused",
            field=models.IntegerField(
                help_text="rows whose job was live already, or running; they are among the run's rejects"
            ),
        ),
        migrations.AlterField(
            model_name="loadchunk",
            name="replaced_ids",
            field=models.JSONField(
                default=list, help_text="ids of the replaced jobs; emptied when the mirror has been updated"
            ),
        ),
        migrations.AlterField(
            model_name="loadchunk",
            name="stamp",
            field=models.CharField(
                help_text="id of the run's files; differs from that of a run with the same name in another lake",
                max_length=32,
            ),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="within_ms",
            field=models.BigIntegerField(
                blank=True,
                help_text="a run that begins later is skipped; empty: no limit",
                null=True,
                verbose_name="begin within, in ms",
            ),
        ),
        migrations.AlterField(
            model_name="topic",
            name="concurrency",
            field=models.PositiveSmallIntegerField(
                blank=True,
                help_text="number of run slots; empty: the concurrency of its handler",
                null=True,
                verbose_name="concurrency",
            ),
        ),
        migrations.AlterField(
            model_name="topic",
            name="hide_bodies",
            field=models.BooleanField(
                db_default=False,
                default=False,
                help_text="the bodies of its jobs are hidden from staff and from programs that do not consume the topic",
                verbose_name="hide bodies",
            ),
        ),
        migrations.AlterField(
            model_name="topic",
            name="paused",
            field=models.BooleanField(
                default=False, help_text="its jobs become ready, but do not run", verbose_name="paused"
            ),
        ),
        migrations.AlterField(
            model_name="topic",
            name="target",
            field=models.JSONField(
                default=None,
                editable=False,
                help_text="where its jobs are forwarded if no code handles the topic; empty: not forwarded",
                null=True,
                verbose_name="target",
            ),
        ),
        migrations.AlterField(
            model_name="topicstat",
            name="begun",
            field=models.BigIntegerField(help_text="first attempts; the lateness is that of these attempts"),
        ),
        migrations.AlterField(
            model_name="topicstat",
            name="retried",
            field=models.BigIntegerField(help_text="attempts that failed or exceeded their TTR, and will be repeated"),
        ),
    ]
