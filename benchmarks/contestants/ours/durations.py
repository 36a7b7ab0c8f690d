"""The slow handlers of scenarios/slow.py."""

HERD_SECONDS = 0.2  # the duration of each call of a herd
SLOW_NUMBER = 100  # the job whose call is slow
SLOW_SECONDS = 5.0
