"""A process of the pool is not forked while a thread uses a database."""

import os
import threading

from delaytasks.celery import forks


def fork() -> int:
    """Fork a process that ends at once. Return its exit status."""
    pid = os.fork()
    if pid == 0:
        with forks.no_fork():  # the lock is free in the child
            os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_fork_waits_for_the_end_of_the_block(monkeypatch):
    entered, leave, order = threading.Event(), threading.Event(), []

    def work():
        with forks.no_fork():
            entered.set()
            leave.wait(60)
            order.append("work")

    monkeypatch.setattr(forks, "WAIT_SECONDS", 60)
    thread = threading.Thread(target=work)
    thread.start()
    entered.wait(60)
    forking = threading.Thread(target=lambda: order.append(fork()))
    forking.start()
    leave.set()
    thread.join(60)
    forking.join(60)
    assert order == ["work", 7]


def test_a_block_that_lasts_too_long_does_not_stop_a_fork(monkeypatch):
    monkeypatch.setattr(forks, "WAIT_SECONDS", 0.01)
    with forks.no_fork():
        assert fork() == 7
    assert fork() == 7


def test_a_block_that_lasts_long_does_not_keep_other_threads_from_their_blocks():
    entered = threading.Event()

    def enter():
        with forks.no_fork():
            entered.set()

    with forks.no_fork():
        threading.Thread(target=enter).start()
        assert entered.wait(10)
