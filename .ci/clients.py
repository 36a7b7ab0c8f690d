"""Generate typed clients of the HTTP API from docs/openapi.yaml: `make clients`, or python .ci/clients.py [DIRECTORY].

python/      the package delaytasks_rest, by openapi-python-client
typescript/  the module delaytasks.ts, by openapi-typescript, and openapi-fetch, which uses it; docs/clients/typed pins
             both. Needs node and npm; npm needs a network, unless its cache has the packages
php/         the namespace Delaytasks, by OpenAPI Generator. Needs Debian's PHP and Guzzle
go/          the package delaytasks, by OpenAPI Generator, which needs only the standard library. Needs Go

Each has a copy of its example beside it. The directory is var/clients by default. Nothing generated is committed. The
requirements pin openapi-python-client, OpenAPI Generator and the Java that runs it.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

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
PHP_PACKAGES = "php-cli php-mbstring php-guzzlehttp-guzzle"
HAS_GUZZLE = 'exit((int) !(extension_loaded("mbstring") && stream_resolve_include_path("GuzzleHttp/autoload.php")));'
# What Composer would write, but with Debian's Guzzle and without a network.
AUTOLOAD = r"""<?php
require 'GuzzleHttp/autoload.php';
spl_autoload_register(function (string $class): void {
    $file = dirname(__DIR__) . '/' . strtr(lcfirst($class), '\\', '/') . '.php';
    if (str_starts_with($class, 'Delaytasks\\') && is_file($file)) {
        require $file;
    }
});
"""


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
    _need("node", "npm", packages="nodejs npm")
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


def php(directory: Path) -> Path:
    """Generate the PHP classes into directory/php and return that path. Raises Missing."""
    _need("php", packages=PHP_PACKAGES)
    if subprocess.run(["php", "-r", HAS_GUZZLE], stdin=subprocess.DEVNULL).returncode:
        raise Missing(f"PHP has no Guzzle or no mbstring: apt-get install {PHP_PACKAGES}")
    target = directory / "php"
    (target / "vendor").mkdir(parents=True, exist_ok=True)
    # The generator copies patterns of ECMAScript, which PCRE refuses: no key could be set.
    document = target / "openapi.json"
    document.write_text(json.dumps(_without_patterns(yaml.safe_load(DOCUMENT.read_text()))))
    _generate("php.yaml", document, target)
    (target / "vendor" / "autoload.php").write_text(AUTOLOAD)
    for name in ("composer.json", "rest.php"):
        shutil.copy(EXAMPLES / name, target)
    return target


def _without_patterns(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_patterns(each) for name, each in value.items() if name != "pattern"}
    return [_without_patterns(each) for each in value] if isinstance(value, list) else value


def go(directory: Path) -> Path:
    """Generate the Go package into directory/go and return that path. Raises Missing."""
    _need("go", "gofmt", packages="golang-go")
    target = directory / "go"
    target.mkdir(parents=True, exist_ok=True)
    _generate("go.yaml", DOCUMENT, target)
    _run(["gofmt", "-w", "delaytasks"], target)
    for name in ("go.mod", "rest.go"):
        shutil.copy(EXAMPLES / name, target)
    return target


def _generate(options: str, document: Path, target: Path) -> None:
    """Generate target/delaytasks with OpenAPI Generator."""
    shutil.rmtree(target / "delaytasks", ignore_errors=True)
    command = ["openapi-generator-cli", "generate", f"--config={EXAMPLES / options}"]
    # The faster compiler halves the time of so short a run.
    java = {"JAVA_OPTS": "-XX:TieredStopAtLevel=1"}
    _run([*command, f"--input-spec={document}", "--output=delaytasks"], target, **java)


def _need(*programs: str, packages: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            raise Missing(f"{program} is not installed: apt-get install {packages}")


def _install(target: Path) -> None:
    try:
        _run(NPM_CI, target)
    except Failed as failure:
        code = re.search(r"^npm (?:error|ERR!) code (\S+)", str(failure), re.MULTILINE)
        if code and code[1] in NO_NETWORK:
            raise Missing(f"npm cannot fetch its packages without a network ({code[1]})") from None
        raise


def _run(command: list[str], cwd: Path, **variables: str) -> None:
    """Run a program. Those of this virtual environment come first: the Python generator formats with ruff."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    env = os.environ | variables | {"PATH": path}
    done = subprocess.run(command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        raise Failed(f"{command[0]} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")


GENERATORS: dict[str, Callable[[Path], Path]] = {"Python": python, "TypeScript": typescript, "PHP": php, "Go": go}


def main() -> int:
    directory = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "var" / "clients"
    missing = False
    for language, generate in GENERATORS.items():
        try:
            print(f"{language}: {generate(directory)}", flush=True)
        except Missing as reason:
            print(f"{language} was NOT generated, because {reason}.", file=sys.stderr)
            missing = True
    return int(missing)


if __name__ == "__main__":
    sys.exit(main())
