"""The Python client against a real server, and the examples of docs/clients/, run as documented."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from delaytasks import schedule
from delaytasks.api.models import Token
from delaytasks.client import Client, Consumer, Refused, Unauthorized, Unavailable
from delaytasks.client import _closed_by_server as closed_by_server
from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from tests.conftest import not_run
from tests.support import fake_queue
from tests.support.installation import ROOT, Process, World
from tests.support.servers import wait_until

from .conftest import EVERYTHING

EXAMPLES = ROOT / "docs" / "clients"
LANGUAGES = {
    "python": ([sys.executable, "consume.py"], ""),
    "node": (["node", "consume.mjs"], "apt-get install nodejs"),
    "php": (["php", "consume.php"], "apt-get install php-cli"),
    "go": (["go", "consume.go"], "apt-get install golang-go"),
}
HEARTBEAT = ("python", "node", "go")


def need(request: pytest.FixtureRequest, program: str, example: str, cure: str) -> None:
    if shutil.which(program) is None:
        request.config.stash[not_run].add(f"the example {example}, as this machine has no {program}: {cure}")
        pytest.skip(f"there is no {program} here")


class Example:
    """An example in its environment. Its processes log to files and are killed after the test."""

    def __init__(self, command: list[str], env: dict[str, str], directory: Path) -> None:
        self.command, self.env, self.directory = command, env, directory
        self.processes: list[Process] = []

    def run(self, *arguments: str) -> str:
        """What it prints."""
        done = subprocess.run(
            [*self.command, *arguments], cwd=EXAMPLES, env=self.env, capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def start(self) -> Process:
        """A consumer that is about to ask for jobs."""
        program = [*self.command[:-1], str(EXAMPLES / self.command[-1])]
        process = Process(f"consumer-{len(self.processes)}", program, self.directory, self.env)
        self.processes.append(process)
        process.await_line("waiting for")
        return process


@pytest.fixture
def env(here: World, topic: str, make_token: Callable[..., str], tmp_path: Path) -> dict[str, str]:
    token = make_token({topic: EVERYTHING}, name=f"account of {topic}")
    asked = {"DELAYTASKS_URL": f"{here.url}/api/queue/", "DELAYTASKS_TOKEN": token, "TOPIC": topic}
    python = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    return asked | python | {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


def example_in(language: str, request: pytest.FixtureRequest, env: dict[str, str], directory: Path) -> Example:
    command, cure = LANGUAGES[language]
    need(request, command[0], f"docs/clients/{command[-1]}", cure)
    if language == "go":
        command = [str(request.getfixturevalue("built_in_go"))]
    return Example(command, env, directory)


@pytest.fixture(scope="session")
def built_in_go(go_env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled example in Go."""
    program = tmp_path_factory.mktemp("example") / "consume"
    build = ["go", "build", "-o", str(program), "consume.go"]
    done = subprocess.run(build, cwd=EXAMPLES, env=go_env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(params=LANGUAGES)
def example(request: pytest.FixtureRequest, env: dict[str, str], tmp_path: Path) -> Iterator[Example]:
    example = example_in(request.param, request, env, tmp_path)
    yield example
    for process in example.processes:
        process.kill()


@pytest.fixture
def client(env: dict[str, str]) -> Iterator[Client]:
    with Client(env["DELAYTASKS_URL"], env["DELAYTASKS_TOKEN"]) as client:
        yield client


def log_of(process: Process) -> str:
    return process.log.read_text(errors="replace")


def until(done: Callable[[], Any], what: str, *processes: Process, seconds: float = 30) -> Any:
    return wait_until(done, seconds=seconds, what=lambda: "\n".join([what, *map(log_of, processes)]))


def state_of(topic: str, key: str, state: State) -> Callable[[], bool]:
    return lambda: Job.objects.filter(topic=topic, key=key, state=state).exists()


# The examples


def test_the_shell_example_takes_a_job_from_add_to_finish(
    request: pytest.FixtureRequest, env: dict[str, str], topic: str, tmp_path: Path
) -> None:
    need(request, "curl", "docs/clients/queue.sh", "apt-get install curl")
    said = Example(["sh", "queue.sh"], env, tmp_path).run().splitlines()
    job = Job.objects.get(topic=topic)
    assert said == [f"added {job.key}, due in 1 s", f"popped {job.key}, attempt 1", f"finished {job.key}"]
    assert job.state == State.FINISHED


@pytest.mark.parametrize(
    "value", ['{"id": 7, "attempt": 9, "lines": [{"id": "x"}]}', '[{"id": "x"}]', '"\\"id\\": \\"x\\""', "null"]
)
def test_the_shell_example_does_not_take_the_id_from_the_body(value: str, tmp_path: Path) -> None:
    curl = tmp_path / "curl"
    popped = f'"id":"order:1042","value":{value},"job":7,"attempt":2,"receipt":"{"0" * 32}","TTR":60'
    curl.write_text(f'#!/bin/sh\ncat >/dev/null\ncat <<\'END\'\n{{"success":true,"error":"",{popped}}}\nEND\n')
    curl.chmod(0o755)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "DELAYTASKS_URL": "x", "DELAYTASKS_TOKEN": "x", "TOPIC": "x"}
    said = Example(["sh", "queue.sh"], env, tmp_path).run().splitlines()
    assert said[1:] == ["popped order:1042, attempt 2", "finished order:1042"]


