"""The translation catalogues contain exactly the messages of the sources, all of them translated."""

import ast
import importlib.util
import re
import string
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from babel.messages.catalog import Catalog, Message

ROOT = Path(__file__).parents[2]
FOLDERS = ("delaytasks", "project/shop")
CALLS = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy", "pgettext", "pgettext_lazy"}
SCRIPTS = sorted(
    path for folder in FOLDERS for path in (ROOT / folder / "static").rglob("*.js") if "vendor" not in path.parts
)


def load_messages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("messages", ROOT / ".ci" / "messages.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


messages = load_messages()


def catalogue(folder: str) -> Path:
    return ROOT / folder / "locale" / "zh_Hans" / "LC_MESSAGES" / "django.po"


@pytest.fixture(params=FOLDERS)
def folder(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def stored(folder: str) -> Catalog:
    return messages.read(catalogue(folder))


def entries(stored: Catalog) -> Iterator[tuple[Message, list[str], list[str]]]:
    """Yield each entry with its msgids and their translations; plural forms have several."""
    for entry in stored:
        if entry.id:
            ids = [entry.id] if isinstance(entry.id, str) else list(entry.id)
            yield entry, ids, [entry.string] if isinstance(entry.string, str) else list(entry.string)


def identity(entry: Message) -> tuple[str | None, str]:
    return entry.context, entry.id if isinstance(entry.id, str) else entry.id[0]


def placeholders(text: str) -> Counter[str]:
    percent = re.findall(r"%(?:\(\w+\))?[sd]|%%", text)
    braces = [f"{{{name}}}" for _text, name, _spec, _conversion in string.Formatter().parse(text) if name is not None]
    return Counter(percent + braces)


def test_the_catalogue_has_exactly_the_messages_of_the_sources(folder, stored):
    expected = {identity(entry) for entry in messages.extracted(folder) if entry.id}
    assert {identity(entry) for entry, _ids, _strings in entries(stored)} == expected, "make messages"
    assert not stored.obsolete


def test_every_message_is_translated(stored):
    assert len(stored) > 50
    for entry, _ids, strings in entries(stored):
        assert not entry.fuzzy, entry.id
        assert len(strings) == (stored.num_plurals if entry.pluralizable else 1), entry.id
        assert all(each.strip() for each in strings), entry.id


def test_a_translation_has_the_placeholders_of_its_message(stored):
    for entry, ids, strings in entries(stored):
        for each in strings:
            assert placeholders(each) in [placeholders(text) for text in ids], entry.id


def test_a_translation_has_the_tags_and_leading_space_of_its_message(stored):
    for entry, ids, strings in entries(stored):
        for each in strings:
            assert re.findall(r"<[^>]*>", each) == re.findall(r"<[^>]*>", ids[0]), entry.id
            assert each[0].isspace() == ids[0][0].isspace() or entry.context, entry.id


# Another word for a term -> the word of the glossary at the top of the catalogues, or of their other texts.
OTHER_WORDS = {"员工": "工作人员", "消费者": "消费方", "权利": "权限", "报价": "上架"}


def test_a_term_has_one_translation(stored):
    texts = [each for _entry, _ids, strings in entries(stored) for each in strings]
    assert [each for each in texts if any(word in each for word in OTHER_WORDS)] == []


def test_the_compiled_file_is_current(folder, stored):
    assert catalogue(folder).with_suffix(".mo").read_bytes() == messages.as_mo(stored), "make messages"


def test_updating_a_current_catalogue_changes_nothing(folder):
    po = catalogue(folder)
    assert messages.as_po(messages.updated(po, folder)) == po.read_bytes(), "make messages"


def test_a_message_in_two_catalogues_has_the_same_translation_in_both():
    first, second = ({identity(entry): strings for entry, _ids, strings in entries(messages.read(catalogue(each)))}
                     for each in FOLDERS)  # fmt: skip
    assert {text for text in first.keys() & second.keys() if first[text] != second[text]} == set()


def test_no_message_is_missed_by_the_extraction(folder):
    """The extraction misses f-strings and variables; Python's parser finds such calls."""
    extracted = {identity(entry)[1] for entry in messages.extracted(folder) if entry.id}
    for source in messages.SOURCES[folder]:
        for path in (ROOT / source).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
                    index = 1 if node.func.id.startswith("p") else 0
                    text = node.args[index]
                    assert isinstance(text, ast.Constant), f"{path}:{node.lineno}"
                    assert text.value in extracted, f"{path}:{node.lineno}"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_contains_no_sentences(script):
    """Scripts take their messages from the page or from responses, where they are translated."""
    without_comments = re.sub(r"/\*.*?\*/|(?<![:\"'])//[^\n]*", "", script.read_text(), flags=re.S)
    texts = re.findall(r"'([^'\n]*)'|\"([^\"\n]*)\"|`([^`]*)`", without_comments)
    strings = ["".join(each) for each in texts]
    assert [each for each in strings if re.search(r"\b[A-Z][a-z]+ [a-z]{2,}|[a-z]{2,}[.…!?]$", each)] == []
