"""Drop the constraints that delaytasks_job_valid replaces: on PostgreSQL in a moment, on SQLite with one copy of the table.

The model's constraint is an ordinary one. On SQLite, and in tables that are created without migrations, its condition is
checked; on PostgreSQL the function of 0034 checks the same, and that Python can read the due times.
"""

from importlib import import_module

from django.db import migrations, models
from django.db.models import F, Q

from ._online import ReplaceChecks, limit_waiting

due_times = import_module("delaytasks.migrations.0030_finite_due_times")
HINTS = {"model_name": "job"}  # without it, Django would ask a router that decides by model without a model

VALID = models.CheckConstraint(
    condition=(
        Q(state=1, ended_at__isnull=True, lease_until__isnull=True, died_at__isnull=True)
        | Q(state=3, ended_at__isnull=True, lease_until__isnull=False, died_at__isnull=True)
        | Q(state=4, ended_at__isnull=False, lease_until__isnull=True, died_at__isnull=True)
        | Q(state=5, ended_at__isnull=False, lease_until__isnull=True, died_at__isnull=True)
        | Q(state=6, ended_at__isnull=False, lease_until__isnull=True, died_at__isnull=False)
    )
    & Q(failures__gte=0, attempt__gte=F("failures"))
    & (Q(lease_until__isnull=True) | Q(attempt__gte=1))
    & Q(ttr_ms__gt=0, priority__gte=0, priority__lte=9)
    & ~Q(key=""),
    name="delaytasks_job_valid",
)
REPLACED = [
    models.CheckConstraint(condition=Q(state__in=[1, 3, 4, 5, 6]), name="delaytasks_job_state_known"),
    models.CheckConstraint(
        condition=Q(state__in=[1, 3], ended_at__isnull=True) | Q(state__in=[4, 5, 6], ended_at__isnull=False),
        name="delaytasks_job_live_or_ended",
    ),
    models.CheckConstraint(
        condition=Q(state=3, lease_until__isnull=False, attempt__gte=1) | (~Q(state=3) & Q(lease_until__isnull=True)),
        name="delaytasks_job_lease_if_reserved",
    ),
    models.CheckConstraint(
        condition=Q(state=6, died_at__isnull=False) | (~Q(state=6) & Q(died_at__isnull=True)),
        name="delaytasks_job_died_if_dead",
    ),
    models.CheckConstraint(
        condition=Q(ttr_ms__gt=0, failures__gte=0, attempt__gte=F("failures")) & ~Q(key=""), name="delaytasks_job_sane"
    ),
    models.CheckConstraint(condition=Q(priority__gte=0, priority__lte=9), name="delaytasks_job_priority_known"),
]


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0035_job_valid_validated")]

    operations = [
        migrations.RunPython(limit_waiting, migrations.RunPython.noop, hints=HINTS),
        migrations.RunPython(due_times.remove_constraint, due_times.add_constraint),  # no hints, as in 0030
        ReplaceChecks("job", REPLACED, VALID),
        # The first operation if the migration is reversed:
        migrations.RunPython(migrations.RunPython.noop, limit_waiting, hints=HINTS),
    ]
