"""What attacks and generated inputs found, one by one: a result that is right, or one line before memory is asked for."""

import gzip
import io
import time
from dataclasses import fields
from functools import partial

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from transformers import AutoTokenizer, BertForSequenceClassification

from hf_attnprobe import AttnProbeError, audit, build_tokenizer
from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.checkpoints.origins import locate_checkpoint
from hf_attnprobe.data.examples import get_label_names, load_examples
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.documents.formats import format_csv
from hf_attnprobe.faithfulness.options import Adversarial, Permutation
from hf_attnprobe.faithfulness.registry import load_tests as known_tests
from hf_attnprobe.retraining.options import Seeds
from hf_attnprobe.training.options import Architecture, TrainingOptions
from tests.helpers.bad_inputs import GOOD, json_lines
from tests.helpers.error_messages import refused, refuses


# --- numbers absurd in themselves -----------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (Permutation, "n_permutations", 999_999_999),
        (Adversarial, "n_steps", 10**9),
        (AuditOptions, "seed", 2**32),
        (AuditOptions, "batch_size", 2**63),
        (AuditOptions, "layers", [10**30]),
        (AuditOptions, "layers", [-(10**30)]),
        (AuditOptions, "scale", 1e300),
        (AuditOptions, "query", 10**1000),
        (TrainingOptions, "epochs", 10**12),
        (Architecture, "encoder_size", 10**9),
        (Architecture, "kernel_sizes", [3, 10**9]),
        (Architecture, "embedding_dropout", 1.5),
        (Seeds, "n_seeds", 10**6),
        (partial(Data, "x"), "test_limit", 10**30),
    ],
)
def test_a_number_absurd_in_itself_is_one_line(kind, name, value):
    with refuses(f"{name} must be at"):
        kind(**{name: value})
    assert Permutation(n_permutations=100_000) and AuditOptions(seed=2**32 - 1)  # as usual


def test_every_count_of_a_test_has_an_upper_bound():
    """Whoever adds one states it in the option's own field."""
    clipped = {"target"}  # checked against the model
    for test in known_tests().values():
        for field in fields(test.options):
            if isinstance(field.default, int) and not isinstance(field.default, bool):
                assert field.metadata["at_most"] or field.name in clipped, field.name


@pytest.mark.parametrize("name", ["a" * 400, "x/" + "é" * 200, "a\0b"])
def test_a_name_that_no_file_system_takes(name):
    refused("expected a path or an id for model", locate_checkpoint, name)
    refused("expected a path or an id for dataset", load_examples, name, "test")


# --- data sets ------------------------------------------------------------------------


TEXTS = ["the film was dull", "a wonderful plot"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        *(
            ({"text": TEXTS, name: values}, "of the same type")
            for name in ("label", "rationale")
            for values in ([0, "x"], [[0], "a"], [1, [2]], [[0], ["a"]])
        ),
        *(
            ({"image": cells}, "cannot read the images in column 'image'")
            for cells in ([0, 1], [[], []], [None, None])
        ),
        ({"text": TEXTS, "label": [4 * 10**18, 0]}, "row 0 has 4000000000000000000"),
    ],
    ids=str,
)
def test_columns_that_cannot_be_are_one_line(columns, said):
    """Also without memory for so many labels."""
    begin = time.process_time()
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    with refuses(said):
        load_examples(rows, "test")
    assert time.process_time() - begin < 5


def test_a_frame_with_a_column_twice_is_one_line():
    frame = pd.DataFrame([["a film", 0, "x"]], columns=["text", "label", "text"])
    refused("Rename one of the columns text, label, text", load_examples, frame, "test")


def test_parquet_without_rows_is_told_so(tmp_path):
    empty = pa.table({"text": pa.array([], pa.string())})
    pa.parquet.write_table(empty, tmp_path / "test.parquet")
    for place in (tmp_path, tmp_path / "test.parquet"):
        with pytest.raises(
            AttnProbeError, match=r"Parquet files in .* have no rows|parquet has no rows"
        ):
            load_examples(str(place), "test")


def test_a_column_called_image_beside_texts_is_none():
    rows = [{"text": t, "image": k} for k, t in enumerate(TEXTS)]
    examples = load_examples(rows, "test")
    assert examples["text"][:] == TEXTS and "image" not in examples.column_names


