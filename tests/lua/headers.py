"""Reads a Lua script's header as the contract that it is; says what is wrong with it."""

import re
from collections.abc import Iterator

LINES_MAX = 80
_INDEX = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
_COMPUTED = re.compile(r"\b(KEYS|ARGV)\[(?!\d+\])")
_DOCUMENTED = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(\.\.\.)?\]\s+\S", re.MULTILINE)
_LOOP = re.compile(r"\bfor\s+\w+\s*=\s*(\d+)\s*,[^\n]*#(KEYS|ARGV)\b")
_TRAP = re.compile(r"\b(?:if|elseif|while|until|not|and|or)\s+#\w+\s*(?:then\b|do\b|and\b|or\b|\)|$)", re.MULTILINE)


def problems(source: str) -> list[str]:
    """What is wrong with a script, one phrase each; an empty list if nothing is."""
    header, binding, rest = _parts(source)
    found = [
        f"the header does not say {word}"
        for word in ("KEYS[1]", "ARGV[1]", "RETURN")
        if not any(f"-- {said}" in header for said in (word, word.replace("]", "...]")))
    ]
    found += _index_problems(header, binding, rest)
    if len(source.splitlines()) >= LINES_MAX:
        found.append(f"it has {len(source.splitlines())} lines; fewer than {LINES_MAX} read well")
    found += [f"in Lua 0 is true: {trap[0].strip()!r}" for trap in _TRAP.finditer(_code(source))]
    return found


def _parts(source: str) -> tuple[str, str, str]:
    """The comment on top, the lines that give KEYS and ARGV their names, and what follows."""
    lines = source.splitlines()
    top = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    end = top
    while end < len(lines) and lines[end].startswith("local ") and _INDEX.search(lines[end]):
        end += 1
    return "\n".join(lines[:top]), "\n".join(lines[top:end]), _code("\n".join(lines[end:]))


def _code(text: str) -> str:
    return "\n".join(line.partition("--")[0] for line in text.splitlines())


def _index_problems(header: str, binding: str, rest: str) -> Iterator[str]:
    documented = {(name, int(index)): bool(more) for name, index, more in _DOCUMENTED.findall(header)}
    bound = {(name, int(index)) for name, index in _INDEX.findall(binding)}
    single = {place for place, more in documented.items() if not more}
    for name, index in sorted(bound - single):
        yield f"{name}[{index}] is bound and not documented"
    for name, index in sorted(single - bound):
        yield f"{name}[{index}] is documented and not bound on top"
    for name, index in _INDEX.findall(rest):
        yield f"{name}[{index}] is indexed below the binding lines"
    open_ended = {name: index for (name, index), more in documented.items() if more}
    for name in sorted({name for name in _COMPUTED.findall(rest) if name not in open_ended}):
        yield f"{name}[...] is read in a loop and not documented as [n...]"
    for start, name in _LOOP.findall(rest):
        if open_ended.get(name) != int(start):
            yield f"the loop over {name} begins at {start}, the header's [n...] does not"
