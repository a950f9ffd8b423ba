"""Limits of detection: what is measured, written and refused, and how an audit states them."""

import json
import shutil

import pytest
import torch

from hf_attnprobe import AttnProbeError, audit
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.planted_effects.detection_limit import find_detection_limit
from hf_attnprobe.planted_effects.options import DetectionLimitOptions
from hf_attnprobe.storage.folders import lock_folder
from tests.helpers import planted_models, tiny_models
from tests.helpers.error_messages import refusal, refuses
from tests.planted_effects.cases import build_case


def test_a_head_that_says_nothing_says_so():
    model, words, rows, _ = build_case("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight[:, :8] = 0
    with refuses(r"head 1\.0 does not influence the output"):
        find_detection_limit(
            model, rows, options=DetectionLimitOptions(spiked_heads=["1.0"]), tokenizer=words
        )


def test_no_effect_is_planted_in_a_model_that_predicts_a_number():
    words = planted_models.build_planted_tokenizer()
    rows = [{"text": row["text"], "label": k / 9} for k, row in enumerate(build_case("bert")[2])]
    model = tiny_models.bert(words, **tiny_models.HEADS["number"])
    with pytest.raises(
        AttnProbeError, match="planted in a model that predicts a class or an answer from a text"
    ):
        find_detection_limit(model, rows, tokenizer=words)


@pytest.mark.slow
def test_copies_of_a_text_count_once(monkeypatch):
    """Each text is measured once, so the intervals are those of the different texts."""
    monkeypatch.setattr("hf_attnprobe.statistics.detection.N_RESAMPLES", 5)
    model, words, rows, _ = build_case("bert")
    options = DetectionLimitOptions(spiked_heads=["0.1"], doses=[2.0])
    once, copied = (
        find_detection_limit(model, data, options=options, tokenizer=words)
        for data in (rows, rows * 3)
    )
    assert (once.n, once.n_texts, copied.n, copied.n_texts) == (24, 24, 24, 72)
    assert copied.limits == once.limits and copied.effects == once.effects
    assert "was measured on 72 texts (24 different)" in copied.to_markdown()
    assert "was measured on 24 texts of" in once.to_markdown()


# --- The verb ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spike")
    model, words, rows, _ = build_case("bert")
    options = DetectionLimitOptions(spiked_heads=["0.1"], doses=[0.25, 0.5, 1.0, 1.5, 2.0])
    return find_detection_limit(model, rows, folder, options=options, tokenizer=words), folder


def test_effect_and_statistics_rise_with_the_dose(found):
    found, _ = found
    effects = [record["log-odds"] for record in found.effects]
    assert effects == sorted(effects) and effects[0] == 0
    rises = {r["statistic"]: r["rank correlation"] for r in found.responses}
    assert rises["mean_tvd"] >= 0.9 and rises["uniform_tvd"] >= 0.9
    assert "path_share" in rises


def test_files_say_what_was_found(found):
    found, folder = found
    stored = json.loads((folder / "spike_in.json").read_text())
    assert stored["n"] == 24 and stored["effects"] == found.effects
    assert (folder / "spike_in.md").read_text() == found.to_markdown()
    assert "Detection limits" in str(found) and (folder / "rows.csv").exists()


def test_an_audit_of_the_model_says_what_it_would_have_seen(found):
    """At its own number of texts, by the numbers of the spike-in where that is the same."""
    found, folder = found
    model, words, rows, _ = build_case("bert")
    options = AuditOptions(limits=str(folder), groups=False, heads=[1])
    report = audit(model, rows, ["permutation"], options=options, tokenizer=words)
    (note,) = [note for note in report.notes if note.startswith("Detection limit:")]
    assert "head 0.1" in note and "24 texts" in note and note in report.to_markdown()
    assert "The audit may miss smaller effects" in note
    assert " 5% of the decision or more passes through the head" in note


def said_of_limits(folder, kind="bert", change=lambda model, words: None):
    """What an audit of a model says of a folder of limits that it refuses."""
    model, words, rows, _ = build_case(kind)
    change(model, words)
    options = AuditOptions(limits=str(folder))
    return refusal(audit, model, rows, ["permutation"], options=options, tokenizer=words)


def test_limits_of_another_model_or_of_none_are_refused(found, tmp_path, monkeypatch):
    folder = found[1]
    assert "with another model fingerprint" in said_of_limits(folder, "classifier")
    other = {"hidden_dropout_prob": 0.3}
    of_config = said_of_limits(folder, change=lambda model, _: model.config.update(other))
    assert "with another configuration fingerprint." in of_config
    assert "Run attnprobe detection-limit again" in said_of_limits(tmp_path)
    monkeypatch.setattr(planted_models.build_planted_tokenizer(), "model_max_length", 7)
    assert "with another tokenizer fingerprint." in said_of_limits(folder)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("rows.csv", lambda text: text[: len(text) // 2]),
        ("rows.csv", lambda text: text.replace(",0\n", ",0.01\n")),
        ("rows.csv", lambda text: text.replace("value", "wert")),
        ("rows.csv", None),
        ("spike_in.json", lambda text: f"[{text}]"),
        ("spike_in.json", lambda text: '"text"'),
        ("spike_in.json", lambda text: "null"),
        (
            "spike_in.json",
            lambda text: text.replace('"rows_sha256": "', '"rows_sha256": 1, "a": "'),
        ),
        ("spike_in.json", None),
    ],
)
def test_limits_that_were_changed_are_refused(found, tmp_path, file, change):
    folder = shutil.copytree(found[1], tmp_path / "spike")
    text = (folder / file).read_text()
    (folder / file).unlink()
    if change is not None:
        assert change(text) != text
        (folder / file).write_text(change(text))
    said = said_of_limits(folder)
    assert file in said and "attnprobe detection-limit again" in said


def test_a_measurement_uses_only_its_own_folder(found, tmp_path):
    model, words, rows, _ = build_case("bert")
    few = DetectionLimitOptions(spiked_heads=["0.1"], doses=[1.0])

    def refused(folder, says, **changed):
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        with refuses(says):
            find_detection_limit(
                model, rows, folder, **{"options": few, "tokenizer": words, **changed}
            )
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before

    refused(found[1], "belongs to another detection-limit with different settings: options")
    (tmp_path / "rows.csv").write_text("mine")
    refused(tmp_path, "contains other files")
    new = tmp_path / "new"
    with lock_folder(new):
        refused(new, "another run .* uses")
    nowhere = DetectionLimitOptions(spiked_heads=["7.0"])
    with refuses():
        find_detection_limit(model, rows, new, options=nowhere, tokenizer=words)
    assert not new.exists()
