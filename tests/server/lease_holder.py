"""A consumer that reserves one job and never finishes it: `python -m tests.server.lease_holder PORT TOKEN TOPIC`."""

import signal
import sys

from tests.support.http_client import Api

if __name__ == "__main__":
    port, token, topic = sys.argv[1:]
    (job,) = Api(int(port), token).reserve(topic, wait_seconds=30, consumer="holder")
    print(job["attempt"], flush=True)
    signal.pause()
