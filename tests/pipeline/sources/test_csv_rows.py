"""CSV files: bad rows are reported with their number, and no row is lost silently. No Spark."""

import gzip
from pathlib import Path
from typing import Any

import pytest

from delaytasks.pipeline.config import BadSettings
from delaytasks.pipeline.sources import csv_rows, files
from delaytasks.pipeline.transforms.mapping import METADATA


def read(path: Path, data: bytes, *, encoding: str = "utf-8", delimiter: str = ",") -> list[dict[str, Any]]:
    path.write_bytes(gzip.compress(data) if path.suffix in (".gz", ".GZ") else data)
    root, name = str(path.parent), str(path)
    names = [*METADATA, *csv_rows.header_of_all(root, [name], encoding, delimiter)]
    return [row for batch in csv_rows.rows(root, name, names, encoding, delimiter) for row in batch.to_pylist()]


def good(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["__row"], row["id"], row["note"]) for row in rows if row["__problem"] is None]


def bad(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["__row"], row["__problem"], row["__text"]) for row in rows if row["__problem"] is not None]


@pytest.mark.parametrize("name", ["orders.csv", "orders.csv.gz", "ORDERS.CSV.GZ"])
def test_multiline_quoted_empty_and_blank_values_keep_their_row_numbers(tmp_path: Path, name: str) -> None:
    rows = read(tmp_path / name, '\ufeffid,note\r\n1,"two\nlines, ""quoted"""\r\n\r\n2,\r\n3,Zoë 张\r\n'.encode())
    assert good(rows) == [(2, "1", 'two\nlines, "quoted"'), (4, "2", None), (5, "3", "Zoë 张")]


@pytest.mark.parametrize("encoding", ["utf-8", "U8", "utf-16", "utf-16-le", "utf-16-be"])
def test_a_byte_order_mark_is_no_part_of_the_first_column(tmp_path: Path, encoding: str) -> None:
    mark = "" if encoding == "utf-16" else "\ufeff"  # this codec writes one
    assert good(read(tmp_path / "orders.csv", f'{mark}"id",note\n1,a\n'.encode(encoding), encoding=encoding)) == [
        (2, "1", "a")]  # fmt: skip


def test_a_file_that_is_not_there_is_named_as_such(tmp_path: Path) -> None:
    path = str(tmp_path / "orders.csv")
    problems = [row for batch in csv_rows.rows(str(tmp_path), path, [*METADATA, "id"], "utf-8", ",", 99)
                for row in batch.to_pylist()]  # fmt: skip
    assert "No such file" in str(problems)


def test_bad_rows_are_reported_and_the_others_are_read(
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


def test_an_unclosed_quote_is_reported_with_the_row_that_opens_it(tmp_path: Path) -> None:
    rows = read(tmp_path / "orders.csv", b'id,note\n1,a\n2,"b\n3,c\n4,d\n')
    assert good(rows) == [(2, "1", "a")]
    assert [(row["__row"], row["__problem"]) for row in rows[1:]] == [(3, "quote")]
    assert "Row 3 opens a quote" in rows[1]["__message"]


def test_a_badly_quoted_row_that_may_go_on_in_the_next_line_ends_the_file(tmp_path: Path) -> None:
    """Its last line would otherwise be read as a row, here with the id 3."""
    rows = read(tmp_path / "orders.csv", b'id,note\n1,a\n2,"b"c,"d\n3,e"\n4,f\n')
    assert good(rows) == [(2, "1", "a")]
    assert bad(rows) == [(3, "quote", '2,"b"c,"d\n')]
    assert "Row 3 is not a CSV row, and may go on in the next line: " in rows[1]["__message"]


def test_memory_is_bounded_however_long_lines_and_values_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_rows, "MAX_ROW_CHARACTERS", 40)
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
    monkeypatch.setattr(csv_rows, "BATCH_CHARACTERS", 100)
    path = tmp_path / "wide.csv"
    path.write_text("id,note\n" + "".join(f"{n},{'x' * 40}\n" for n in range(10)))
    batches = csv_rows.rows(str(tmp_path), str(path), [*METADATA, "id", "note"], "utf-8", ",")
    assert [batch.num_rows for batch in batches] == [3, 3, 3, 1]


def test_a_tsv_is_separated_by_tabs_unless_a_delimiter_is_given(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\tnote\n1\ta,b\n")
    assert files.inspect(str(tmp_path)).delimiter == "\t"
    assert files.inspect(str(tmp_path / "a.tsv"), delimiter=";").delimiter == ";"
    (tmp_path / "b.csv").write_text("id,note\n1,a\n")
    assert files.inspect(str(tmp_path / "b.csv")).delimiter == ","
    with pytest.raises(BadSettings, match=r"has \.tsv files and others: give --delimiter"):
        files.inspect(str(tmp_path))


def test_a_truncated_file_is_reported_with_its_last_row(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv.gz"
    whole = b"id,note\n" + b"".join(b"%d,%d\n" % (n, n * 7919) for n in range(60_000))
    read(path, whole)
    path.write_bytes(path.read_bytes()[:-2000])
    names = [*METADATA, "id", "note"]
    rows = [row for batch in csv_rows.rows(str(tmp_path), str(path), names, "utf-8", ",") for row in batch.to_pylist()]
    assert rows[-1]["__problem"] == "file"
    assert rows[-1]["__row"] > 2


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"id,ID\n", "the column 'id' twice"),
        (b"id,,note\n", "a column without a name"),
        (b"id,not\xe9\n", "cannot be read as utf-8"),
        (b"\n", "is empty: the first line must name the columns"),
        (b"\xef\xbb\xbf", "is empty"),
    ],
)
def test_an_invalid_header_is_refused_with_the_files_name(tmp_path: Path, header: bytes, why: str) -> None:
    with pytest.raises(BadSettings, match=f"header of {tmp_path}/orders.csv .*{why}"):
        read(tmp_path / "orders.csv", header)


def test_mismatched_files_and_invalid_inputs_are_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,note\n1,a\n")
    (tmp_path / "b.csv").write_text("note,id\na,1\n")
    paths = [str(tmp_path / name) for name in ("a.csv", "b.csv")]
    with pytest.raises(BadSettings, match=r"b\.csv \(note, id\) differ from those of .*a\.csv \(id, note\)"):
        csv_rows.header_of_all(str(tmp_path), paths, "utf-8", ",")
    with pytest.raises(BadSettings, match="Unknown encoding 'klingon'"):
        csv_rows.header_of_all(str(tmp_path), paths, "klingon", ",")
    assert files.inspect(str(tmp_path)).files == tuple(paths)
    (tmp_path / "c.parquet").write_text("none")
    with pytest.raises(BadSettings, match="not all CSV or all Parquet"):
        files.inspect(str(tmp_path))
    with pytest.raises(BadSettings, match=r"nowhere does not exist"):
        files.inspect(str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadSettings, match="empty folder"):
        files.inspect(str(tmp_path / "empty"))


def test_empty_and_hidden_files_have_no_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").touch()
    (tmp_path / "_SUCCESS").touch()
    (tmp_path / ".a.csv.crc").touch()
    assert files.inspect(str(tmp_path)).files == ()
    assert files.inspect(str(tmp_path / "a.csv")).files == ()
