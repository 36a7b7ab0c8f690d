"""BullMQ on Redis: install the packages of bullmq/package-lock.json to var/bullmq, then exec node with its driver."""

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
# Not `npm ci`, which refuses a lock file without the optional packages of some platforms.
# --ignore-scripts: the only install script would compile a package that comes precompiled.
NPM = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund"]


class Missing(Exception):
    """BullMQ needs node, npm and access to an npm registry."""


def install() -> None:
    """Prepare FOLDER. Runs npm only if the lock file has changed. Raises Missing."""
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
    home = pwd.getpwuid(os.getuid()).pw_dir  # npm's configuration is there; HOME may be a temporary folder
    env = os.environ | {"HOME": home}
    completed = subprocess.run(NPM, cwd=FOLDER, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    sys.stderr.write(completed.stderr)
    if completed.returncode:
        raise Missing(f"{Missing.__doc__} `{' '.join(NPM)}` exited with {completed.returncode}.")


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