def test_a_word_of_a_hundred_thousand_letters_costs_linear_time():
    """The search for a digit began anew at each letter: 10,000 took 2 s, 100,000 four minutes."""
    tokenizer = build_tokenizer(["a film"])
    for word in ("a" * 100_000, "a'" * 50_000, "a-b" * 30_000):
        begin = time.process_time()
        assert len(tokenizer(word)["input_ids"]) <= 4
        assert time.process_time() - begin < 2


@pytest.mark.parametrize("position", [float("inf"), float("nan"), "9" * 5000])
def test_positions_that_no_table_holds_are_no_rationales(position, tmp_path):
    cell, other = (position, "0") if isinstance(position, str) else ([position], [0])
    rows = [{"text": t, "rationale": r} for t, r in zip(TEXTS, (cell, other), strict=True)]
    (tmp_path / "data.jsonl").write_bytes(json_lines(rows))
    assert "rationale" not in load_examples(tmp_path / "data.jsonl", "test").column_names


def test_a_number_that_no_table_holds_is_one_line(tmp_path):
    rows = [{"text": t, "rationale": [10**30]} for t in TEXTS]
    (tmp_path / "data.jsonl").write_bytes(json_lines(rows))
    refused("column 'rationale' must contain", load_examples, tmp_path / "data.jsonl", "test")


def test_a_column_of_labels_that_is_named_twice_counts_once():
    rows = [{"text": text, "label": k} for k, text in enumerate(TEXTS)]
    examples = load_examples(rows, "test", label_column=["label", "label"])
    assert examples["label"][:] == [0, 1]


def test_a_text_file_with_a_table_is_renamed(tmp_path):
    """Excel saves its "Unicode text" under the ending .txt."""
    file = tmp_path / "table.txt"
    file.write_text("text\tlabel\nfine\t1\n", "utf-16")
    refused("rename it to .tsv", load_examples, str(file), "test")


@pytest.mark.parametrize("name", ["data.jsonl.gz", "data.csv.gz", "data.zip"])
def test_a_packed_file_is_called_so(name, tmp_path):
    (tmp_path / name).write_bytes(gzip.compress(GOOD))
    refused(
        "Unpack or convert the file",
        load_examples,
        str(tmp_path / name),
        "test",
    )


# --- output folders -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("s3://bucket/x", "got the URL s3:"),
        ("memory://x", "got the URL"),
        ("file:///tmp/x", "got the URL"),
        ("http://localhost/x", "got the URL"),
        ("a\0b", "expected a path or an id for the output"),
        ("b" * 300, "the output"),
        ("broken", "cannot use the output folder broken"),
    ],
)
def test_an_output_folder_that_cannot_be_is_one_line_and_leaves_nothing(
    place, said, checkpoint, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    rows = [{"text": text, "label": k} for k, text in enumerate(TEXTS)]
    with refuses(said):
        audit(checkpoint, rows, "conicity", output_dir=place, progress=False)
    assert [file.name for file in tmp_path.iterdir()] == ["broken"]


@pytest.mark.slow
def test_a_launchers_variables_without_a_launcher_are_one_line(run_warm, checkpoint, tmp_path):
    (tmp_path / "data.jsonl").write_bytes(GOOD)
    command = ("audit", "--model", checkpoint, "--dataset", tmp_path / "data.jsonl")
    done = run_warm("-m", "hf_attnprobe", *command, env={"WORLD_SIZE": "4"})
    assert done.code == 1 and done.err.count("\n") == 1
    assert "expected 4 processes (WORLD_SIZE)" in done.err and "unset WORLD_SIZE" in done.err


def test_cells_of_a_table_are_no_formulas():
    names = ['=HYPERLINK("http://evil")', "+1+cmd|' /C calc'!A0", "-x", "@x", "\tx", "good"]
    frame = pd.DataFrame({"group": names, "mean": [-0.5] * len(names)})
    read = pd.read_csv(io.StringIO(format_csv(frame)))
    assert read.group.tolist() == [*(f"'{name}" for name in names[:-1]), "good"]
    assert read["mean"].tolist() == [-0.5] * len(names)


# --- checkpoints ----------------------------------------------------------------------


ROWS = [{"text": text, "label": k} for k, text in enumerate(TEXTS)]


def with_column(name):
    """A change of a tokenizer that gives one more column."""

    def change(model, tokenizer):
        class More(type(tokenizer)):
            def __call__(self, *given, **options):
                encoded = super().__call__(*given, **options)
                encoded[name] = [[0] * len(ids) for ids in encoded["input_ids"]]
                return encoded

        tokenizer.__class__ = More
        return model

    return change


def hidden_forward(model, tokenizer):
    forward = model.forward
    model.forward = lambda *given, **options: forward(*given, **options)
    return model


def quantised(model, tokenizer):
    return torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)


