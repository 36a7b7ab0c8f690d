"""docs/lifecycle.md, rendered from the table of moves: `python -m delaytasks.lifecycle > docs/lifecycle.md`."""

from .states import ENDED, MOVES, Move, State

MEANINGS = {
    State.DELAYED: "waits for its due time",
    State.READY: "its due time has passed and nobody holds it yet; stored as `delayed`, never written",
    State.RESERVED: "a worker or a consumer holds it until its lease ends",
    State.FINISHED: "done",
    State.CANCELLED: "called off before it ran",
    State.DEAD: "failed `max_attempts` times; staff can retry it",
}

HEAD = """# The life of a job

<!-- Generated: python -m delaytasks.lifecycle > docs/lifecycle.md -->

A job changes by these moves and by no others. Each one that is written is a single guarded
UPDATE that names the state it leaves; whoever comes second is told so. The list is
`MOVES` in `delaytasks/states.py`, from which this page is made.
"""


def render() -> str:
    """The page, as Markdown with a Mermaid state diagram."""
    return "\n".join([HEAD, *_diagram(), "", *_states(), "", *_moves(), ""])


def _diagram() -> list[str]:
    arrows = [f"    {move.before.word} --> {move.after.word}: {_label(move)}" for move in MOVES]
    ends = [f"    {state.word} --> [*]" for state in ENDED]
    return ["```mermaid", "stateDiagram-v2", "    [*] --> delayed: schedule", *arrows, *ends, "```"]


def _label(move: Move) -> str:
    """Short enough for an arrow: the event's word, or the first clause of the reason."""
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
