"""Create a virtual environment and install a requirements file: `python .ci/venv.py .venv requirements.txt`.

Runs on any Python before anything is installed, so it uses only the standard library. A failure is reported in
one sentence.
"""

import os
import subprocess
import sys

NEEDED = (3, 11)
REASONS = (  # text in pip's log -> reason; the first match counts
    (("No space left on device",), "the disk is full"),
    (
        (
            "Temporary failure in name resolution",
            "Name or service not known",
            "Failed to establish a new connection",
            "nodename nor servname",
            "Network is unreachable",
            "Connection refused",
            "ConnectTimeoutError",
            "ReadTimeoutError",
            "ProxyError",
        ),
        "the package index cannot be reached (is there a network?)",
    ),
    (
        ("error: command 'gcc' failed", "error: command 'cc' failed", "No such file or directory: 'gcc'",
         "No such file or directory: 'cc'", "C compiler", "unable to execute 'gcc'", "unable to execute 'cc'"),
        "a package has no ready-made wheel for this machine and there is no working C compiler to build it",
    ),
    (("Permission denied",), "a directory cannot be written"),
    (("(from versions: none)",), "the package index cannot be reached, or has no such package (is there a network?)"),
    (("No matching distribution found", "Could not find a version"), "a package does not exist for this Python"),
)  # fmt: skip


def main(directory, requirements):
    if sys.version_info < NEEDED:
        return refuse(f"delaytasks needs Python 3.11 or newer; this is {version()}. Try make run PYTHON=python3.11")
    log = os.path.join(os.environ.get("VAR_DIR") or "var", "log", "pip.log")
    try:
        os.makedirs(os.path.dirname(log), exist_ok=True)
        with open(log, "w"):
            pass
    except OSError as error:
        return refuse(f"The log {log} cannot be written: {error.strerror}.")
    return make(directory, log) or install(directory, requirements, log)


def make(directory, log):
    """Create the environment unless it works already. Return 0, or 1 after printing the reason."""
    python = os.path.join(directory, "bin", "python")
    if works(python):
        return 0
    print(f"Making the virtual environment {directory} with Python {version()}.", flush=True)
    if call([sys.executable, "-m", "venv", "--clear", directory], log) and works(python):
        return 0
    return refuse(
        f"The virtual environment {directory} could not be made: Python's venv module is missing or incomplete "
        f"(on Debian and Ubuntu: apt install python3-venv). The log is {log}."
    )


def works(python):
    try:
        return subprocess.call([python, "-c", "import pip"], stderr=subprocess.DEVNULL) == 0
    except OSError:
        return False


def install(directory, requirements, log):
    """Install the requirements. Return 0, or 1 after printing the likely reason from pip's log."""
    print(f"Installing {requirements}.", flush=True)
    pip = [os.path.join(directory, "bin", "python"), "-m", "pip", "install", "--disable-pip-version-check"]
    if call([*pip, "--no-input", "--prefer-binary", "-r", requirements], log):
        return 0
    with open(log, errors="replace") as file:
        reason = why(file.read())
    return refuse(f"{requirements} could not be installed: {reason}. The log is {log}.")


def call(command, log):
    """Run a command with its output appended to the log; return whether it succeeded."""
    with open(log, "a") as file:
        return subprocess.call(command, stdout=file, stderr=file, stdin=subprocess.DEVNULL) == 0


def why(text):
    """Return the likely reason of a failure, as half a sentence."""
    for signs, reason in REASONS:
        if any(sign in text for sign in signs):
            return reason
    errors = [line for line in text.splitlines() if line.startswith("ERROR")]
    return errors[-1] if errors else "pip failed"


def refuse(sentence):
    print(sentence, file=sys.stderr)
    return 1


def version():
    return ".".join(str(part) for part in sys.version_info[:3])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
