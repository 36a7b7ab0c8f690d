"""Build wheels from this tree or from a commit, and install them into directories."""

import io
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "var", "__pycache__", "*.egg-info", "build", "dist")


class CommitMissing(Exception):
    """The commit that a wheel is built from is not in this clone."""


def run(*command: str, cwd: Path, **environment: str) -> str:
    """Run a command and return its output; fail with the output if it fails.

    Bytecode is kept: an installed wheel has none, and each process would compile its modules anew.
    """
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": str(cwd), **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def copy_tree(into: Path) -> Path:
    """Copy the working tree, because setuptools leaves scratch files in the tree that it builds from."""
    return Path(shutil.copytree(ROOT, into, ignore=LEFT_OUT))


def extract_commit(commit: str, into: Path) -> Path:
    """Write the tree of a commit into a directory. Raises CommitMissing."""
    archive = subprocess.run(["git", "-C", str(ROOT), "archive", "--format=tar", commit], capture_output=True)
    if archive.returncode:
        raise CommitMissing(
            f"This test builds a wheel from commit {commit}, which git could not read here: "
            f"{archive.stderr.decode(errors='replace').strip()}\n"
            "If the clone is shallow, run `git fetch --unshallow`; in CI, check out with the full history."
        )
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
        files.extractall(into, filter="data")
    return into


def build_wheel(tree: Path) -> Path:
    """Build a wheel from a writable directory; the wheel is written beside it."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation"]
    run(*build, "--outdir", str(tree.parent), ".", cwd=tree)
    (wheel,) = tree.parent.glob("*.whl")
    return wheel


def install_wheel(wheel: Path, target: Path) -> Path:
    """Install a wheel into a directory without dependencies; those of the running environment are used."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile"]
    run(*pip, "--target", str(target), str(wheel), cwd=target)
    return target
