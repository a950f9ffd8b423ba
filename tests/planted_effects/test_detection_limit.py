"""Planted effects: the modified copy differs from the model only as planned, by a known effect."""

import json
import shutil

import numpy as np
import pytest
import torch
from scipy.stats import norm, sem

from hf_attnprobe import Answers, AttnProbeError, audit
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.setup import AuditRequest, prepare_audit
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.planted_effects import planting as spikes
from hf_attnprobe.planted_effects.detection_limit import find_detection_limit
from hf_attnprobe.planted_effects.options import DetectionLimitOptions
from hf_attnprobe.protocol import Site
from hf_attnprobe.statistics import detection
from hf_attnprobe.storage.folders import lock_folder
from tests.helpers import planted_models, tiny_language_models, tiny_models
from tests.helpers.error_messages import refusal, refuses


def made(kind: str) -> tuple:
    """A model, its tokenizer, texts and a head."""
    words = planted_models.build_planted_tokenizer()
    rows = planted_models.draw_planted_model(1, 24).rows
    if kind == "bert":
        return tiny_models.bert(words, num_labels=2), words, rows, Site(0, 1)
    if kind == "classifier":
        return tiny_models.classifier(words, read_out=6.0, query=4.0), words, rows, Site(0, 0)
    words = tiny_language_models.tokenizer(chat=False)
    data = Answers(tiny_language_models.ROWS * 4, units="sentence")
    return tiny_language_models.llama(words, tie_word_embeddings=True), words, data, Site(1, 0)


def fitted(kind: str) -> tuple:
    """Model, spike, and batches without and with the token."""
    model, words, data, site = made(kind)
    options = AuditOptions(groups=False)
    job = prepare_audit(AuditRequest(model, data, ["head_ablation"], options, words))
    adapter, texts = job.audited_model.adapter, job.tokenized.texts
    token = spikes.find_unused_token(texts, len(words), words.all_special_ids, 0)
    new = [spikes.insert_token(text, token, 0) for text in texts]
    n = adapter.max_batch_size or len(texts)
    plain, with_token = (
        [collate(adapter, part[k : k + n], 0) for k in range(0, len(part), n)]
        for part in (texts, new)
    )
    return (
        model,
        spikes.fit_planted_effect(model, plain, with_token, site, token),
        plain,
        with_token,
    )


@pytest.fixture(
    scope="module", params=tiny_models.daily(["bert", "classifier", "llama"], ("bert", "llama"))
)
def one(request):
    model = made(request.param)[0]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model, spike, plain, with_token = fitted(request.param)
    return model, spike, plain, with_token, before


def odds(model, batches) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat(
            [
                spikes.compute_log_odds(model(**batch.tokenizer_output).logits, batch.inputs)
                for batch in batches
            ]
        )


def test_at_dose_0_texts_without_the_token_get_the_models_own_output(one):
    model, spike, plain, _, before = one
    twin = spikes.make_modified_copy(model, spike, 0.0)
    for batch in plain:
        ours, own = twin(**batch.tokenizer_output).logits, model(**batch.tokenizer_output).logits
        assert torch.allclose(ours, own, rtol=0, atol=1e-6)
    changed = [n for n, w in twin.state_dict().items() if not w.equal(before.get(n, w))]
    assert changed == [n for n in changed if "embed" in n] and len(changed) == 1


def test_the_users_model_stays_as_it_was_byte_by_byte(one):
    model, spike, *_, before = one
    spikes.make_modified_copy(model, spike, 3.0)
    assert model.state_dict().keys() == before.keys()
    assert all(weight.equal(before[name]) for name, weight in model.state_dict().items())


def test_a_small_dose_is_the_mean_change_of_the_log_odds(one):
    model, spike, _, with_token, _ = one
    dose = 0.01
    void, said = (spikes.make_modified_copy(model, spike, size) for size in (0.0, dose))
    change = float((odds(said, with_token) - odds(void, with_token)).mean())
    assert change == pytest.approx(spike.sign * dose, rel=0.05)


def test_of_an_attention_classifier_the_log_odds_are_those_computed_by_hand():
    model, spike, _, (batch,) = fitted("classifier")
    twin = spikes.make_modified_copy(model, spike, 2.0)
    with torch.no_grad():
        void = spikes.make_modified_copy(model, spike, 0.0)(
            **batch.tokenizer_output, output_attentions=True, output_hidden_states=True
        )
        attention, states = void.attentions[0][:, 0, 0], void.hidden_states[0]
        margin = 2.0 * float(spike.write.sum()) * (attention * (states @ spike.read)).sum(-1)
        expected = void.logits[:, 1] - void.logits[:, 0] + margin
        found = twin(**batch.tokenizer_output).logits
    assert torch.allclose(found[:, 1] - found[:, 0], expected, atol=1e-4)


