"""A job that is reserved for a request that ends without an answer is released at once."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from delaytasks.api.batching import batchers
from delaytasks.jobs import schedule
from delaytasks.models import Job, JobEvent
from delaytasks.states import State
from tests.support import asgi_client
from tests.support.servers import wait_until

pytestmark = pytest.mark.on_both
REQUESTS = {
    "pop": ("/api/queue/", {"command": "pop", "topic": "mail.send"}),
    "waiting pop": ("/api/queue/", {"command": "pop", "topic": "mail.send", "wait": 20}),
    "reserve": ("/api/topics/mail.send/reserve/", {"wait_seconds": 20}),
}


@pytest.fixture
def headers(make_token: Callable[..., str], rest_topics: None) -> dict[str, str]:
    asgi_client.clear_caches()
    return {"Authorization": f"Bearer {make_token(topics={'*': 'produce consume'})}"}


class Server:
    """A server that cancels a request so many steps of its event loop after the batcher has answered it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.task: asyncio.Task[Any] | None = None

    def answered(self, left: int) -> None:
        if left > 0:
            asyncio.get_running_loop().call_soon(self.answered, left - 1)
        elif self.task is not None:
            self.task.cancel()

    async def serve(self, path: str, body: bytes, headers: dict[str, str]) -> int:
        """Return the status of the answer, or 0 if the request was cancelled before it was sent."""
        self.task = asyncio.ensure_future(asgi_client.arequest("POST", path, body, "application/json", headers))
        try:
            return int((await self.task).status_code)
        except asyncio.CancelledError:
            return 0


@pytest.mark.parametrize("request_", REQUESTS)
def test_job_is_answered_or_released_whenever_the_server_cancels_its_request(
    request_: str, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, data = REQUESTS[request_]
    set_results, statuses = batchers._set_results, []
    for steps in range(16):
        job = schedule.schedule("mail.send", f"k{steps}", delay=0)
        server = Server(steps)

        def set_and_tell(*args: Any, server: Server = server) -> None:
            if server.steps == 0:
                server.answered(0)
            set_results(*args)
            server.answered(server.steps)

        monkeypatch.setattr(batchers, "_set_results", set_and_tell)
        serving = server.serve(path, json.dumps(data).encode(), headers)
        status = asyncio.run_coroutine_threadsafe(serving, asgi_client._loop()).result(20)
        statuses.append(status)
        if status == 0:
            wait_until(lambda: _is_released(job.pk), seconds=5, what=f"the job to be released, {steps} steps later")  # noqa: B023
        Job.objects.all().delete()
    assert statuses[0] == 0, "the request was not cancelled"
    assert statuses[-1] == 200, "the request was not answered"


def _is_released(job_id: int) -> bool:
    job = Job.objects.get(pk=job_id)
    return job.state == State.DELAYED and JobEvent.objects.filter(job_id=job_id, outcome="released").exists()
