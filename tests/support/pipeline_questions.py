"""python -m tests.support.pipeline_questions: run pipeline applications in one Spark session until stdin ends.

One session is used because starting a session takes longer than running the applications.

stdin    lines: {"asked": [[application, its settings], ...], "unchecked": true to skip the check of the executors}
stdout   the output of each run, followed by {"exit_code": ...}
"""

import contextlib
import itertools
import json
import sys

from delaytasks.pipeline import __main__ as run
from delaytasks.pipeline.config import VARIABLE, from_environment
from delaytasks.pipeline.spark import session


def main() -> None:
    requests = map(json.loads, iter(sys.stdin.readline, ""))
    first = next(requests)
    settings = from_environment({VARIABLE: first["asked"][0][1]})
    check = run.check
    with session.session("questions", master=settings.master, options=settings.spark) as spark:
        session.session = lambda *_, **__: contextlib.nullcontext(spark)
        for request in itertools.chain([first], requests):
            run.check = (lambda *_: None) if request["unchecked"] else check
            for question, text in request["asked"]:
                print(json.dumps({"exit_code": run.main([question], {VARIABLE: text})}), flush=True)


if __name__ == "__main__":
    main()
