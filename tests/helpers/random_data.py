"""Data sets drawn at random: files, encodings, formats and labels in every form, with extra columns.

The labels are a model's own predictions, computed with plain Transformers. Every text that is read
must thus have the model's prediction as its label, or the data must be refused in one line.
"""

import json
import math
import random
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
import torch

from hf_attnprobe import AttnProbeError, Data, build_tokenizer
from hf_attnprobe.adapters import wrap
from hf_attnprobe.inference.choices import encode_examples
from tests.helpers import tiny_models


WORDS = [
    "café",
    "naïve",
    "über",
    "film",
    "plot",
    "dull",
    "1984",
    "NA",
    "None",
    "nan",
    ",",
    ";",
    "|",
    "'",
    "(",
    ")",
    "good",
    "not",
    "crème",
    "ß",
    "£",
    '"',
    "\n",
]
"""Words of the texts. All of them can be encoded as latin-1, and some are special in files."""
BLANKS = (None, "", "  ", "\n")
MARKED_ENCODINGS = ("utf-8", "utf-8-sig", "utf-16")
NAMED_ENCODINGS = ("latin-1", "cp1252", "utf-16-le")
FILES = ("csv", "tsv", "json", "jsonl", "parquet")
OBJECTS = ("rows", "columns", "frame", "Dataset", "DatasetDict")
FOLDERS = ("saved", "folder.csv", "folder.jsonl")
"""Formats that ``datasets`` loads with its own cache, which takes more time."""
CLASS_NAMES: dict[str, tuple[str, ...]] = {
    "named": ("negative", "positive"),
    "three": ("b", "c", "a"),
    "numbered": ("LABEL_0", "LABEL_1"),
    "sets": ("toxic", "insult", "threat"),
}
"""Names of the classes of each model; "sets" predicts several labels for each text."""


@cache
def make_texts() -> list[str]:
    """Return 60 different texts."""
    draw = random.Random(0)
    texts = {" ".join(draw.choices(WORDS, k=draw.randint(2, 9))) for _ in range(90)}
    return [text for text in sorted(texts) if any(map(str.isalpha, text))][:60]


@cache
def make_model(kind: str) -> tuple[Any, Any, list[Any]]:
    """Return a BERT with its tokenizer and its own predictions for all texts.

    A prediction is a class number, or the list of label numbers that apply.
    """
    names, tokenizer = CLASS_NAMES[kind], build_tokenizer(make_texts())
    fields: dict[str, Any] = {"id2label": dict(enumerate(names))}
    if kind == "sets":
        fields["problem_type"] = "multi_label_classification"
    model = tiny_models.bert(tokenizer, layers=1, spread=0.8, seed=3, **fields)
    predictions: list[Any] = []
    with torch.no_grad():
        for text in make_texts():
            logits = model(**tokenizer(text, return_tensors="pt")).logits[0]
            likely = [k for k, logit in enumerate(logits.tolist()) if logit > 0]
            predictions.append(likely if kind == "sets" else int(logits.argmax()))
    return model, tokenizer, predictions


@dataclass
class Case:
    """A data set on disk or in memory, and what reading it must give.

    Attributes:
        description: the drawn properties, for a failure's message.
        data: the data set with its columns, as a user passes it.
        kind: the model.
        labels: the model's prediction by text.
        n_blank: number of rows without a text.
        refusal: fragment of the expected error message; "" if the data must be read.
    """

    description: str
    data: Data
    kind: str
    labels: dict[str, Any]
    n_blank: int
    refusal: str
    ids: list[int] = field(default_factory=list)


