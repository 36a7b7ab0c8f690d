"""PostgreSQL: one constraint of the jobs that calls a function, beside the seven that it replaces (decision 47).

PostgreSQL parses and plans the text of each constraint in each statement, which took 40 µs of an UPDATE of one row. The
plans of a function in PL/pgSQL are kept by the session. The constraint is added without reading a row: 0035 validates
it, and 0036 drops the others. Workers of the older version write the same columns.
"""

from django.db import migrations, router

from ._online import limit_waiting

HINTS = {"model_name": "job"}  # without it, Django would ask a router that decides by model without a model
# Every role that writes jobs must be allowed to call the function, also where the site has revoked that by default.
CREATE_FUNCTION = """
    CREATE OR REPLACE FUNCTION delaytasks_job_is_valid(
        state integer, attempt integer, failures integer, priority integer, ttr_ms bigint, key text, due_at timestamptz,
        declared_due timestamptz, lease_until timestamptz, ended_at timestamptz, died_at timestamptz
    ) RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
    DECLARE
        broken text := CASE
            WHEN state NOT IN (1, 3, 4, 5, 6) THEN 'its state is unknown'
            WHEN (state IN (1, 3)) <> (ended_at IS NULL) THEN 'it has ended_at if, and only if, its state is an ended one'
            WHEN (state = 3) <> (lease_until IS NOT NULL) THEN 'it has lease_until if, and only if, it is reserved'
            WHEN state = 3 AND attempt < 1 THEN 'it is reserved without an attempt'
            WHEN (state = 6) <> (died_at IS NOT NULL) THEN 'it has died_at if, and only if, it is dead'
            WHEN ttr_ms <= 0 THEN 'its ttr_ms is not positive'
            WHEN failures < 0 OR attempt < failures THEN 'its failures are not between 0 and its attempts'
            WHEN key = '' THEN 'its key is empty'
            WHEN priority NOT BETWEEN 0 AND 9 THEN 'its priority is not between 0 and 9'
            WHEN due_at NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
                THEN 'Python cannot read its due_at'
            WHEN declared_due NOT BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 23:59:59.999999+00'
                THEN 'Python cannot read its declared_due'
        END;
    BEGIN
        IF broken IS NULL THEN RETURN true; END IF;
        RAISE WARNING 'delaytasks_job: the job with the key "%" is refused: %', key, broken;
        RETURN false;
    END $$"""
GRANT = "GRANT EXECUTE ON FUNCTION delaytasks_job_is_valid TO PUBLIC"
ADD_CONSTRAINT = """
    ALTER TABLE delaytasks_job ADD CONSTRAINT delaytasks_job_valid CHECK (delaytasks_job_is_valid(
        state, attempt, failures, priority, ttr_ms, key, due_at, declared_due, lease_until, ended_at, died_at
    )) NOT VALID"""


def add_constraint(apps, schema_editor):
    if _is_concerned(apps, schema_editor):
        for sql in (CREATE_FUNCTION, GRANT, ADD_CONSTRAINT):
            schema_editor.execute(sql, params=None)


def remove_constraint(apps, schema_editor):
    if _is_concerned(apps, schema_editor):
        schema_editor.execute("ALTER TABLE delaytasks_job DROP CONSTRAINT delaytasks_job_valid")
        schema_editor.execute("DROP FUNCTION delaytasks_job_is_valid")


def _is_concerned(apps, schema_editor):
    connection = schema_editor.connection
    is_here = router.allow_migrate_model(connection.alias, apps.get_model("delaytasks", "Job"))
    return is_here and connection.vendor == "postgresql"


class Migration(migrations.Migration):
    dependencies = [("delaytasks", "0033_topic_target")]

    operations = [
        migrations.RunPython(limit_waiting, migrations.RunPython.noop, hints=HINTS),
        migrations.RunPython(add_constraint, remove_constraint, hints=HINTS),
        # The first operation if the migration is reversed:
        migrations.RunPython(migrations.RunPython.noop, limit_waiting, hints=HINTS),
    ]
