"""Exit codes of the pipeline's commands and runs. This module imports neither Spark nor Django."""

from enum import IntEnum

HELP = "Exit codes: 0 success; 1 the run found faults in the data; 2 bad input; 3 the run failed."


class ExitCode(IntEnum):
    DONE = 0
    FAULTS = 1  # the run succeeded and found faults in the data; never used for a failed run
    BAD_INPUT = 2
    COULD_NOT_RUN = 3
