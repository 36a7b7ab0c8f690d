"""One failure: make it, wait for its alert, do what the page says, and see that everything is well again."""

import json
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field

from delaytasks.models import Job
from delaytasks.states import State
from tests.support.servers import wait_until
from tests.torture import trial
from tests.torture.environment import Arena

from . import runbook
from .failures import Failure
from .prometheus import PrometheusServer
from .rules import Rule

PER_SECOND = 8
WARM_SECONDS = 2
STARTED_SECONDS = 20  # wait_until multiplies these by its PATIENCE
FIRES_SECONDS = 24
MENDED_SECONDS = 40
READYZ_SECONDS = 2
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass
class Result:
    """What was seen of a failure. Times are in seconds.

    fired_seconds    from the failure until the alert fired
    real_seconds     the same as it would be with the real rules, without the time between two scrapes
    others           alerts that began to fire as well, before it was mended
    health           what /readyz said when the alert fired
    mended_seconds   from the beginning of mending until /readyz is ok and all due jobs have ended
    ended_seconds    from the beginning of mending until the alert has ended
    jobs             scheduled by the load since the last failure, or by the failure
    trouble          why it failed; "" if all was as it should be
    """

    failure: str
    alert: str
    severity: str
    page: str
    fired_seconds: float = 0
    real_seconds: float = 0
    others: list[str] = field(default_factory=list)
    health: str = ""
    mended_seconds: float = 0
    ended_seconds: float = 0
    jobs: int = 0
    missing: str = ""
    trouble: str = ""


def run(there: Arena, prometheus: PrometheusServer, failure: Failure, rule: Rule, seed: int) -> Result:
    result = Result(failure.name, failure.alert, rule.severity, rule.page, missing=failure.missing(there))
    if result.missing:
        return result
    assert runbook.says(rule.page, failure.step), f"{rule.page} does not say {failure.step!r}."
    before = Job.objects.count()
    await_calm(prometheus, failure)
    there.load(seed=seed, per_second=PER_SECOND)
    try:
        mending = _mend(there, prometheus, failure, rule, result)
    finally:
        there.unload()
    await_health(there)
    there.until_quiet(live, seconds=MENDED_SECONDS)
    result.mended_seconds = time.monotonic() - mending
    await_calm(prometheus, failure)
    result.ended_seconds = time.monotonic() - mending
    result.trouble = "; ".join(problems(there, failure))
    result.jobs = Job.objects.count() - before
    return result


def _mend(there: Arena, prometheus: PrometheusServer, failure: Failure, rule: Rule, result: Result) -> float:
    """Make the failure, wait for its alert and mend it. Return when that was begun."""
    there.hold(WARM_SECONDS)
    known = {alert.name for alert in prometheus.alerts() if alert.firing}
    began, began_at = time.monotonic(), time.time()
    with failure.happen(there):
        fired = wait_until(
            lambda: prometheus.firing(failure.alert, failure.topic),
            seconds=FIRES_SECONDS,
            what=lambda: f"{failure.alert} to fire; there are {prometheus.alerts()}",
        )
        result.fired_seconds = time.monotonic() - began
        true_after = max(0, min(alert.since.timestamp() for alert in fired) - began_at)
        result.real_seconds = true_after + rule.later_seconds + rule.for_seconds
        result.health = read_health(there)
        others = {alert.name for alert in prometheus.alerts() if alert.firing} - known - {failure.alert}
        result.others = sorted(others)
        mending = time.monotonic()
    return mending


def await_scraped(prometheus: PrometheusServer) -> None:
    """Wait until Prometheus has seen each metric whose change is an alert."""
    wait_until(
        lambda: prometheus.has_values("delaytasks_mirror_rebuilt_timestamp_seconds"),
        seconds=STARTED_SECONDS,
        what="Prometheus to scrape the installation",
    )


def await_calm(prometheus: PrometheusServer, failure: Failure) -> None:
    """Wait until the failure's alert does not fire."""
    wait_until(
        lambda: not prometheus.firing(failure.alert, failure.topic),
        seconds=MENDED_SECONDS,
        what=f"{failure.alert} to end",
    )


def await_health(there: Arena) -> None:
    wait_until(
        lambda: read_health(there) == "ok",
        seconds=MENDED_SECONDS,
        what=lambda: f"/readyz to be ok; it says {read_health(there)}",
    )


def read_health(there: Arena) -> str:
    """Return "ok", or what fails, as /readyz says; "no answer" if it does not answer."""
    try:
        with _opener.open(f"{there.url}/readyz", timeout=READYZ_SECONDS) as response:
            answer = json.load(response)
    except urllib.error.HTTPError as error:
        answer = json.load(error)
    except OSError:
        return "no answer"
    wrong = [f"{name} {state}" for name, state in answer["checks"].items() if state not in ("ok", "unknown")]
    return ", ".join(wrong) or "ok"


def live() -> int:
    return trial._live()


def problems(there: Arena, failure: Failure) -> list[str]:
    """Return the promises that were broken, and jobs of the failure that have not finished."""
    _, violations = trial._mended(there, trial.MENDED_SECONDS)
    there.seen.update(map(trial._identity, violations))
    found = [f"{each.kind}: {each.topic} {each.key}: {each.why}" for each in violations]
    if failure.topic:
        left = Job.objects.filter(topic=failure.topic).exclude(state=State.FINISHED)
        found += [f"{job} is {State(job.state).word}" for job in left]
    return found
