"""What a run says while it works: a line of JSON on stdout, which the command shows; the last line is the answer."""

import json
from typing import Any


def say(text: str, **more: Any) -> None:
    """text   a sentence for people, "" for none. A command that has gone away is no reason to stop."""
    try:
        print(json.dumps({"progress": text, **more}), flush=True)
    except BrokenPipeError:
        pass
