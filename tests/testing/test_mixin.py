"""The kit for unittest."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test import TestCase
from django.utils import timezone

from delaytasks import handlers, schedule
from delaytasks.db import dialects
from delaytasks.exceptions import BadInput
from delaytasks.testing import TimeoutsTestMixin


class WithTheKit(TimeoutsTestMixin, TestCase):
    timeouts_start = datetime(2041, 1, 1, tzinfo=UTC)

    def setUp(self) -> None:
        super().setUp()
        self.keys: list[str] = []
        handlers.handler("t")(self.handle)
        self.addCleanup(handlers.unregister, "t")

    def handle(self, job: Any) -> None:
        self.keys.append(job.key)

    def test_the_kit_runs_jobs_in_a_test_case(self) -> None:
        assert timezone.now() == self.timeouts_start
        assert connection.in_atomic_block
        schedule("t", "1", delay=60)
        self.timeouts.assert_scheduled("t", "1")
        self.assertFalse(self.timeouts.advance(seconds=59))
        self.assertEqual(self.timeouts.advance(seconds=1).outcomes, {"finished": 1})
        self.assertEqual(self.keys, ["1"])


class InAnotherDatabase(TimeoutsTestMixin, TestCase):
    timeouts_using = "shops"

    def setUp(self) -> None:
        with pytest.raises(BadInput, match="using is 'shops'"):
            super().setUp()

    def test_the_kit_uses_the_database_that_the_class_names(self) -> None:
        assert not hasattr(self, "timeouts")


class AfterTheKit(TestCase):
    def test_the_clock_is_real_again(self) -> None:
        assert not dialects.is_fixed()
