"""Since when and why a topic is held: delaytasks.forward."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0016_subject"),
    ]

    operations = [
        migrations.AddField(
            model_name="topic",
            name="held_since",
            field=models.DateTimeField(editable=False, null=True, verbose_name="held since"),
        ),
        migrations.AddField(
            model_name="topic",
            name="held_until",
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.AddField(
            model_name="topic",
            name="held_why",
            field=models.TextField(db_default="", default="", editable=False, verbose_name="held because"),
        ),
    ]
