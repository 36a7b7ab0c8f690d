"""Replace stored sentences by codes: errors of jobs, events and bulk changes, and results of bulk changes.

It runs beside workers of this version and the one before, on tables of millions of rows: in batches by id, each in
its own transaction, and it writes only rows that have such a sentence. Locked rows are skipped, and older workers may
write sentences later: readers understand both (outcomes.py). It can be stopped at any point and run again.
"""

from django.db import migrations, router

HINTS = {"model_name": "job"}  # without it, Django would ask a router that decides by model without a model
BATCH = 5_000  # ids
ERRORS = {  # sentence -> code
    "Its TTR was over and nobody had finished it.": "delaytasks:timed_out",
    "Buried by its consumer.": "delaytasks:buried",
    "Who asked for this may not change jobs any more.": "delaytasks:not_allowed",
}
RESULTS = {  # word -> code
    "made ready": "made_ready",
    "already running": "running",
    "moved meanwhile": "moved",
    "already ready": "already_ready",
    "already finished": "already_finished",
    "already cancelled": "already_cancelled",
    "not dead": "not_dead",
    "its key is live again": "key_is_live",
    "no longer there": "not_found",
}
FORMER_ERROR, ERROR = "error: ", "error:"
# The statement that ends a reserved job (state 3) rewrites its error. This migration must not make it fail.
TABLES = {
    "delaytasks_job": "AND state <> 3",
    "delaytasks_jobevent": "",
    "delaytasks_bulkchange": "",
}


def to_codes(apps, schema_editor):
    if not _is_here(apps, schema_editor):
        return
    for table, only in TABLES.items():
        _replace_errors(schema_editor.connection, table, only, ERRORS)
    _replace_results(apps, schema_editor.connection.alias, _to_code)


def to_sentences(apps, schema_editor):
    if not _is_here(apps, schema_editor):
        return
    sentences = {code: sentence for sentence, code in ERRORS.items()}
    for table, only in TABLES.items():
        _replace_errors(schema_editor.connection, table, only, sentences)
    _replace_results(apps, schema_editor.connection.alias, _to_word)


def _is_here(apps, schema_editor):
    return router.allow_migrate_model(schema_editor.connection.alias, apps.get_model("delaytasks", "Job"))


def _replace_errors(connection, table, only, replacements):
    after = 0
    while (until := _next_id(connection, table, after)) is not None:
        _replace_batch(connection, table, only, replacements, after, until)
        after = until


def _next_id(connection, table, after):
    """The last id of the next batch; None at the end of the table."""
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT max(id) FROM (SELECT id FROM {table} WHERE id > %s ORDER BY id LIMIT %s) AS batch", [after, BATCH]
        )
        return cursor.fetchone()[0]


def _replace_batch(connection, table, only, replacements, after, until):
    cases = " ".join(["WHEN %s THEN %s"] * len(replacements))
    among = ", ".join(["%s"] * len(replacements))
    skip_locked = "FOR UPDATE SKIP LOCKED" if connection.features.has_select_for_update_skip_locked else ""
    sql = f"""
        UPDATE {table} SET error = CASE error {cases} ELSE error END
        WHERE id IN (
            SELECT id FROM {table} WHERE id > %s AND id <= %s AND error IN ({among}) {only} ORDER BY id {skip_locked})"""
    pairs = [text for pair in replacements.items() for text in pair]
    with connection.cursor() as cursor:
        cursor.execute(sql, [*pairs, after, until, *replacements])


def _to_code(stored):
    if stored.startswith(FORMER_ERROR):
        return ERROR + stored.removeprefix(FORMER_ERROR)
    return RESULTS.get(stored, stored)


def _to_word(stored):
    if stored.startswith(ERROR):
        return FORMER_ERROR + stored.removeprefix(ERROR).lstrip()
    return {code: word for word, code in RESULTS.items()}.get(stored, stored)


def _replace_results(apps, using, replaced):
    """Skip a change that a worker counts at the same time: its position has moved. Readers understand both forms."""
    changes = apps.get_model("delaytasks", "BulkChange")._default_manager.using(using)
    for pk in list(changes.values_list("pk", flat=True)):
        position, outcomes, samples = changes.values_list("position", "outcomes", "samples").get(pk=pk)
        counts, named = {}, {}
        for stored, count in outcomes.items():
            counts[replaced(stored)] = counts.get(replaced(stored), 0) + count
        for stored, jobs in samples.items():
            named.setdefault(replaced(stored), []).extend(jobs)
        if (counts, named) != (outcomes, samples):
            changes.filter(pk=pk, position=position).update(outcomes=counts, samples=named)


class Migration(migrations.Migration):
    atomic = False

    dependencies = [
        ("delaytasks", "0009_load_chunk"),
    ]

    operations = [
        migrations.RunPython(to_codes, to_sentences, atomic=False, hints=HINTS),
    ]
