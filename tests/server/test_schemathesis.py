"""schemathesis calls the running server with valid and invalid requests generated from docs/openapi.yaml.

Its own process: warnings of its libraries are not ours. Jobs of every state and known topics are given to it, or it
would see little but 404. Its pseudo-random numbers are always the same ones, so a run that failed fails again. With
SCHEMATHESIS_MINUTES (`make schemathesis`) it runs that long, with other numbers each time; SCHEMATHESIS_SEED, which it
prints, repeats them.
"""

import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict

import pytest

from delaytasks import schedule_many
from delaytasks.api.models import ServiceAccount
from delaytasks.models import Job
from delaytasks.recurrence import schedules
from delaytasks.recurrence.definition import Definition
from delaytasks.states import State
from delaytasks.worker import leases
from tests.support.installation import ROOT
from tests.support.servers import wait_until

# The database that refuses more of what is sent, as a NUL.
pytestmark = pytest.mark.only_on("postgresql")
ENVIRONMENT = {"API_MAX_WAIT_SECONDS": "0.1"}
DOCUMENT = ROOT / "docs" / "openapi.yaml"
MINUTES = float(os.environ.get("SCHEMATHESIS_MINUTES") or 0)
SEED = int(os.environ.get("SCHEMATHESIS_SEED") or (random.randrange(10**6) if MINUTES else 1))
PHASES = ("examples", "coverage", "fuzzing", "stateful")
HELD = round(200 * max(1.0, MINUTES))
LIMIT_SECONDS = 500 + 2 * 60 * MINUTES  # without MINUTES it takes a minute
# A known topic, a cursor of ours, a due time that is not too far ahead: a schema cannot say what is acceptable there.
LEFT_OUT = "positive_data_acceptance"
# A schedule has exactly one of three rules and a new name, which generated bodies hardly ever have.
HARDLY_ACCEPTED = {"POST /api/schedules/"}


@pytest.fixture
def jobs(topic, api):
    """Ids of delayed, dead and many reserved jobs of the topic: most calls use up a reserved one.

    The token's account has reserved them, so that it needs no receipt.
    """
    holder = ServiceAccount.objects.latest("pk").name
    schedule_many({"topic": topic, "key": f"held{n}", "delay": 0, "ttr": 3600} for n in range(HELD))
    held = []

    def all_held():
        held.extend(leases.reserve(topic, HELD, using="default", worker=holder))
        return len(held) == HELD

    wait_until(all_held, seconds=10 + MINUTES, what="ready jobs")
    for job in held[: HELD // 5]:
        leases.bury(job.id, job.attempt, using="default")
    schedule_many({"topic": topic, "key": f"waiting{n}", "delay": 3600} for n in range(HELD // 5))
    return [*Job.objects.values_list("pk", flat=True), 9_000_000_000]


@pytest.fixture
def names(topic):
    """Names of schedules of the topic, of which some calls delete one."""
    names = [f"schedule{n}" for n in range(60)]
    for name in names:
        schedules.define(Definition(name=name, topic=topic, cron="30 2 * * *", tz="Europe/Berlin"))
    return names


def configuration(topic, jobs, names):
    def given(name, *places):
        return [f'"{place}" = {{ dictionary = "{name}", probability = 0.8 }}' for place in places]

    dead = list(Job.objects.filter(state=State.DEAD).values_list("pk", flat=True))
    lines = ["[dictionaries]", f"jobs = {{ values = {jobs} }}", f"dead = {{ values = {dead} }}"]
    lines += [f'topics = {{ values = ["{topic}", "unknown"] }}', "attempts = { values = [1] }"]
    lines += [f"schedules = {{ values = {json.dumps(names)} }}"]
    lines += ["[parameters]", *given("jobs", "path.job_id"), *given("attempts", "body.attempt")]
    lines += given("schedules", "path.schedule")
    lines += given("topics", "path.topic", "body.topic", "body.jobs[*].topic", "query.topic")
    # Only dead jobs can be retried; drawn among all, hardly one is dead.
    lines += ["[[operations]]", 'include-operation-id = "retryJob"', "[operations.parameters]"]
    lines += given("dead", "path.job_id")
    return "\n".join(lines)


def events(report, kind):
    """Yield the events of one kind of a run's report."""
    for line in report.read_text().splitlines():
        if event := json.loads(line).get(kind):
            yield event


def answers(report):
    """Return the number of answers by status, for each operation: {"POST /api/jobs/": {201: 12, 400: 90, ...}}."""
    found = defaultdict(Counter)
    for event in events(report, "ScenarioFinished"):
        recorded = event.get("recorder") or {}
        for case_id, call in recorded.get("interactions", {}).items():
            case = recorded["cases"][case_id]["value"]
            found[f"{case['method']} {case['path']}"][(call["response"] or {}).get("status_code")] += 1
    return found


def summary(found):
    """Return the numbers of requests and answers, for people."""
    total = sum(found.values(), Counter())
    return f"{total.total():,} requests to {len(found)} operations; answers by status {dict(sorted(total.items()))}"


def test_no_request_gets_a_5xx_or_an_undocumented_response(here, api, topic, jobs, names, tmp_path, capsys):
    (tmp_path / "given.toml").write_text(configuration(topic, jobs, names))
    report = tmp_path / "report.ndjson"
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", "given.toml", "run", str(DOCUMENT)]
    command += [f"--url={here.url}", f"--header=Authorization: Bearer {api.token}", f"--phases={','.join(PHASES)}"]
    command += ["--checks=all", f"--exclude-checks={LEFT_OUT}", "--continue-on-failure", f"--seed={SEED}"]
    # One worker: with several, Python 3.11 was seen to fail in its parser (a SystemError about the recursion depth).
    command += [f"--max-time={MINUTES * 60:.0f}"] if MINUTES else ["--generation-deterministic", "--max-examples=20"]
    command += ["--report=ndjson", f"--report-ndjson-path={report}", "--no-color"]

    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=LIMIT_SECONDS
    )

    assert done.returncode == 0, done.stdout + done.stderr
    found = answers(report)
    assert {event["phase"]["name"].lower() for event in events(report, "PhaseFinished")} >= set(PHASES)
    documented = {each: statuses for each, statuses in found.items() if set(statuses) != {405}}
    assert len(documented) >= 20
    assert not any(status is None or status >= 500 for statuses in found.values() for status in statuses)
    unheard = {each for each, statuses in documented.items() if not statuses.keys() & {200, 201}} - HARDLY_ACCEPTED
    if MINUTES:
        with capsys.disabled():
            print(f"\nSCHEMATHESIS_SEED={SEED}: {summary(found)}; nothing accepted of {sorted(unheard)}")
    else:
        assert not unheard, f"nothing that these were asked was accepted, so little was tried: {sorted(unheard)}"
