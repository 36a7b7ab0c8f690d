"""How fast it is, beside others: starts the servers, measures everybody in turn, writes the tables and the charts.

    python -m benchmarks [SCENARIO ...] [--only NAME,NAME] [--forms NAME,NAME] [--repeats 3] [--jobs 20000]
                         [--database postgres|sqlite|both] [--out var/bench]

Writes last.json (the one before it becomes previous.json), report.md and bench-*.svg into the folder, and prints the
report. A run that is broken off keeps what it has. Needs requirements-bench.txt; who cannot be started is left out.
"""

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.servers import PostgresServer, ServerMissing

from . import machine, report, scenarios
from .contestants import roster
from .drivers import DriverFailed
from .plan import USUAL_JOBS, Form, Options
from .results import Result
from .rounds import Run, say
from .servers import benchmark_postgres
from .stand import Stand

DATABASES = {"postgres": ["postgres"], "sqlite": ["sqlite"], "both": ["postgres", "sqlite"]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenario", nargs="*", help=f"of {', '.join(scenarios.NAMES)}; default: all")
    parser.add_argument("--only", default="", help="contestants, separated by commas; default: all that can be started")
    parser.add_argument("--forms", default="", help="forms, separated by commas; default: all of the scenarios")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=USUAL_JOBS, help="of a full scenario; the others are scaled by it")
    parser.add_argument(
        "--database", choices=DATABASES, default="postgres", help="of our own column; both: two columns"
    )
    parser.add_argument("--out", type=Path, default=Path("var/bench"))
    found = parser.parse_args()
    unknown = set(found.scenario) - set(scenarios.NAMES)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(scenarios.NAMES)}")
    return found


def chosen_forms(names: list[str], only: str, result: Result) -> list[list[Form]]:
    """The forms of each scenario that is there."""
    found = []
    for name in names or scenarios.NAMES:
        if scenarios.is_there(name):
            forms = scenarios.forms_of(name)
            found.append([form for form in forms if not only or form.name in only.split(",")])
        else:
            result.notes.append(f"Scenario {name} is not there.")
    return found


def open_stands(args: argparse.Namespace, postgres: PostgresServer, at_end: ExitStack, result: Result) -> list[Stand]:
    """Everybody who can take part; who cannot is left out with a note."""
    stands = []
    for name, command in roster.found().items():
        if args.only and name not in args.only.split(","):
            continue
        for database in DATABASES[args.database] if name == roster.OURS else ["postgres"]:
            stand = Stand(name, command, postgres, database)
            try:
                at_end.enter_context(stand)
            except DriverFailed as error:
                result.notes.append(f"{stand.label} is left out: {str(error).splitlines()[0]}")
                say(f"{stand.label} is left out: {error}")
                continue
            stands.append(stand)
            result.versions[stand.label] = stand.said["version"]
            result.said[stand.label] = {key: stand.said[key] for key in ("name", "configuration")}
    return stands


def measure(args: argparse.Namespace, result: Result, unfinished: Path) -> None:
    begun = time.monotonic()
    options = Options(args.jobs, args.repeats, args.database)
    forms = chosen_forms(args.scenario, args.forms, result)
    result.settings = {"jobs": args.jobs, "repeats": args.repeats}
    with ExitStack() as at_end:
        postgres = at_end.enter_context(benchmark_postgres())
        stands = open_stands(args, postgres, at_end, result)
        if not stands:
            raise SystemExit("Nobody is there to be measured.")
        result.machine = machine.described(stands[0].directory, postgres, stands[0].redis)

        def save() -> None:
            result.seconds = time.monotonic() - begun
            result.save(unfinished)

        run = Run(stands, options, result, save)
        for each in forms:
            run.scenario(each)


def publish(result: Result, out: Path) -> None:
    """The result, with the one before it beside it, and its report."""
    last = out / "last.json"
    if last.exists():
        last.replace(out / "previous.json")
    result.save(last)
    report.write_charts(result, out)
    text = report.markdown(result)
    (out / "report.md").write_text(text)
    print(text)


def broken_off(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    args, result = arguments(), Result()
    signal.signal(signal.SIGTERM, broken_off)  # so that nothing stays behind
    unfinished = args.out / "unfinished.json"
    try:
        measure(args, result, unfinished)
    except ServerMissing as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        result.notes.append("The run was broken off.")
    if result.figures:
        publish(result, args.out)
    unfinished.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