def draw_case(seed: int, folder: Path) -> Case:
    """Draw a data set, and write it into a folder if it is no object in memory."""
    draw = random.Random(seed)
    kind = draw.choice(list(CLASS_NAMES))
    predictions = make_model(kind)[2]
    numbers = draw.sample(range(len(make_texts())), draw.randint(4, 9))
    # One text has letters that UTF-8 and latin-1 encode differently.
    numbers += [k for k, text in enumerate(make_texts()) if "é" in text and k not in numbers][:1]
    texts: list[Any] = [make_texts()[k] for k in numbers]
    labels = [predictions[k] for k in numbers]
    formats = FILES + OBJECTS + (FOLDERS if draw.random() < 0.15 else ())
    data_format = draw.choice(formats)
    form, cells, options, refusal = _draw_label_form(draw, kind, data_format, labels)
    n_blank = draw.choice([0, 0, 1, 2])
    rows: list[dict[str, Any]] = [
        {"text": text, "label": cell} for text, cell in zip(texts, cells, strict=True)
    ]
    for _ in range(n_blank):
        template = draw.choice(rows)
        rows.insert(draw.randrange(len(rows) + 1), {**template, "text": draw.choice(BLANKS)})
    ids = [*range(len(rows))]
    if draw.random() < 0.4:
        ids = draw.sample(range(2**62), len(rows))
        rows = [
            {**row, "example_id": example_id} for row, example_id in zip(rows, ids, strict=True)
        ]
    extra = draw.choice(["", "index", "comment", "sentence", "title"])
    if extra:
        rows = [{extra: f"{extra} {k}", **row} for k, row in enumerate(rows)]
    names, options = _rename_columns(draw, data_format, rows, options)
    encoding, requested = "utf-8", None
    if data_format in ("csv", "tsv", "json", "jsonl", "folder.csv"):
        encoding = draw.choice(MARKED_ENCODINGS + NAMED_ENCODINGS)
        if encoding in NAMED_ENCODINGS and draw.random() < 0.7:
            requested = encoding
        elif encoding in NAMED_ENCODINGS:
            refusal = "--encoding"
        if requested == "cp1252" or encoding == "utf-8-sig":
            requested = draw.choice([encoding, encoding.upper()])
    source = _write(draw, data_format, rows, folder, encoding)
    if form == "columns":
        options["label_column"] = list(CLASS_NAMES[kind])
    description = f"seed {seed}: {data_format}, {encoding}, {form}, {names}, {kind}, {options}"
    return Case(
        description=description,
        data=Data(source, **options, encoding=requested),
        kind=kind,
        labels=dict(zip(texts, labels, strict=True)),
        n_blank=n_blank,
        refusal=refusal,
        ids=ids,
    )


LabelForm = tuple[str, list[Any], dict[str, Any], str]
"""How labels are written: a name, the cells, the options, and a fragment of the expected refusal."""


def _draw_label_form(
    draw: random.Random, kind: str, data_format: str, labels: list[Any]
) -> LabelForm:
    """Draw how the labels are written."""
    has_lists = not data_format.endswith(("csv", "tsv"))
    if kind == "sets":
        return _draw_form_of_sets(draw, has_lists, labels)
    names = CLASS_NAMES[kind]
    written = [names[k] for k in labels]
    cells: dict[str, list[Any]] = {
        "number": labels,
        "float": [float(k) for k in labels],
        "digits": [str(k) for k in labels],
        "name": written,
        "upper": [name.upper() for name in written],
        "padded": [f" {name} " for name in written],
        "LABEL_k": [f"LABEL_{k}" for k in labels],
        "renamed": [f"my {name}" for name in written],
        "wrong": [f"w{k}" for k in labels],
        "one-hot": [[int(k == label) for k in range(len(names))] for label in labels],
    }
    if len(names) == 2:
        cells["bool"] = [bool(k) for k in labels]
    form, refusal = draw.choice(list(cells)), ""
    options: dict[str, Any] = {}
    present = sorted(set(written))
    if form == "renamed":
        options = {"labels": [f"my {name}={name}" for name in present]}
    elif form == "wrong" and not (kind == "numbered" and len(present) == len(names)):
        # Names in alphabetical order are matched by number if the model has no names.
        refusal = "the data has the label"
    elif form == "one-hot" and has_lists:
        refusal = "one-hot lists"
    elif form == "one-hot":
        cells[form] = [str(cell) for cell in cells[form]]
        refusal = "a one-hot list"
    return form, cells[form], options, refusal


def _draw_form_of_sets(draw: random.Random, has_lists: bool, labels: list[list[int]]) -> LabelForm:
    """Draw how sets of labels are written."""
    names = CLASS_NAMES["sets"]
    form = draw.choice(["columns", "names", "numbers"] if has_lists else ["columns", "joined"])
    if form == "names":
        cells: list[Any] = [[names[k] for k in row] for row in labels]
        present = sorted({name for cell in cells for name in cell})
        if not present or draw.random() < 0.7:
            return form, cells, {}, ""
        old = present[0]
        cells = [[f"x {name}" if name == old else name for name in cell] for cell in cells]
        return "renamed names", cells, {"labels": [f"x {old}={old}"]}, ""
    if form == "numbers":
        is_ambiguous = all(len(row) == 2 and {*row} == {0, 1} for row in labels)
        return form, labels, {}, "masks" if is_ambiguous else ""
    if form == "columns":
        flags = [{name: int(k in row) for k, name in enumerate(names)} for row in labels]
        return form, flags, {}, ""
    # "toxic, insult" and "toxic, threat" are names of classes in a table.
    cells = [", ".join(names[k] for k in row) or "none" for row in labels]
    return form, cells, {}, "expected a list of the labels that apply"


