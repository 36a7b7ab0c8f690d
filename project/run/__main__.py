"""`make run`: run the whole shop on this machine; needs only Python.

Starts Redis, a payment gateway, the web server, a Celery worker and beat under supervisord and waits until
each is up. Then runs the simulation in the terminal, or replays ORDERS=file.csv at SPEED=3600. Ctrl-C stops
everything. All files are written to var/. With SPEED=virtual it starts nothing and replays in virtual time.

Environment: PORT, ORDERS, SPEED, SHOP_SEED, SHOP_..., DATABASE_URL, REDIS_URL, CELERY_BROKER_URL, VAR_DIR.
"""

import os
import random
import shlex
import signal
import sys
import time
from contextlib import ExitStack
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

from . import preflight
from .preflight import CannotRun, RunOptions
from .programs import all_programs
from .supervisor import Stopped, Supervisor

BASE = Path(__file__).resolve().parents[2]
CHECK_SECONDS = 2.0
DEMO_TIMES = {  # in seconds, short enough to watch
    "SHOP_PAY_WITHIN_SECONDS": "20",
    "SHOP_REFUND_LADDER_SECONDS": "2,3,5,8",
    "SHOP_REFUND_GIVE_UP_SECONDS": "25",
    "SHOP_GATEWAY_TIMEOUT_SECONDS": "3",
    "SHOP_CHARGE_AFTER_SECONDS": "12",
    "SHOP_CART_REMINDER_SECONDS": "14",
    "SHOP_LESSON_REMINDER_SECONDS": "15",
    "SHOP_REVIEW_AFTER_SECONDS": "10",
    "SHOP_ABSENCE_SECONDS": "60",
    "SHOP_ESCALATION_SECONDS": "16",
}


