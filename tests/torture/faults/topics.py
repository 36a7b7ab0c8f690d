"""Topics that staff pause while their jobs are claimed and run."""

from delaytasks.models import Topic

from .. import ledger
from ..environment import Arena
from . import fault

TIMES, SHORT_SECONDS = 10, 0.3
SEEN_SECONDS = 5  # until each process has read the topics' rows, which it caches for a second
PAUSED_SECONDS = 4
# Parts whose faults let a job that was claimed before the pause begin long after it.
ALL_SEE_IT = "topics postgres database worker consumer"


@fault("all topics are paused and resumed, several times", uses=ALL_SEE_IT)
def pause(arena: Arena) -> None:
    """At last for some seconds, in which no job begins."""
    topics = Topic.objects.filter(name__startswith="torture.")
    try:
        for _ in range(TIMES):
            assert topics.update(paused=True)
            arena.hold(SHORT_SECONDS)
            topics.update(paused=False)
            arena.hold(SHORT_SECONDS)
        topics.update(paused=True)
        arena.hold(SEEN_SECONDS)
        since = ledger.now_ns()
        arena.hold(PAUSED_SECONDS)
        begun = [each for each in ledger.read(arena.ledger) if each["kind"] == "begins" and each["at"] > since]
    finally:
        topics.update(paused=False)
    assert not begun, f"{len(begun)} jobs of paused topics began, first {begun[0]}"
