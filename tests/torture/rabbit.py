"""A RabbitMQ of the tests' own on loopback, from Debian's rabbitmq-server: not the service that the package brings."""

import os
import signal
import subprocess
from pathlib import Path

import amqp

from tests.servers import Server, ServerMissing, die_with_parent, free_port, stop_process, tail

PROGRAM = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")  # the one on PATH becomes another user, with its own folders
NODE = "torture@localhost"


class RabbitServer(Server):
    """A node with ports, data, cookie and port mapper of its own. What is durable outlives stop() and start()."""

    name = "rabbit"

    def __init__(self) -> None:
        super().__init__()
        self.port, self.dist_port, self.mapper_port = free_port(), free_port(), free_port()
        self.mapper: subprocess.Popen | None = None

    def start(self) -> None:
        """Raises ServerMissing. A start takes some ten seconds."""
        if not PROGRAM.exists():
            raise ServerMissing(f"There is no {PROGRAM}: `apt-get install rabbitmq-server`.")
        if self.mapper is None:
            # A node that finds none would start one that outlives it.
            self.mapper = subprocess.Popen(
                ["epmd", "-address", "127.0.0.1", "-port", str(self.mapper_port)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                preexec_fn=die_with_parent(),
            )  # fmt: skip
        self.spawn([str(PROGRAM)], env=self._environment(), cwd=self.directory)
        if not self.await_answer():
            raise ServerMissing(f"{PROGRAM} does not start. Its log ends:\n{tail(self.log)}")

    def _environment(self) -> dict[str, str]:
        own = {
            "NODENAME": NODE, "NODE_IP_ADDRESS": "127.0.0.1", "NODE_PORT": self.port, "DIST_PORT": self.dist_port,
            "MNESIA_BASE": self.directory / "data", "LOG_BASE": self.directory / "logs",
            "PID_FILE": self.directory / "pid", "ENABLED_PLUGINS_FILE": self.directory / "plugins",
            "CONFIG_FILE": self.directory / "config", "CONF_ENV_FILE": self.directory / "conf-env",
            "SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }  # fmt: skip
        (self.directory / "plugins").write_text("[].\n")
        (self.directory / "conf-env").touch()
        mapper = {"ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(self.mapper_port)}
        every = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "LC_ALL": "C.UTF-8"}
        return every | mapper | {f"RABBITMQ_{name}": str(value) for name, value in own.items()}

    def answers(self) -> bool:
        try:
            with amqp.Connection(f"127.0.0.1:{self.port}", connect_timeout=2, read_timeout=5):
                return True
        except (OSError, amqp.AMQPError):
            return False

    def stop(self, how: int = signal.SIGTERM) -> None:
        """SIGTERM stops the node in order; SIGKILL the node itself, not the shell around it alone."""
        if self.process is not None and how == signal.SIGKILL:
            os.killpg(self.process.pid, signal.SIGKILL)
        super().stop(how)

    def close(self) -> None:
        super().close()
        if self.mapper is not None:
            stop_process(self.mapper)

    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"
