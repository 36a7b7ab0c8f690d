"""BullMQ on Redis: installs what bullmq/package-lock.json names into var/bullmq and becomes node with its driver."""

import hashlib
import os
import pwd
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.contestants.lines import serve

SOURCES = Path(__file__).parent / "bullmq"
FOLDER = Path(__file__).parents[2] / "var" / "bullmq"
# `install` and not `ci`, which refuses a lock that was made where some platforms' optional packages were not on offer.
# The one install script that there is would compile what comes compiled.
NPM = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]


class Missing(Exception):
    """BullMQ needs node and npm, and npm a registry that it reaches."""


def install() -> None:
    """Lay out FOLDER; npm runs only when the lock has changed. Raises Missing."""
    if not (shutil.which("node") and shutil.which("npm")):
        raise Missing(Missing.__doc__)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for source in SOURCES.iterdir():
        if source.is_file():
            shutil.copy(source, FOLDER)
    stamp = FOLDER / "installed"
    lock = hashlib.sha256((SOURCES / "package-lock.json").read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != lock:
        _npm()
        stamp.write_text(lock)


def _npm() -> None:
    home = pwd.getpwuid(os.getuid()).pw_dir  # npm's own configuration lies there, and HOME may be a scratch folder
    env = os.environ | {"HOME": home}
    done = subprocess.run(NPM, cwd=FOLDER, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    sys.stderr.write(done.stderr)
    if done.returncode:
        raise Missing(f"{Missing.__doc__} `{' '.join(NPM)}` ended with {done.returncode}.")


def main() -> None:
    try:
        install()
    except Missing as error:
        reason = str(error)

        def describe() -> None:
            raise Missing(reason)

        serve({"describe": describe})
    else:
        os.execvp("node", ["node", str(FOLDER / "driver.mjs")])


if __name__ == "__main__":
    main()
