"""Reading an order history: every row is either used or reported."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from project.demo import order_csv
from project.demo.order_csv import InvalidFile

HEADER = "order_id,order_status,order_purchase_timestamp,order_approved_at\n"
SAMPLE = Path(order_csv.__file__).with_name("sample_orders.csv")


@pytest.fixture
def read(tmp_path):
    """Return a function that reads a history from text or bytes."""

    def read(content):
        path = tmp_path / "orders.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return order_csv.read(path)

    return read


def test_times_are_iso_or_month_first_and_in_utc_by_default(read):
    history = read(
        HEADER + "iso,delivered,2017-10-02 10:56:33,2017-10-02T11:07:15Z\n"
        "zone,delivered,2017-10-02T12:56:34+02:00,\n"
        "month,delivered,10/2/2017 10:57,10/2/2017 11:07:30\n"
    )

    by_id = {order.order_id: order for order in history.orders}
    assert by_id["iso"].purchased_at == datetime(2017, 10, 2, 10, 56, 33, tzinfo=UTC)
    assert by_id["iso"].approved_at == datetime(2017, 10, 2, 11, 7, 15, tzinfo=UTC)
    assert by_id["zone"].purchased_at == datetime(2017, 10, 2, 10, 56, 34, tzinfo=UTC)
    assert by_id["month"].purchased_at == datetime(2017, 10, 2, 10, 57, tzinfo=UTC)
    assert by_id["month"].approved_at == datetime(2017, 10, 2, 11, 7, 30, tzinfo=UTC)
    assert not history.bad_rows


def test_an_empty_approval_means_never_paid(read):
    assert read(HEADER + "a,created,2017-10-02 10:56,\n").orders[0].approved_at is None


def test_other_columns_and_a_different_column_order_are_accepted(read):
    history = read(
        "more, ORDER_APPROVED_AT ,order_purchase_timestamp,order_status,order_id\nx,,2017-10-02,created,a,y,z\n"
    )

    assert [order.order_id for order in history.orders] == ["a"]


def test_orders_are_sorted_by_purchase_time(read):
    history = read(HEADER + "late,x,2017-10-03,\nearly,x,2017-10-02,\n")

    assert [order.order_id for order in history.orders] == ["early", "late"]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (",delivered,2017-10-02,", "the order id is missing"),
        ("   ,delivered,2017-10-02,", "the order id is missing"),
        (f"{'x' * 201},delivered,2017-10-02,", "not 1 to 200 printable characters"),
        ("a\x00b,delivered,2017-10-02,", "not 1 to 200 printable characters"),
        ("b,delivered,,", "the purchase time is missing"),
        ("b", "the purchase time is missing"),
        ("b,delivered,yesterday,", "the purchase time 'yesterday' is invalid"),
        ("b,delivered,13/1/2017 10:00,", "is invalid"),
        ("b,delivered,2/31/2017 10:00,", "is invalid"),
        ("b,delivered,10/2/2017 24:00,", "is invalid"),
        ("b,delivered,0001-01-01T00:00+05:00,", "is invalid"),
        ("b,delivered,9999-12-31 23:59,", "is outside the years 1970 to 2999"),
        ("b,delivered,2017-10-02,soon", "the approval time 'soon' is invalid"),
        ("b,delivered,2017-10-02 10:00,2017-10-02 09:59", "approved (2017-10-02 09:59) before it was purchased"),
        ("good,delivered,2017-10-05,", "the order id 'good' was already on line 2"),
        ('"b', "the purchase time is missing"),
        (f'"{"x" * 140_000}",delivered,2017-10-02,', "invalid CSV"),
    ],
)
def test_an_invalid_row_is_reported_with_its_line_and_skipped(read, row, problem):
    history = read(f"{HEADER}good,delivered,2017-10-02,\n{row}\n")

    assert [order.order_id for order in history.orders] == ["good"]
    (message,) = history.bad_rows
    assert message.startswith("line 3: ")
    assert problem in message


def test_an_approval_at_the_time_of_the_purchase_is_valid(read):
    assert not read(HEADER + "a,x,2017-10-02 10:00,2017-10-02 10:00\n").bad_rows


def test_line_numbers_are_those_of_the_file(read):
    history = read(HEADER + '\n"two\nlines",x,2017-10-02,\n\n,x,2017-10-02,\ngood,x,2017-10-02,\n')

    assert [message.split(":")[0] for message in history.bad_rows] == ["lines 3 to 4", "line 6"]


def test_a_duplicate_id_refers_to_its_first_valid_row(read):
    history = read(HEADER + "a,x,never,\na,x,2017-10-02,\na,x,2017-10-03,\n")

    assert [order.purchased_at.day for order in history.orders] == [2]
    assert history.bad_rows[1] == "line 4: the order id 'a' was already on line 3"


def test_windows_files_are_read(read):
    history = read(b"\xef\xbb\xbf" + (HEADER + "a,x,2017-10-02,\n").replace("\n", "\r\n").encode())

    assert len(history.orders) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        (HEADER, "contains no valid order"),
        (HEADER + "a,x,never,\n", "line 2: the purchase time 'never' is invalid"),
        ("order_id,order_status\na,b\n", "has no column order_purchase_timestamp and order_approved_at"),
        (HEADER.replace(",", ";"), "has no column order_id"),
        (HEADER.encode() + b"caf\xe9,x,2017-10-02,\n", "is not UTF-8 text"),
        ("a\x00b".encode("utf-16"), "is not UTF-8 text"),
    ],
)
def test_an_invalid_file_is_refused_in_one_sentence(read, content, message):
    with pytest.raises(InvalidFile, match=r"^ORDERS=.*orders\.csv ") as raised:
        read(content)
    assert message in str(raised.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match="cannot be read: No such file"):
        order_csv.read(tmp_path / "none.csv")


def test_a_directory_is_refused(tmp_path):
    with pytest.raises(InvalidFile, match="cannot be read: Is a directory"):
        order_csv.read(tmp_path)


def test_the_sample_has_no_invalid_row():
    history = order_csv.read(SAMPLE)

    assert len(history.orders) == 40
    assert not history.bad_rows
    assert {order.approved_at is None for order in history.orders} == {True, False}
