"""python -m delaytasks.pipeline.run QUESTION: one run, in a process of its own; no Java lives inside web or Celery.

Settings come by the environment (settings.py). The last line of stdout is the answer as JSON: what the question
answers, or {"error": ..., "message": ...}. Exit codes: 0 done; 1 refused, or something is wrong; 2 told wrongly.
"""

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from pyarrow import ArrowInvalid

# By their whole names, as spark-submit runs this file by its path.
from delaytasks.pipeline import causes
from delaytasks.pipeline.comparing import Differs
from delaytasks.pipeline.connect import ServerAway
from delaytasks.pipeline.database import Busy, DatabaseAway, NotAllowed
from delaytasks.pipeline.java import JavaMissing
from delaytasks.pipeline.lake import Lake, LakeError
from delaytasks.pipeline.settings import BadSettings, Settings, taken_from

QUESTIONS = ("report", "archive", "audit", "load", "stream")
DONE, REFUSED, USAGE = 0, 1, 2
EXPECTED = (Busy, DatabaseAway, Differs, JavaMissing, LakeError, NotAllowed, ServerAway)


def main(arguments: list[str], environment: Any = os.environ) -> int:
    try:
        if arguments not in [[name] for name in QUESTIONS]:
            raise BadSettings(f"Name one question: {', '.join(QUESTIONS)}.")
        answer = ask(arguments[0], taken_from(environment))
    except BadSettings as error:
        return _answered(USAGE, _failure(error))
    except EXPECTED as error:
        return _answered(REFUSED, _failure(error))
    except (OSError, ArrowInvalid) as error:
        return _answered(REFUSED, {"error": type(error).__name__, "message": causes.of_files(error)})
    except Exception as error:  # of Spark: its first lines say what, a page of Java follows
        if not (type(error).__module__.startswith(("pyspark", "py4j")) or causes.away(str(error))):
            raise
        name, sentence = causes.told(error)
        return _answered(REFUSED, {"error": name, "message": sentence})
    return _answered(REFUSED if answer.get("refused") else DONE, answer)


def ask(question: str, settings: Settings) -> dict[str, Any]:
    """What the question answers. `refused` in it, if it is there, is a sentence that says what is wrong."""
    from delaytasks.pipeline import session

    module, lake = importlib.import_module(f"delaytasks.pipeline.{question}"), Lake(settings.lake)
    with session.session(f"delaytasks {question}", master=settings.master, options=settings.spark) as spark:
        answer: dict[str, Any] = module.run(spark, settings.database, lake, **settings.wishes)
    return answer


def _failure(error: Exception) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": str(error)}


def _answered(code: int, answer: Mapping[str, Any]) -> int:
    print(json.dumps(answer), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
