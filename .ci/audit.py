"""Check the installed packages for known vulnerabilities with pip-audit: `python .ci/audit.py`.

Exit codes: 0 all packages were looked up and no advisory applies; 1 an advisory applies; 3 not all packages could be
looked up, for example without a network. `make audit` fails with 1 and 3; `make check` fails with 1 only, and its last
lines say that the audit was not run. ACCEPTED names advisories that do not affect this project, with the reason.
"""

import json
import subprocess
import sys

SECONDS = 120
NOT_RUN = 3
ACCEPTED: dict[str, str] = {}  # advisory -> why it does not affect this project
COMMAND = [sys.executable, "-m", "pip_audit", "--local", "--skip-editable", "--progress-spinner=off", "--format=json"]


def main() -> int:
    try:
        completed = subprocess.run(COMMAND, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return not_run(f"no answer within {SECONDS} s")
    try:
        packages = json.loads(completed.stdout)["dependencies"]
    except (ValueError, KeyError):
        return not_run((completed.stderr.strip().splitlines() or ["pip-audit printed nothing"])[-1][:300])
    return judge(packages)


def judge(packages: list[dict]) -> int:
    """Print the affected packages of pip-audit's JSON. Return 1 if there are any; NOT_RUN if some were not checked."""
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        return not_run(f"the database of advisories has none of the {len(packages)} packages")
    affected = [
        describe(package, advisory)
        for package in audited
        for advisory in package["vulns"]
        if advisory["id"] not in ACCEPTED
    ]
    print(f"{len(audited)} of {len(packages)} packages checked, {len(affected)} advisories apply.")
    print("\n".join(affected))
    if affected:
        return 1
    skipped = sorted(package["name"] for package in packages if "skip_reason" in package)
    return not_run(f"no answer about {len(skipped)} packages: {', '.join(skipped)}") if skipped else 0


def describe(package: dict, advisory: dict) -> str:
    fixed = ", ".join(advisory["fix_versions"]) or "none"
    return f"{package['name']} {package['version']}: {advisory['id']}, fixed in {fixed}"


def not_run(why: str) -> int:
    bar = "!" * 8
    print(f"\n{bar}\n  NOT RUN: the audit of dependencies: {why}\n{bar}\n", file=sys.stderr)
    return NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
