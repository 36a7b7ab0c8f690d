"""The codes of outcomes: each has a text in both languages, and texts stored by earlier versions are recognized."""

import pytest
from django.utils.translation import override

from delaytasks import formatting, outcomes
from delaytasks.admin import log_entries
from delaytasks.admin_log import Action
from delaytasks.exceptions import BadDelay, DelaytasksError, KeyIsLive, MovedMeanwhile, NotDead, Reserved
from delaytasks.models import BulkChange
from delaytasks.outcomes import DONE, ErrorCode, Result
from delaytasks.states import State

# The texts in rows of earlier versions, which their workers still write.
STORED_ERRORS = {
    "Its TTR was over and nobody had finished it.": ErrorCode.TIMED_OUT,
    "Buried by its consumer.": ErrorCode.BURIED,
    "Who asked for this may not change jobs any more.": ErrorCode.NOT_ALLOWED,
}
STORED_RESULTS = {
    "cancelled": Result.CANCELLED,
    "postponed": Result.POSTPONED,
    "made ready": Result.MADE_READY,
    "retried": Result.RETRIED,
    "already running": Result.RUNNING,
    "moved meanwhile": Result.MOVED,
    "already ready": Result.ALREADY_READY,
    "already finished": Result.ALREADY_FINISHED,
    "already cancelled": Result.ALREADY_CANCELLED,
    "dead": Result.DEAD,
    "not dead": Result.NOT_DEAD,
    "its key is live again": Result.KEY_IS_LIVE,
    "no longer there": Result.NOT_FOUND,
}


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_code_has_a_text_in_both_languages(code):
    with override("en"):
        english = formatting.error(code)
    with override("zh-hans"):
        chinese = formatting.error(code)
    assert english == outcomes.error_text(code) == outcomes.ERROR_TEXTS[code]
    assert chinese not in ("", english, code)


@pytest.mark.parametrize("code", Result)
def test_every_result_has_a_text_in_both_languages(code):
    with override("en"):
        english = formatting.result(code)
    with override("zh-hans"):
        chinese = formatting.result(code)
    assert english == outcomes.result_text(code) == outcomes.RESULT_TEXTS[code]
    assert chinese not in ("", english, code)


@pytest.mark.parametrize(("sentence", "code"), STORED_ERRORS.items())
def test_a_stored_sentence_is_read_as_its_code(sentence, code):
    assert outcomes.error_code(sentence) is outcomes.error_code(code.value) is code
    assert outcomes.error_text(sentence) == outcomes.error_text(code.value)
    assert outcomes.short_error_code(sentence) == code.value.removeprefix("delaytasks:")


@pytest.mark.parametrize(("word", "code"), STORED_RESULTS.items())
def test_a_stored_word_is_read_as_its_code(word, code):
    assert outcomes.to_result_code(word) == outcomes.to_result_code(code) == code
    assert outcomes.result_text(word) == outcomes.result_text(code)


def test_a_text_can_be_reworded_without_touching_a_row(monkeypatch):
    monkeypatch.setitem(outcomes.ERROR_TEXTS, ErrorCode.TIMED_OUT, "Timed out.")
    monkeypatch.setitem(outcomes.RESULT_TEXTS, Result.RUNNING, "is running")
    for stored in ("Its TTR was over and nobody had finished it.", "delaytasks:timed_out"):
        assert outcomes.error_text(stored) == formatting.error(stored) == "Timed out."
    for stored in ("already running", "running"):
        assert outcomes.result_text(stored) == formatting.result(stored) == "is running"


@pytest.mark.parametrize(
    "text", ["", "boom", "delaytasks:unheard_of", "delaytasks: timed_out", "'delaytasks:timed_out'", "timed_out"]
)
def test_other_text_is_shown_unchanged(text):
    assert outcomes.error_code(text) is outcomes.short_error_code(text) is None
    assert outcomes.error_text(text) == formatting.error(text) == text


@pytest.mark.parametrize("code", ErrorCode)
def test_an_error_text_that_looks_like_a_code_is_quoted(code):
    assert outcomes.to_stored_error(code) == code.value
    stored = outcomes.to_stored_error(code.value)
    assert stored == f"'{code.value}'"
    assert outcomes.error_code(stored) is None


def test_an_exception_becomes_its_code_or_its_type():
    coded: dict[type[DelaytasksError], Result] = {
        Reserved: Result.RUNNING, MovedMeanwhile: Result.MOVED, NotDead: Result.NOT_DEAD, KeyIsLive: Result.KEY_IS_LIVE,
    }  # fmt: skip
    for error, code in coded.items():
        assert outcomes.error_result(error()) is code
    assert outcomes.error_result(BadDelay("too far")) == "error:BadDelay"
    assert outcomes.error_result(ZeroDivisionError()) == "error:ZeroDivisionError"
    with override("en"):
        assert formatting.result("error:ValueError") == formatting.result("error: ValueError") == "failed: ValueError"
        assert formatting.result("something new") == "something new"


def test_counts_of_workers_of_two_versions_are_added_up():
    counts = {"already running": 2, "running": 3, "cancelled": 1, "error: ValueError": 1, "error:ValueError": 1}
    assert outcomes.counts_by_code(counts) == {"running": 5, "cancelled": 1, "error:ValueError": 2}
    samples = {"already running": [[1, "t", "a"]], "running": [[2, "t", "b"]]}
    assert outcomes.samples_by_code(samples) == {"running": [[1, "t", "a"], [2, "t", "b"]]}


def test_each_operation_has_a_result_and_a_log_action():
    assert set(DONE) == set(BulkChange.Operation)
    assert [Action.of(result) for result in DONE.values()] == ["Cancelled", "Postponed", "Made ready", "Retried"]


def test_cancel_has_an_answer_for_each_state():
    found = {Result.CANCELLED, Result.NOT_FOUND, *outcomes.NOT_DELAYED.values()}
    assert set(outcomes.CANCEL_RESULTS) == found
    assert set(outcomes.NOT_DELAYED) == set(State) - {State.DELAYED, State.READY}
    assert [answer.value for answer in outcomes.CancelResult] == ["cancelled", "running", "already finished", "unknown"]


def test_every_action_has_a_label_and_stored_entries_are_recognized():
    assert set(log_entries.LABELS) == set(Action)
    with override("en"):
        for action in Action:
            assert log_entries.translate(f"{action}.") == f"{action}."
        for action in log_entries.LABELS_WITH_REASON:
            assert log_entries.translate(f"{action}: they paid: by phone") == f"{action}: they paid: by phone"
        for foreign in ("Cancelled", "Stopped: why", "Seen.", "[]"):
            assert log_entries.translate(foreign) == foreign
    with override("zh-hans"):
        assert log_entries.translate("Made ready: 银行关门") == "已设为就绪：银行关门"
