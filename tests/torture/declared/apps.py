from django.apps import AppConfig


class DeclaredConfig(AppConfig):
    """Handlers and a declared timeout for `same_rows`. Its models are those of tests/timeouts."""

    name = "tests.torture.declared"
    label = "torture_declared"
