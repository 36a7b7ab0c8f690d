"""Execute the code blocks of a document: write its files, run its commands and compare their output.

A fenced code block is one of

    a file      python, ini or html, whose first line is a comment that begins with a path:
                `# mysite/celery.py`. With "at the end" after the path it is appended to that file.
    commands    sh: each has to succeed. A worker, beat or web server runs until the end.
    a session   console: commands after `$ ` and their output. `...` stands for anything. A command that
                shows a job's state is repeated until the output is as expected.

Environment variables and the working directory carry over to the following blocks.
"""

import contextlib
import fnmatch
import functools
import os
import re
import shlex
import subprocess
import sysconfig
import time
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tests.support.servers import die_with_parent, stop_process, tail

FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATH = re.compile(r"(?:#|<!--) (?P<path>[\w./@-]+\.\w+)(?P<rest>[^\n]*)\n")
FILES = ("python", "ini", "html")
UNTIL_THE_END = ("celery -A", "python manage.py runserver")
REPEATED = ("python manage.py delaytasks show", "python manage.py delaytasks stats")
SECONDS = 60
PROGRAMS = {"celery": ("celery.__main__", "main"), "pip": ("pip._internal.cli.main", "main"),
            "django-admin": ("django.core.management", "execute_from_command_line")}  # fmt: skip


class Block(NamedTuple):
    language: str
    text: str
    line: int


