"""Handlers that a deploy adds, removes or changes, depending on the environment.

TORTURE_WITHOUT   a topic without a handler in this version of the code
TORTURE_BODY      "new": this version only accepts bodies of the new format
"""

import os
from typing import Any

from delaytasks import handler

from ..constants import BODY, BODY_ATTEMPTS, LEAVING, TTR_SECONDS
from .timeouts import KEEPS_TRYING, QUICKLY, leave_effects, logged

if os.environ.get("TORTURE_WITHOUT") != LEAVING:

    @handler(LEAVING, ttr=TTR_SECONDS, **KEEPS_TRYING)
    @logged
    def leaving(job: Any) -> None:
        leave_effects(job)


@handler(BODY, ttr=TTR_SECONDS, max_attempts=BODY_ATTEMPTS, backoff=QUICKLY)
@logged
def body(job: Any) -> None:
    """Old bodies have the key "order", new ones "order_id"."""
    leave_effects(job)
    if os.environ.get("TORTURE_BODY") == "new":
        assert job.body["order_id"]
    else:
        assert job.body.get("order_id") or job.body["order"]
