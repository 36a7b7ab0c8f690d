"""An S3 server on loopback: moto, with one empty bucket. The environment leads pyarrow, delta-rs and Spark to it."""

import contextlib
import logging
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

BUCKET = "lake"
SECRET = "a-secret-of-the-tests"


@contextlib.contextmanager
def server() -> Iterator[dict[str, str]]:
    """Yield the environment variables for the server."""
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer  # here: its import takes a second
    from moto.s3.responses import S3Response

    lock, put_object = threading.Lock(), S3Response.put_object

    def put_one(response: S3Response) -> Any:
        """Test If-None-Match and store the object in one step, as S3 does. In moto they are two."""
        with lock:
            return put_object(response)

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # it logs each request
    running = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    running.start()
    url = f"http://127.0.0.1:{running.get_host_and_port()[1]}"
    try:
        with patch.object(S3Response, "put_object", put_one):
            _ask(f"{url}/moto-api/reset", "POST")  # a process has one store for all its servers
            _ask(f"{url}/{BUCKET}", "PUT")
            yield {
                "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1",
                "AWS_DEFAULT_REGION": "us-east-1", "AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_EC2_METADATA_DISABLED": "true",
            }  # fmt: skip
    finally:
        running.stop()


def _ask(url: str, method: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url, method=method)).close()
