"""Progress messages of a run: lines of JSON on stdout, which `manage.py delaytasks pipeline` shows.

The last line on stdout is not a progress message but the answer.
"""

import json
from typing import Any


def report_progress(text: str, **more: Any) -> None:
    """Print a progress message. A closed stdout is ignored, so that the run continues if the command has ended.

    text   the message; "": print only data
    more   data, such as the number of loaded chunks
    """
    try:
        print(json.dumps({"progress": text, **more}), flush=True)
    except BrokenPipeError:
        pass
