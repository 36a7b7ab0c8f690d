"""Reserve, run and delete jobs of beanstalkd: `python -m benchmarks.contestants.beanstalkd_worker PORT`."""

import json
import sys

import greenstalk

from benchmarks.contestants import rows, sink


def work(client: greenstalk.Client) -> None:
    while True:
        job = client.reserve()
        body = json.loads(job.body)
        sink.ran(body["n"], body["due"])
        if body["kind"] == "update":
            rows.touch(body["n"])
        client.delete(job)


if __name__ == "__main__":
    work(greenstalk.Client(("127.0.0.1", int(sys.argv[1]))))
