"""The folder that the Dockerfile makes, the servers of the compose file, and the kits that run in them."""

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.installation import Process
from tests.support.servers import PostgresServer, RedisServer, free_port, stop_process, wait_until

from . import kit

SECRETS = {"POSTGRES_PASSWORD": "of-postgres", "REDIS_PASSWORD": "of-redis", "SECRET_KEY": "of-django"}
BIN = Path(sys.executable).parent
# Instructions of the Dockerfile that need a container: the rest is run. The lock has tests of its own.
NOT_RUN = ("python -m venv /venv", "/venv/bin/pip install", "useradd")
COMMAND_SECONDS = 600  # on a machine that runs all tests; Spark starts in some seconds


class Kit(NamedTuple):
    """A way to deploy.

    once      commands that run once and in this order before the services: name -> command
    services  name -> command
    later     commands that a timer runs
    variables environment of a process by its name
    checks    commands that tell whether the web process is healthy
    probes    of Kubernetes, of any of its containers
    """

    once: Mapping[str, list[str]]
    services: Mapping[str, list[str]]
    variables: Mapping[str, Mapping[str, str]]
    later: Mapping[str, list[str]] = {}
    checks: Sequence[list[str]] = ()
    probes: Sequence[Mapping[str, Any]] = ()


def compose() -> Kit:
    services = dict(kit.own_services(SECRETS))
    commands = {name: service["command"] for name, service in services.items()}
    once = {name: commands.pop(name) for name, each in services.items() if each["restart"] == "no"}
    check = services["web"]["healthcheck"]["test"][1:]
    return Kit(once, commands, {name: each["environment"] for name, each in services.items()}, checks=[check])


def kubernetes() -> Kit:
    config = next(each for each in kit.OBJECTS if each["kind"] == "ConfigMap")
    common = kit.interpolated(kit.COMPOSE["x-app"]["environment"], SECRETS)
    secret = {name: common[name] for name in ("DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "SECRET_KEY")}
    once, services, variables = {}, {}, {}
    for pod in kit.pods().values():
        for container in pod["spec"].get("initContainers", ()):
            once[container["name"]] = container["command"]
        [container] = pod["spec"]["containers"]
        variables[container["name"]] = config["data"] | secret | kit.container_variables(container)
        found = once if pod["spec"].get("restartPolicy") == "Never" else services
        found[container["name"]] = container.get("command", kit.image_command())
    probes = [
        container[probe]
        for pod in kit.pods().values()
        for container in pod["spec"]["containers"]
        for probe in ("readinessProbe", "livenessProbe")
        if probe in container
    ]
    return Kit(once, services, dict.fromkeys(once, config["data"] | secret) | variables, probes=probes)


def systemd() -> Kit:
    """Return the units with the file /etc/shop.env, after the migrations of the compose file."""
    file = kit.interpolated(kit.COMPOSE["x-app"]["environment"], SECRETS)
    commands = {unit.stem.removeprefix("shop-").rstrip("@"): kit.exec_start(unit) for unit in kit.UNITS}
    own = {unit.stem.removeprefix("shop-").rstrip("@"): unit_variables(unit) for unit in kit.UNITS}
    later = {"archive": commands.pop("archive")}
    return Kit(compose().once, commands, {name: file | own.get(name, {}) for name in [*compose().once, *own]}, later)


def unit_variables(unit: Path) -> dict[str, str]:
    lines = [line.removeprefix("Environment=") for line in unit.read_text().splitlines()]
    return dict(line.split("=", 1) for line in lines if line.startswith("VAR_DIR="))


def build(root: Path) -> Path:
    """Do in `root` what the Dockerfile does to get /app, with this Python. Return that folder."""
    app = root / "app"
    for name, text in kit.stages()[0]:
        if name == "COPY" and not text.endswith("/build/"):
            source, target = text.split()
            _copy(kit.ROOT / source, root / target.lstrip("/"))
        if name == "RUN" and not text.startswith(NOT_RUN):
            _check(
                ["sh", "-c", text.replace("/venv/bin", str(BIN)).replace("/app", str(app))],
                app,
                {"PATH": os.environ["PATH"]},
            )
    return app


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _check(command: list[str], folder: Path, env: Mapping[str, str]) -> str:
    """Return the output of a command that succeeds."""
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=False
    )
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


class GuardedRedis(RedisServer):
    """The Redis of the compose file: its options, with the tests' program."""

    def __init__(self) -> None:
        words = kit.interpolated(kit.COMPOSE["services"]["redis"]["command"], SECRETS)[1:]
        super().__init__(
            **{name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)}
        )

    def url(self, db: int = 0) -> str:
        return super().url(db).replace("redis://", f"redis://:{SECRETS['REDIS_PASSWORD']}@")


