"""Handlers that a deploy brings, takes away or changes: which code this is, the environment says.

TORTURE_WITHOUT   a topic that this code has no handler of
TORTURE_BODY      "new": this code knows bodies of the new shape alone
"""

import os
from typing import Any

from delaytasks import handler

from ..terms import BODY, BODY_ATTEMPTS, LEAVING, TTR_SECONDS
from .timeouts import KEEPS_TRYING, QUICKLY, leave_effects, witnessed

if os.environ.get("TORTURE_WITHOUT") != LEAVING:

    @handler(LEAVING, ttr=TTR_SECONDS, **KEEPS_TRYING)
    @witnessed
    def leaving(job: Any) -> None:
        leave_effects(job)


@handler(BODY, ttr=TTR_SECONDS, max_attempts=BODY_ATTEMPTS, backoff=QUICKLY)
@witnessed
def body(job: Any) -> None:
    """Jobs of before the deploy say "order" where those of today say "order_id"."""
    leave_effects(job)
    if os.environ.get("TORTURE_BODY") == "new":
        assert job.body["order_id"]
    else:
        assert job.body.get("order_id") or job.body["order"]
