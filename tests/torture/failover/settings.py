"""Settings of all processes: those of the torture test, with the declared timeout of `declared_load`."""

from tests.torture.settings import *

INSTALLED_APPS = [*INSTALLED_APPS, "tests.timeouts.app", "tests.torture.declared"]
DELAYTASKS = {**DELAYTASKS, "RECONCILE_SECONDS": 3600}