class Installation:
    """A kit at work: its processes in the image's folder, with everything that they write in `var`."""

    def __init__(self, kit_: Kit, app: Path, var: Path, redis: RedisServer, postgres: PostgresServer) -> None:
        self.kit, self.app, self.var, self.redis, self.postgres = kit_, app, var, redis, postgres
        self.database = f"shop_{var.parent.name}".replace("-", "_")[:60].rstrip("_")
        self.web_port, self.metrics_port = free_port(), free_port()
        self.processes: dict[str, Process] = {}
        postgres.make_database(self.database)

    def run_once(self) -> None:
        for name, command in self.kit.once.items():
            _check(self._placed(command), self.app, self.environment(name))

    def run_later(self) -> None:
        for name, command in self.kit.later.items():
            _check(self._placed(command), self.app, self.environment(name))

    def start(self) -> None:
        for name, command in self.kit.services.items():
            self.processes[name] = Process(name, self._placed(command), self.var, self.environment(name), cwd=self.app)

    def run(self, name: str, *command: str) -> str:
        """Return the output of a command inside the container of this name."""
        return _check(self._placed(list(command)), self.app, self.environment(name))

    def stop(self, seconds: float) -> dict[str, int]:
        """Stop the services. Return their exit statuses; -9 if one did not end in time."""
        return {name: stop_process(process.popen, seconds=seconds) for name, process in self.processes.items()}

    def check(self) -> None:
        """Run the health checks and the probes. Raises AssertionError if one fails."""
        for command in self.kit.checks:
            self.run("web", *command)
        for probe in self.kit.probes:
            wait_until(partial(self._is_well, probe), seconds=10, what=f"the probe {probe}")

    def _is_well(self, probe: Mapping[str, Any]) -> bool:
        if "tcpSocket" in probe:
            with socket.socket() as caller:
                return caller.connect_ex(("127.0.0.1", self.metrics_port)) == 0
        get = probe["httpGet"]
        headers = {each["name"]: each["value"] for each in get["httpHeaders"]}
        request = urllib.request.Request(f"http://127.0.0.1:{self.web_port}{get['path']}", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as response:
            return bool(response.status == 200)

    def has_ended(self, key: str) -> bool:
        with self.postgres.connect(self.database) as connection:
            query = "SELECT count(*) FROM delaytasks_job WHERE key = %s AND ended_at IS NOT NULL"
            return connection.execute(query, [key]).fetchone() == (1,)

    def environment(self, name: str) -> dict[str, str]:
        """Return the environment of a process: the image's, and that of its kit."""
        image = [text for instruction, text in kit.stages()[-1] if instruction == "ENV"]
        own = dict(pair.split("=", 1) for text in image for pair in text.split()) | dict(self.kit.variables[name])
        own |= {"PATH": f"{BIN}:{os.environ['PATH']}", "STATIC_ROOT": str(self.app / "static"), "HOME": str(self.var)}
        own["VAR_DIR"] = str(self.var)
        if own.get("METRICS_PORT"):
            own["METRICS_PORT"] = str(self.metrics_port)
        server, mine = "postgres://shop:of-postgres@postgres/shop", self.postgres.url(self.database)
        return {key: self._reachable(value.replace(server, mine)) for key, value in own.items()}

    def _reachable(self, value: str) -> str:
        return value.replace("@redis/", f"@127.0.0.1:{self.redis.port}/")

    def _placed(self, command: list[str]) -> list[str]:
        """Return the command with ports that are free here and with this test's folder."""
        ports = {"8000": str(self.web_port), "8001": str(self.web_port)}
        moved = [word.replace("=/tmp/", f"={self.var}/") for word in command]
        moved = [word.replace("/var/lib/shop", str(self.var)).replace(":8000/", f":{self.web_port}/") for word in moved]
        return [ports.get(word, word) for word in moved]


@contextmanager
def installed(kit_: Kit, app: Path, var: Path, postgres: PostgresServer) -> Iterator[Installation]:
    var.mkdir()
    with GuardedRedis() as redis:
        there = Installation(kit_, app, var, redis, postgres)
        try:
            yield there
        finally:
            for process in there.processes.values():
                process.kill()
