"""Checks a Lua script against the contract in its header."""

import re
from collections.abc import Iterator

LINES_MAX = 80
_INDEX = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")
_COMPUTED = re.compile(r"\b(KEYS|ARGV)\[(?!\d+\])")
_DOCUMENTED = re.compile(r"^-- (KEYS|ARGV)\[(\d+)(\.\.\.)?\]\s+\S", re.MULTILINE)
_LOOP = re.compile(r"\bfor\s+\w+\s*=\s*(\d+)\s*,[^\n]*#(KEYS|ARGV)\b")
_TRAP = re.compile(r"\b(?:if|elseif|while|until|not|and|or)\s+#\w+\s*(?:then\b|do\b|and\b|or\b|\)|$)", re.MULTILINE)


def problems(source: str) -> list[str]:
    """Return a script's violations of its contract, one phrase each."""
    header, binding, body = _parts(source)
    violations = [
        f"the header has no {name}"
        for name in ("KEYS[1]", "ARGV[1]", "RETURN")
        if not any(f"-- {spelling}" in header for spelling in (name, name.replace("]", "...]")))
    ]
    violations += _index_problems(header, binding, body)
    if len(source.splitlines()) >= LINES_MAX:
        violations.append(f"it has {len(source.splitlines())} lines; the limit is {LINES_MAX}")
    violations += [f"in Lua 0 is true: {trap[0].strip()!r}" for trap in _TRAP.finditer(_code(source))]
    return violations


def _parts(source: str) -> tuple[str, str, str]:
    """Return the header comment, the lines that bind KEYS and ARGV to names, and the body."""
    lines = source.splitlines()
    top = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    end = top
    while end < len(lines) and lines[end].startswith("local ") and _INDEX.search(lines[end]):
        end += 1
    return "\n".join(lines[:top]), "\n".join(lines[top:end]), _code("\n".join(lines[end:]))


def _code(text: str) -> str:
    return "\n".join(line.partition("--")[0] for line in text.splitlines())


def _index_problems(header: str, binding: str, body: str) -> Iterator[str]:
    documented = {(name, int(index)): bool(more) for name, index, more in _DOCUMENTED.findall(header)}
    bound = {(name, int(index)) for name, index in _INDEX.findall(binding)}
    single = {slot for slot, more in documented.items() if not more}
    for name, index in sorted(bound - single):
        yield f"{name}[{index}] is bound and not documented"
    for name, index in sorted(single - bound):
        yield f"{name}[{index}] is documented and not bound below the header"
    for name, index in _INDEX.findall(body):
        yield f"{name}[{index}] is indexed below the binding lines"
    open_ended = {name: index for (name, index), more in documented.items() if more}
    for name in sorted({name for name in _COMPUTED.findall(body) if name not in open_ended}):
        yield f"{name}[...] is read in a loop and not documented as [n...]"
    for start, name in _LOOP.findall(body):
        if open_ended.get(name) != int(start):
            yield f"the loop over {name} begins at {start}, the header's [n...] begins elsewhere"
