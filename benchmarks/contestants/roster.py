"""Find the contestants by the names of their driver files."""

import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
DRIVER = "benchmarks/contestants/delaytasks_driver.py"  # of a checkout
OURS = "delaytasks"
FORMER = "former"  # delaytasks of another checkout: it has a driver of its own


def contestants() -> dict[str, list[str]]:
    """Return the command of each contestant's driver, with delaytasks first."""
    node = shutil.which("node") or "node"
    drivers: dict[str, list[str]] = {}
    for file in sorted(HERE.glob("*_driver.*")):
        name = file.stem.removesuffix("_driver")
        if file.suffix == ".py":
            drivers[name] = [sys.executable, "-m", f"benchmarks.contestants.{file.stem}"]
        elif file.suffix in (".js", ".mjs", ".cjs"):
            drivers.setdefault(name, [node, str(file)])
    return dict(sorted(drivers.items(), key=lambda item: (item[0] != OURS, item[0])))
