"""A RabbitMQ server for the tests, on loopback, from Debian's rabbitmq-server package; not the system service.

DELAYTASKS_TEST_RABBITMQ   path of a rabbitmq-server script, for example where the package was unpacked, with Erlang on
                           PATH; default: that of the installed package
"""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import amqp

from tests.support.servers import Server, ServerMissing, die_with_parent, free_port, stop_process, tail

# The one on PATH changes the user and the directories.
PROGRAM = Path(os.environ.get("DELAYTASKS_TEST_RABBITMQ") or "/usr/lib/rabbitmq/bin/rabbitmq-server")
NODE = "torture@localhost"


class RabbitServer(Server):
    """A node with its own ports, data, cookie and port mapper. Durable data survives stop() and start()."""

    name = "rabbit"

    def __init__(self, *, plugins: Sequence[str] = (), **options: str) -> None:
        super().__init__()
        self.options = options  # of rabbitmq.conf
        self.plugins = plugins
        self.port, self.dist_port, self.mapper_port = free_port(), free_port(), free_port()
        self.mapper: subprocess.Popen | None = None

    def start(self) -> None:
        """Start the node; takes about ten seconds. Raises ServerMissing."""
        if not PROGRAM.exists():
            raise ServerMissing(f"There is no {PROGRAM}: `apt-get install rabbitmq-server`.")
        if self.mapper is None:
            # Otherwise the node starts one that outlives it.
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
            "CONFIG_FILE": self.directory / "config.conf", "CONF_ENV_FILE": self.directory / "conf-env",
            "SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }  # fmt: skip
        (self.directory / "plugins").write_text(f"[{','.join(self.plugins)}].\n")
        (self.directory / "conf-env").touch()
        (self.directory / "config.conf").write_text("".join(f"{name} = {v}\n" for name, v in self.options.items()))
        mapper = {"ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(self.mapper_port)}
        every = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "LC_ALL": "C.UTF-8"}
        return every | mapper | {f"RABBITMQ_{name}": str(value) for name, value in own.items()}

    def answers(self) -> bool:
        try:
            with amqp.Connection(f"127.0.0.1:{self.port}", connect_timeout=2, read_timeout=5):
                return True
        except (OSError, amqp.AMQPError):
            return False

    def sync(self) -> None:
        """Write all definitions to the disk. RabbitMQ confirms a binding earlier, and can lose it if it is killed."""
        command = [str(PROGRAM.with_name("rabbitmqctl")), "eval", "mnesia:sync_log()."]
        done = subprocess.run(
            command, env=self._environment(), cwd=self.directory, capture_output=True, text=True, timeout=60
        )
        assert done.stdout.strip() == "ok", done.stdout + done.stderr

    def stop(self, how: int = signal.SIGTERM) -> None:
        """Stop the node. SIGTERM: orderly. SIGKILL: kill the whole process group, not only the shell."""
        if self.process is not None and how == signal.SIGKILL:
            os.killpg(self.process.pid, signal.SIGKILL)
        super().stop(how)

    def close(self) -> None:
        super().close()
        if self.mapper is not None:
            stop_process(self.mapper)

    @property
    def version(self) -> str:
        with amqp.Connection(f"127.0.0.1:{self.port}", connect_timeout=2, read_timeout=5) as connection:
            return f"RabbitMQ {connection.server_properties['version']} ({PROGRAM})"

    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"
