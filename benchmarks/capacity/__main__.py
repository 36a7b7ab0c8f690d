"""Print what a number of jobs needs: databases, Redis, worker processes, disk, archive, and which of them is the limit.

    python -m benchmarks.capacity --pending 100e6 --due-per-day 100e6 --peak 5 [--herd 250e3] [--handler own]

docs/explanation/scale.md says what is measured in it and what is assumed.
"""

import argparse
import dataclasses
from collections.abc import Sequence

from .costs import MEASURED
from .model import Host, Needs, Workload, needs

HELP = {
    "pending": "jobs that wait at the same time",
    "due_per_day": "jobs that become due in a day",
    "peak": "the busiest second by the average one",
    "herd": "jobs that become due at one instant, each full hour",
    "promise_seconds": "99 of 100 jobs begin at most so late, also in a herd",
    "handler": "the form of the handlers",
    "handler_ms": "what a handler itself takes, per job",
    "bulk": "jobs are scheduled with schedule_many()",
    "retries": "further attempts per job",
    "hot_days": "days that ended jobs stay in the database",
    "archive_days": "days that they stay in the lake",
    "horizon_seconds": "the setting HORIZON_SECONDS",
}
EXAMPLES = [
    Workload(1e6, 1e6, herd=10_000),
    Workload(100e6, 100e6, herd=250_000),
    Workload(100e6, 100e6, herd=1e6, handler="batch", bulk=True),
    Workload(10e9, 100e6, herd=250_000),
    Workload(10e9, 10e9, herd=10e6, handler="batch", bulk=True),
]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capacity", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", action="store_true", help="print the table of docs/explanation/scale.md")
    for field in dataclasses.fields(Workload):
        _add(parser, field)
    options = vars(parser.parse_args(arguments))
    if options.pop("table"):
        print(table())
        return
    missing = [f"--{name.replace('_', '-')}" for name in ("pending", "due_per_day") if options[name] is None]
    if missing:
        parser.error(f"{' and '.join(missing)} must be given, for example --pending 100e6 --due-per-day 100e6.")
    try:
        workload = Workload(**options)
    except ValueError as error:
        parser.error(_with_options(str(error)))
    print(report(workload, needs(workload)))


def _add(parser: argparse.ArgumentParser, field: "dataclasses.Field[object]") -> None:
    option, given = f"--{field.name.replace('_', '-')}", field.default is not dataclasses.MISSING
    shown = f"{HELP[field.name]} (default: {field.default})" if given else HELP[field.name]
    if field.name == "bulk":
        parser.add_argument(option, action="store_true", help=HELP[field.name])
    elif field.name == "handler":
        parser.add_argument(option, choices=list(MEASURED.handlers), default=field.default, help=shown)
    else:
        parser.add_argument(option, type=float, default=field.default if given else None, help=shown)


def _with_options(message: str) -> str:
    """Return the message with the option in place of the field's name at its beginning."""
    name, _, rest = message.partition(" ")
    return f"--{name.replace('_', '-')} {rest}" if name in HELP else message


def report(workload: Workload, answer: Needs) -> str:
    host = Host()
    lines = {
        "due per second": f"{workload.base_rate:,.0f} on average, {workload.peak_rate:,.0f} at the peak",
        "worker processes": f"{answer.processes:,} on {answer.worker_hosts:,} hosts of {host.processes}",
        "processes that schedule": f"{answer.scheduling_processes:,} at the peak",
        "databases": f"{answer.databases:,} of {host.cores:g} cores",
        "connections": f"{answer.connections:,} to each database, {answer.pooled_connections:,} of them for scheduling",
        "tables": f"{size(answer.table_bytes)} with indexes; CREATE INDEX {answer.index_minutes:,.1f} min per database",
        "write-ahead log": f"{size(answer.wal_bytes_per_second)} per second in a herd or at the peak",
        "Redis": f"{size(answer.redis_bytes)} on {answer.masters:,} masters",
        "archive": f"{size(answer.archive_bytes)} after {workload.archive_days:g} days; "
        f"{answer.archive_hours:,.1f} h a day per database",
        "limit": f"{answer.limit}: {_servers(answer.loads[answer.limit])}",
    }
    loads = sorted(answer.loads.items(), key=lambda each: -each[1])
    rest = [f"  {name}: {_servers(load)}" for name, load in loads[1:]]
    return "\n".join([*(f"{name + ':':25}{text}" for name, text in lines.items()), "then", *rest])


def _servers(load: float) -> str:
    return f"{load:,.0%} of a server's" if load < 1 else f"{load:,.1f} servers' worth"


def size(number: float) -> str:
    """Return bytes in the largest unit that gives at least 1."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:,.0f} {unit}"
        number /= 1000
    return f"{number:,.1f} TB"


def table() -> str:
    """Return the table of the page, in Markdown."""
    heads = [
        "pending", "due a day", "herd", "handlers", "processes", "databases", "connections each", "tables",
        "WAL per second", "Redis", "masters", "archive a year", "limit",
    ]  # fmt: skip
    rows = [_row(workload, needs(workload)) for workload in EXAMPLES]
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def _row(workload: Workload, answer: Needs) -> list[str]:
    return [
        f"{workload.pending / 1e6:,.0f} M",
        f"{workload.due_per_day / 1e6:,.0f} M",
        f"{workload.herd:,.0f}",
        workload.handler,
        f"{answer.processes:,}",
        f"{answer.databases:,}",
        f"{answer.connections:,}",
        size(answer.table_bytes),
        size(answer.wal_bytes_per_second),
        size(answer.redis_bytes),
        f"{answer.masters:,}",
        size(answer.archive_bytes),
        answer.limit,
    ]


if __name__ == "__main__":
    main()
