"""The heartbeat of a Celery worker: increment its counter, and notice dead processes and dead workers."""

import logging
import os
import selectors
import threading
import time
from collections.abc import Callable

from django.db import DatabaseError, InterfaceError, connections

from .. import conf
from ..maintenance import liveness
from ..worker import process_name
from .forks import no_fork

logger = logging.getLogger("delaytasks")
OBSERVE_SECONDS = 1.0
COLLECT_SECONDS = 0.05  # pause between two statements that store touches, which are collected meanwhile


class BeatThread(threading.Thread):
    """Increments this worker's counter in one database every LEASE_SECONDS / 3. No other work delays it."""

    def __init__(self, using: str, worker: str) -> None:
        super().__init__(name=f"delaytasks-beat-{using}", daemon=True)
        self._using, self._worker = using, worker
        self._stop_requested = threading.Event()

    def run(self) -> None:
        while True:
            rest_seconds = conf.get().lease_seconds / 3 if self._try_beat() else OBSERVE_SECONDS
            if self._stop_requested.wait(rest_seconds):
                return

    def _try_beat(self) -> bool:
        with no_fork():
            try:
                liveness.beat(self._using, self._worker)
            except Exception as error:
                logger.warning("heartbeat: the counter was not incremented, trying again: %s", error)
                return False
            finally:
                connections[self._using].close()
        return True

    def stop(self) -> None:
        self._stop_requested.set()


class HeartbeatThread(threading.Thread):
    """Checks, each second, all workers of one database and the processes of its own worker. Starts a BeatThread.

    There is one for each database, so that a database that does not answer delays nothing in the others.

    children        returns the ids of the pool's processes
    replace_child   tells the pool that a process has ended, so that it starts another one
    """

    def __init__(
        self, using: str, worker: str, children: Callable[[], list[int]], replace_child: Callable[[], None]
    ) -> None:
        super().__init__(name=f"delaytasks-heartbeat-{using}", daemon=True)
        self._using, self._worker, self._children, self._replace_child = using, worker, children, replace_child
        self._processes = Processes()
        self._dead: set[int] = set()  # ended processes whose jobs have not all been taken back
        self._known: set[int] = set()  # the pool's processes at the last pass
        self._look_for_unseen = False
        self._last_failure = process_name.last_failure()
        self._observer = liveness.Observer(using, worker)
        self._slots_freed_at = float("-inf")
        self._beats = BeatThread(using, worker)
        self._stop_requested = threading.Event()

    def run(self) -> None:
        self._beats.start()
        while True:
            children = self._children()
            self._look_for_unseen |= self._a_run_has_failed() or self._known != set(children)
            self._known = set(children)
            self._processes.watch(children)
            ended = self._processes.wait(OBSERVE_SECONDS if children else 0)
            if ended:
                self._dead |= ended
                self._replace_child()
            look_for_unseen, self._look_for_unseen = self._look_for_unseen or bool(ended), False
            self._try_pass(look_for_unseen)
            if self._stop_requested.wait(0 if children else OBSERVE_SECONDS):
                if not self._holds_jobs(""):
                    break
                time.sleep(OBSERVE_SECONDS)  # a thread of the pool may still run a job after a cold shutdown
        self._beats.stop()
        self._beats.join()  # it would create the row again
        with no_fork():
            try:
                liveness.delete_worker(self._using, self._worker)
            except Exception as error:
                logger.warning("heartbeat: the worker's row was not deleted: %s", error)
            finally:
                connections.close_all()

    def stop(self) -> None:
        """Ask both threads to end once the worker holds no more jobs. The caller joins this one."""
        self._stop_requested.set()

    def _a_run_has_failed(self) -> bool:
        """Return whether a run of a topic in one of this worker's processes has failed since the last call."""
        before, self._last_failure = self._last_failure, process_name.last_failure()
        return self._last_failure != before

    def _try_pass(self, look_for_unseen: bool) -> None:
        with no_fork():  # also while a connection is closed
            try:
                if look_for_unseen:
                    self._find_unseen()
                self._pass()
            except (DatabaseError, InterfaceError) as error:
                self._look_for_unseen |= look_for_unseen
                logger.warning("heartbeat: the database failed, trying again: %s", error)
                connections[self._using].close()
            except Exception:
                logger.exception("heartbeat: a pass failed, trying again")

    def _find_unseen(self) -> None:
        """Take back the jobs of processes that are not in a run. Find dead processes that nobody has watched.

        These are processes that hold jobs, and that began and ended between two passes.
        """
        if not liveness.take_back_abandoned_jobs(self._using, self._worker):
            self._look_for_unseen = True
        for pid in liveness.holding_process_ids(self._using, self._worker) - {os.getpid(), *self._children()}:
            if has_ended(pid):
                self._dead.add(pid)
            else:  # the pool has just started it, or has not waited for its end yet
                self._look_for_unseen = True

    def _pass(self) -> None:
        using, now = self._using, time.monotonic()
        if now - self._slots_freed_at >= conf.get().lease_seconds / 3:
            self._slots_freed_at = now
            liveness.delete_old_touches(using)
            liveness.free_stale_slots(using, self._worker, [os.getpid(), *self._children()])
        for pid in self._dead:
            liveness.take_back_jobs(using, f"{self._worker}/{pid}")
            liveness.free_slots(using, f"{self._worker}/{pid}")
        self._observer.clean_up_dead()
        self._dead = {pid for pid in self._dead if self._holds_jobs(str(pid))}

    def _holds_jobs(self, process: str) -> bool:
        """Return whether a process of this worker holds jobs; "": any."""
        try:
            return liveness.holds_jobs(self._using, f"{self._worker}/{process}")
        except (DatabaseError, InterfaceError):
            return True


