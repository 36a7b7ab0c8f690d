"""Settings of the web and worker processes: those of the acceptance tests, with a configurable limit."""

import os

from tests.acceptance.settings import *

DELAYTASKS = {**DELAYTASKS, "API_MAX_WAIT_SECONDS": float(os.environ.get("API_MAX_WAIT_SECONDS", "60"))}
