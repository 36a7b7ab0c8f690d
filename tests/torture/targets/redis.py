"""A watcher of the queue that a CeleryTask sends to over Redis: `python -m tests.torture.targets.redis TOPIC PORT`.

It takes nothing: a message that a consumer has taken is lost if the consumer or its answer is.
"""

import base64
import contextlib
import json
import sys
import time

import redis

from .witness import Witness

LOOKS_SECONDS = 0.1


def watch(client: redis.Redis, witness: Witness, seen: int) -> int:
    """Record the messages after the first `seen`; return how many there are."""
    # Celery puts new messages in front.
    new = client.lrange(witness.topic, 0, -(seen + 1))
    for raw in reversed(new):  # type: ignore[arg-type]
        message = json.loads(raw)
        _args, kwargs, _options = json.loads(base64.b64decode(message["body"]))
        witness.receives((message["headers"]["id"], kwargs["key"]))
    return seen + len(new)  # type: ignore[arg-type]


def main(topic: str, port: str) -> None:
    witness, client, seen = Witness(topic), redis.Redis("127.0.0.1", int(port), socket_timeout=2), 0
    print("ready.", flush=True)
    while True:
        with contextlib.suppress(redis.RedisError):
            seen = watch(client, witness, seen)
        time.sleep(LOOKS_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
