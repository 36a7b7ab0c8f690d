"""Generate typed clients of the HTTP API from docs/openapi.yaml: `make clients`, or python .ci/clients.py [DIRECTORY].

python/      the package delaytasks_rest, by openapi-python-client, which requirements-dev.txt pins
typescript/  the module delaytasks.ts, by openapi-typescript, and openapi-fetch, which uses it; docs/clients/typed pins
             both. Needs node and npm; npm needs a network, unless its cache has the packages

Each has a copy of its example beside it. The directory is var/clients by default. Nothing generated is committed.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "openapi.yaml"
EXAMPLES = ROOT / "docs" / "clients" / "typed"
# No install script is run. One attempt of 30 s: npm's own retries would take minutes on a machine without a network.
NPM_CI = [
    "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=0",
    "--fetch-timeout=30000",
]  # fmt: skip
# Codes of npm that mean "no network"; with any other, such as EINTEGRITY, something is wrong.
NO_NETWORK = {
    "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ECONNRESET", "ETIMEDOUT", "ENETUNREACH", "EHOSTUNREACH", "ENOTCACHED",
    "ERR_SOCKET_TIMEOUT", "ECONNECTIONTIMEOUT", "EIDLETIMEOUT", "ERESPONSETIMEOUT", "ETRANSFERTIMEOUT",
}  # fmt: skip


class Missing(Exception):
    """This machine lacks a program or a network. The message is half a sentence."""


class Failed(Exception):
    """A program failed. The message is its output."""


def python(directory: Path) -> Path:
    """Generate the Python package into directory/python and return that path."""
    target = directory / "python"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta=none", "--fail-on-warning"]
    _run([*command, f"--path={DOCUMENT}", f"--output-path={target / 'delaytasks_rest'}"], target)
    shutil.copy(EXAMPLES / "rest.py", target)
    return target


def typescript(directory: Path) -> Path:
    """Generate the TypeScript module into directory/typescript and return that path. Raises Missing."""
    absent = [program for program in ("node", "npm") if shutil.which(program) is None]
    if absent:
        raise Missing(f"{absent[0]} is not installed: apt-get install nodejs npm")
    target = directory / "typescript"
    target.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "tsconfig.json", "rest.ts"):
        shutil.copy(EXAMPLES / name, target)
    _install(target)
    # Without this option, fields with a default would be required in requests. A .ts file, and not .d.ts: skipLibCheck
    # leaves out the latter.
    options = ["--default-non-nullable=false", "--output=delaytasks.ts"]
    _run(["node_modules/.bin/openapi-typescript", str(DOCUMENT), *options], target)
    return target


def _install(target: Path) -> None:
    try:
        _run(NPM_CI, target)
    except Failed as failure:
        code = re.search(r"^npm (?:error|ERR!) code (\S+)", str(failure), re.MULTILINE)
        if code and code[1] in NO_NETWORK:
            raise Missing(f"npm cannot fetch its packages without a network ({code[1]})") from None
        raise


def _run(command: list[str], cwd: Path) -> None:
    """Run a program. Those of this virtual environment come first: the Python generator formats with ruff."""
    env = os.environ | {"PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])}
    done = subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


def main() -> int:
    directory = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "var" / "clients"
    print(f"Python: {python(directory)}", flush=True)
    try:
        print(f"TypeScript: {typescript(directory)}")
    except Missing as reason:
        print(f"TypeScript was NOT generated, because {reason}.", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
