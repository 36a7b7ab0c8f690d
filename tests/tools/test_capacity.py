"""The capacity model: its number of processes against simulated days, its command, and the tables of its page."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.capacity import __main__ as command
from benchmarks.capacity.costs import MEASURED
from benchmarks.capacity.model import Host, Workload, needs
from benchmarks.capacity.simulation import day_rates, simulate_day, simulate_jobs

pytestmark = [pytest.mark.tools, pytest.mark.only_on("sqlite")]
ROOT = Path(__file__).parents[2]
HUNDRED_MILLION = 100e6
DAYS = {
    "no herds": Workload(HUNDRED_MILLION, HUNDRED_MILLION),
    "herds": Workload(HUNDRED_MILLION, HUNDRED_MILLION, herd=56_000),
    "large herds in batches": Workload(HUNDRED_MILLION, HUNDRED_MILLION, herd=1.03e6, handler="batch", bulk=True),
    "handlers that wait": Workload(HUNDRED_MILLION, HUNDRED_MILLION, peak=3, herd=2_000, handler_ms=20),
}
MARGIN = 1.02


@pytest.mark.parametrize("name", DAYS)
def test_the_number_of_processes_keeps_the_promise_and_one_fewer_clearly_does_not(name: str) -> None:
    """A day of 100 million jobs, in a simulation that does not use the model's formulas."""
    workload = DAYS[name]
    answer = needs(workload)
    day = simulate_day(workload, answer.processes, answer.service_seconds)
    assert abs(day.jobs / HUNDRED_MILLION - 1) < 0.001
    assert day.worst <= workload.promise_seconds
    fewer = simulate_day(workload, answer.processes - 1, answer.service_seconds)
    assert fewer.worst > workload.promise_seconds * MARGIN


def test_the_simulation_in_steps_agrees_with_the_one_of_each_job() -> None:
    """A herd and two seconds of other jobs."""
    workload, processes, service, rate = Workload(1e6, 24e6 / 100, herd=10_000, retries=0), 20, 0.002, 2_000
    random = np.random.default_rng(5)
    due = np.sort(np.concatenate([np.zeros(10_000), random.uniform(0, 2, 2 * rate)]))
    late = simulate_jobs(due, processes, service)
    herd = float(np.percentile(late[due == 0], 99))
    assert workload.base_rate == 0
    day = simulate_day(workload, processes, service)
    assert herd == pytest.approx(float(day.herds.mean()), rel=0.03)


def test_a_simulated_day_has_the_peak_and_the_jobs_that_it_should() -> None:
    rates = day_rates(Workload(1e6, 86_400_000, peak=4), 86_400)
    assert rates.mean() == pytest.approx(1_000, rel=0.001)
    assert rates.max() == pytest.approx(4_000, rel=0.001)


def test_more_of_anything_never_needs_less() -> None:
    small, large = needs(Workload(1e6, 1e6)), needs(Workload(1e10, 1e10, herd=1e6))
    for name in ("processes", "databases", "masters", "redis_bytes", "table_bytes", "archive_bytes", "archive_hours"):
        assert getattr(small, name) < getattr(large, name), name


def test_the_limit_is_the_resource_that_needs_the_most_servers() -> None:
    assert needs(Workload(1e11, 1e6)).limit == "PostgreSQL's tables"
    assert needs(Workload(1e6, 1e6, handler_ms=60_000)).limit == "worker processes"
    assert needs(Workload(1e6, 1e9), Host(wal_bytes=1e6)).limit == "PostgreSQL's write-ahead log"


def test_the_pools_of_processes_that_schedule_count_as_connections() -> None:
    workload = Workload(HUNDRED_MILLION, HUNDRED_MILLION)
    answer, without = needs(workload), needs(workload, Host(pool=0))
    assert answer.scheduling_processes == 4
    assert answer.pooled_connections == 40
    assert answer.connections == without.connections + 40
    assert answer.loads["PostgreSQL's connections"] == answer.connections / Host().connections


def test_a_pool_is_as_large_as_that_of_the_example_project() -> None:
    [size] = re.findall(r'positive_int\("DATABASE_POOL_SIZE", "(\d+)"\)', (ROOT / "project/settings.py").read_text())
    assert Host().pool == int(size)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.capacity", *arguments], capture_output=True, text=True, cwd=ROOT
    )


def test_the_command_prints_what_is_needed() -> None:
    done = run("--pending", "100e6", "--due-per-day", "100e6", "--peak", "5")
    assert done.returncode == 0, done.stderr
    for name in ("worker processes", "databases", "Redis", "archive", "limit"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pending", "many", "--due-per-day", "1e6"], "many"),
        (["--pending", "1e6", "--due-per-day", "0"], "--due-per-day is 0.0: it must be a finite number above 0"),
        (
            ["--pending", "1e6", "--due-per-day", "1e6", "--peak", "0.5"],
            "--peak is 0.5: it must be a finite number, 1 or more",
        ),
        (["--pending", "1e6", "--due-per-day", "1e6", "--herd", "1e6"], "give a smaller herd"),
        (["--pending", "1e6", "--due-per-day", "1e6", "--retries", "nan"], "--retries is nan"),
        (["--pending", "inf", "--due-per-day", "1e6"], "--pending is inf: it must be a finite number"),
        (["--pending", "1e6"], "--due-per-day must be given"),
    ],
)
def test_bad_input_is_refused_with_a_message(arguments: list[str], message: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


PAGE = (ROOT / "docs" / "explanation" / "scale.md").read_text()


def test_the_tables_of_the_page_are_those_of_the_model() -> None:
    assert command.table() in PAGE, "run `python -m benchmarks.capacity --table` and put its output into the page"


def test_the_example_of_the_page_is_what_the_command_prints() -> None:
    first, *shown = PAGE.split("```\n$ python -m benchmarks.capacity ")[1].split("```")[0].splitlines()
    printed = run(*first.split()).stdout.splitlines()
    assert len(shown) > 3
    assert [line for line in shown if line not in (*printed, "...")] == []


def test_the_costs_of_the_page_are_those_of_the_model() -> None:
    own = MEASURED.handlers["own"]
    figures = [f"{own.process_us:,g} µs of a worker process, {own.database_us:g} µs of PostgreSQL, {own.redis_us:g} µs"]
    figures += [
        f": {cost.process_us:,g}, {cost.database_us:g}, {cost.redis_us:g}"
        for name, cost in MEASURED.handlers.items() if name != "own"
    ]  # fmt: skip
    one, bulk = MEASURED.schedule_one, MEASURED.schedule_bulk
    figures.append(f"{one.process_us:g} µs of a process, {one.database_us:g} µs of PostgreSQL, {one.redis_us:g} µs of")
    figures.append(f"in bulk {bulk.process_us:g}, {bulk.database_us:g} and {bulk.redis_us:g}")
    figures.append(f"{MEASURED.pending_bytes:g} bytes in PostgreSQL; {MEASURED.redis_bytes:g} in Redis")
    figures.append(f"{MEASURED.ended_bytes:g} and {MEASURED.event_bytes:g} bytes with indexes")
    figures.append(f"{MEASURED.archived_bytes:g} bytes with its events; {MEASURED.archive_per_second:,g} a second")
    assert [figure for figure in figures if figure not in PAGE] == []
