"""The former file for spark-submit. Use __main__.py in the same folder."""

import sys

from delaytasks.deprecation import warn_moved
from delaytasks.pipeline.__main__ import exit_code

if __name__ == "__main__":
    warn_moved("delaytasks/pipeline/run.py", "delaytasks/pipeline/__main__.py", "0.4", stacklevel=1)
    sys.exit(exit_code(sys.argv[1:]))
