"""Kept for spark-submit commands that name this file. Use __main__.py instead."""

import sys

from delaytasks.pipeline.__main__ import exit_code

if __name__ == "__main__":
    sys.exit(exit_code(sys.argv[1:]))
