"""Three fields get plain names in Python. Their columns keep the old ones, so nothing is done in the database."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0010_codes")]

    operations = [
        migrations.SeparateDatabaseAndState(
            state_operations=[
                migrations.RemoveIndex(model_name="loadchunk", name="delaytasks_loadchunk_untold"),
                migrations.RenameField(model_name="loadchunk", old_name="told", new_name="mirrored"),
                migrations.RenameField(model_name="bulkchange", old_name="wish", new_name="selection"),
                migrations.RenameField(model_name="mirrormark", old_name="looked_at", new_name="heartbeat_at"),
                migrations.AlterField(
                    model_name="loadchunk",
                    name="mirrored",
                    field=models.BooleanField(
                        db_column="told", default=False, help_text="the mirror has what is within the horizon"
                    ),
                ),
                migrations.AlterField(
                    model_name="bulkchange",
                    name="selection",
                    field=models.JSONField(db_column="wish", default=dict, verbose_name="filters"),
                ),
                migrations.AlterField(
                    model_name="mirrormark",
                    name="heartbeat_at",
                    field=models.DateTimeField(db_column="looked_at", null=True),
                ),
                migrations.AddIndex(
                    model_name="loadchunk",
                    index=models.Index(fields=["id"], condition=Q(mirrored=False), name="delaytasks_loadchunk_untold"),
                ),
            ],
        )
    ]
