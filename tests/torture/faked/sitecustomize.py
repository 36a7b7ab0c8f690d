"""Python finds this at its start where libfaketime is at work: it refuses time.sleep's way of sleeping (EINVAL)."""

import select
import time


def sleep(seconds: float) -> None:
    select.select([], [], [], seconds)


time.sleep = sleep
