"""A report's page: self-contained, escaped, and valid without data."""

import re
from dataclasses import replace
from xml.etree import ElementTree

from delaytasks.pipeline.applications.stale_hours import HOUR_MS
from delaytasks.pipeline.page import charts, page
from delaytasks.pipeline.page.facts import Facts, Herd, Need, Topic
from delaytasks.pipeline.transforms.spikes import herds

NOON = 1_893_499_200_000
EVIL = "<script>alert('x')</script>"


def facts(*, empty: bool = False) -> Facts:
    day = {"happened": 120, "finished": 100, "retried": 7, "died": 2, "cancelled": 3, "snoozed": 4, "begun": 90,
           "late_p50_ms": 4, "late_p95_ms": 1_500, "late_p99_ms": 120_000}  # fmt: skip
    hours = [{} if empty or n % 5 == 0 else {**day, "finished": n} for n in range(168)]
    minutes = [0 if empty else n % 7 for n in range(36 * 60)]
    topic = Topic(EVIL, day, {"happened": 100}, tuple(range(24)), 40, 3, 2_900.0, 4_400)
    needs = [Need(NOON + n * HOUR_MS, 10, n * 60_000.0, 0, n / 60) for n in range(14)] + [
        Need(NOON, 5_000, 14_400_001.0, 1_234, 4.000_01)
    ]
    found = [] if empty else [Herd(NOON + 600_000, 5_000, ((EVIL, 4_990),))]
    return Facts(NOON, NOON, hours, hours[:3] + [{}] * 165, [] if empty else [topic], 0, NOON, minutes, 12, found,
                 [] if empty else needs)  # fmt: skip


def body(text: str) -> ElementTree.Element:
    """Return the page's body; fails if it is not well-formed."""
    found = re.search(r"<body>.*</body>", text, re.S)
    assert found
    return ElementTree.fromstring(found[0].replace("<br>", "<br/>").replace("&nbsp;", " "))


def test_the_page_is_well_formed_and_has_no_scripts_or_external_files() -> None:
    text = page.html(facts())
    charts_shown = body(text).findall(".//svg[@class='chart']")

    assert len(charts_shown) == 4
    assert all(each.get("aria-label") for each in charts_shown)
    assert not re.search(r"<script|<link|<img|url\(|https?:|@import|src=", text)
    assert "prefers-color-scheme: dark" in text


def test_joined_pages_are_one_well_formed_page_in_their_order() -> None:
    text = page.join("Timeouts & more", [page.html(facts()), page.html(facts(empty=True))])

    first, second = body(text)
    assert (first.tag, second.tag) == ("section", "section")
    assert "Herds" in " ".join(first.itertext())
    assert "Herds" not in " ".join(second.itertext())
    assert "<title>Timeouts &amp; more</title>" in text
    assert text.count("<style>") == text.count("<body>") == 1


def test_topic_names_are_escaped() -> None:
    text = page.html(facts())
    assert "&lt;script&gt;" in text
    assert EVIL not in text


def test_the_page_shows_herds_changes_and_durations() -> None:
    words = " ".join(body(page.html(facts())).itertext())
    assert "5,000" in words
    assert "+20 %" in words
    assert "1.5 s" in words
    assert "2 min" in words
    assert "herd is coming" in words


def test_the_page_shows_the_hours_with_most_work_and_their_slots() -> None:
    found = body(page.html(facts()))
    (table,) = [each for each in found.findall(".//table") if each[0][0].text == "hour"]
    rows = [[cell.text for cell in row] for row in table]

    words = " ".join(found.itertext())
    assert "The hour with most work is Tuesday 01 January 12:00: it needs 5 slots for 49 min." in words
    assert rows[1] == ["Tue 01 Jan 12:00", "5,000", "5", "49 min", "1,234"]
    assert rows[-1] == ["Wed 02 Jan 01:00", "10", "1", "13 min", "0"]
    assert len(rows) == 1 + page.MAX_NEEDS
    assert "2.9 s" in words


def test_the_scale_fits_a_higher_week_before() -> None:
    result = facts()
    more = replace(result, before=[{**result.hours[1], "finished": 1_000}, *result.before[1:]])
    chart = body(page.html(more)).findall(".//svg[@class='chart']")[0]
    assert [each.text for each in chart.findall("text[@class='y']")][-1] == "2000"
    outline = chart.find("path[@class='before']").get("d")
    assert outline.startswith(charts.path([1_016], 2_000).split(" ")[0][:1])
    assert f" {charts._y(1_016, 2_000):.1f}" in outline


def test_overdue_jobs_of_topics_outside_the_table_are_counted() -> None:
    words = " ".join(body(page.html(facts())).itertext())
    assert "12 overdue now" in re.sub(r"\s+", " ", words)


def test_a_report_without_data_is_a_valid_page() -> None:
    assert "Herds" not in " ".join(body(page.html(facts(empty=True))).itertext())


def test_due_charts_have_labels_at_round_times() -> None:
    begun = replace(facts(), start_ms=NOON + 8 * 60_000, herds=[Herd(NOON + 61 * 60_000, 5_000, ())])
    minutes, tens = body(page.html(begun)).findall(".//svg[@class='chart']")[2:]

    assert [each.text for each in minutes.findall("text[@class='x']")][:2] == ["12:15", "12:30"]
    assert [each.text for each in tens.findall("text[@class='x']")][:4] == ["12:00", "16:00", "20:00", "Wed 02"]
    bars = {each.findtext("title"): each.find("rect") for each in tens.findall("g")}
    assert bars["Tue 12:00: 1"].get("class") == "due", "of the first ten minutes only two are still to come"
    assert bars["Tue 13:00: 33"].get("class") == "herd"


def test_a_herd_is_many_times_the_median_around_it() -> None:
    calm = [20] * 60
    assert herds(calm) == []
    assert herds([*calm[:30], 200, *calm[31:]]) == [30]
    assert herds([0] * 30 + [99] + [0] * 30) == [], "few are no herd, however calm it is around them"
    assert herds([0] * 30 + [100]) == [30]


def test_the_grid_ends_at_a_round_number_above_the_maximum() -> None:
    assert [charts.nice(most) for most in (0, 3, 5, 61, 100, 101, 9_999)] == [4, 4, 6, 80, 100, 200, 10_000]


def test_a_gap_breaks_a_line() -> None:
    assert charts.path([1, None, 1, 1], 1).count("M") == 2
    assert charts.path([1, None, 1, 1], 1).count("L") == 1


def test_durations_are_formatted_in_their_largest_unit() -> None:
    times = (0, 999, 1_000, 90_000, HOUR_MS, 48 * HOUR_MS, 2_399.9 * HOUR_MS, 23_990 * HOUR_MS, 120_000 * HOUR_MS)
    assert [page.format_duration(ms) for ms in times] == [
        "0 ms", "999 ms", "1 s", "1.5 min", "1 h", "2 d", "100 d", "1,000 d", "5,000 d"]  # fmt: skip