def test_the_shell_example_says_why_it_was_refused(
    request: pytest.FixtureRequest, env: dict[str, str], tmp_path: Path
) -> None:
    need(request, "curl", "docs/clients/queue.sh", "apt-get install curl")
    refused = env | {"DELAYTASKS_TOKEN": "nobody's"}
    done = subprocess.run(["sh", "queue.sh"], cwd=EXAMPLES, env=refused, capture_output=True, text=True)
    assert done.returncode != 0
    assert "401" in done.stderr
    assert "added" not in done.stdout


def test_example_handles_a_job_and_stops_on_a_signal(example: Example, topic: str) -> None:
    assert example.run("add", "order:1042") == "added order:1042, due in 1 s\n"
    assert Job.objects.get(topic=topic).events.get().outcome == "scheduled"
    consumer = example.start()
    until(state_of(topic, "order:1042", State.FINISHED), "the job to be finished", consumer)
    consumer.await_line("did the work of order:1042")
    assert consumer.terminate(seconds=15) == 0, log_of(consumer)
    assert log_of(consumer).endswith("stopped\n")
    assert Job.objects.get(topic=topic).attempt == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_example_finishes_its_job_before_it_stops(example: Example, topic: str, number: int) -> None:
    schedule(topic, key="long", delay=0, ttr=60, body={"seconds": 2})
    consumer = example.start()
    consumer.await_line("began with long")
    schedule(topic, key="next", delay=0, ttr=60, body={"seconds": 0})
    consumer.popen.send_signal(number)
    assert consumer.popen.wait(15) == 0, log_of(consumer)
    assert state_of(topic, "long", State.FINISHED)(), log_of(consumer)
    if "consume.py" not in example.command:  # it has four threads, so it may have taken that one too
        assert Job.objects.get(key="next", topic=topic).attempt == 0


def test_example_releases_a_job_that_it_cannot_handle(example: Example, topic: str) -> None:
    schedule(topic, key="bad", delay=0, ttr=60, body=None)
    consumer = example.start()
    until(lambda: Job.objects.filter(topic=topic, failures=1, state=State.DELAYED), "the job to fail", consumer)
    assert Job.objects.get(topic=topic).error
    assert consumer.terminate(seconds=15) == 0, log_of(consumer)


def test_node_example_cuts_no_character_of_an_error_in_two(request: pytest.FixtureRequest) -> None:
    """The server refuses half a pair of surrogates, so the job would not be released."""
    need(request, "node", "docs/clients/consume.mjs", LANGUAGES["node"][1])
    lines = (EXAMPLES / "consume.mjs").read_text().splitlines()
    printable = next(line for line in lines if line.startswith("const printable"))
    script = f"{printable}\nconsole.log(encodeURIComponent(printable('x'.repeat(3999) + '\U0001f600')).length)"
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("example", HEARTBEAT, indirect=True)
def test_example_with_a_heartbeat_keeps_a_job_beyond_its_ttr(example: Example, topic: str) -> None:
    schedule(topic, key="long", delay=0, ttr=4, body={"seconds": 6})
    consumer = example.start()
    until(state_of(topic, "long", State.FINISHED), "the job to be finished", consumer)
    assert Job.objects.get(topic=topic).attempt == 1, log_of(consumer)