def _rename_columns(
    draw: random.Random, data_format: str, rows: list[dict[str, Any]], options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Rename the columns of all rows in place; return a description and the options that name them."""
    # Columns of 0 and 1 are separate columns, not one.
    for row in rows:
        if isinstance(row["label"], dict):
            row |= row.pop("label")
    kinds = ["usual", "custom", "padded", "spaced option"]
    if data_format in ("json", "jsonl", "parquet", "rows", "Dataset"):
        kinds.append("nested")
    naming = draw.choice(kinds)
    if naming == "usual" or "label" not in rows[0]:
        return "usual", options
    text, label = {"padded": ("Review ", " Stars"), "nested": ("body", "stars")}.get(
        naming, ("Review", "Stars")
    )
    for k, row in enumerate(rows):
        moved = {text: row["text"], label: row["label"]}
        rest = {name: cell for name, cell in row.items() if name not in ("text", "label")}
        rows[k] = {**rest, "review": moved} if naming == "nested" else {**rest, **moved}
    asked = {"nested": ("review.body", "review.stars"), "spaced option": ("Review ", "Stars ")}
    asked_text, asked_label = asked.get(naming, ("Review", "Stars"))
    return naming, {**options, "text_column": asked_text, "label_column": asked_label}


def _write(
    draw: random.Random, data_format: str, rows: list[dict[str, Any]], folder: Path, encoding: str
) -> Any:
    """Write rows in a format, and return what a user passes as the data set."""
    frame = pd.DataFrame(rows)
    if data_format == "rows":
        # A missing text may be NaN, as pandas writes it.
        missing = draw.choice([None, math.nan])
        return [
            {
                name: missing if name == "text" and cell is None else cell
                for name, cell in row.items()
            }
            for row in rows
        ]
    if data_format == "columns":
        return {name: [row[name] for row in rows] for name in rows[0]}
    if data_format == "frame":
        return frame
    path = folder / f"test.{data_format.removeprefix('folder.')}"
    if data_format in ("Dataset", "DatasetDict", "saved"):
        examples = datasets.Dataset.from_list(rows)
        names = sorted({row["label"] for row in rows if isinstance(row.get("label"), str)})
        if names and "w0" not in names and draw.random() < 0.7:
            draw.shuffle(names)
            examples = examples.cast_column("label", datasets.ClassLabel(names=names))
        if data_format == "Dataset":
            return examples
        splits = datasets.DatasetDict({"test": examples})
        if data_format == "DatasetDict":
            return splits
        splits.save_to_disk(folder / "saved")
        return folder / "saved"
    if data_format.endswith(("csv", "tsv")):
        separator = "\t" if data_format == "tsv" else ","
        if data_format == "csv":
            separator = draw.choice(",;\t|")
        table = frame.to_csv(index=False, sep=separator, quoting=draw.choice([0, 1]))
        path.write_bytes(table.encode(encoding))
    elif data_format == "parquet":
        frame.to_parquet(path)
    else:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        content = f"[{','.join(lines)}]" if data_format == "json" else "\n".join(lines)
        path.write_bytes(content.encode(encoding))
    return folder if data_format.startswith("folder.") else path


def check_case(case: Case) -> str:
    """Read a case, and compare its texts and labels with the model's own predictions.

    Returns:
        "read" or "refused".
    """
    model, tokenizer, _ = make_model(case.kind)
    try:
        examples = case.data.load_examples()
        split = encode_examples(tokenizer, examples, wrap(model))
    except AttnProbeError as error:
        line = str(error)
        assert "\n" not in line and len(line) < 600, f"{case.description}: {line}"
        assert case.refusal and case.refusal in line, f"{case.description}: {line}"
        return "refused"
    assert not case.refusal, f"{case.description}: was read, not refused"
    assert split.n_empty == case.n_blank, f"{case.description}: {split.n_empty} blank rows"
    assert examples["example_id"][:] == case.ids, case.description
    texts = dict(zip(examples["example_id"], examples["text"], strict=True))
    assert {texts[text.example_id] for text in split.texts} == set(case.labels), case.description
    for text in split.texts:
        string = texts[text.example_id]
        assert text.inputs["input_ids"] == tokenizer(string)["input_ids"], case.description
        expected = case.labels[string]
        if case.kind == "sets":
            expected = [int(k in expected) for k in range(len(CLASS_NAMES["sets"]))]
        assert text.label == expected, f"{case.description}: {string!r} has {text.label}"
    return "read"
