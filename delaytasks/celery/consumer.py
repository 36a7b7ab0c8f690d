"""A Celery consumer that survives the loss of its broker and reconnects within seconds.

With Redis as broker, kombu up to 5.7 closes, in two steps, a channel whose connection is lost. The second step returns
the prefetched messages through the lost connection, which raises AttributeError; Celery takes this error for
unrecoverable, and the worker ends. The messages are not needed: a run_topic message is sent again, all others come
back after the broker's visibility timeout.

Celery 5.7 also ends if a process of the pool ends just before the broker is lost: it has stopped watching that process
and, after it has reconnected, watches all processes of the pool again.

A Redis that is out of memory refuses acknowledgements. For Celery that is a channel error, which ends the worker by
default.

In a cold shutdown Celery signals that the worker shuts down only after it has terminated the tasks that run.
"""

import functools
import logging
from typing import Any

from celery.exceptions import WorkerTerminate
from celery.platforms import EX_FAILURE
from celery.worker import consumer

from . import bootsteps, shutdown
from .prefetch import has_redis_broker

logger = logging.getLogger("delaytasks")
DEFAULT_RETRIES = 100  # Celery's default
MAX_INTERVAL_SECONDS = 3  # kombu's intervals grow to 30 s: due jobs would wait although the broker is back


class Consumer(consumer.Consumer):
    def on_connection_error_after_connected(self, exc: Exception) -> None:
        close = self.connection.close

        def close_quietly() -> None:
            try:
                close()
            except AttributeError as error:
                logger.warning("closing the lost connection to the broker failed: %s", error)

        self.connection.close = close_quietly
        super().on_connection_error_after_connected(exc)

    def ensure_connected(self, conn: Any) -> Any:
        conn.ensure_connection = functools.partial(
            conn.ensure_connection, interval_start=1, interval_max=MAX_INTERVAL_SECONDS
        )
        return super().ensure_connected(conn)

    def cancel_active_requests(self) -> None:
        """Terminate the tasks that run, in a cold shutdown. First let their processes know: their jobs do not fail."""
        shutdown.stop()
        try:
            super().cancel_active_requests()
        except NotImplementedError as error:  # by the pools solo and threads; in solo, this is inside the handler
            raise WorkerTerminate(EX_FAILURE) from error

    def loop_args(self) -> Any:
        watch_again(self.pool)
        return super().loop_args()


def watch_again(pool: Any) -> None:
    """Let Celery watch the processes of a pool again that it has stopped watching, because they have ended."""
    for process in bootsteps.processes(pool):
        if getattr(process, "_sentinel_poll", process) is None:
            del process._sentinel_poll


def set_consumer(sender: Any, **_: Any) -> None:
    """Make a worker use this consumer, unless the project has set `worker_consumer`."""
    if sender.consumer_cls == "celery.worker.consumer:Consumer":
        sender.consumer_cls = Consumer
        conf = sender.app.conf
        if conf.broker_connection_max_retries == DEFAULT_RETRIES:
            # No limit: 100 retries would take only 5 minutes with these intervals, and 50 minutes with kombu's.
            conf.broker_connection_max_retries = None
        if has_redis_broker(conf):
            conf.broker_channel_error_retry = True  # retry when Redis is out of memory
