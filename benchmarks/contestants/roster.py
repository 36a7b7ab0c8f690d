"""Which contestants there are, by the names of their driver files."""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
OURS = "delaytasks"


def found() -> dict[str, list[str]]:
    """Each contestant's command, ours first. One in JavaScript is left out where there is no node."""
    node = shutil.which("node") or "node"
    drivers: dict[str, list[str]] = {}
    for file in sorted(HERE.glob("*_driver.*")):
        name = file.stem.removesuffix("_driver")
        if file.suffix == ".py":
            drivers[name] = [sys.executable, "-m", f"benchmarks.contestants.{file.stem}"]
        elif file.suffix in (".js", ".mjs", ".cjs"):
            drivers.setdefault(name, [node, str(file)])
    return dict(sorted(drivers.items(), key=lambda each: (each[0] != OURS, each[0])))
