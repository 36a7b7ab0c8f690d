"""Each script keeps the contract in its header."""

from importlib.resources import files

import pytest

from delaytasks.mirror.redis.client import SCRIPTS, script_source
from tests.mirror.lua.headers import problems

FOLDER = files("delaytasks.mirror.redis") / "lua"
SHARED = "score.lua"  # the beginning of other scripts
SOURCES = {
    file.name: file.read_text() for file in FOLDER.iterdir() if file.name.endswith(".lua") and file.name != SHARED
}

GOOD = """\
-- Do a thing.
--
-- KEYS[1]  zset    due: member -> ms
-- KEYS[2...]       zsets, one for each topic
-- ARGV[1]  ms      now
-- ARGV[2...]       members
-- RETURN   int     how many
local due, now = KEYS[1], ARGV[1]
local zsets = {}
for i = 2, #ARGV do
  zsets[ARGV[i]] = KEYS[i]
end
if #zsets > 0 and not (#zsets == 1) then
  return #zsets
end
return 0
"""


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_script_keeps_its_contract(name: str) -> None:
    assert problems(SOURCES[name]) == []


def test_the_scripts_in_the_folder_are_the_names_that_the_code_calls() -> None:
    assert sorted(SOURCES) == sorted(f"{name}.lua" for name in SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_redis_compiles_each_script_and_it_assigns_no_global(redis_server, name: str) -> None:
    with redis_server.client() as client:
        client.script_load(script_source(name))
    assigned = [line for line in script_source(name).splitlines() if line[:1].isalpha() and " = " in line]
    assert all(line.startswith("local ") for line in assigned if not line.startswith(("for ", "if "))), assigned


def test_a_correct_script_has_no_violations() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("good", "bad", "message"),
    [
        pytest.param("-- RETURN", "-- gives", "has no RETURN", id="no-return"),
        pytest.param("-- KEYS[1]", "-- key 1", "has no KEYS[1]", id="no-keys"),
        pytest.param("-- ARGV[1]", "-- now  ", "has no ARGV[1]", id="no-argv"),
        pytest.param("= KEYS[1], ARGV[1]", "= KEYS[1], ARGV[7]", "ARGV[7] is bound and not documented", id="extra"),
        pytest.param("= KEYS[1], ARGV[1]", "= KEYS[1], 5", "ARGV[1] is documented and not bound", id="not-bound"),
        pytest.param("return 0", "return KEYS[1]", "KEYS[1] is indexed below", id="indexed-again"),
        pytest.param("return 0", "return ARGV[3]", "ARGV[3] is indexed below", id="constant-below"),
        pytest.param("-- KEYS[2...]", "-- KEYS", "KEYS[...] is read in a loop", id="loop-not-documented"),
        pytest.param("for i = 2,", "for i = 3,", "begins at 3", id="loop-begins-elsewhere"),
        pytest.param("#zsets > 0 and", "#zsets and", "in Lua 0 is true", id="trap-and"),
        pytest.param("not (#zsets == 1)", "not #zsets", "in Lua 0 is true", id="trap-not"),
        pytest.param("if #zsets > 0 and not (#zsets == 1) then", "if #zsets then", "in Lua 0 is true", id="trap"),
        pytest.param("return 0\n", "return 0\n" + "--\n" * 70, "the limit is 80", id="too-long"),
    ],
)
def test_a_violation_is_reported(good: str, bad: str, message: str) -> None:
    assert good in GOOD
    assert any(message in problem for problem in problems(GOOD.replace(good, bad)))
