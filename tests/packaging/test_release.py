"""`make release`: the same commit gives the same files; their hashes and an SBOM are beside them."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ci_scripts

release = ci_scripts.load("release")
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean clone of the newest commit: the tree of the tests may have changes."""
    tree = tmp_path_factory.mktemp("release") / "clone"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", str(tree)], check=True)
    (tree / ".ci/release.py").write_bytes((ROOT / ".ci/release.py").read_bytes())
    subprocess.run(["git", "-C", str(tree), "update-index", "--assume-unchanged", ".ci/release.py"], check=False)
    return tree


def build(tree: Path, out: Path, *, umask: int = -1) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(tree / ".ci/release.py"), str(out)]
    return subprocess.run(command, capture_output=True, text=True, check=False, umask=umask)


def test_the_same_commit_gives_the_same_files_twice(clone: Path, tmp_path: Path) -> None:
    """Takes two builds of some seconds each. The second one is by a user whose files others cannot read."""
    first = build(clone, tmp_path / "a", umask=0o022)
    subprocess.run(["git", "-C", str(clone), "config", "tar.umask", "0077"], check=True)
    second = build(clone, tmp_path / "b", umask=0o077)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "a/SHA256SUMS").read_text() == (tmp_path / "b/SHA256SUMS").read_text()
    names = {path.suffix for path in (tmp_path / "a").iterdir()}
    assert names == {".gz", ".whl", ".json", ""}
    for line in (tmp_path / "a/SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((tmp_path / "a" / name).read_bytes()).hexdigest() == digest
    [document] = (tmp_path / "a").glob("*.cdx.json")
    bom = json.loads(document.read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    versions = {each["name"]: each["version"] for each in bom["components"]}
    assert {"django", "celery", "kombu", "redis", "psycopg", "pyspark", "prometheus-client"} <= set(versions)
    assert "pytest" not in versions
    assert "git tag -s v" in second.stdout


def test_a_changed_tree_is_refused(clone: Path, tmp_path: Path) -> None:
    (clone / "notes.txt").write_text("not committed")
    done = build(clone, tmp_path / "out")
    (clone / "notes.txt").unlink()
    assert done.returncode == 1
    assert "notes.txt" in done.stderr
    assert not (tmp_path / "out").exists()
