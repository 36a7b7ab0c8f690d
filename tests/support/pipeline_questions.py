"""python -m tests.support.pipeline_questions: run several pipeline applications in one Spark session.

One session is used because starting a session takes longer than running the applications.

stdin    {"asked": [[application, its settings], ...], "unchecked": true to skip the check of the executors}
stdout   the output of each run, followed by {"exit_code": ...}
"""

import contextlib
import json
import sys

from delaytasks.pipeline import __main__ as run
from delaytasks.pipeline.config import VARIABLE, from_environment
from delaytasks.pipeline.spark import session


def main() -> None:
    request = json.load(sys.stdin)
    settings = from_environment({VARIABLE: request["asked"][0][1]})
    with session.session("questions", master=settings.master, options=settings.spark) as spark:
        session.session = lambda *_, **__: contextlib.nullcontext(spark)
        if request["unchecked"]:
            run.check = lambda *_: None
        for question, text in request["asked"]:
            print(json.dumps({"exit_code": run.main([question], {VARIABLE: text})}), flush=True)


if __name__ == "__main__":
    main()