def echo(line: str) -> None:
    """Print a line, with "?" for what the terminal cannot show. If standard output is closed, stop as on a hangup."""
    encoding = getattr(sys.stdout, "encoding", "utf-8")  # no stdout at all: print() does nothing
    try:
        print(line.encode(encoding, "replace").decode(encoding), flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  stays open until the process exits
        signal.raise_signal(signal.SIGHUP)


def main() -> int:
    """Run `make run`. Return 1 if it cannot run or a check of a replay failed, otherwise 0, also after Ctrl-C."""
    stop, kill_now = Event(), Event()

    def on_signal(number: int, frame: object) -> None:
        (kill_now if stop.is_set() and number != signal.SIGHUP else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    os.umask(0o077)  # all files are for this user alone
    try:
        options = preflight.read_options(os.environ, BASE)
        if options.history is not None and options.speed == preflight.VIRTUAL:
            from ..demo import virtual

            preflight.make_directories(options.var, [virtual.NAME])
            return virtual.main(options.history, options.var / virtual.NAME, echo, stop)
        return Run(options, stop, kill_now).run()
    except CannotRun as reason:
        print(reason, file=sys.stderr)
        return 1


class Run:
    """One `make run`. The first Ctrl-C sets `stop`, the second sets `kill_now`."""

    def __init__(self, options: RunOptions, stop: Event, kill_now: Event) -> None:
        self.options, self.stop, self.kill_now = options, stop, kill_now
        self._checked_at = 0.0

    def run(self) -> int:
        """Start all programs, run the simulation or the replay, and stop all programs. Return the exit status.

        Raises CannotRun.
        """
        preflight.make_directories(self.options.var)
        with ExitStack() as cleanup:  # runs in reverse order: the lock is released last
            cleanup.enter_context(preflight.acquire_lock(self.options.var, echo))
            self.port = preflight.choose_port(self.options.port, echo)
            self.gateway_port = preflight.find_free_port()
            self.sockets = cleanup.enter_context(preflight.socket_directory(self.options.var / "run"))
            self._set_environment(cleanup)
            preflight.check_settings()
            preflight.check_servers(self.options)
            try:
                self._start(cleanup)
                return self._run_scenario()
            except Stopped:
                return 0

    def _set_environment(self, cleanup: ExitStack) -> None:
        """Set the environment of all processes. Must run before settings.py is imported."""
        preflight.ensure_secret_key(self.options.var / "secret_key")
        for name, value in DEMO_TIMES.items():
            os.environ[name] = os.environ.get(name) or value
        os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
        os.environ["VAR_DIR"] = str(self.options.var)
        os.environ["SHOP_GATEWAY_URL"] = f"http://127.0.0.1:{self.gateway_port}"
        os.environ["PYTHONUNBUFFERED"] = "1"
        if self.options.redis_url is None:
            os.environ["REDIS_URL"] = f"unix://{self.sockets / 'redis.sock'}"
            url_file = self.options.var / "run" / "redis_url"  # for manage.py in another terminal
            url_file.write_text(os.environ["REDIS_URL"])
            cleanup.callback(url_file.unlink, missing_ok=True)

    def _start(self, cleanup: ExitStack) -> None:
        def find_redis_server() -> Path:
            binary = preflight.find_redis_server()
            echo(f"The embedded Redis is {binary}.")
            return binary.path

        programs = all_programs(
            var=self.options.var,
            sockets=self.sockets,
            web_port=self.port,
            gateway_port=self.gateway_port,
            find_redis_server=find_redis_server if self.options.redis_url is None else None,
        )
        names = [program.name for program in programs]
        echo(f"Starting {', '.join(names[1:])}; the logs are in {self.options.var / 'log'}.")
        self.supervisor = Supervisor(
            programs, directory=BASE, var=self.options.var, sockets=self.sockets, stop=self.stop
        )
        cleanup.callback(self._stop_programs)
        self.supervisor.launch()
        first = [name for name in names if name in ("reaper", "redis")]
        self.supervisor.start(*first)
        self._prepare_database()
        self.scenario = self._make_scenario()  # before the worker starts, to print the worker's first events too
        self.supervisor.start(*(name for name in names if name not in first))

    def _prepare_database(self) -> None:
        from django.core.management import CommandError, call_command
        from django.db import DatabaseError

        from .superuser import ensure_superuser

        try:
            call_command("migrate", verbosity=0, interactive=False)
            call_command("delaytasks", "timeouts", "apply", "--overdue", "run", stdout=StringIO())
            call_command("delaytasks", "timeouts", "triggers", "install", "shop_lesson", stdout=StringIO())
            self.login = ensure_superuser(self.options.var / "admin_password")
        except (DatabaseError, CommandError) as error:
            raise CannotRun(f"The database cannot be migrated: {error}") from error

    def _make_scenario(self) -> Any:
        if self.options.history is None:
            from ..demo.simulation import Simulation

            return Simulation(echo, self.stop, random.Random(self.options.seed))
        from ..demo.replay import Replay

        return Replay(self.options.history, self.options.speed, echo, self.stop, self.options.var / "replay")

    def _stop_programs(self) -> None:
        echo("Stopping all processes ...")
        self.supervisor.stop(self.kill_now)
        echo("Stopped.")

    def _run_scenario(self) -> int:
        from django.db import DatabaseError

        site = f"http://127.0.0.1:{self.port}"
        echo(f"Shop: {site}/")
        echo(f"Admin: {site}/admin/  {self.login}")
        echo(f"Board: {site}/admin/delaytasks/board/  live: jobs that fall due, are late or die")
        echo(f"API: {site}/api/docs/  after login; create an API token with: {self._token_command()}")
        echo("Press Ctrl-C to stop.")
        try:
            return self.scenario.run(self._check_programs)
        except DatabaseError as error:
            raise CannotRun(f"The database does not respond any more: {error}") from error

    def _token_command(self) -> str:
        """Return the command that creates a token in another terminal. VAR_DIR selects this run's database."""
        python = Path(sys.executable)
        executable = python.relative_to(BASE) if python.is_relative_to(BASE) else python
        variables = "" if self.options.var == BASE / "var" else f"VAR_DIR={shlex.quote(str(self.options.var))} "
        grants = "--produce 'review.*' --consume 'review.*'"
        command = f"{shlex.quote(str(executable))} manage.py delaytasks token make --account demo {grants}"
        return variables + command

    def _check_programs(self) -> None:
        if time.monotonic() - self._checked_at > CHECK_SECONDS:
            self._checked_at = time.monotonic()
            self.supervisor.check(echo)


if __name__ == "__main__":
    sys.exit(main())
