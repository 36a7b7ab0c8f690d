"""Add and handle jobs with Python 3.11 and delaytasks/client.py, which may be copied beside this file.

    python consume.py add order:1042 3    adds a job that is due in one second and takes three seconds
    python consume.py                     handles due jobs until SIGTERM or Ctrl-C

Set DELAYTASKS_URL (https://tasks.example.com/api/queue/), DELAYTASKS_TOKEN and TOPIC in the environment.
"""

import logging
import os
import sys

try:
    from delaytasks.client import Client, Consumer, Job
except ModuleNotFoundError:  # client.py was copied beside this file
    from client import Client, Consumer, Job

client = Client(os.environ["DELAYTASKS_URL"], os.environ["DELAYTASKS_TOKEN"])
topic = os.environ["TOPIC"]


def handle(job: Job) -> None:
    """Do the work. It may run twice, so make it idempotent. Errors are stored with the job."""
    print(f"began with {job.id}, attempt {job.attempt}", flush=True)
    if job.lost.wait(job.body["seconds"]):
        return  # lease lost: another consumer may have the job
    print(f"did the work of {job.id}", flush=True)


if sys.argv[1:2] == ["add"]:
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 0
    client.add(topic, sys.argv[2], delay=1, ttr=60, body={"seconds": seconds})
    print(f"added {sys.argv[2]}, due in 1 s")
else:
    logging.basicConfig(format="%(message)s")
    print(f"waiting for {topic}", flush=True)
    unfinished = Consumer(client, topic, handle, threads=4).run()
    print("stopped", flush=True)
    sys.exit(1 if unfinished else 0)
