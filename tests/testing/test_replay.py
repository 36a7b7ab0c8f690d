"""The replay of an order history in virtual time gives the split that arithmetic gives."""

import os
import random
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Event

import pytest

from project.demo import virtual
from project.demo.order_csv import History, PastOrder
from project.demo.replay import PAY_WITHIN
from project.demo.summary import Summary

ROOT = Path(__file__).parents[2]
DAYS = 730
MINUTE = timedelta(minutes=1)


def random_history(orders: int) -> History:
    """Orders over two years: paid early, late, never, a second or a millisecond around the limit, and exactly at it."""
    rng, start = random.Random(17), datetime(2016, 9, 4, tzinfo=UTC)
    history = History(Path("random"))
    for number in range(orders):
        purchased = start + timedelta(seconds=rng.randrange(DAYS * 86_400))
        after = rng.choice([
            None, MINUTE * rng.uniform(0, 29), MINUTE * rng.uniform(30, 5000), PAY_WITHIN, timedelta(0),
            PAY_WITHIN - timedelta(milliseconds=1), PAY_WITHIN + timedelta(milliseconds=1),
        ])  # fmt: skip
        history.orders.append(PastOrder(str(number), purchased, None if after is None else purchased + after))
    history.orders.sort(key=lambda order: order.purchased_at)
    return history


def replay(history: History) -> Summary:
    with virtual.clock(history) as timeouts:
        return virtual.replay(history, timeouts, lambda line: None, Event())


@pytest.mark.django_db
def test_a_replay_gives_the_exact_split() -> None:
    history = random_history(300)
    summary = replay(history)
    assert summary.states == virtual.expected_split(history.orders)
    assert all(summary.states[state] for state in ("paid", "closed"))
    assert (summary.passed(), set(summary.late_ms)) == (True, {0})


@pytest.mark.django_db
def test_the_tie_an_order_paid_exactly_when_its_time_is_over_is_closed() -> None:
    at = datetime(2017, 1, 1, tzinfo=UTC)
    late = [PAY_WITHIN - timedelta(milliseconds=1), PAY_WITHIN]
    summary = replay(History(Path("tie"), [PastOrder(str(n), at, at + after) for n, after in enumerate(late)]))
    assert summary.states == {"open": 0, "paid": 1, "closed": 1}
    assert summary.too_late == {"in the history": 1}


def make_run(orders: Path | str, var: Path) -> "subprocess.CompletedProcess[str]":
    """Run `make run ORDERS=... SPEED=virtual`."""
    return subprocess.run(
        [sys.executable, "-m", "project.run"], cwd=ROOT, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={
            "PATH": os.environ["PATH"], "ORDERS": str(orders), "SPEED": "virtual", "VAR_DIR": str(var),
            "REDIS_URL": "redis://127.0.0.1:1/0",  # nobody is there, and nobody asks
        },
    )  # fmt: skip


def test_make_run_replays_in_virtual_time_in_a_process_of_its_own(tmp_path: Path) -> None:
    """`make run ORDERS=... SPEED=virtual` starts no server and leaves with the result of its checks."""
    done = make_run("project/demo/sample_orders.csv", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Replaying 40 orders of 85.7 min from project/demo/sample_orders.csv ")
    assert "passed: the states are as computed from the history" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["replay-virtual"]


def test_a_replay_in_virtual_time_says_how_many_rows_are_invalid(tmp_path: Path) -> None:
    rows = ["order_id,order_status,order_purchase_timestamp,order_approved_at", "1,delivered,2026-03-14 09:04,"]
    orders = tmp_path / "orders.csv"
    orders.write_text("\n".join([*rows, *(f"{number},delivered,yesterday," for number in range(2, 27))]))
    output = make_run(orders, tmp_path).stdout
    assert output.count("invalid row: ") == 20
    assert "25 rows of the file were invalid." in output
