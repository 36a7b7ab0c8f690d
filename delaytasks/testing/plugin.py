"""The pytest plugin: the fixture `timeouts` and the marker of the same name.

pytest loads it in every project where delaytasks is installed. It therefore imports nothing but pytest; the fixture
imports the rest when a test uses it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .kit import Timeouts


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "timeouts(start=None, mirror=False, using=None, reconciles=True): options of the fixture `timeouts`: the aware "
        "datetime at which its clock starts; whether it uses Redis, which needs django_db(transaction=True); the "
        "database whose jobs run, which django_db(databases=...) must allow; whether it reconciles declared timeouts "
        "automatically",
    )
    has_django = config.pluginmanager.hasplugin("django")
    config.pluginmanager.register(WithDjango() if has_django else WithoutDjango(), "delaytasks-timeouts")


class WithDjango:
    @pytest.fixture
    def timeouts(self, request: pytest.FixtureRequest, db: None) -> "Iterator[Timeouts]":
        """The test kit of delaytasks: a virtual clock, and the jobs that fall due on it. Uses the database."""
        # The argument `db` makes pytest-django set up the database.
        from .kit import Timeouts

        options = request.node.get_closest_marker("timeouts")
        with Timeouts(*options.args, **options.kwargs) if options else Timeouts() as kit:
            yield kit


class WithoutDjango:
    @pytest.fixture
    def timeouts(self) -> None:
        """The test kit of delaytasks; needs pytest-django."""
        pytest.fail("The fixture `timeouts` needs pytest-django: pip install pytest-django.", pytrace=False)
