"""Each script's header is a contract, and the code keeps to it."""

from importlib.resources import files

import pytest

from delaytasks.mirror import scripts
from tests.lua.headers import problems

FOLDER = files("delaytasks.mirror") / "lua"
SOURCES = {file.name: file.read_text() for file in FOLDER.iterdir() if file.name.endswith(".lua")}

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


def test_every_script_in_the_folder_is_called_by_its_name_and_every_name_has_its_script() -> None:
    assert sorted(SOURCES) == sorted(f"{name}.lua" for name in scripts.NAMES)


@pytest.mark.parametrize("name", scripts.NAMES)
def test_redis_compiles_a_script_and_it_sets_no_global(redis_server, name: str) -> None:
    with redis_server.client() as client:
        client.script_load(scripts.source(name))
    assigned = [line for line in scripts.source(name).splitlines() if line[:1].isalpha() and " = " in line]
    assert all(line.startswith("local ") for line in assigned if not line.startswith(("for ", "if "))), assigned


def test_a_good_contract_has_no_problems() -> None:
    assert problems(GOOD) == []


@pytest.mark.parametrize(
    ("good", "bad", "says"),
    [
        pytest.param("-- RETURN", "-- gives", "does not say RETURN", id="no-return"),
        pytest.param("-- KEYS[1]", "-- key 1", "does not say KEYS[1]", id="no-keys"),
        pytest.param("-- ARGV[1]", "-- now  ", "does not say ARGV[1]", id="no-argv"),
        pytest.param("= KEYS[1], ARGV[1]", "= KEYS[1], ARGV[7]", "ARGV[7] is bound and not documented", id="extra"),
        pytest.param("= KEYS[1], ARGV[1]", "= KEYS[1], 5", "ARGV[1] is documented and not bound", id="not-bound"),
        pytest.param("return 0", "return KEYS[1]", "KEYS[1] is indexed below", id="indexed-again"),
        pytest.param("return 0", "return ARGV[3]", "ARGV[3] is indexed below", id="constant-below"),
        pytest.param("-- KEYS[2...]", "-- KEYS", "KEYS[...] is read in a loop", id="loop-not-documented"),
        pytest.param("for i = 2,", "for i = 3,", "begins at 3", id="loop-begins-elsewhere"),
        pytest.param("#zsets > 0 and", "#zsets and", "in Lua 0 is true", id="trap-and"),
        pytest.param("not (#zsets == 1)", "not #zsets", "in Lua 0 is true", id="trap-not"),
        pytest.param("if #zsets > 0 and not (#zsets == 1) then", "if #zsets then", "in Lua 0 is true", id="trap"),
        pytest.param("return 0\n", "return 0\n" + "--\n" * 70, "fewer than 80", id="too-long"),
    ],
)
def test_a_broken_contract_is_noticed(good: str, bad: str, says: str) -> None:
    assert good in GOOD
    assert any(says in problem for problem in problems(GOOD.replace(good, bad)))