def blocks(page: Path, *, section: str = "") -> list[Block]:
    """Return the fenced code blocks of a page, or of its section with this heading."""
    text = page.read_text()
    begins = text.index(f"\n## {section}\n") + 1 if section else 0
    ends = text.find("\n## ", begins + 1) if section else len(text)
    return [
        Block(found[1], found[2], text.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(text, begins, ends)
    ]


class Reader:
    """Executes blocks in an empty directory.

    instead   text -> its replacement, such as the address of the test's Redis
    """

    def __init__(self, folder: Path, environment: Mapping[str, str], instead: Mapping[str, str]) -> None:
        self.folder, self.environment, self.instead = folder, dict(environment), instead
        self.started: dict[str, subprocess.Popen] = {}
        self.notes = folder.parent / f"{folder.name}.notes"
        self.notes.mkdir()

    def follow(self, block: Block) -> None:
        text = block.text
        for word, other in self.instead.items():
            text = text.replace(word, other)
        try:
            if block.language in FILES:
                self.write(text)
                self.start_unit(text)
            elif block.language == "sh":
                self.run(text)
            elif block.language == "console":
                self.hold_session(text)
            else:
                raise AssertionError(f"unknown language {block.language} of a block")
        except AssertionError as error:
            logs = "".join(f"\n{name}:\n{tail(self.log_of(name), 15)}" for name in self.started)
            raise AssertionError(f"line {block.line}: {error}{logs}") from error

    def write(self, text: str) -> None:
        named = PATH.match(text)
        assert named is not None, f"the first line of this file is not a comment with its path:\n{text}"
        path = self.folder / named["path"].removeprefix(f"{self.folder}/").removeprefix("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if "at the end" in named["rest"] else "w") as file:
            file.write("\n" + text)

    def start_unit(self, text: str) -> None:
        """Start a systemd unit: read its environment and start its program."""
        options = dict(re.findall(r"^(EnvironmentFile|ExecStart)=(.*)$", text, re.MULTILINE))
        if options:
            self.run(f"set -a; . {options['EnvironmentFile']}; set +a")
            self.start(options["ExecStart"])

    def run(self, text: str) -> str:
        """Run the commands and return their output; start the servers among them last."""
        lines = [line for line in text.replace("\\\n", " ").splitlines() if not line.lstrip().startswith("#")]
        servers = [line for line in lines if line.startswith(UNTIL_THE_END)]
        output = self._run("\n".join(line for line in lines if line not in servers))
        for line in servers:
            self.start(line)
        return output

    def _run(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{script}\nenv -0 > {self.notes}/env; pwd > {self.notes}/pwd"],
            cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=600,
        )  # fmt: skip
        assert done.returncode == 0, f"{script.strip()} ended with {done.returncode}:\n{done.stdout}"
        pairs = (pair.split("=", 1) for pair in (self.notes / "env").read_text().split("\0") if pair)
        self.environment = {name: value for name, value in pairs if name not in ("_", "SHLVL", "PWD", "OLDPWD")}
        self.folder = Path((self.notes / "pwd").read_text().strip())
        return done.stdout

    def start(self, command: str) -> None:
        """Start a program in the background."""
        command = command.split("#")[0].strip()
        with self.log_of(command).open("wb") as log:
            self.started[command] = subprocess.Popen(
                shlex.split(f"{self._program(command)}"), cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent(),
            )  # fmt: skip

    def _program(self, command: str) -> str:
        """Return the command with the full path of its program, because this process has another PATH."""
        name, _, arguments = command.partition(" ")
        path = self._run(f"command -v {name}").strip()
        return f"{path} {arguments}"

    def log_of(self, command: str) -> Path:
        return self.notes / (re.sub(r"\W+", "-", command)[:60] + ".log")

    def hold_session(self, text: str) -> None:
        for command, expected in exchanges(text):
            output = self.run(command)
            deadline = time.monotonic() + SECONDS
            while command.startswith(REPEATED) and not alike(output, expected) and time.monotonic() < deadline:
                output = self.run(command)
            assert alike(output, expected), f"{command} printed\n{output}\nand not\n{expected}"

    def stop(self) -> None:
        """Stop the started programs, as Ctrl-C does."""
        for process in self.started.values():
            stop_process(process)
        self.started = {}


def exchanges(text: str) -> Iterator[tuple[str, str]]:
    """Yield (command, expected output) of a console session."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, expected = part.replace("\\\n", " ").partition("\n")
        yield command, expected


def alike(output: str, expected: str) -> bool:
    """Return whether the expected lines were printed in this order; runs of blanks are equal."""
    lines = iter([" ".join(line.split()) for line in output.splitlines()])
    patterns = [" ".join(line.split()).replace("[", "[[]").replace("...", "*") for line in expected.splitlines()]
    return all(any(fnmatch.fnmatchcase(line, pattern) for line in lines) for pattern in patterns if pattern)


@contextlib.contextmanager
def reading(folder: Path, environment: Mapping[str, str], instead: Mapping[str, str]) -> Iterator[Reader]:
    reader = Reader(folder, environment, instead)
    try:
        yield reader
    finally:
        reader.stop()


def plain_environment(home: Path) -> dict[str, str]:
    """Return a minimal shell environment; pip uses no index. Output comes in order, as on a terminal."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "LC_ALL": "C.UTF-8", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_INDEX": "1", "PYTHONUNBUFFERED": "1"}  # fmt: skip


def complete(environment: Path, wheel: Path, *extras: str) -> None:
    """Let `pip install` of the wheel work in a document's virtual environment without a network.

    Of the tests' environment, the virtual environment sees pip and what the wheel requires, and nothing else. It gets
    the programs that pip would have installed with them.
    """
    (packages,) = environment.glob("lib/python*/site-packages")
    for name in _required_files(wheel, *extras):
        if not (packages / name).exists():
            (packages / name).symlink_to(Path(sysconfig.get_path("purelib"), name))
    for name, (module, function) in PROGRAMS.items():
        program = environment / "bin" / name
        program.write_text(f"#!{environment}/bin/python\nfrom {module} import {function}\n{function}()\n")
        program.chmod(0o755)


@functools.cache
def _required_files(wheel: Path, *extras: str) -> set[str]:
    """Return the files and folders in site-packages of pip and of all that the wheel requires, directly or not."""
    files: set[str] = set()
    seen: set[str] = set()
    waiting = [Requirement("pip"), Requirement(f"delaytasks[{','.join(extras)}]")]
    while waiting:
        wanted = waiting.pop()
        if str(wanted) in seen:
            continue
        seen.add(str(wanted))
        (found, *_) = metadata.distributions(name=wanted.name, path=[str(wheel), sysconfig.get_path("purelib")])
        if wanted.name != "delaytasks":
            files |= {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
        for requirement in map(Requirement, found.requires or ()):
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in wanted.extras or {""}):
                waiting.append(requirement)
    return files