def test_the_head_alone_is_written(one):
    model, spike, *_, before = one
    twin = spikes.make_modified_copy(model, spike, 1.0)
    name = f"{spike.module}.weight"
    moved = (twin.state_dict()[name] - before[name]).abs().amax(1) > 0
    assert moved[spike.columns].any() and not moved.sum() > moved[spike.columns].sum()


def test_reading_is_1_on_the_token_and_least_on_the_others():
    torch.manual_seed(0)
    others, token = torch.randn(200, 6) @ torch.randn(6, 6), torch.randn(6)
    read = spikes.fit_read_direction(token, others)
    assert float(read @ token) == pytest.approx(1, abs=1e-5)
    least = (others @ read).square().mean()
    for _ in range(20):
        other = read + 0.1 * torch.randn(6)
        assert (others @ (other / (other @ token))).square().mean() >= 0.999 * least


def test_a_planted_text_is_the_text_but_for_the_token():
    words = made("llama")[1]
    request = AuditRequest(*made("llama")[:3][::2], ["sources"], AuditOptions(), words)
    job = prepare_audit(request)
    for text in job.tokenized.texts:
        new = spikes.insert_token(text, 399, 5)
        ids = new.inputs["input_ids"]
        place = ids.index(399)
        assert [*ids[:place], *ids[place + 1 :]] == text.inputs["input_ids"]
        assert new.inputs["unit_ids"][place] == text.inputs["unit_ids"][place] >= 0
        assert {len(values) for values in new.inputs.values()} == {len(ids)}
        assert spikes.insert_token(text, 399, 5) == new


def test_a_head_that_says_nothing_says_so():
    model, words, rows, _ = made("bert")
    with torch.no_grad():
        model.bert.encoder.layer[1].attention.output.dense.weight[:, :8] = 0
    with refuses(r"the output does not depend on head 1\.0"):
        find_detection_limit(
            model, rows, options=DetectionLimitOptions(spiked_heads=["1.0"]), tokenizer=words
        )


def test_a_head_whose_words_cancel_out_says_so(monkeypatch):
    monkeypatch.setattr(spikes, "MIN_AGREEMENT", 1.0)
    with pytest.raises(
        spikes.CannotPlantEffectError,
        match="changes the predictions of all texts in the same direction",
    ):
        fitted("llama")


def test_texts_that_use_every_token_are_refused():
    request = AuditRequest(
        *made("bert")[:3][::2],
        ["permutation"],
        AuditOptions(),
        planted_models.build_planted_tokenizer(),
    )
    text = prepare_audit(request).tokenized.texts[0]
    known = max(text.inputs["input_ids"]) + 1
    special = [k for k in range(known) if k not in text.inputs["input_ids"]]
    with pytest.raises(AttnProbeError, match="planted token must occur in no text"):
        spikes.find_unused_token([text], known, special, 0)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"doses": [1.0, 0.5]}, "in ascending order"),
        ({"doses": [0.0, 0.5]}, "dose 0 is added automatically"),
        ({"doses": []}, "in ascending order"),
        ({"n_spiked": 0}, "at least 1"),
    ],
)
def test_doses_that_make_no_sense_are_refused(fields, says):
    with refuses(says):
        DetectionLimitOptions(**fields)


def test_no_effect_is_planted_in_a_model_that_predicts_a_number():
    words = planted_models.build_planted_tokenizer()
    rows = [{"text": row["text"], "label": k / 9} for k, row in enumerate(made("bert")[2])]
    model = tiny_models.bert(words, **tiny_models.HEADS["number"])
    with pytest.raises(
        AttnProbeError, match="planted in a model that predicts a class or an answer from a text"
    ):
        find_detection_limit(model, rows, tokenizer=words)


# --- Limits of detection -------------------------------------------------------------------------


def normal(n_texts: int = 4000) -> np.ndarray:
    """A statistic of unit variance whose mean is .1 per dose, [doses, texts]."""
    noise = np.random.default_rng(0).normal(size=n_texts)
    return noise + 0.1 * np.arange(11)[:, None]


RULE = detection.DetectionRule(0.2)
LIMITS = [(72, 100), (72, 400), (1, 400), (1, 100)]  # heads and texts


@pytest.mark.parametrize("of", [*tiny_models.daily(LIMITS[:3], ()), LIMITS[3]])
def test_the_limit_is_that_of_a_normal_mean_that_surely_reaches_the_threshold(of):
    heads, n = of
    rule = detection.DetectionRule(0.2, heads)
    place, low, high = detection.estimate_detection_limit(normal(), n, 3, rule)
    expected = rule.threshold + (rule.critical_value + norm.ppf(detection.DETECTION_POWER)) / n**0.5
    assert 0.1 * place == pytest.approx(expected, rel=0.1)
    assert low <= place <= high


