"""One job from its creation to its end over REST. The client is generated from the OpenAPI document.

    python rest.py order:1042

Set DELAYTASKS_URL (https://tasks.example.com/api/queue/), DELAYTASKS_TOKEN and TOPIC in the environment.
"""

import os
import sys
from typing import TypeVar
from urllib.parse import urljoin

import httpx
from delaytasks_rest import AuthenticatedClient
from delaytasks_rest.api.consumers import finish_job, reserve_jobs
from delaytasks_rest.api.jobs import create_jobs, read_job
from delaytasks_rest.models import Ended, Held, JobWithEvents, LiveProblem, MadeJob, NewJob, Reserve, Reserved

T = TypeVar("T")
site = urljoin(os.environ["DELAYTASKS_URL"], "/")
topic, key = os.environ["TOPIC"], sys.argv[1]
api = AuthenticatedClient(site, token=os.environ["DELAYTASKS_TOKEN"], timeout=httpx.Timeout(40))


def expect(kind: type[T], answer: object) -> T:
    """Return an answer of this kind. Ends the program with any other, such as a Problem."""
    if not isinstance(answer, kind):
        sys.exit(f"Not a {kind.__name__}: {answer}")
    return answer


new_job = NewJob(topic=topic, key=key, delay_seconds=1, body={"order": key})
made = expect(MadeJob, create_jobs.sync(client=api, body=new_job))
print(f"{made.result} {made.key} as job {made.id}")

# By default a second job with a live key is refused, with status 409.
problem = create_jobs.sync(client=api, body=new_job)
if isinstance(problem, LiveProblem):
    print(f"refused: {key} is live as job {problem.job_id}")

reserved = expect(Reserved, reserve_jobs.sync(topic, client=api, body=Reserve(wait_seconds=30)))
for job in reserved.jobs:
    print(f"reserved {job.key}, attempt {job.attempt}")
    ended = expect(Ended, finish_job.sync(job.id, client=api, body=Held(attempt=job.attempt)))
    read = expect(JobWithEvents, read_job.sync(job.id, client=api))
    print(f"{ended.state} {job.key}: {', '.join(event.outcome for event in read.events)}")
