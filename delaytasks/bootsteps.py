"""What a Celery app gets by install(app): the mover's thread in each worker, beat's entries, the TTR in its pool.

Imported by the project's celery.py, before Django's apps are loaded: what needs models is imported when a step starts.
"""

from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery import Celery, bootsteps, signals

from . import conf, topics, ttr
from .stopping import begin, stop

if TYPE_CHECKING:
    from .mover_thread import MoverThread


class MoverStep(bootsteps.StartStopStep):
    """Starts the thread once the pool has forked its children."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.thread: MoverThread | None = None

    def start(self, parent: Any) -> None:
        from .mover_thread import MoverThread

        if conf.get().mover_thread:
            self.thread = MoverThread()
            self.thread.start()

    def stop(self, parent: Any) -> None:
        if self.thread is not None:
            self.thread.stop()
            self.thread = None

    terminate = stop


def install(app: Celery) -> None:
    """Add delaytasks to a Celery app: `install(app)` in the project's celery.py is all that is needed."""
    app.steps["worker"].add(MoverStep)
    app.autodiscover_tasks(["delaytasks"])
    app.on_after_finalize.connect(_add_beat_entries, weak=False)
    signals.worker_shutting_down.connect(stop, weak=False)
    signals.worker_process_init.connect(_enforce_ttr, weak=False)
    signals.worker_init.connect(begin, weak=False)
    signals.worker_init.connect(_refuse_clashes, weak=False)
    signals.worker_init.connect(_outlive_the_broker, weak=False)


def _add_beat_entries(sender: Celery, **_: Any) -> None:
    settings = conf.get()
    tick_seconds = settings.guard_tick_ms / 1000
    entries = {
        # The expiry is by the wall clocks of two hosts, and a pool may be busy when they come: it leaves room for both.
        "delaytasks.move_due": (tick_seconds, max(tick_seconds * 2, 60)),
        "delaytasks.sweep": (settings.sweep_seconds, max(settings.sweep_seconds * 4, 60)),
    }
    for name, (seconds, expires) in entries.items():
        entry = {"task": name, "schedule": seconds, "options": {"expires": expires, "ignore_result": True}}
        sender.conf.beat_schedule = {**(sender.conf.beat_schedule or {}), name: entry}


def _enforce_ttr(**_: Any) -> None:
    """In a prefork child, or in the main process of a solo pool, where the watchdog must not end the worker."""
    from .interrupted import cancel_queries

    in_child = current_process()._name != "MainProcess"
    ttr.enforce(watchdog=in_child, grace_seconds=conf.get().ttr_grace_seconds, before_interrupt=cancel_queries)


def _outlive_the_broker(sender: Any, **_: Any) -> None:
    from .reconnecting import choose  # Celery's consumer, which only a worker needs

    choose(sender)


def _refuse_clashes(**_: Any) -> None:
    if topics.clashes:
        raise SystemExit("delaytasks: " + " ".join(topics.clashes) + " Give each topic one handler.")
