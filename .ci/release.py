"""Build a release in dist/: `python .ci/release.py`.

    delaytasks-<version>.tar.gz, .whl    built from the files of the commit, not from the working tree
    delaytasks-<version>.cdx.json        the installed packages and their versions, as an SBOM in CycloneDX 1.6
    SHA256SUMS                           the hashes of these three: `sha256sum -c SHA256SUMS`

The same commit gives the same files on every machine with the same build tools: their times are the commit's.
Exits with 1 if the working tree differs from the commit. Prints the command that tags the commit.
"""

import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

ROOT = Path(__file__).parents[1]
REQUIREMENTS = ("requirements.txt", "requirements-pipeline.txt")
EXTRAS = ("prometheus-client",)


def git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(out: Path) -> int:
    if changed := git("status", "--porcelain"):
        print(f"The working tree differs from the commit; commit or remove these first:\n{changed}", file=sys.stderr)
        return 1
    epoch, version = int(git("log", "-1", "--format=%ct")), read_version()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as directory:
        tree = extract_commit(Path(directory) / "tree")
        build(tree, out, epoch)
    for sdist in out.glob("*.tar.gz"):
        normalize(sdist, epoch)
    (out / f"delaytasks-{version}.cdx.json").write_text(sbom(version, epoch))
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in sorted(out.iterdir()))
    (out / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    print(f"Tag this commit with: git tag -s v{version} -m 'delaytasks {version}'")
    return 0


def read_version() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "delaytasks/__init__.py").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def extract_commit(into: Path) -> Path:
    """Write the files of the commit into a new directory."""
    command = ["git", "-C", str(ROOT), "-c", "tar.umask=0022", "archive", "HEAD"]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(into, filter="data")
    return into


def build(tree: Path, out: Path, epoch: int) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(tree)]
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(epoch), "PYTHONHASHSEED": "0"}
    # The wheel keeps the modes of its files.
    done = subprocess.run(command, env=environment, umask=0o022, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The build failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")


def normalize(sdist: Path, epoch: int) -> None:
    """Write the archive again, with sorted names, the commit's time and no owner: setuptools does not."""
    with tarfile.open(sdist) as old:
        members = [(member, old.extractfile(member)) for member in sorted(old.getmembers(), key=lambda each: each.name)]
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as new:
            for member, content in members:
                member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
                member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
                member.pax_headers = {}
                new.addfile(member, content)
    with sdist.open("wb") as file, gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(plain.getvalue())


def sbom(version: str, epoch: int) -> str:
    """Return the SBOM: the packages that requirements.txt and the extras bring, as installed here."""
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.output.json import JsonV1Dot6
    from packageurl import PackageURL

    bom = Bom()
    bom.serial_number = uuid5(NAMESPACE_URL, f"delaytasks/{version}/{git('rev-parse', 'HEAD')}")
    bom.metadata.timestamp = datetime.fromtimestamp(epoch, UTC)
    root = Component(name="delaytasks", version=version, type=ComponentType.LIBRARY, bom_ref=f"delaytasks@{version}")
    bom.metadata.component = root
    for name, installed in sorted(closure().items()):
        purl = PackageURL("pypi", name=name, version=installed)
        bom.components.add(
            Component(name=name, version=installed, purl=purl, type=ComponentType.LIBRARY, bom_ref=str(purl))
        )
    bom.register_dependency(root, bom.components)
    return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def closure() -> dict[str, str]:
    """Return name -> installed version of the required packages and of everything that they require."""
    waiting, found = [*EXTRAS, *required()], {}
    while waiting:
        name = re.split(r"[\s\[<>=!~;(]", waiting.pop())[0].lower().replace("_", "-")
        if name in found:
            continue
        try:
            package = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # for another platform or Python
        found[name] = package.version
        waiting += [each for each in package.requires or () if "extra ==" not in each]
    return found


def required() -> list[str]:
    lines = [line.strip() for name in REQUIREMENTS for line in (ROOT / name).read_text().splitlines()]
    return [line for line in lines if line and not line.startswith(("#", "-"))]


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist"))
