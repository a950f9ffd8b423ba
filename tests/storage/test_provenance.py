"""What rows belong to: the model that says the same of a text alone, its configuration, its tokenizer, its audit."""

import json
import shutil

import pytest
from transformers import BertForSequenceClassification

from hf_attnprobe import AuditOptions, audit
from hf_attnprobe.checkpoints import load_tokenizer
from hf_attnprobe.storage.rows import read_rows
from tests.helpers import tiny_models
from tests.helpers.error_messages import refuses


FEW = {"tests": ["permutation"], "options": AuditOptions(single_heads=False), "progress": False}


class CentredOverBatches(BertForSequenceClassification):
    """Its predictions depend on the texts beside, in batches of five and more."""

    def forward(self, input_ids=None, attention_mask=None, **kwargs):
        result = super().forward(input_ids, attention_mask, **kwargs)
        if len(input_ids) >= 5:
            result.logits = result.logits - result.logits.mean(0)
        return result


def make(tokenizer, kind=BertForSequenceClassification):
    return tiny_models.bert(tokenizer, kind=kind, spread=0.3)


@pytest.fixture
def rows(reviews):
    """Twelve texts of one number of tokens, so that nothing is padded."""
    texts = [" ".join(text.split()[:6]) for text in reviews["test"]["text"][:12]]
    return [{"text": text, "label": k % 2} for k, text in enumerate(texts)]


@pytest.fixture
def folder(tokenizer, tmp_path):
    """A model with its tokenizer; may be written into."""
    return tiny_models.saved(tmp_path / "model", make(tokenizer), tokenizer)


def refused(message, *arguments, **options):
    """An audit that must fail in one line with this in it."""
    with refuses(message):
        audit(*arguments, **FEW | options)


def parts(out):
    return {part.name: part.read_bytes() for part in (out / "rows").iterdir()}


# --- the model itself, on one text alone --------------------------------------------------------------------------


def test_rows_that_depend_on_the_batch_are_refused_and_kept(tokenizer, rows, tmp_path):
    subject = make(tokenizer, CentredOverBatches), tokenizer
    said = r"the model predicts .* for text .* alone, but .*rows.*--batch-size 1"
    refused(said, subject, rows, output_dir=tmp_path)
    assert len(read_rows(tmp_path / "rows").example_id.unique()) == len(rows)
    one = AuditOptions(single_heads=False, batch_size=1)
    audit(subject, rows, **FEW | {"options": one})  # as the error says


def test_a_hook_between_two_audits_is_found_before_anything_is_written(tokenizer, rows, tmp_path):
    model = make(tokenizer)
    audit((model, tokenizer), rows[:6], **FEW, output_dir=tmp_path)
    before = parts(tmp_path)
    model.classifier.register_forward_hook(lambda module, given, out: out * 3)
    same = {"output_dir": tmp_path, "tests": ["permutation", "uniform_attention"]}
    refused("or its hooks have changed", (model, tokenizer), rows[:6], **same)
    assert parts(tmp_path) == before


# --- configuration and tokenizer ----------------------------------------------------------------------------------


def _config(**values):
    def change(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return change


def _swap(first, second):
    """Two words change places in the vocabulary."""

    def change(folder):
        file = folder / "tokenizer.json"
        held = json.loads(file.read_text())
        words = held["model"]["vocab"]
        words[first], words[second] = words[second], words[first]
        file.write_text(json.dumps(held))

    return change


def _limit(folder):
    tokenizer = load_tokenizer(folder)
    tokenizer.model_max_length = 5
    tokenizer.save_pretrained(folder)


CHANGES = {
    "activation": (_config(hidden_act="relu"), "configuration"),
    "epsilon": (_config(layer_norm_eps=0.1), "configuration"),
    "heads": (_config(num_attention_heads=4), "configuration"),
    "words": (_swap("the", "a"), "tokenizer"),
    "length": (_limit, "tokenizer"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_configuration_or_tokenizer_is_refused(name, folder, rows, tmp_path):
    change, said = CHANGES[name]
    out = tmp_path / "out"
    audit(folder, rows[:4], **FEW, output_dir=out)
    before = parts(out)
    change(folder)
    refused(
        f"another audit with different settings: {said} fingerprint",
        folder,
        rows[:4],
        output_dir=out,
    )
    assert parts(out) == before


def test_buffers_that_are_not_saved_belong_to_a_model(tokenizer, rows, tmp_path):
    model = make(tokenizer)
    audit((model, tokenizer), rows[:4], **FEW, output_dir=tmp_path)
    ids = model.bert.embeddings.position_ids
    ids.copy_(ids.flip(-1))
    said = "different settings: configuration fingerprint"
    refused(said, (model, tokenizer), rows[:4], output_dir=tmp_path)


def test_where_a_model_is_and_how_it_was_called_do_not_count(folder, rows, tmp_path):
    """Another place, another version of Transformers, truncation and padding of the last call."""
    out = tmp_path / "out"
    audit(folder, rows[:4], **FEW, output_dir=out)
    before = parts(out)
    moved = shutil.copytree(folder, tmp_path / "moved")
    _config(transformers_version="4.0.0", _name_or_path="elsewhere")(moved)
    tokenizer = load_tokenizer(moved)
    tokenizer("the film", truncation=True, max_length=3, padding="max_length")
    audit(moved, rows[:4], **FEW, output_dir=out, tokenizer=tokenizer)
    assert parts(out) == before


# --- whose rows they are ------------------------------------------------------------------------------------------


def test_rows_of_another_audit_are_refused(tokenizer, rows, folder, tmp_path):
    mine, others = tmp_path / "mine", tmp_path / "others"
    given = FEW | {"options": AuditOptions(single_heads=False)}
    audit(folder, rows[:4], **given, output_dir=mine)
    other = tiny_models.bert(tokenizer, seed=1)
    audit((other, tokenizer), rows[:4], **given, output_dir=others)
    shutil.rmtree(mine / "rows")
    shutil.copytree(others / "rows", mine / "rows")
    refused(
        "does not belong to the audit in .* Delete this file",
        folder,
        rows[:4],
        **given,
        output_dir=mine,
    )
