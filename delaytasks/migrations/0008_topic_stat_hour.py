from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("delaytasks", "0007_topic_stat"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="topicstat",
            index=models.Index(fields=["hour_at"], name="delaytasks_topicstat_hour"),
        ),
    ]
