"""The settings of the web and worker processes: those of the acceptance tests, with a limit that a test can choose."""

import os

from tests.acceptance.settings import *

DELAYTASKS = {**DELAYTASKS, "API_MAX_WAIT_SECONDS": float(os.environ.get("API_MAX_WAIT_SECONDS", "60"))}
