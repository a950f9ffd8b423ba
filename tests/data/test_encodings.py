"""Encodings of data files: files that Python's own codecs wrote are read, or refused by name."""

from functools import partial

import pytest

from hf_attnprobe import load_examples
from hf_attnprobe.data.encodings import check_encoding_name, find_encoding
from tests.helpers.error_messages import refusal


pytestmark = pytest.mark.usefixtures("private_cache")

TABLE = "text,label\ncafé crème,1\nnaïve Ω,0\n"
WESTERN_TABLE = TABLE.replace("Ω", "ß")
message = partial(refusal, load_examples)


def write(path, encoding, table=TABLE):
    """Write a table in an encoding, in the format of the path's suffix."""
    content = table.replace(",", "\t") if path.suffix == ".tsv" else table
    if path.suffix == ".jsonl":
        rows = [line.split(",") for line in table.splitlines()[1:]]
        content = "".join(f'{{"text": "{text}", "label": {label}}}\n' for text, label in rows)
    path.write_bytes(content.encode(encoding))
    return path


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_files_with_a_mark_are_read(encoding, suffix, tmp_path):
    path = write(tmp_path / f"t{suffix}", encoding)
    examples = load_examples(path, "test")
    assert examples["text"][:] == ["café crème", "naïve Ω"] and examples["label"][:] == [1, 0]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize("encoding", ["latin-1", "cp1252", "utf-16-le", "utf-16-be"])
def test_other_encodings_are_named_by_the_user(encoding, suffix, tmp_path):
    path = write(tmp_path / f"t{suffix}", encoding, WESTERN_TABLE)
    assert "Pass" in message(path, "test") or "pass --encoding" in message(path, "test")
    texts = load_examples(path, "test", encoding=encoding)["text"][:]
    assert texts == ["café crème", "naïve ß"]


def test_messages_name_the_encoding_the_line_and_the_flag(tmp_path):
    line = message(write(tmp_path / "l.csv", "latin-1", WESTERN_TABLE), "test")
    assert "l.csv is not encoded as UTF-8: line 2 contains the byte 0xe9" in line
    assert "pass --encoding latin-1" in line and "--encoding cp1252" in line
    for encoding in ("utf-16-le", "utf-16-be"):
        line = message(write(tmp_path / "u.csv", encoding), "test")
        assert f"without a byte order mark. Pass --encoding {encoding}" in line
        # The bytes of an emoji are zero in the other position.
        emoji = "text,label\n" + "good film,1\n" * 9 + "\N{GRINNING FACE},0\n"
        (tmp_path / "u.csv").write_bytes(emoji.encode(encoding))
        assert f"Pass --encoding {encoding}" in message(tmp_path / "u.csv", "test")
    utf8, marked = write(tmp_path / "8.csv", "utf-8"), write(tmp_path / "16.csv", "utf-16")
    assert "not encoded as ascii: line 2" in message(utf8, "test", encoding="ascii")
    assert "byte order mark of UTF-16" in message(marked, "test", encoding="latin-1")
    assert "'klingon' is not an encoding" in message(utf8, "test", encoding="klingon")
    assert "'hex' is not an encoding" in message(utf8, "test", encoding="hex")
    (tmp_path / "binary.csv").write_bytes(bytes(4) + b"PK" + bytes(20))
    assert "is not a text file, since it contains zero bytes" in message(
        tmp_path / "binary.csv", "test"
    )
    assert find_encoding(marked, "utf-16-le") == "utf-16" and check_encoding_name("UTF8") == "utf-8"


def test_an_encoding_that_is_not_used_is_refused(tmp_path):
    rows = [{"text": "a", "label": 0}]
    assert "is only for files" in message(rows, "test", encoding="latin-1")
    parquet = tmp_path / "t.parquet"
    load_examples(rows, "test").to_parquet(parquet)
    assert "only for CSV, TSV, JSON and text files" in message(parquet, "test", encoding="utf-8")
    load_examples(rows, "test").save_to_disk(tmp_path / "saved")
    line = message(tmp_path / "saved", "train", encoding="utf-8")
    assert "only for CSV, TSV, JSON and text files" in line


def test_a_wrong_encoding_of_valid_utf8_is_reported(tmp_path, caplog):
    load_examples(write(tmp_path / "t.csv", "utf-8"), "test", encoding="latin-1")
    assert "t.csv is valid UTF-8, but it is read as iso8859-1 because of --encoding" in caplog.text


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_the_files_of_a_folder_are_decoded_too(encoding, tmp_path):
    requested = encoding if encoding == "latin-1" else None
    table = WESTERN_TABLE if requested else TABLE
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("train.csv", "test.csv"):
        write(folder / name, encoding, table)
    texts = load_examples(folder, "test", encoding=requested)["text"][:]
    assert texts == [line.split(",")[0] for line in table.splitlines()[1:]]
    if requested:
        assert "train.csv is not encoded as UTF-8" in message(folder, "test")
    write(folder / "train.csv", "utf-32")
    if requested is None:
        assert "have different encodings: train.csv (utf-32)" in message(folder, "test")


def test_json_files_of_a_folder_must_not_be_utf16(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    write(folder / "test.jsonl", "utf-16")
    assert "are encoded as utf-16. Save them as UTF-8" in message(folder, "test")
    write(folder / "test.jsonl", "latin-1", WESTERN_TABLE)
    texts = load_examples(folder, "test", encoding="latin-1")["text"][:]
    assert texts == ["café crème", "naïve ß"]
