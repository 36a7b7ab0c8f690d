"""Tests of the suites that do not apply to DelaytasksBackend, each with its reason.

They are run all the same: one that passes is reported, because its exclusion is no longer true.
"""

from collections.abc import Mapping

DUMMY_MEMORY = "changes a result in the memory of the dummy backend; ours are rows"
LESS = "expects a backend that supports less: ours has results, refresh and run_after"
WORDING = "compares the wording of a message, or the name of the package in it"
# django-tasks 0.12 itself, before Django 6: our backend takes no part.
OLDER_PACKAGE = "compares a message of Django 6 with that of django-tasks 0.12 or of Python 3.11"

IDS = "ids are random UUIDs, because they are the keys of jobs: there is no id_function"
NAIVE = "delaytasks refuses USE_TZ = False (delaytasks.E003): due times would be naive"
MODEL = "tests columns, order, indexes, properties or migrations of that package's model"
ADMIN = "tests that package's admin page: staff see the job of a task"
COMMAND = "tests options or output of that package's command db_worker: our tasks run in Celery workers"
PROCESS = "starts that package's command db_worker as a process: our tasks run in Celery workers"
PRUNE = "tests options or output of that package's command prune_db_task_results: ours is the method delete_results()"
LOCKS = "tests how that package claims rows: our engine claims jobs otherwise"

_DJANGO: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    DUMMY_MEMORY: {
        "test_dummy_backend.DummyBackendTestCase": ("test_refresh_result", "test_refresh_result_async"),
    },
    LESS: {
        "test_immediate_backend.ImmediateBackendTestCase": (
            "test_cannot_get_result", "test_cannot_pass_run_after", "test_cannot_refresh_result",
        ),
    },
}  # fmt: skip
_DJANGO_BEFORE_6: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    OLDER_PACKAGE: {
        "test_custom_backend.CustomBackendTestCase": (
            "test_enqueue_async_task_on_non_async_backend", "test_no_enqueue",
        ),
        "test_dummy_backend.DummyBackendTestCase": ("test_validate_disallowed_async_task",),
    },
}  # fmt: skip
_DJANGO_TASKS_DB: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    WORDING: {
        "DatabaseBackendTestCase": ("test_database_backend_app_missing", "test_invalid_task_path"),
        "DatabaseBackendWorkerTestCase": ("test_complex_return_value",),
    },
    IDS: {"DatabaseBackendTestCase": ("test_custom_id_function", "test_unknown_id_function")},
    NAIVE: {"DatabaseBackendTestCase": ("test_run_after_tz",)},
    MODEL: {
        "DatabaseBackendTestCase": (
            "test_index_scan_for_ready", "test_priority_range_check", "test_run_after_null_0016_migration",
            "test_task_name",
        ),
        "DatabaseBackendWorkerTestCase": ("test_run_after_priority",),
        "DBTaskResultOrderingTestCase": (
            "test_earlier_enqueued_at_comes_first_given_same_priority_and_run_after",
            "test_earlier_run_after_comes_first_given_same_priority", "test_higher_priority_tasks_come_first",
        ),
    },
    ADMIN: {
        "AdminTestCase": (
            "test_display_run_after_returns_db_value", "test_display_run_after_returns_empty_for_date_max_or_none",
        ),
    },
    COMMAND: {
        "DatabaseBackendWorkerTestCase": (
            "test_empty_worker_id", "test_exclude_queues_requires_processing_all_queues", "test_fractional_interval",
            "test_incorrect_backend", "test_infinite_interval", "test_max_tasks", "test_negative_interval",
            "test_negative_max_tasks", "test_too_long_worker_id", "test_unknown_backend", "test_verbose_logging",
            "test_zero_interval", "test_zero_max_tasks",
        ),
    },
    PROCESS: {
        "DatabaseWorkerProcessTestCase": (
            "test_interrupt_no_tasks", "test_interrupt_signals", "test_keyboard_interrupt_task", "test_kill",
            "test_multiple_workers", "test_repeat_ctrl_c", "test_run_subprocess", "test_system_exit_task",
        ),
    },
    PRUNE: {
        "DatabaseBackendPruneTaskResultsTestCase": (
            "test_dry_run", "test_failed_min_age", "test_failed_min_age_zero", "test_incorrect_backend",
            "test_negative_age", "test_only_prunes_specified_queue", "test_prune_all_queues", "test_unknown_backend",
        ),
    },
    LOCKS: {
        "DatabaseTaskResultTestCase": (
            "test_lock_no_rows", "test_locks_tasks_filtered_sqlite", "test_locks_tasks_sqlite",
        ),
        "ConnectionExclusiveTranscationTestCase": ("test_exclusive_transaction",),
    },
}  # fmt: skip
_DJANGO_TASKS_DB_BEFORE_6: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    IDS: {"DatabaseBackendTestCase": ("test_postgres_id_function_expression",)},
}
_TABLES = {
    "django": ("tasks", _DJANGO, _DJANGO_BEFORE_6),
    "django-tasks-db": ("tests.tests", _DJANGO_TASKS_DB, _DJANGO_TASKS_DB_BEFORE_6),
}


def exclusions(suite: str, django_version: tuple[int, ...]) -> dict[str, str]:
    """Return the reasons, by the ids of the tests."""
    package, always, before_6 = _TABLES[suite]
    return {
        f"{package}.{case}.{test}": reason
        for table in ([always] if django_version >= (6, 0) else [always, before_6])
        for reason, cases in table.items()
        for case, tests in cases.items()
        for test in tests
    }
