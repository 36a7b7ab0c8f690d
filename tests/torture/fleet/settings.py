"""Settings of the fleet's processes: the project's, with three databases on three servers.

DATABASE_URL, EAST_URL, WEST_URL   the databases default, east and west; `migrate` of one of them needs only the first
"""

import dj_database_url

from project.settings import *
from tests.torture.fleet import ALIASES

INSTALLED_APPS = [*INSTALLED_APPS, "tests.torture.fleet"]
for alias in ALIASES[1:]:
    url = env(f"{alias.upper()}_URL") or env("DATABASE_URL")
    DATABASES[alias] = DATABASES["default"] | dict(dj_database_url.parse(url))
for each in DATABASES.values():
    each["OPTIONS"] = {"connect_timeout": 2}  # a server may accept connections and not answer
DATABASE_ROUTERS = ["tests.torture.fleet.router.Router"]
DELAYTASKS = {**DELAYTASKS, "DATABASES": list(ALIASES), "TTR_GRACE_SECONDS": 1.0, "SWEEP_SECONDS": 5}
