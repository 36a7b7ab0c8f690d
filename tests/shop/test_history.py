"""Reading a real order history: every row is used or listed, and nothing stops it."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from project.shop import history
from project.shop.history import UnusableFile

HEADER = "order_id,order_status,order_purchase_timestamp,order_approved_at\n"
SAMPLE = Path(history.__file__).with_name("sample_orders.csv")


@pytest.fixture
def read(tmp_path):
    """The history of a file with this text (or these bytes)."""

    def read(content):
        path = tmp_path / "orders.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return history.read(path)

    return read


def test_times_are_iso_or_month_first_and_utc_unless_they_say_otherwise(read):
    found = read(
        HEADER + "iso,delivered,2017-10-02 10:56:33,2017-10-02T11:07:15Z\n"
        "zone,delivered,2017-10-02T12:56:34+02:00,\n"
        "month,delivered,10/2/2017 10:57,10/2/2017 11:07:30\n"
    )

    by_id = {order.order_id: order for order in found.orders}
    assert by_id["iso"].purchased_at == datetime(2017, 10, 2, 10, 56, 33, tzinfo=UTC)
    assert by_id["iso"].approved_at == datetime(2017, 10, 2, 11, 7, 15, tzinfo=UTC)
    assert by_id["zone"].purchased_at == datetime(2017, 10, 2, 10, 56, 34, tzinfo=UTC)
    assert by_id["month"].purchased_at == datetime(2017, 10, 2, 10, 57, tzinfo=UTC)
    assert by_id["month"].approved_at == datetime(2017, 10, 2, 11, 7, 30, tzinfo=UTC)
    assert not found.bad_rows


def test_an_empty_approval_means_never_paid(read):
    assert read(HEADER + "a,created,2017-10-02 10:56,\n").orders[0].approved_at is None


def test_other_columns_and_another_order_of_columns_are_fine(read):
    found = read(
        "more, ORDER_APPROVED_AT ,order_purchase_timestamp,order_status,order_id\nx,,2017-10-02,created,a,y,z\n"
    )

    assert [order.order_id for order in found.orders] == ["a"]


def test_orders_come_in_the_order_of_their_purchase(read):
    found = read(HEADER + "late,x,2017-10-03,\nearly,x,2017-10-02,\n")

    assert [order.order_id for order in found.orders] == ["early", "late"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (",delivered,2017-10-02,", "the order id is missing"),
        ("   ,delivered,2017-10-02,", "the order id is missing"),
        (f"{'x' * 201},delivered,2017-10-02,", "not 1 to 200 printable characters"),
        ("a\x00b,delivered,2017-10-02,", "not 1 to 200 printable characters"),
        ("b,delivered,,", "the purchase time is missing"),
        ("b", "the purchase time is missing"),
        ("b,delivered,yesterday,", "the purchase time 'yesterday' cannot be read"),
        ("b,delivered,13/1/2017 10:00,", "cannot be read"),
        ("b,delivered,2/31/2017 10:00,", "cannot be read"),
        ("b,delivered,10/2/2017 24:00,", "cannot be read"),
        ("b,delivered,0001-01-01T00:00+05:00,", "cannot be read"),
        ("b,delivered,9999-12-31 23:59,", "is not in the years 1970 to 2999"),
        ("b,delivered,2017-10-02,soon", "the approval time 'soon' cannot be read"),
        ("b,delivered,2017-10-02 10:00,2017-10-02 09:59", "approved (2017-10-02 09:59) before it was purchased"),
        ("good,delivered,2017-10-05,", "the order id 'good' was already on line 2"),
        ('"b', "the purchase time is missing"),
        (f'"{"x" * 140_000}",delivered,2017-10-02,', "not CSV that can be read"),
    ],
)
def test_a_bad_row_is_listed_with_its_line_and_stops_nothing(read, row, problem):
    found = read(f"{HEADER}good,delivered,2017-10-02,\n{row}\n")

    assert [order.order_id for order in found.orders] == ["good"]
    (listed,) = found.bad_rows
    assert listed.startswith("line 3: ")
    assert problem in listed


def test_an_approval_at_the_moment_of_the_purchase_is_fine(read):
    assert not read(HEADER + "a,x,2017-10-02 10:00,2017-10-02 10:00\n").bad_rows


def test_lines_are_those_of_the_file(read):
    found = read(HEADER + '\n"two\nlines",x,2017-10-02,\n\n,x,2017-10-02,\ngood,x,2017-10-02,\n')

    assert [listed.split(":")[0] for listed in found.bad_rows] == ["lines 3 to 4", "line 6"]


def test_a_repeated_id_counts_from_its_first_usable_row(read):
    found = read(HEADER + "a,x,never,\na,x,2017-10-02,\na,x,2017-10-03,\n")

    assert [order.purchased_at.day for order in found.orders] == [2]
    assert found.bad_rows[1] == "line 4: the order id 'a' was already on line 3"


def test_windows_files_are_read(read):
    found = read(b"\xef\xbb\xbf" + (HEADER + "a,x,2017-10-02,\n").replace("\n", "\r\n").encode())

    assert len(found.orders) == 1


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (HEADER, "holds no order that can be replayed"),
        (HEADER + "a,x,never,\n", "line 2: the purchase time 'never' cannot be read"),
        ("order_id,order_status\na,b\n", "lacks order_purchase_timestamp and order_approved_at"),
        (HEADER.replace(",", ";"), "lacks order_id"),
        (HEADER.encode() + b"caf\xe9,x,2017-10-02,\n", "is not text in UTF-8"),
        ("a\x00b".encode("utf-16"), "is not text in UTF-8"),
    ],
)
def test_a_file_that_is_no_history_is_refused_in_one_sentence(read, content, sentence):
    with pytest.raises(UnusableFile, match=r"^ORDERS=.*orders\.csv ") as refusal:
        read(content)
    assert sentence in str(refusal.value)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(UnusableFile, match="cannot be read: No such file"):
        history.read(tmp_path / "none.csv")


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(UnusableFile, match="cannot be read: Is a directory"):
        history.read(tmp_path)


def test_the_sample_has_no_bad_row():
    found = history.read(SAMPLE)

    assert len(found.orders) == 40
    assert not found.bad_rows
    assert {order.approved_at is None for order in found.orders} == {True, False}
