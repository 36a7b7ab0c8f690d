"""A Celery consumer that outlives its broker even with messages in hand, and finds it again soon.

With Redis as broker, kombu 5.7 (and earlier) closes a channel whose connection is lost in two steps. The second would
give back the messages that were fetched and not begun, through a connection that is gone: an AttributeError, which
Celery takes for unrecoverable, so a worker that had anything to do ended itself. The messages are bells, or come
again after the broker's visibility timeout. And a Redis that is out of memory refuses even that a message is
acknowledged: to Celery an error of the channel, which unless told otherwise ends the worker as well.
"""

import functools
import logging
from typing import Any
from urllib.parse import urlsplit

from celery.worker import consumer

logger = logging.getLogger("delaytasks")
DEFAULT_RETRIES = 100  # Celery's
LOOK_SECONDS = 3  # kombu's own grow to 30: what is due would wait for them after the broker is back


class Consumer(consumer.Consumer):
    def on_connection_error_after_connected(self, exc: Exception) -> None:
        close = self.connection.close

        def close_quietly() -> None:
            try:
                close()
            except AttributeError as error:
                logger.warning("the lost connection to the broker could not be closed in order: %s", error)

        self.connection.close = close_quietly
        super().on_connection_error_after_connected(exc)

    def ensure_connected(self, conn: Any) -> Any:
        conn.ensure_connection = functools.partial(conn.ensure_connection, interval_start=1, interval_max=LOOK_SECONDS)
        return super().ensure_connected(conn)


def choose(sender: Any, **_: Any) -> None:
    """Receiver of Celery's worker_init; a project's own `worker_consumer` is left as it is."""
    if sender.consumer_cls == "celery.worker.consumer:Consumer":
        sender.consumer_cls = Consumer
        conf = sender.app.conf
        if conf.broker_connection_max_retries == DEFAULT_RETRIES:
            conf.broker_connection_max_retries = None  # of our short rests, so many are five minutes and not fifty
        if urlsplit(conf.broker_read_url or conf.broker_url or "").scheme.startswith(("redis", "sentinel")):
            conf.broker_channel_error_retry = True  # a Redis that is out of memory refuses what is to be acknowledged
