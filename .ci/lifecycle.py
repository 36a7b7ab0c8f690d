"""Generate docs/lifecycle.md from the table of moves: `make lifecycle`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from delaytasks.states import ENDED, MOVES, Move, State

MEANINGS = {
    State.DELAYED: "waits for its due time",
    State.READY: "its due time has passed and no worker has reserved it; stored as `delayed`, never written",
    State.RESERVED: "a worker or consumer holds it until its lease ends",
    State.FINISHED: "done",
    State.CANCELLED: "cancelled before it ran",
    State.DEAD: "failed `max_attempts` times; staff can retry it",
}

HEAD = """# The life of a job

<!-- Generated: make lifecycle -->

These are all moves of a job. Each move that is written is a single UPDATE, guarded by the state it
leaves: of two concurrent writers, the second one fails. This page is generated from `MOVES` in
`delaytasks/states.py`.
"""


def render() -> str:
    """Return the page as Markdown with a Mermaid state diagram."""
    return "\n".join([HEAD, *_diagram(), "", *_states(), "", *_moves(), ""])


def _diagram() -> list[str]:
    arrows = [f"    {move.before.word} --> {move.after.word}: {_label(move)}" for move in MOVES]
    ends = [f"    {state.word} --> [*]" for state in ENDED]
    return ["```mermaid", "stateDiagram-v2", "    [*] --> delayed: schedule", *arrows, *ends, "```"]


def _label(move: Move) -> str:
    """Return a label short enough for an arrow: the event's outcome or the first clause of the reason."""
    if move.outcome is not None:
        return move.outcome.value
    return move.why.split(";")[0].split(":")[0]


def _states() -> list[str]:
    rows = [
        f"| `{state.word}` | {'no' if state in ENDED else 'yes'} | {MEANINGS[state]} |"
        for state in State
    ]  # fmt: skip
    return ["## States", "", "| state | live | meaning |", "|---|---|---|", *rows]


def _moves() -> list[str]:
    rows = [
        f"| `{move.before.word}` | `{move.after.word}` | {f'`{move.outcome}`' if move.outcome else '–'} | {move.why} |"
        for move in MOVES
    ]
    return ["## Moves", "", "| from | to | event written | why |", "|---|---|---|---|", *rows]


if __name__ == "__main__":
    print(render(), end="")
