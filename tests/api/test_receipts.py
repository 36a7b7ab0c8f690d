"""Receipts are compared in a time that does not tell how much of them was guessed."""

from typing import NoReturn

from delaytasks.api.access import receipts


class Uncomparable(str):
    """A text that `==` cannot compare; constant_time_compare() reads its bytes."""

    def __eq__(self, other: object) -> NoReturn:
        raise AssertionError("== ends at the first character that differs.")

    __hash__ = str.__hash__


def test_a_receipt_is_compared_in_constant_time() -> None:
    right = receipts.make(7, 1, 1000)
    assert receipts.is_valid(Uncomparable(right), 7, 1, 1000)
    assert not receipts.is_valid(Uncomparable(right[:-1]), 7, 1, 1000)
    assert not receipts.is_valid(Uncomparable(right), 7, 2, 1000)
