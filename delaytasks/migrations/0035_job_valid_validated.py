"""Validate the constraint of 0034 on PostgreSQL. Reads the table once, and blocks no writes.

Backwards, the constraints that 0036 has dropped are there again, and are validated.
"""

from django.db import migrations

from ._online import ValidateCheck

REPLACED = ["state_known", "live_or_ended", "lease_if_reserved", "died_if_dead", "sane", "priority_known"]


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0034_job_valid")]

    operations = [
        *[ValidateCheck("job", f"delaytasks_job_{name}", backwards=True) for name in REPLACED],
        ValidateCheck("job", "delaytasks_job_valid"),
    ]
