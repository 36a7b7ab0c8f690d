"""Settings of all processes of a game day: those of torture, with the engine's intervals shortened as the rules are."""

from tests.torture.settings import *

from .rules import FACTOR, LEASE_SECONDS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.gameday"]
DELAYTASKS = {
    **DELAYTASKS,
    "SWEEP_SECONDS": 30 // FACTOR,
    "HEALTH_READY_SECONDS": 300 // FACTOR,
    "LEASE_SECONDS": LEASE_SECONDS,
}
