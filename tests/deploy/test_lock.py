"""The lock of the image has what the requirements pin, each package with a hash."""

import importlib.util
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "deploy/docker/requirements.lock").read_text()
ENTRY = re.compile(r"^([\w-]+)==([^ ]+)(?: ; .+?)? \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.MULTILINE)


def lock_script() -> Any:
    spec = importlib.util.spec_from_file_location("lock", ROOT / ".ci/lock.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def locked() -> dict[str, str]:
    return {name.lower(): version for name, version, _ in ENTRY.findall(LOCK)}


def test_the_lock_has_each_pinned_requirement_of_the_image_at_its_version() -> None:
    pinned = dict(re.fullmatch(r"([\w-]+)(?:\[.+\])?==(\S+)", line).groups() for line in lock_script().wanted())  # type: ignore[union-attr]
    assert {"django", "celery", "prometheus-client"} <= {name.lower() for name in pinned}
    found = locked()
    assert {name: found.get(name.lower()) for name in pinned} == pinned, "run `make lock`"


def test_each_locked_package_has_a_hash_and_nothing_else_is_in_the_lock() -> None:
    rest = ENTRY.sub("", LOCK).splitlines()
    assert [line for line in rest if not line.startswith("#")] == []
    assert len(locked()) > 40
