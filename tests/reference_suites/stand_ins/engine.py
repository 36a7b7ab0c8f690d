"""Run what is due in this process, without a broker and without Redis."""

import time
from collections.abc import Callable

from delaytasks import handlers, topics
from delaytasks.worker import runner

USING = "default"
MAX_ROUNDS = 20


def run_due(is_wanted: Callable[[str], bool] = lambda topic: True) -> None:
    """Run the due jobs of the wanted topics, and those that become due meanwhile."""
    topics.clear_cache()
    wanted = [topic for topic in sorted(handlers.handled()) if is_wanted(topic)]
    for _ in range(MAX_ROUNDS):
        # Not run_topic(): it goes on with the other topics of the same Celery queue.
        if not sum(_run(topic) for topic in wanted):
            return
    raise AssertionError(f"Jobs of {wanted} are still due after {MAX_ROUNDS} rounds.")


def _run(topic: str) -> int:
    return runner._run_once(topic, USING, "suite", lambda topic: None, lambda: False, time.monotonic() + 60)
