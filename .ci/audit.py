"""`python .ci/audit.py`: are there advisories against anything that is installed here?

Asks the package index's database of advisories through pip-audit. Exit status 1 names what is affected. Where the
database cannot be reached, that is said loudly and the status is 0: a build without a network proves other things.
An advisory that does not concern us is named in ACCEPTED with the reason.
"""

import json
import subprocess
import sys

SECONDS = 120
ACCEPTED: dict[str, str] = {}  # advisory -> why it does not concern us
COMMAND = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner=off", "--format=json"]


def main() -> int:
    try:
        done = subprocess.run(COMMAND, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return not_run(f"no answer within {SECONDS} s")
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        return not_run((done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1][:300])
    return judge(packages)


def judge(packages: list[dict]) -> int:
    """0, or 1 after naming what is affected. `packages` as pip-audit's JSON has them."""
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        return not_run(f"the database of advisories knows none of the {len(packages)} packages")
    affected = [
        f"{package['name']} {package['version']}: {found['id']}, mended in {', '.join(found['fix_versions']) or 'none'}"
        for package in audited
        for found in package["vulns"]
        if found["id"] not in ACCEPTED
    ]
    print(f"{len(audited)} of {len(packages)} packages were looked up, {len(affected)} advisories concern them.")
    print("\n".join(affected))
    return 1 if affected else 0


def not_run(why: str) -> int:
    bar = "!" * 8
    print(f"\n{bar}\n  NOT RUN: the audit of dependencies: {why}\n{bar}\n", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
