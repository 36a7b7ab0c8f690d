"""install(app) adds a mover thread to each worker, entries to beat's schedule, and TTR enforcement to the pool.

It also disables prefetching where the broker allows that.

The project's celery.py imports this before Django's apps are loaded, so imports that need models are local.
"""

import logging
import time
from typing import TYPE_CHECKING, Any

from billiard.process import current_process
from celery import Celery, bootsteps, signals
from kombu.utils.compat import detect_environment

from .. import conf, databases, handlers
from ..worker import process_name, ttr
from . import beat, log_filter, shutdown
from .prefetch import disable_prefetch

if TYPE_CHECKING:
    from .heartbeat import HeartbeatThread, TouchThread
    from .metrics_server import MetricsServer
    from .mover_thread import MoverThread

logger = logging.getLogger("delaytasks")
STOP_SECONDS = 5  # how long a worker that stops waits for its threads: a database may not answer


def _stop_threads(threads: list[Any]) -> None:
    for thread in threads:
        thread.stop()
    deadline = time.monotonic() + STOP_SECONDS
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    threads.clear()


class MoverStep(bootsteps.StartStopStep):
    """Runs a mover thread for each database, started after the pool has forked its children."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.threads: list[MoverThread] = []

    def start(self, parent: Any) -> None:
        from .connections import measure_time_anew
        from .mover_thread import MoverThread

        if conf.get().mover_thread:
            measure_time_anew()  # jobs are due by the database's clock
            self.threads = [MoverThread(using) for using in databases.aliases()]
            for thread in self.threads:
                thread.start()

    def stop(self, parent: Any) -> None:
        shutdown.stop()  # a remote shutdown sends no worker_shutting_down, and the pool waits for its processes
        _stop_threads(self.threads)

    terminate = stop


class HeartbeatStep(bootsteps.StartStopStep):
    """Names the worker before the pool forks, and starts its heartbeat, which an AfterPoolStep stops."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.threads: list[HeartbeatThread | TouchThread] = []

    def create(self, parent: Any) -> None:
        from ..maintenance import liveness

        parent.steps.insert(0, AfterPoolStep(parent, heartbeat=self))
        if detect_environment() == "default":
            process_name.start_worker()
            liveness.open_touches()
        else:
            logger.warning("This pool has no heartbeat: the jobs of a dead worker are taken back when their TTR ends.")

    def start(self, parent: Any) -> None:
        from ..maintenance import liveness
        from .heartbeat import HeartbeatThread, TouchThread

        worker = process_name.worker_name()
        if worker is None:
            return
        self.threads = [
            HeartbeatThread(using, worker, lambda: _process_ids(parent.pool), lambda: _maintain(parent))
            for using in databases.aliases()
        ]
        self.threads += [TouchThread(using, pipe) for using, pipe in liveness.touches.items()]
        for thread in self.threads:
            thread.start()


class AfterPoolStep(bootsteps.StartStopStep):
    """Once the pool has stopped, stops what its jobs needed. The process may live on, as in a test that runs a worker.

    It is the first of a worker's steps, because they are stopped in reverse order.
    """

    def __init__(self, parent: Any, *, heartbeat: HeartbeatStep, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self._heartbeat = heartbeat

    def stop(self, parent: Any) -> None:
        from ..maintenance import liveness
        from . import connections

        _stop_threads(self._heartbeat.threads)
        liveness.close_touches()
        process_name.stop_worker()
        ttr.stop_enforcing()
        connections.stop_measuring_time_anew()
        connections.close_idle()

    terminate = stop


def processes(pool: Any) -> list[Any]:
    """Return a pool's processes; none for a pool of threads or the solo pool."""
    return list(getattr(getattr(pool, "_pool", None), "_pool", None) or [])


def _process_ids(pool: Any) -> list[int]:
    return [process.pid for process in processes(pool) if getattr(process, "pid", None)]


def _maintain(parent: Any) -> None:
    """Make the pool replace a process that has ended, which it would notice up to five seconds later."""
    maintain = getattr(parent.pool, "maintain_pool", None)
    if maintain is not None and parent.hub is not None:
        parent.hub.call_soon(maintain)


class MetricsStep(bootsteps.StartStopStep):
    """Serves the worker's metrics if METRICS_PORT is set, started after the pool has forked its children."""

    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **kwargs: Any) -> None:
        super().__init__(parent, **kwargs)
        self.server: MetricsServer | None = None

    def start(self, parent: Any) -> None:
        from .metrics_server import MetricsServer

        if conf.get().metrics_port:
            self.server = MetricsServer(conf.get().metrics_port)

    def stop(self, parent: Any) -> None:
        if self.server is not None:
            self.server.stop()
            self.server = None

    terminate = stop


def install(app: Celery) -> None:
    """Add delaytasks to a Celery app. Call it in the project's celery.py; nothing else is needed."""
    app.steps["worker"].add(MoverStep)
    app.steps["worker"].add(HeartbeatStep)
    app.steps["worker"].add(MetricsStep)
    app.autodiscover_tasks(["delaytasks"])
    disable_prefetch(app)
    app.on_after_finalize.connect(beat.add_entries, weak=False)
    log_filter.install()
    signals.worker_shutting_down.connect(shutdown.stop, weak=False)
    signals.worker_process_init.connect(_enforce_ttr, weak=False)
    signals.worker_init.connect(shutdown.reset, weak=False)
    signals.worker_init.connect(_check_handlers, weak=False)
    signals.worker_init.connect(_set_consumer, weak=False)
    signals.worker_init.connect(_prepare_metrics, weak=False)


def is_installed(app: Celery) -> bool:
    """Return whether install() was called for this Celery app."""
    return MoverStep in app.steps["worker"]


def _enforce_ttr(**_: Any) -> None:
    """Enforce TTRs in a pool process. The main process (solo pool) gets no watchdog, which would end the worker."""
    from ..worker.isolation import cancel_queries
    from .connections import measure_time_anew

    measure_time_anew()  # TTRs are measured by the database's clock
    is_child = current_process()._name != "MainProcess"
    ttr.enforce(watchdog=is_child, grace_seconds=conf.get().ttr_grace_seconds, before_interrupt=cancel_queries)


def _set_consumer(sender: Any, **_: Any) -> None:
    from .consumer import set_consumer  # imported late: only a worker needs Celery's consumer

    set_consumer(sender)


def _prepare_metrics(**_: Any) -> None:
    from . import metrics_server  # imported late: it needs Django's database connections

    metrics_server.prepare()


def _check_handlers(**_: Any) -> None:
    if handlers.clashes:
        raise SystemExit("delaytasks: " + " ".join(handlers.clashes) + " Give each topic one handler.")
