"""The metrics of a worker and its pool, served over HTTP on METRICS_PORT."""

import fcntl
import glob
import logging
import os
import shutil
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from django.db import connections

from .. import conf
from .forks import no_fork

logger = logging.getLogger("delaytasks")
PREFIX, LOCK = "delaytasks-metrics-", "lock"
VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def prepare(**_: Any) -> None:
    """Choose a directory for the counters of the pool's processes, before the pool forks them. Receiver of worker_init.

    prometheus_client reads PROMETHEUS_MULTIPROC_DIR when it is first imported. If the project has imported it before,
    it reads it again here. After a restart by SIGHUP, the environment has the directory that the former worker chose,
    whose lock is free.
    """
    if not conf.get().metrics_port:
        return
    given = os.environ.get(VARIABLE, PREFIX)
    if os.path.basename(given).startswith(PREFIX) and given != _directories.own:
        os.environ[VARIABLE] = directory = make_directory()
        weakref.finalize(_directories, _remove, directory, os.getpid())
        _directories.own = directory
        if "prometheus_client" in sys.modules:
            _read_directory_again()
    try:
        from ..monitoring import prometheus
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"delaytasks: METRICS_PORT is set, but {error.name} is not installed. "
            'Run pip install "delaytasks[prometheus]".'
        ) from error
    prometheus.enable()


def _read_directory_again() -> None:
    from prometheus_client import values

    values.ValueClass = values.get_value_class()  # each metric looks it up when it gets a new label, as all of ours do
    logger.warning(
        "metrics: prometheus_client was imported before the worker chose a directory for its counters: metrics of the "
        "project that had no labels then are missing. To have them, set %s before the worker starts.",
        VARIABLE,
    )


def make_directory() -> str:
    """Return a new directory for counters. Remove those of killed workers, which could not do it themselves.

    A worker and its pool hold a lock in their directory until the last of them has ended.
    """
    for left in glob.glob(os.path.join(tempfile.gettempdir(), PREFIX + "*")):
        if _is_abandoned(left):
            shutil.rmtree(left, ignore_errors=True)
    directory = tempfile.mkdtemp(prefix=PREFIX)
    new = os.path.join(directory, "new")
    descriptor = os.open(new, os.O_CREAT | os.O_RDWR, 0o600)  # open until this process and its pool end
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.rename(new, os.path.join(directory, LOCK))  # nobody sees the file before it is locked
    return directory


def _is_abandoned(directory: str) -> bool:
    """Return whether the directory's lock is free. False without a lock: it is new, or of an earlier version."""
    try:
        descriptor = os.open(os.path.join(directory, LOCK), os.O_RDWR | os.O_NOFOLLOW)
    except OSError:  # also: the directory of another user
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


class _Directories:
    """Lives as long as this process, so that its directory is removed at the exit."""

    own = ""  # "": the directory was given, and other workers may use it as well


_directories = _Directories()


def _remove(directory: str, pid: int) -> None:
    if os.getpid() == pid:  # not in a forked process
        shutil.rmtree(directory, ignore_errors=True)


class MetricsServer:
    """An HTTP server with the metrics of this worker, in a thread. Raises SystemExit if the port cannot be used."""

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

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def collect(self) -> Iterator[Any]:
        """Yield all metrics. A fork waits for a scrape, within the limit of no_fork().

        One scrape at a time merges and reads the files. None waits for the database queries of another one.
        """
        from ..monitoring import prometheus
        from . import metric_files

        try:
            with self._lock, no_fork():
                if _directories.own:
                    metric_files.merge_ended(_directories.own)
                counts = list(prometheus.make_process_registry().collect())
            yield from counts
            with no_fork():
                numbers = list(prometheus.JobCollector().collect())
            yield from numbers
        finally:
            connections.close_all()

    def restricted_registry(self, names: Any) -> "_Registry":
        return self
