"""Series: schedules that a call of schedule() starts. Adds nullable columns and two partial indexes of a small table."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0021_again"),
    ]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="series_key",
            field=models.CharField(editable=False, max_length=255, null=True, verbose_name="key"),
        ),
        migrations.AddField(
            model_name="schedule",
            name="subject_label",
            field=models.CharField(editable=False, max_length=201, null=True),
        ),
        migrations.AddField(
            model_name="schedule",
            name="subject_pk",
            field=models.CharField(editable=False, max_length=255, null=True),
        ),
        migrations.AlterField(
            model_name="schedule",
            name="source",
            field=models.CharField(
                choices=[("code", "code"), ("staff", "staff"), ("call", "a call of schedule()")],
                default="staff",
                max_length=5,
                verbose_name="defined by",
            ),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("ended", True), ("series_key__isnull", False)),
                fields=["made_until"],
                name="delaytasks_schedule_over",
            ),
        ),
        migrations.AddIndex(
            model_name="schedule",
            index=models.Index(
                condition=models.Q(("subject_pk__isnull", False)),
                fields=["subject_label", "subject_pk"],
                name="delaytasks_schedule_subject",
            ),
        ),
    ]
