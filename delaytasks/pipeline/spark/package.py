"""Build the zip that executors import: the pipeline and the modules that it needs, which do not import Django."""

import hashlib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLAIN_MODULES = ("__init__.py", "states.py", "validators.py", "exceptions.py", "clock.py", "deprecation.py")
PACKAGES = ("calendars", "pipeline")
MODULES = (
    *PLAIN_MODULES,
    *sorted(path.relative_to(ROOT).as_posix() for name in PACKAGES for path in (ROOT / name).rglob("*.py")),
)


def zipped(folder: Path) -> Path:
    """Write the zip into the folder and return its path. The file name contains a digest of the sources."""
    sources = [(f"delaytasks/{name}", (ROOT / name).read_bytes()) for name in MODULES]
    digest = hashlib.sha256(b"".join(name.encode() + data for name, data in sources)).hexdigest()[:16]
    path = folder / f"delaytasks-{digest}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sources:
            archive.writestr(zipfile.ZipInfo(name), data)
    return path
