"""`make run`: the whole shop on this machine, with nothing installed but a Python.

Starts Redis, a payment gateway, the web server, a Celery worker and beat under supervisord, waits
until each is up, plays the shop in the terminal (or replays ORDERS=file.csv at SPEED=3600), and
stops all of it on Ctrl-C. Everything it writes is under var/.

The environment decides: PORT, ORDERS, SPEED, SHOP_SEED, SHOP_..., DATABASE_URL, REDIS_URL, CELERY_BROKER_URL, VAR_DIR.
"""

import os
import random
import shlex
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

from . import preflight
from .parts import all_parts
from .preflight import CannotRun, Wish
from .supervise import Stopped, Supervisor

BASE = Path(__file__).resolve().parent.parent
LOOK_SECONDS = 2.0
SHOW = {  # the shop's times, short enough to watch
    "SHOP_PAY_WITHIN_SECONDS": "20",
    "SHOP_REFUND_LADDER_SECONDS": "2,3,5,8",
    "SHOP_REFUND_GIVE_UP_SECONDS": "25",
    "SHOP_GATEWAY_TIMEOUT_SECONDS": "3",
}


def say(sentence: str) -> None:
    """Tell the viewer. If nobody reads it any more, it is as if the terminal had been closed."""
    try:
        print(sentence, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  it is needed until the end
        signal.raise_signal(signal.SIGHUP)


def main() -> int:
    """0, also after Ctrl-C; 1 after one sentence about what is wrong, or when a replay's checks failed."""
    stop, hurry = Event(), Event()

    def on_signal(number: int, frame: object) -> None:
        (hurry if stop.is_set() and number != signal.SIGHUP else stop).set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, on_signal)
    try:
        return Run(preflight.read_wish(os.environ, BASE), stop, hurry).go()
    except CannotRun as reason:
        print(reason, file=sys.stderr)
        return 1


class Run:
    """One `make run`: `stop` is set by the first Ctrl-C, `hurry` by the second."""

    def __init__(self, wish: Wish, stop: Event, hurry: Event) -> None:
        self.wish, self.stop, self.hurry = wish, stop, hurry
        self._looked_at = 0.0

    def go(self) -> int:
        """Start, play, stop. Raises CannotRun."""
        preflight.make_directories(self.wish.var)
        with ExitStack() as at_end:  # undone in the opposite order: the lock is the last to go
            at_end.enter_context(preflight.take_lock(self.wish.var, say))
            self.port = preflight.choose_port(self.wish.port, say)
            self.gateway_port = preflight.any_port()
            self.sockets = at_end.enter_context(preflight.socket_directory(self.wish.var / "run"))
            self._set_environment(at_end)
            preflight.check_settings()
            preflight.check_servers(self.wish)
            try:
                self._start(at_end)
                return self._play()
            except Stopped:
                return 0

    def _set_environment(self, at_end: ExitStack) -> None:
        """What every part finds in its environment; settings.py has not been read yet."""
        preflight.make_secret(self.wish.var / "secret_key")
        for name, value in SHOW.items():
            os.environ[name] = os.environ.get(name) or value
        os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"
        os.environ["VAR_DIR"] = str(self.wish.var)
        os.environ["SHOP_GATEWAY_URL"] = f"http://127.0.0.1:{self.gateway_port}"
        os.environ["PYTHONUNBUFFERED"] = "1"
        if self.wish.redis_url is None:
            os.environ["REDIS_URL"] = f"unix://{self.sockets / 'redis.sock'}"
            note = self.wish.var / "run" / "redis_url"  # for manage.py in another terminal
            note.write_text(os.environ["REDIS_URL"])
            at_end.callback(note.unlink, missing_ok=True)

    def _start(self, at_end: ExitStack) -> None:
        parts = all_parts(
            base=BASE,
            var=self.wish.var,
            sockets=self.sockets,
            web_port=self.port,
            gateway_port=self.gateway_port,
            redis_server=preflight.redis_server if self.wish.redis_url is None else None,
        )
        names = [part.name for part in parts]
        say(f"Starting {', '.join(names[1:])}; their logs are in {self.wish.var / 'log'}.")
        self.supervisor = Supervisor(parts, directory=BASE, var=self.wish.var, sockets=self.sockets, stop=self.stop)
        at_end.callback(self._end)
        self.supervisor.launch()
        first = [name for name in names if name in ("keeper", "redis")]
        self.supervisor.start(*first)
        self._prepare_database()
        self.scene = self._make_scene()  # before the worker starts: it sees what the worker does first
        self.supervisor.start(*(name for name in names if name not in first))

    def _prepare_database(self) -> None:
        from django.core.management import call_command
        from django.db import DatabaseError

        from .staff import make_staff

        try:
            call_command("migrate", verbosity=0, interactive=False)
            self.login = make_staff(self.wish.var / "admin_password")
        except DatabaseError as error:
            raise CannotRun(f"The database's tables could not be made: {error}") from error

    def _make_scene(self) -> Any:
        if self.wish.history is None:
            from .shop.play import Play

            return Play(say, self.stop, random.Random(self.wish.seed))
        from .shop.replay import Replay

        return Replay(self.wish.history, self.wish.speed, say, self.stop, self.wish.var / "replay")

    def _end(self) -> None:
        say("Stopping every part ...")
        self.supervisor.stop(self.hurry)
        say("Stopped.")

    def _play(self) -> int:
        from django.db import DatabaseError

        site = f"http://127.0.0.1:{self.port}"
        say(f"Shop: {site}/")
        say(f"Admin: {site}/admin/  {self.login}")
        say(f"Board: {site}/admin/delaytasks/board/  what falls due, what was late, what died; leave it open")
        say(f"API: {site}/api/docs/  once logged in; a program's token: {self._token_command()}")
        say("Ctrl-C ends it.")
        try:
            return self.scene.run(self._look)
        except DatabaseError as error:
            raise CannotRun(f"The database does not answer any more: {error}") from error

    def _token_command(self) -> str:
        """What makes a token in another terminal: manage.py finds this run's database and Redis by its var/."""
        python = Path(sys.executable)
        shown = python.relative_to(BASE) if python.is_relative_to(BASE) else python
        where = "" if self.wish.var == BASE / "var" else f"VAR_DIR={shlex.quote(str(self.wish.var))} "
        grants = "--produce 'review.*' --consume 'review.*'"
        return f"{where}{shlex.quote(str(shown))} manage.py delaytasks token make --account demo {grants}"

    def _look(self) -> None:
        if time.monotonic() - self._looked_at > LOOK_SECONDS:
            self._looked_at = time.monotonic()
            self.supervisor.look(say)


if __name__ == "__main__":
    sys.exit(main())