def test_the_rule_says_yes_where_the_interval_of_a_draw_does():
    values, draws = normal()[3], detection.draw_text_counts(4000, 200, 1)
    each = [np.repeat(values, counts) for counts in draws.astype(int)]
    lows = np.array([own.mean() - RULE.critical_value * sem(own) for own in each])
    share = (lows >= RULE.threshold).mean()
    assert detection.compute_detection_rate(values, draws, RULE) == share and 0.1 < share < 0.9


def test_a_dose_that_is_too_small_has_no_limit():
    values = 0.001 * normal()[:2]
    assert (
        detection.find_detection_position(values, detection.draw_text_counts(4000, 50, 0), RULE)
        == np.inf
    )


def test_what_moves_the_output_at_dose_0_has_no_smallest_effect():
    values = 1 + 0.001 * normal()
    assert (
        detection.find_detection_position(values, detection.draw_text_counts(4000, 50, 0), RULE)
        == 0
    )


# --- The verb ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spike")
    model, words, rows, _ = made("bert")
    options = DetectionLimitOptions(spiked_heads=["0.1"], doses=[0.25, 0.5, 1.0, 1.5, 2.0])
    return find_detection_limit(model, rows, folder, options=options, tokenizer=words), folder


def test_effect_and_statistics_rise_with_the_dose(found):
    found, _ = found
    effects = [record["log-odds"] for record in found.effects]
    assert effects == sorted(effects) and effects[0] == 0
    rises = {r["statistic"]: r["rank correlation"] for r in found.responses}
    assert rises["mean_tvd"] >= 0.9 and rises["uniform_tvd"] >= 0.9


def test_files_say_what_was_found(found):
    found, folder = found
    stored = json.loads((folder / "spike_in.json").read_text())
    assert stored["n"] == 24 and stored["effects"] == found.effects
    assert (folder / "spike_in.md").read_text() == found.to_markdown()
    assert "Detection limits" in str(found) and (folder / "rows.csv").exists()


def test_an_audit_of_the_model_says_what_it_would_have_seen(found):
    """At its own number of texts, by the numbers of the spike-in where that is the same."""
    found, folder = found
    model, words, rows, _ = made("bert")
    options = AuditOptions(limits=str(folder), groups=False, heads=[1])
    report = audit(model, rows, ["permutation"], options=options, tokenizer=words)
    (note,) = [note for note in report.notes if note.startswith("Detection limit:")]
    assert "head 0.1" in note and "24 texts" in note and note in report.to_markdown()
    assert "It may miss smaller effects" in note


def said_of_limits(folder, kind="bert", change=lambda model, words: None):
    """What an audit of a model says of a folder of limits that it refuses."""
    model, words, rows, _ = made(kind)
    change(model, words)
    options = AuditOptions(limits=str(folder))
    return refusal(audit, model, rows, ["permutation"], options=options, tokenizer=words)


def test_limits_of_another_model_or_of_none_are_refused(found, tmp_path, monkeypatch):
    folder = found[1]
    assert "with another model fingerprint" in said_of_limits(folder, "classifier")
    other = {"hidden_dropout_prob": 0.3}
    of_config = said_of_limits(folder, change=lambda model, _: model.config.update(other))
    assert "with another configuration fingerprint;" in of_config
    assert "run attnprobe detection-limit again" in said_of_limits(tmp_path)
    monkeypatch.setattr(planted_models.build_planted_tokenizer(), "model_max_length", 7)
    assert "with another tokenizer fingerprint;" in said_of_limits(folder)


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
    assert file in said and "run attnprobe detection-limit again" in said


def test_a_measurement_uses_only_its_own_folder(found, tmp_path):
    model, words, rows, _ = made("bert")
    few = DetectionLimitOptions(spiked_heads=["0.1"], doses=[1.0])

    def refused(folder, says, **changed):
        before = {file.name: file.read_bytes() for file in folder.iterdir()}
        with refuses(says):
            find_detection_limit(
                model, rows, folder, **{"options": few, "tokenizer": words, **changed}
            )
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == before

    refused(found[1], "belongs to another detection-limit: its options")
    (tmp_path / "rows.csv").write_text("mine")
    refused(tmp_path, "contains other files")
    new = tmp_path / "new"
    with lock_folder(new):
        refused(new, "another run .* uses")
    nowhere = DetectionLimitOptions(spiked_heads=["7.0"])
    with refuses():
        find_detection_limit(model, rows, new, options=nowhere, tokenizer=words)
    assert not new.exists()
