"""The settings of the beat and worker processes: the project's, with the handlers of the tests beside the shop's."""

import json
import os

from project.settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "tests.acceptance.app"]
DELAYTASKS = {**DELAYTASKS, "TTR_GRACE_SECONDS": 1.0, **json.loads(os.environ.get("DELAYTASKS_OF_A_TEST", "{}"))}
