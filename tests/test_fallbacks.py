"""Everything that the package replaces, ignores or guesses, with the message that it prints.

Each entry of ``FALLBACKS`` triggers one fallback. A last test compares the entries with the calls of
``logger.warning`` in the source, so that no fallback is added without an entry.
"""

import ast
import errno
import fcntl
import json
import os
import re
import warnings
from pathlib import Path
from types import SimpleNamespace

import datasets
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from transformers import BertForSequenceClassification, LayoutLMForSequenceClassification

import hf_attnprobe
from hf_attnprobe import AuditOptions, Permutation, audit, build_tokenizer, load_examples
from hf_attnprobe.adapters import wrap
from hf_attnprobe.audits import example_selection, pipeline
from hf_attnprobe.audits.split_samples import set_sharpness
from hf_attnprobe.checkpoints import origins
from hf_attnprobe.checkpoints.records import write_readme
from hf_attnprobe.citations.rows import read_rows
from hf_attnprobe.data.examples import prepare_splits
from hf_attnprobe.inference.labels import convert_labels
from hf_attnprobe.integrations.pipeline import explain_text
from hf_attnprobe.integrations.trainer_callback import AttentionFaithfulnessCallback
from hf_attnprobe.plots import matplotlib_backend
from hf_attnprobe.retraining.base_model import drop_copies
from hf_attnprobe.storage.folders import reserve_folder
from hf_attnprobe.storage.run_log import read_run_log
from hf_attnprobe.training import run, trainer
from tests.helpers import sample_cards, tiny_language_models, tiny_models


PACKAGE = Path(hf_attnprobe.__file__).parent
WORDS = "dull fine long odd calm loud dark warm cold slow fast rare".split()  # noqa: SIM905
TEXTS = [f"a {word} film with a plot" for word in WORDS]
SHUFFLES = [Permutation(n_permutations=2)]

pytestmark = pytest.mark.usefixtures("private_cache")


def make_bert(**fields):
    """Return a BERT and its tokenizer, which knows the words of ``TEXTS``."""
    tokenizer = build_tokenizer(TEXTS)
    return tiny_models.bert(tokenizer, **fields), tokenizer


def run_audit(data, tests=SHUFFLES, *, model=None, output_dir=None, shown_texts=0, **fields):
    """Audit a BERT as a whole."""
    model, tokenizer = model or make_bert(**fields)
    options = AuditOptions(single_heads=False, shown_texts=shown_texts)
    chosen = {"options": options, "tokenizer": tokenizer, "progress": False}
    return audit(model, data, tests, output_dir=output_dir, **chosen)


def read_missing_recipe_column(folder, patch):
    rows = [{"text": "a", "label": 0}]
    datasets.Dataset.from_list(rows).to_csv(folder / "test.csv")
    load_examples(f"yahoo={folder}", "test")


def read_text_files(folder, patch):
    (folder / "flat").mkdir()
    (folder / "flat" / "test.txt").write_text("a film")
    load_examples(folder / "flat", "test")


def read_with_wrong_encoding(folder, patch):
    (folder / "t.csv").write_text("text\ncafé\n", encoding="utf-8")
    load_examples(folder / "t.csv", "test", encoding="latin-1")


def read_rationales_as_sentences(folder, patch):
    load_examples([{"text": "a film", "rationale": ["film"]}], "test")


def read_files_without_coordinates(folder, patch):
    arrays = {"features": np.ones((2, 3)), "coords": np.ones((2, 2))}
    save_file(arrays, folder / "a.safetensors")
    save_file({"features": arrays["features"]}, folder / "b.safetensors")
    load_examples([{"features": str(folder / f"{name}.safetensors")} for name in "ab"], "test")


def train_on_blank_texts(folder, patch):
    rows = [{"text": text, "label": k % 2} for k, text in enumerate(["a", "b", None])]
    prepare_splits(rows, None, None)


