"""What a Celery app gets by install(app): the mover's thread in each worker, beat's entries, the TTR in its pool.

Imported by the project's celery.py, before Django's apps are loaded: what needs models is imported when a step starts.
"""

from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery import Celery, bootsteps, signals

from . import beat, conf, topics, ttr
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
    app.on_after_finalize.connect(beat.add_entries, weak=False)
    signals.worker_shutting_down.connect(stop, weak=False)
    signals.worker_process_init.connect(_enforce_ttr, weak=False)
    signals.worker_init.connect(begin, weak=False)
    signals.worker_init.connect(_refuse_clashes, weak=False)
    signals.worker_init.connect(_outlive_the_broker, weak=False)


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
