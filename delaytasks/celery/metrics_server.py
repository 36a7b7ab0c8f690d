"""The metrics of a worker and its pool, served over HTTP on METRICS_PORT."""

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from typing import Any

from django.db import connections

from .. import conf

logger = logging.getLogger("delaytasks")
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def prepare(**_: Any) -> None:
    """Choose a directory for the counters of the pool's processes, before the pool forks them. Receiver of worker_init.

    The library reads the variable when it is first imported.
    """
    if not conf.get().metrics_port:
        return
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = directory = tempfile.mkdtemp(prefix="delaytasks-metrics-")
        weakref.finalize(_directories, _remove, directory, os.getpid())
    try:
        from ..monitoring import prometheus
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"delaytasks: METRICS_PORT is set, but {error.name} is not installed. "
            'Run pip install "delaytasks[prometheus]".'
        ) from error
    prometheus.enable()


class _Directories:
    """Lives as long as this process, so that its directory is removed at the exit."""


_directories = _Directories()


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked process
        shutil.rmtree(directory, ignore_errors=True)


class MetricsServer:
    """An HTTP server with the metrics of this worker, in a thread. `port` is that of METRICS_PORT."""

    def __init__(self, port: int) -> None:
        from prometheus_client import start_http_server

        try:
            self._server, self._thread = start_http_server(port, registry=_Registry())
        except OSError as error:
            raise SystemExit(
                f"delaytasks: METRICS_PORT {port} cannot be used: {error}. Give each worker of a host its own port."
            ) from error
        logger.info("metrics: http://0.0.0.0:%s/metrics", port)

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=5)


class _Registry:
    """Makes a new registry for each scrape, and closes the connections that the scrape's thread has opened."""

    def collect(self) -> Iterator[Any]:
        from ..monitoring import prometheus

        try:
            yield from prometheus.make_registry().collect()
        finally:
            connections.close_all()

    def restricted_registry(self, names: Any) -> "_Registry":
        return self
