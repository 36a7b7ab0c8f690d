"""A consumer that takes one job, says which, and never finishes it: `python -m tests.http.holder PORT TOKEN TOPIC`."""

import signal
import sys

from tests.http.calling import Api

if __name__ == "__main__":
    port, token, topic = sys.argv[1:]
    (job,) = Api(int(port), token).reserve(topic, wait_seconds=30, consumer="holder")
    print(job["attempt"], flush=True)
    signal.pause()
