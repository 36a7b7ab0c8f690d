"""Benchmark delaytasks against other queues: start servers, measure each in turn, write tables and charts.

    python -m benchmarks [SCENARIO ...] [--only NAME,NAME] [--forms NAME,NAME] [--repeats 3] [--jobs 20000]
                         [--database postgres|sqlite|both] [--former FOLDER] [--out var/bench]

Writes last.json (the previous one becomes previous.json), report.md and bench-*.svg to the folder and prints the
report. An interrupted run keeps its figures. Needs requirements-bench.txt; contestants that do not start are skipped.
"""

import argparse
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from tests.support.servers import PostgresServer, ServerMissing

from . import machine, report, scenarios
from .contestants import roster
from .drivers import DriverFailed
from .plan import DEFAULT_JOBS, Form, Options
from .results import Result
from .rounds import Run, log
from .servers import benchmark_postgres
from .stand import ROOT, Testbed

DATABASES = {"postgres": ["postgres"], "sqlite": ["sqlite"], "both": ["postgres", "sqlite"]}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("scenario", nargs="*", help=f"one or more of {', '.join(scenarios.NAMES)}; default: all")
    parser.add_argument("--only", default="", help="comma-separated contestants; default: all that start")
    parser.add_argument("--forms", default="", help="comma-separated forms; default: all forms of the scenarios")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--jobs",
        type=int,
        default=DEFAULT_JOBS,
        help="number of jobs in a full scenario; other scenarios are scaled accordingly",
    )
    parser.add_argument(
        "--database", choices=DATABASES, default="postgres", help="database of delaytasks; both: measure it on each"
    )
    parser.add_argument(
        "--former", type=Path, help="a checkout of another version, measured as contestant `former` in the same run"
    )
    parser.add_argument("--out", type=Path, default=Path("var/bench"))
    args = parser.parse_args()
    unknown = set(args.scenario) - set(scenarios.NAMES)
    if unknown:
        parser.error(f"unknown scenario {', '.join(sorted(unknown))}: use {', '.join(scenarios.NAMES)}")
    if args.former and not (args.former / roster.DRIVER).is_file():
        parser.error(f"--former {args.former}: no {roster.DRIVER} is there; name a checkout of delaytasks")
    return args


def chosen_forms(names: list[str], only: str, result: Result) -> list[list[Form]]:
    """Return the chosen forms of each scenario that exists."""
    chosen = []
    for name in names or scenarios.NAMES:
        if scenarios.exists(name):
            forms = scenarios.forms_of(name)
            chosen.append([form for form in forms if not only or form.name in only.split(",")])
        else:
            result.notes.append(f"Scenario {name} does not exist.")
    return chosen


def entered(args: argparse.Namespace) -> list[tuple[str, list[str], Path]]:
    """Return the chosen contestants: name, command of the driver, and the checkout with its code."""
    every = [(name, command, ROOT) for name, command in roster.contestants().items()]
    if args.former:
        every.insert(1, (roster.FORMER, every[0][1], args.former.resolve()))
    return [each for each in every if not args.only or each[0] in args.only.split(",")]


def open_testbeds(
    args: argparse.Namespace, postgres: PostgresServer, at_end: ExitStack, result: Result
) -> list[Testbed]:
    """Start a testbed for each contestant. Skip those that fail, with a note in the result."""
    testbeds = []
    for name, command, root in entered(args):
        for database in DATABASES[args.database] if name in (roster.OURS, roster.FORMER) else ["postgres"]:
            testbed = Testbed(name, command, postgres, database, root)
            try:
                at_end.enter_context(testbed)
            except DriverFailed as error:
                result.notes.append(f"{testbed.label} is skipped: {str(error).splitlines()[0]}")
                log(f"{testbed.label} is skipped: {error}")
                continue
            testbeds.append(testbed)
            result.versions[testbed.label] = testbed.info["version"]
            result.said[testbed.label] = {key: testbed.info[key] for key in ("name", "configuration")}
    return testbeds


def measure(args: argparse.Namespace, result: Result, unfinished: Path) -> None:
    begun = time.monotonic()
    options = Options(args.jobs, args.repeats, args.database)
    forms = chosen_forms(args.scenario, args.forms, result)
    result.settings = {"jobs": args.jobs, "repeats": args.repeats}
    with ExitStack() as at_end:
        postgres = at_end.enter_context(benchmark_postgres())
        testbeds = open_testbeds(args, postgres, at_end, result)
        if not testbeds:
            raise SystemExit("No contestant could be started.")
        result.machine = machine.describe(testbeds[0].directory, postgres, testbeds[0].redis)

        def save() -> None:
            result.seconds = time.monotonic() - begun
            result.save(unfinished)

        run = Run(testbeds, options, result, save)
        for scenario_forms in forms:
            run.scenario(scenario_forms)


def publish(result: Result, out: Path) -> None:
    """Save the result and its report; keep the previous result."""
    last = out / "last.json"
    if last.exists():
        last.replace(out / "previous.json")
    result.save(last)
    report.write_charts(result, out)
    text = report.markdown(result)
    (out / "report.md").write_text(text)
    print(text)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    args, result = arguments(), Result()
    signal.signal(signal.SIGTERM, interrupt)  # clean up as on Ctrl-C
    unfinished = args.out / "unfinished.json"
    try:
        measure(args, result, unfinished)
    except ServerMissing as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        result.notes.append("The run was interrupted.")
    if result.figures:
        publish(result, args.out)
    unfinished.unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