class TouchThread(threading.Thread):
    """Stores the touches of the worker's handlers in one database.

    It connects only once there is a touch. Like HeartbeatThread, there is one for each database.
    """

    def __init__(self, using: str, pipe: liveness.TouchPipe) -> None:
        super().__init__(name=f"delaytasks-touches-{using}", daemon=True)
        self._using, self._pipe = using, pipe
        # (job id, attempt) -> the last touch of the attempt, which is not stored yet
        self._waiting: dict[tuple[int, int], liveness.Touched] = {}
        self._stop_requested = threading.Event()

    def run(self) -> None:
        while not self._stop_requested.wait(COLLECT_SECONDS):
            self.step(OBSERVE_SECONDS if self._waiting else None)
        with no_fork():
            connections.close_all()

    def stop(self) -> None:
        """Ask the thread to end. The caller joins it."""
        self._stop_requested.set()
        self._pipe.wake()

    def step(self, seconds: float | None) -> None:
        """Wait for touches and store them. Those that cannot be stored are tried again with the next ones."""
        self._waiting |= {touched[:2]: touched for touched in self._pipe.read(seconds)}
        if not self._waiting:
            return
        with no_fork():
            try:
                liveness.store_touches(self._using, self._waiting.values())
            except (DatabaseError, InterfaceError) as error:
                logger.warning("heartbeat: touches were not stored, trying again: %s", error)
                connections[self._using].close()
            else:
                self._waiting.clear()


def has_ended(pid: int) -> bool:
    """Return whether a process of this user has ended."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):  # PermissionError: another user's process has got the id
        return True
    return False


class Processes:
    """Waits for the end of processes that this process has started.

    It watches them by pidfds. Where there are none (not Linux, an old kernel, a sandbox, too many open files), wait()
    checks each process instead, and notices its end up to `seconds` late.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._descriptors: dict[int, int | None] = {}  # process id -> its pidfd, or None

    def watch(self, pids: list[int]) -> None:
        """Also wait for these processes from now on."""
        for pid in pids:
            if pid not in self._descriptors:
                self._descriptors[pid] = descriptor = _open(pid)
                if descriptor is not None:
                    self._selector.register(descriptor, selectors.EVENT_READ, pid)

    def wait(self, seconds: float) -> set[int]:
        """Return the processes that have ended, after at most `seconds`."""
        ended = self._ended_without_descriptor()
        ended |= {key.data for key, _ in self._selector.select(0 if ended else seconds)}
        for pid in ended | self._ended_without_descriptor():
            descriptor = self._descriptors.pop(pid)
            ended.add(pid)
            if descriptor is not None:
                self._selector.unregister(descriptor)
                os.close(descriptor)
        return ended

    def _ended_without_descriptor(self) -> set[int]:
        return {pid for pid, descriptor in self._descriptors.items() if descriptor is None and _is_over(pid)}


def _open(pid: int) -> int | None:
    """Return a pidfd of a process, or None if the system has none for it."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _is_over(pid: int) -> bool:
    """Return whether a child of this process has ended, even if it has not been reaped. Does not reap it."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True
    except AttributeError:  # macOS, before Python 3.13: a process counts as ended when the pool has waited for it
        return has_ended(pid)
