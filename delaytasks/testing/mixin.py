"""The test kit for unittest."""

from datetime import datetime
from typing import Any, ClassVar

from .kit import Timeouts


class TimeoutsTestMixin:
    """A mixin for Django's TestCase and TransactionTestCase: self.timeouts is the test kit, during each test.

        class ClosesOnTime(TimeoutsTestMixin, TestCase):
            def test_an_unpaid_order_is_closed(self):
                order = place_order()
                self.assertEqual(self.timeouts.advance(minutes=30).outcomes, {"finished": 1})

    timeouts_start    aware datetime at which the clock starts; None: the real time
    timeouts_mirror   True: use Redis, see Timeouts; needs a TransactionTestCase
    timeouts_using    alias of the database whose jobs run; None: the router's database for writes

    setUpTestData() and setUpClass() run before the virtual clock is installed.
    """

    timeouts: Timeouts
    timeouts_start: ClassVar[datetime | None] = None
    timeouts_mirror: ClassVar[bool] = False
    timeouts_using: ClassVar[str | None] = None

    def setUp(self) -> None:
        test: Any = self
        kit = Timeouts(start=self.timeouts_start, mirror=self.timeouts_mirror, using=self.timeouts_using)
        self.timeouts = test.enterContext(kit)
        super().setUp()  # type: ignore[misc]