def on_meta(model, tokenizer):
    return model.to("meta")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_column("bbox"), "returns bbox, but only input_ids"),
        (with_column("position_ids"), "returns position_ids, but only input_ids"),
        (with_column("input_shape_ids"), "returns input_shape_ids, but only input_ids"),
        (quantised, "as a tensor, but the model is quantized"),
        (on_meta, "is on the device 'meta'"),
        (hidden_forward, "expected a single tensor of embeddings"),
    ],
)
def test_a_model_that_cannot_be_audited_is_one_line(change, said, models):
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    model = BertForSequenceClassification.from_pretrained(models["bert"])
    model = change(model, tokenizer)
    with refuses(said):
        audit(model, ROWS, Permutation(2), tokenizer=tokenizer, progress=False)


@pytest.mark.parametrize("longest", [float("inf"), float("nan"), 64])
def test_the_length_of_a_tokenizer_may_be_no_number(longest, models):
    tokenizer = AutoTokenizer.from_pretrained(models["bert"])
    model = BertForSequenceClassification.from_pretrained(models["bert"])
    tokenizer.model_max_length = longest
    assert wrap(model).get_max_length(tokenizer) == 64


# --- one reader for tables --------------------------------------------------------------


@pytest.mark.parametrize("form", [".json", ".jsonl"])
@pytest.mark.parametrize(
    "content",
    [
        "null",
        " null",
        "\nnull\n{}",
        "\ufeffnull",
        "1",
        '"a"',
        "[1]",
        '{"text": "a"}\nnull',
        "",
        "[",
    ],
)
def test_json_of_any_form_is_rows_or_one_line(form, content, tmp_path):
    """pyarrow ends the process at a null in front."""
    folder = tmp_path / "folder"
    folder.mkdir()
    for file in (tmp_path / f"data{form}", folder / f"test{form}"):
        file.write_text(content, encoding="utf-8")
    with refuses():
        load_examples(tmp_path / f"data{form}", "test")
    if "text" not in content:  # which datasets reads with a row of nothing
        with refuses():
            load_examples(folder, "test")


@pytest.mark.parametrize(
    "cells", [["1984", "2001"], ["0.50", "1e3"], ["True", "false"], ["007", "NA"]]
)
@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_cells_of_texts_are_read_as_they_are_written(cells, form, tmp_path):
    separator = {"csv": ",", "tsv": "\t"}[form]
    rows = [
        separator.join([cell, cell, "A passage of words.", str(k)]) for k, cell in enumerate(cells)
    ]
    header = separator.join(["said", " question", "context", "label"])
    file = tmp_path / f"data.{form}"
    file.write_text("\n".join([header, *rows]) + "\n")
    read = Answers(str(file), answer_column="said").load_examples()
    assert read["answer"][:] == read["question"][:] == cells
    texts = load_examples(file, "test", text_column="said")
    assert texts["text"][:] == cells and texts["label"][:] == [0, 1]
    as_labels = load_examples(file, "test", text_column="context", label_column="said")
    assert get_label_names(as_labels) != cells or cells == [
        "007",
        "NA",
    ]  # numbers, where they are some


def test_a_table_needs_no_cache(tmp_path, monkeypatch):
    nowhere = tmp_path / "file" / "cache"
    nowhere.parent.write_text("no folder")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(nowhere))
    (tmp_path / "data.csv").write_text("text,label\na film,0\n")
    assert load_examples(tmp_path / "data.csv", "test")["text"][:] == ["a film"]
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "test.csv").write_text("text,label\na film,0\n")
    refused("cannot write to the Hugging Face cache", load_examples, folder, "test")
