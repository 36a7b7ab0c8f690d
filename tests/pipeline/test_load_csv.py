"""CSV as it comes: what cannot be a row is named by its number, and nothing that follows is lost unsaid. No Spark."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from delaytasks.pipeline import csvs, intake
from delaytasks.pipeline.mapping import ABOUT
from delaytasks.pipeline.settings import BadSettings


def read(path: Path, data: bytes, *, encoding: str = "utf-8", delimiter: str = ",") -> list[dict[str, Any]]:
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    root, name = str(path.parent), str(path)
    names = [*ABOUT, *csvs.header_of_all(root, [name], encoding, delimiter)]
    return [row for batch in csvs.rows(root, name, names, encoding, delimiter) for row in batch.to_pylist()]


def good(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["__row"], row["id"], row["note"]) for row in rows if row["__problem"] is None]


def bad(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["__row"], row["__problem"], row["__text"]) for row in rows if row["__problem"] is not None]


@pytest.mark.parametrize("name", ["orders.csv", "orders.csv.gz"])
def test_values_over_lines_quotes_empty_values_and_blank_lines_keep_their_row(tmp_path: Path, name: str) -> None:
    rows = read(tmp_path / name, '\ufeffid,note\r\n1,"two\nlines, ""quoted"""\r\n\r\n2,\r\n3,Zoë 张\r\n'.encode())
    assert good(rows) == [(2, "1", 'two\nlines, "quoted"'), (4, "2", None), (5, "3", "Zoë 张")]


def test_rows_with_other_columns_broken_characters_or_stray_quotes_are_named_and_the_rest_is_read(
    tmp_path: Path,
) -> None:
    rows = read(tmp_path / "orders.csv", b'id,note\n1,a,b\n2\n3,Zo\xeb\n4,"x"y\n5,good\n')
    assert good(rows) == [(6, "5", "good")]
    assert bad(rows) == [
        (2, "columns", "1,a,b\n"), (3, "columns", "2\n"), (4, "encoding", "3,Zo\\xeb"), (5, "columns", '4,"x"y\n'),
    ]  # fmt: skip
    assert good(read(tmp_path / "orders.csv", b"id;note\n3;Zo\xeb\n", encoding="cp1252", delimiter=";")) == [
        (2, "3", "Zoë")
    ]


def test_a_quote_that_is_never_closed_is_told_by_the_row_that_opens_it(tmp_path: Path) -> None:
    rows = read(tmp_path / "orders.csv", b'id,note\n1,a\n2,"b\n3,c\n4,d\n')
    assert good(rows) == [(2, "1", "a")]
    assert [(row["__row"], row["__problem"]) for row in rows[1:]] == [(3, "quote")]
    assert "Row 3 opens a quote" in rows[1]["__message"]


def test_memory_ends_with_a_row_however_long_lines_and_values_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csvs, "LONGEST", 40)
    rows = read(tmp_path / "orders.csv", b"id,note\n1,a\n2," + b"b" * 60 + b"\n3,c\n")
    assert (good(rows), rows[1]["__problem"]) == ([(2, "1", "a")], "file")
    assert rows[1]["__message"] == "Row 3 has a line of more than 40 characters."
    assert rows[1]["__text"].startswith("2,bbb")
    rows = read(tmp_path / "orders.csv", b'id,note\n1,"a\n' + b"line of it\n" * 9)
    assert [(row["__problem"], row["__message"]) for row in rows] == [
        ("quote", "Row 2 opens a quote that is not closed within 40 characters.")]  # fmt: skip
    with pytest.raises(BadSettings, match=r"header of .* cannot be read as utf-8: has a line of more than 40"):
        read(tmp_path / "orders.csv", b"id," * 20)

    monkeypatch.undo()
    monkeypatch.setattr(csvs, "BATCH_CHARACTERS", 100)
    path = tmp_path / "wide.csv"
    path.write_text("id,note\n" + "".join(f"{n},{'x' * 40}\n" for n in range(10)))
    batches = csvs.rows(str(tmp_path), str(path), [*ABOUT, "id", "note"], "utf-8", ",")
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]


def test_tabs_part_the_columns_of_a_tsv_unless_something_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\tnote\n1\ta,b\n")
    assert intake.look(str(tmp_path)).delimiter == "\t"
    assert intake.look(str(tmp_path / "a.tsv"), delimiter=";").delimiter == ";"
    (tmp_path / "b.csv").write_text("id,note\n1,a\n")
    assert intake.look(str(tmp_path / "b.csv")).delimiter == ","
    with pytest.raises(BadSettings, match=r"end in \.tsv and others: say --delimiter"):
        intake.look(str(tmp_path))


def test_a_file_that_breaks_off_is_told_by_the_row_after_which_it_does(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv.gz"
    whole = b"id,note\n" + b"".join(b"%d,%d\n" % (n, n * 7919) for n in range(60_000))
    read(path, whole)
    path.write_bytes(path.read_bytes()[:-2000])
    names = [*ABOUT, "id", "note"]
    rows = [row for batch in csvs.rows(str(tmp_path), str(path), names, "utf-8", ",") for row in batch.to_pylist()]
    assert rows[-1]["__problem"] == "file"
    assert rows[-1]["__row"] > 2


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"id,ID\n", "the column 'id' twice"),
        (b"id,,note\n", "a column without a name"),
        (b"id,not\xe9\n", "cannot be read as utf-8"),
        (b"\n", "a column without a name"),
    ],
)
def test_a_header_that_is_none_is_refused_by_the_files_name(tmp_path: Path, header: bytes, why: str) -> None:
    with pytest.raises(BadSettings, match=f"header of {tmp_path}/orders.csv .*{why}"):
        read(tmp_path / "orders.csv", header)


def test_files_that_do_not_go_together_and_sources_that_are_none_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,note\n1,a\n")
    (tmp_path / "b.csv").write_text("note,id\na,1\n")
    paths = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    with pytest.raises(BadSettings, match=r"b\.csv has the columns note, id, and .*a\.csv has id, note"):
        csvs.header_of_all(str(tmp_path), paths, "utf-8", ",")
    with pytest.raises(BadSettings, match="There is no encoding 'klingon'"):
        csvs.header_of_all(str(tmp_path), paths, "klingon", ",")
    assert intake.look(str(tmp_path)).files == tuple(paths)
    (tmp_path / "c.parquet").write_text("none")
    with pytest.raises(BadSettings, match="neither CSV nor Parquet alone"):
        intake.look(str(tmp_path))
    with pytest.raises(BadSettings, match=r"There is no .*nowhere"):
        intake.look(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadSettings, match="empty folder"):
        intake.look(str(tmp_path / "empty"))


def test_an_empty_file_is_no_rows_and_marks_of_other_tools_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".a.csv.crc").touch()
    assert intake.look(str(tmp_path)).files == ()
    assert intake.look(str(tmp_path / "a.csv")).files == ()