def test_php_example_notices_that_it_was_too_late(
    request: pytest.FixtureRequest, env: dict[str, str], topic: str, tmp_path: Path
) -> None:
    example = example_in("php", request, env, tmp_path)
    job = schedule(topic, key="long", delay=0, ttr=1, body={"seconds": 2})
    consumer = example.start()
    try:
        consumer.await_line("too late: Attempt 1 of 'long' is over: its TTR of 1 s was over")
    finally:
        consumer.kill()
    job.refresh_from_db()
    assert job.state != State.FINISHED


def test_php_example_names_the_attempt_that_it_gives_back_when_it_stops(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    with fake_queue.running() as queue:
        env = {"DELAYTASKS_URL": queue.url, "DELAYTASKS_TOKEN": fake_queue.TOKEN, "TOPIC": "t"}
        example = example_in("php", request, env | {"PATH": os.environ["PATH"]}, tmp_path)

        def stop_and_pop(*_: Any) -> dict[str, Any]:
            example.processes[0].popen.terminate()
            return fake_queue.yes("a", {"seconds": 0}, job=7, attempt=2, TTR=60)

        queue.do_pop = stop_and_pop
        queue.do_release = lambda *_: fake_queue.no("Attempt 2 of 'a' is over.")
        consumer = example.start()
        try:
            assert consumer.popen.wait(30) == 0, log_of(consumer)
        finally:
            consumer.kill()
    assert queue.asked("release") == [{"command": "release", "id": "a", "topic": "t", "job": 7, "attempt": 2}]
    assert log_of(consumer).endswith("too late: Attempt 2 of 'a' is over.\nstopped\n")


def test_example_obeys_retry_after(
    example: Example, make_token: Callable[..., str], topic: str, env: dict[str, str]
) -> None:
    example.env = env | {"DELAYTASKS_TOKEN": make_token({topic: EVERYTHING}, rate_per_minute=2)}
    for number in range(3):
        schedule(topic, key=f"a{number}", delay=0, ttr=60, body={"seconds": 0})
    consumer = example.start()
    consumer.await_line("Too many requests" if "consume.py" in example.command else "unavailable")
    if "consume.py" not in example.command:  # it would go on telling the ends of its jobs for as long as its grace
        assert consumer.terminate(seconds=15) == 0, log_of(consumer)


def test_example_with_a_revoked_token_exits_with_a_message(example: Example, topic: str) -> None:
    consumer = example.start()
    Token.objects.filter(grants__topic=topic).update(revoked=True)
    job = schedule(topic, key="a", delay=0, ttr=60, body={"seconds": 0})
    assert consumer.popen.wait(50) not in (0, -signal.SIGTERM), "its pop is refused at the latest when its wait is over"
    assert "401" in log_of(consumer) or "does not accept the token" in log_of(consumer)
    job.refresh_from_db()
    assert job.state != State.FINISHED, "nor could it be ended if it was popped just before"


def test_job_of_a_killed_example_is_reserved_by_another_after_its_ttr(example: Example, topic: str) -> None:
    killed = example.start()
    schedule(topic, key="a", delay=0, ttr=3, body={"seconds": 2})
    killed.await_line("began with a")
    killed.kill()
    other = example.start()
    until(state_of(topic, "a", State.FINISHED), "the job to be finished", other)
    job = Job.objects.get(topic=topic)
    first, second = JobEvent.objects.filter(job=job, attempt__gt=0).order_by("id")
    assert (first.outcome, second.outcome) == ("expired", "finished")
    assert second.reserved_ms - first.reserved_ms >= 3000


def test_examples_require_their_environment_variables(example: Example) -> None:
    done = subprocess.run(
        example.command,
        cwd=EXAMPLES,
        env={name: example.env[name] for name in ("PATH", "PYTHONPATH")},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "TOPIC" in done.stderr or "DELAYTASKS_URL" in done.stderr


# The Python client


def test_every_command_of_the_client_works(client: Client, topic: str) -> None:
    add = {"delay": 0, "ttr": 30.5, "body": {"a": [1, None, "é\n"]}}
    assert client.add(topic, f"{topic}:1", **add) == "created"
    with pytest.raises(Refused, match="live"):
        client.add(topic, f"{topic}:1", **add)
    assert client.add(topic, f"{topic}:1", **add, on_conflict="keep") == "kept"
    assert client.add(topic, f"{topic}:1", **add, on_conflict="replace") == "replaced"
    seen = client.peek(f"{topic}:1")
    assert seen is not None
    assert seen == client.peek(topic=topic)
    assert seen["topic"] == topic

    job = client.pop(topic, wait=10, consumer="a test")
    assert job is not None
    assert (job.id, job.attempt, job.body, job.ttr) == (f"{topic}:1", 1, add["body"], 30.5)
    assert job.due_at < job.deadline < client.touch(job)
    assert Job.objects.get(topic=topic).worker == f"account of {topic}/a test"
    assert client.delete(job.id) == "running"
    assert client.release(job) == "delayed"
    (again,) = client.pop_many(topic, 5, wait=10)
    assert again.attempt == 2
    with pytest.raises(Refused, match="Attempt 1"):
        client.finish(job)
    client.bury(again, "no such \x00 order \x1b[31m\ud800")
    assert Job.objects.get(topic=topic).error == "no such ? order ?[31m?"
    assert client.delete(job.id) == "cancelled"  # a dead job is deleted, too
    assert client.add(topic, f"{topic}:2", **add) == "created"
    finished = client.pop(topic, wait=10)
    assert finished is not None
    client.finish(finished)
    assert client.delete(finished.id) == "already finished"
    assert client.delete("never") == "unknown"
    assert client.peek(topic=topic) is None
    assert client.pop(topic) is None


def test_invalid_command_is_refused_with_the_name_of_the_field(client: Client, topic: str) -> None:
    with pytest.raises(Refused, match="TTR") as refused:
        client.add(topic, "a", delay=0, ttr=-1)
    assert refused.value.status == 400
    with pytest.raises(Unauthorized, match="elsewhere") as forbidden:
        client.pop("elsewhere")
    assert forbidden.value.status == 403


def test_a_body_that_is_too_large_is_refused_with_the_reason(client: Client, topic: str) -> None:
    for size in (100_000, 5_000_000):
        with pytest.raises(Refused, match="bytes") as refused:
            client.add(topic, "a", delay=0, ttr=60, body="x" * size)
        assert refused.value.status == 413


def test_connection_closed_by_the_server_is_noticed_before_use(fresh_world: World, client: Client, topic: str) -> None:
    assert client.add(topic, "a", delay=60, ttr=60) == "created"
    ((_, connection),) = client._idle
    fresh_world.processes[-1].kill()
    wait_until(lambda: closed_by_server(connection), seconds=10, what="the end of the connection")
    with pytest.raises(Unavailable, match="cannot be reached") as error:
        client.add(topic, "b", delay=60, ttr=60)
    assert not error.value.perhaps_done


class Running:
    """A Consumer in a thread."""

    def __init__(self, client: Client, topic: str, handle: Callable[[Any], Any], **options: Any) -> None:
        self.consumer = Consumer(client, topic, handle, **options)
        self.left: int | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.left = self.consumer.run()

    def stop(self) -> None:
        self.consumer.stop()
        self.thread.join(30)


def test_job_that_becomes_ready_during_a_stop_is_handled_or_released(client: Client, topic: str) -> None:
    ends = Counter[str]()
    for number in range(40):
        handled: list[str] = []
        running = Running(client, topic, lambda job, h=handled: h.append(job.id))
        until(lambda r=running: r.consumer._polls._waiting, "a poll")
        stopper = threading.Timer(number * 0.005, running.consumer.stop)
        stopper.start()
        client.add(topic, f"{topic}:{number}", delay=0, ttr=2)
        stopper.join()
        running.stop()
        assert running.left == 0
        if handled:
            ends["handled"] += 1
        else:
            begun = time.monotonic()
            job = client.pop(topic, wait=10)
            assert job is not None
            client.finish(job)
            ends["free at once" if time.monotonic() - begun < 1 else "free after its TTR"] += 1
    assert ends["handled"], ends
    assert ends["free at once"], ends
    # The server may drop an answer while it hears the goodbye: a millisecond, which this test aims at.
    assert ends["free after its TTR"] <= 8, ends


def test_two_consumers_handle_each_job_once(client: Client, topic: str) -> None:
    handled: list[str] = []
    both = [Running(client, topic, lambda job: handled.append(job.id), threads=3) for _ in range(2)]
    for number in range(60):
        client.add(topic, f"{topic}:{number}", delay=0, ttr=60)
    until(lambda: len(handled) >= 60, "all jobs to be handled")
    for running in both:
        running.stop()
    assert sorted(handled) == sorted(f"{topic}:{number}" for number in range(60))
    assert not Job.objects.filter(topic=topic).exclude(state=State.FINISHED).exists()