def convert_undeclared_labels(folder, patch):
    names = dict(enumerate(["toxic", "rude"]))
    fields = {"kind": BertForSequenceClassification, "id2label": names}
    model = tiny_models.bert(problem_type="multi_label_classification", **fields)
    columns = {"text": ["a", "b"], "toxic": [0, 1], "other": [0, 0]}
    examples = load_examples(columns, "test", label_column=["toxic", "other"])
    convert_labels(wrap(model).prediction, examples, None, {}, None)


def convert_long_masked_words(folder, patch):
    tokenizer = tiny_models.word_pieces(["film", "plot"])
    model = tiny_models.bert(tokenizer, **tiny_models.HEADS["words"])
    rows = [{"text": "[MASK] film", "label": label} for label in ("film plot", "film")]
    examples = load_examples(rows, "test")
    inputs = {"input_ids": tokenizer([row["text"] for row in rows])["input_ids"]}
    adapter = wrap(model, mask_id=tokenizer.mask_token_id)
    convert_labels(adapter.prediction, examples, tokenizer, inputs, None)


def compute_temperature_with_nan(folder, patch):
    model, tokenizer = make_bert()
    (token_id,) = tokenizer("rare", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[token_id] = torch.nan
    set_sharpness(wrap(model), tokenizer, load_examples(TEXTS, "test"))


def compute_temperature_of_ties(folder, patch):
    tokenizer = build_tokenizer(TEXTS)
    model = tiny_models.classifier(tokenizer)
    with torch.no_grad():
        model.classifier.weight.zero_()
        model.classifier.bias.zero_()
    set_sharpness(wrap(model), tokenizer, load_examples(TEXTS, "test"))


def exchange_equal_predictions(folder, patch):
    model, tokenizer = make_bert()
    with torch.no_grad():
        model.classifier.bias += torch.tensor([0.0, 15.0])
    run_audit(TEXTS, ["interchange"], model=(model, tokenizer))


def cut_and_skip_texts(folder, patch):
    run_audit(["a film " * 40, "", "a dull plot"], max_position_embeddings=8)


def pair_with_a_blank_text(folder, patch):
    rows = [{"text": text, "text_pair": "a plot"} for text in ("a film", None)]
    tokenizer = tiny_models.word_pieces(["a", "film", "plot"])
    model = tiny_models.bert(tokenizer)
    run_audit(rows, model=(model, tokenizer))


def match_labels_by_number(folder, patch):
    model, tokenizer = make_bert(id2label={0: "no", 1: "yes"})
    with torch.no_grad():
        model.classifier.bias += torch.tensor([0.0, 15.0])
    rows = [{"text": text, "label": 0} for text in TEXTS[:-1]] + [{"text": TEXTS[-1], "label": 1}]
    run_audit(rows, model=(model, tokenizer))


def refuse_to_write(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def write_no_texts(folder, patch):
    patch.setattr(example_selection, "write_texts", refuse_to_write)
    run_audit(TEXTS, output_dir=folder / "out", shown_texts=1)


def write_no_page(folder, patch):
    patch.setattr(pipeline, "write_atomically", refuse_to_write)
    run_audit(TEXTS, output_dir=folder / "out")


def leave_out_a_test(folder, patch):
    rows = [{"text": text, "label": k % 2} for k, text in enumerate(TEXTS)]
    run_audit(rows, ["permutation", "plausibility"])


def make_layoutlm():
    """Return a LayoutLM, which also reads boxes, and its tokenizer."""
    tokenizer = build_tokenizer(TEXTS)
    fields = {"max_2d_position_embeddings": 16, "spread": 0.05}
    model = tiny_models.bert(tokenizer, kind=LayoutLMForSequenceClassification, **fields)
    return model, tokenizer


def audit_without_boxes(folder, patch):
    run_audit(TEXTS, model=make_layoutlm())


def read_a_damaged_run_log(folder, patch):
    (folder / "runs.json").write_text("[{")
    read_run_log(folder, {}, lambda: 0.0)


def cite_with_further_columns(folder, patch):
    read_rows([{"passages": ["Ann lives in Rome."], "question": "Where?", "source": "web"}])


def train_to_guess(folder, patch):
    splits = {"test": load_examples({"text": ["a", "b", "c"], "label": [0, 1, 1]}, "test")}
    run._warn_about_guessing({"test_accuracy": 2 / 3}, splits)


def retrain_with_copies(folder, patch):
    drop_copies(datasets.Dataset.from_dict({"text": ["a", "b", "a"]}))


def explain_without_boxes(folder, patch):
    explain_text(*make_layoutlm(), TEXTS[0])


ROW = {"context": "Ann lives in Rome. Bob lives in Oslo.", "question": "Who?", "answer": "Bob"}


def prepare_prompts(folder, patch):
    tokenizer = tiny_language_models.tokenizer(chat=False)
    rows = [ROW, {**ROW, "answer": None}, {**ROW, "context": "Ann lives in Rome."}]
    model = tiny_language_models.llama(tokenizer)
    tiny_language_models.prompts(rows, tokenizer, model, max_new_tokens=2)


def lock_without_locks(folder, patch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    patch.setattr(fcntl, "flock", refuse)
    with reserve_folder(folder):
        pass


def choose_the_best_checkpoint(folder, patch):
    for step in (1, 2):
        (folder / f"checkpoint-{step}").mkdir()
    state = {"best_model_checkpoint": "out/checkpoint-1"}
    (folder / "checkpoint-2" / "trainer_state.json").write_text(json.dumps(state))
    assert origins._choose_folder(folder, None) == str(folder / "checkpoint-1")


def resume_from_a_damaged_checkpoint(folder, patch):
    checkpoint = folder / "checkpoint-1"
    checkpoint.mkdir()
    (checkpoint / "model.safetensors").write_text("weights")
    trainer._write_digests(checkpoint)
    (checkpoint / "model.safetensors").write_text("other weights")
    assert trainer._find_last_checkpoint(folder) is None


def write_no_card(folder, patch):
    (folder / "README.md").mkdir()
    trainer._write_card(folder, make_bert()[0])


def remove_audits_from_a_card(folder, patch):
    write_readme(folder, sample_cards.card(sample_cards.finding()))
    write_readme(folder, sample_cards.card())


def train_without_evaluation(folder, patch):
    callback = AttentionFaithfulnessCallback(TEXTS)
    for name in ("_get_trainer", "_audit", "_check_statistics"):
        patch.setattr(callback, name, lambda *_, **__: None)
    callback.on_train_begin(SimpleNamespace(eval_strategy="no"), None, None)


def draw_rare_characters(folder, patch):
    message = UserWarning("Glyph 128512 missing from font(s) DejaVu Sans.")
    caught = warnings.WarningMessage(message, UserWarning, "chart.py", 1)
    matplotlib_backend._report_warnings([caught])


FALLBACKS = {
    read_missing_recipe_column: r"the data has no column .* is read instead",
    read_text_files: r"each line is read as a text without a label",
    read_with_wrong_encoding: r"is valid UTF-8, but it is read as iso8859-1",
    read_rationales_as_sentences: r"column rationale is ignored",
    read_files_without_coordinates: r"only 1 of 2 files in column 'features' have coordinates",
    train_on_blank_texts: r"1 of 3 train texts are blank; the model reads them as empty texts",
    convert_undeclared_labels: r"no column or name for 1 of the model's 2 labels \(rude\)",
    convert_long_masked_words: r"the labels of 1 texts are not single tokens",
    compute_temperature_with_nan: r"NaN or infinity for 1 of the 12 texts",
    compute_temperature_of_ties: r"no temperature makes .* the model's own temperature is used",
    exchange_equal_predictions: r"the test interchange cannot be measured",
    cut_and_skip_texts: r"1 of 3 texts is blank and left out[^\0]*1 of 2 texts was cut to 8 tokens",
    pair_with_a_blank_text: r"1 pair with one blank text: the model reads it as an empty text",
    match_labels_by_number: r"less than chance \(50%\)\. Is this order right\?",
    write_no_texts: r"cannot write the texts in .* \(No space left on device\)",
    write_no_page: r"cannot write .*report.md \(No space left on device\)",
    audit_without_boxes: r"also reads bbox, but the data has no such column",
    explain_without_boxes: r"also reads bbox, which a single text does not have",
    read_a_damaged_run_log: r"runs.json \(JSONDecodeError\), so the time of earlier runs is not counted",
    cite_with_further_columns: r"the columns source are not used",
    train_to_guess: r"its test accuracy is 0.667, and a model that always predicts .* reaches 0.667",
    retrain_with_copies: r"1 of the 3 test texts are copies of other test texts",
    leave_out_a_test: r"the test plausibility is left out: ",
    prepare_prompts: r"1 of 3 prompts .* left out[^\0]*1 of 2 prompts have no answer in the data",
    lock_without_locks: r"on a disk without locks \(No locks available\)",
    choose_the_best_checkpoint: r"holds several checkpoints; the best one, checkpoint-1, is used",
    resume_from_a_damaged_checkpoint: r"was damaged; the training starts from the beginning",
    write_no_card: r"no model card was written in ",
    remove_audits_from_a_card: r"no longer contains the audit results on .* \(test\)",
    train_without_evaluation: r"attention is not audited, because this Trainer does not evaluate",
    draw_rare_characters: r"lacks some characters of these names",
}
"""Maps a function that triggers a fallback to the message that it prints, as a regular expression."""
OTHER_WARNINGS = {
    ("audits.audited_model", "is slow on this CPU"),
    ("audits.self_checks", "half precision: probabilities or output changes differ"),
}
"""Parts of warnings that are no fallbacks: they give advice, or report a measured difference."""
FALLBACKS_OF_OTHER_TESTS = {
    ("planted_effects.detection_limit", "%s"),
    (
        "reports.experiment_trackers",
        "log_to logs no number, because no question was measured on at least %d texts",
    ),
    ("citations.api", "the model's answer to %s is empty, so the row is left out"),
    ("inference.answers", "the logits for %s are NaN or infinite, so this prompt is left out"),
    ("audits.setup", "the logits for text %d are NaN or infinite, so this prompt is left out"),
    (
        "inference.answer_cache",
        "%d cached answers in %s were changed or belong to other prompts, so they are generated again",
    ),
}
"""Fallbacks that tests of their own modules trigger.

The first message names the head in which no effect can be planted, and needs a long run. The others are
tested in tests/reports, tests/inference and tests/citations.
"""


def list_warnings():
    """List the module and the message of every call of ``logger.warning`` in the package."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.walk(ast.parse(path.read_text())):
            is_call = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
            if (
                is_call
                and node.func.attr == "warning"
                and ast.unparse(node.func) == "logger.warning"
            ):
                yield module, ast.literal_eval(node.args[0])


def test_every_fallback_prints_its_message(tmp_path, monkeypatch, caplog):
    """Trigger all fallbacks in one process, then compare them with the warnings in the source."""
    triggered = set()
    for number, (trigger, pattern) in enumerate(FALLBACKS.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        caplog.clear()
        with monkeypatch.context() as patch:
            trigger(folder, patch)
        records = [record for record in caplog.records if record.name.startswith("hf_attnprobe.")]
        messages = "\n".join(record.getMessage() for record in records)
        assert re.search(pattern, messages), (trigger.__name__, messages)
        for record in records:
            assert "\n" not in record.getMessage()
            triggered.add((record.name.removeprefix("hf_attnprobe."), record.msg))
    listed = triggered | FALLBACKS_OF_OTHER_TESTS
    for module, message in list_warnings():
        is_other = any(module == m and part in message for m, part in OTHER_WARNINGS)
        assert is_other or (module, message) in listed, f"add a trigger for {module}: {message}"
