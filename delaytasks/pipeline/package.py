"""What executors import, as a zip: this package, the states and the rules. Nothing else of delaytasks goes along."""

import hashlib
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLAIN = ("__init__.py", "states.py", "rules.py", "exceptions.py", "clock.py")
ALONG = (*PLAIN, *(f"pipeline/{path.name}" for path in sorted(Path(__file__).parent.glob("*.py"))))


def zipped(folder: Path) -> Path:
    """The zip, put into the folder; its name is another one when a source is."""
    sources = [(f"delaytasks/{name}", (ROOT / name).read_bytes()) for name in ALONG]
    digest = hashlib.sha256(b"".join(name.encode() + data for name, data in sources)).hexdigest()[:16]
    path = folder / f"delaytasks-{digest}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sources:
            archive.writestr(zipfile.ZipInfo(name), data)
    return path
