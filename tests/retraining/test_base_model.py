"""Retraining of a base model: against plain runs of the models that it leaves, scipy, and known results."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from transformers import AutoModelForSequenceClassification

from hf_attnprobe import AttentionClassifierConfig, AttnProbeError, load_examples, train_classifier
from hf_attnprobe.data.specs import Data
from hf_attnprobe.functional.divergence import largest_jsd
from hf_attnprobe.inference.outputs import make_guide, read_outputs
from hf_attnprobe.retraining import adversary as adversary_training
from hf_attnprobe.retraining import (
    get_retraining_readings,
    get_retraining_tests,
    select_retraining_tests,
)
from hf_attnprobe.retraining.adversary import divide_by_bound, train_adversary
from hf_attnprobe.retraining.base_model import (
    RetrainingSetup,
    build_setup,
    check_retrainable,
    check_splits,
    load_base_model,
    run_retraining_test,
    train_variant,
)
from hf_attnprobe.retraining.options import Adversary, Seeds
from hf_attnprobe.training.options import TrainingOptions
from hf_attnprobe.training.trainer import Stopwatch
from tests.helpers.audit_by_name import audit_by_name
from tests.helpers.error_messages import refuses
from tests.helpers.stopped_trainings import (
    SETTINGS,
    SimulatedStopError,
    assert_equal_weights,
    imitating,
    plain,
    train_base,
    weights,
)


@pytest.fixture(scope="module")
def base(reviews, tmp_path_factory):
    """The base model; do not write into its folder."""
    return train_base(tmp_path_factory.mktemp("retrained") / "base", reviews)


@pytest.fixture(scope="module")
def flat(base, reviews, tmp_path_factory):
    return run_retraining_test(
        "uniform", RetrainingSetup(base, reviews, tmp_path_factory.mktemp("uniform"))
    )


def test_copies_of_test_texts_count_once(base, reviews, tmp_path, caplog):
    """Twenty copies of the test texts give the same setup as the texts themselves."""
    # Copies in a file have no ids, or ids of their own.
    test = reviews["test"].remove_columns("example_id")
    n_different = len(set(test["text"]))
    copied = {**reviews, "test": test.select([*range(len(test))] * 20)}
    setup = build_setup(base, Data(copied), tmp_path, seed=0)
    assert len(setup.splits["test"]) == n_different
    assert setup.splits["test"]["text"] == list(dict.fromkeys(test["text"]))
    n_copies = 20 * len(test) - n_different
    assert f"{n_copies} of the {20 * len(test)} test texts are copies" in caplog.text


def test_bags_of_instances_are_refused(base, reviews, tmp_path):
    """Rows with bags have empty texts, which must not count as copies of each other."""
    config = AttentionClassifierConfig(inputs="features", feature_size=1, num_labels=2)
    with refuses("reads bags of instances, which retrain does not support"):
        check_retrainable("bags", AutoModelForSequenceClassification.from_config(config))
    rows = [{"features": [[float(i)]], "label": i % 2} for i in range(4)]
    bags = load_examples(rows, "test")
    with refuses("retrain needs texts"):
        check_splits({**reviews, "test": bags})


# --- the base -----------------------------------------------------------------------------------------------------


def test_the_base_is_trained_again_as_it_was(base, reviews, tmp_path):
    """Same configuration, settings and seed: the same weights, which says that the settings are all of them."""
    again = train_variant(base, reviews, tmp_path / "again")
    assert_equal_weights(again.model, base.model)
    assert {name: getattr(base.settings, name) for name in SETTINGS} == SETTINGS
    assert base.notes == ()


def test_settings_given_win_and_those_not_recorded_are_named(base, checkpoint):
    assert load_base_model(base.name, epochs=1).settings.epochs == 1
    guessed = load_base_model(checkpoint)
    assert guessed.settings.epochs == 8 and guessed.settings.learning_rate == 1e-3
    assert any(note.startswith("epochs 8: assumed") for note in guessed.notes)


# --- uniform ------------------------------------------------------------------------------------------------------


def test_the_uniform_model_reads_out_the_mean_state(flat, base, reviews):
    (trained,) = flat.trained
    model = AutoModelForSequenceClassification.from_pretrained(trained.folder).double()
    assert model.config.attention == "uniform"
    assert not list(model.attention_classifier.attention.parameters())
    outputs = read_outputs(model, base.tokenizer, reviews["test"])
    texts = dict(zip(reviews["test"]["example_id"], reviews["test"]["text"], strict=True))
    for k, example_id in enumerate(outputs.example_ids[:10]):
        inputs = base.tokenizer(texts[example_id], return_tensors="pt")
        states = model.attention_classifier(**inputs).last_hidden_state[0, 1:-1]
        logit = states.mean(0) @ model.classifier.weight[0] + model.classifier.bias
        assert outputs.probs[k, 1].item() == pytest.approx(torch.sigmoid(logit).item(), abs=1e-9)


def test_uniform_against_scipy(flat, base, reviews):
    own = base.get_outputs(reviews["test"])
    other = read_outputs(flat.trained[0].model, base.tokenizer, reviews["test"])
    for k in range(len(own.labels)):
        n_tokens = int(own.mask[k].sum())
        expected = jensenshannon(own.attention[k, :n_tokens], np.full(n_tokens, 1 / n_tokens)) ** 2
        assert flat.statistics["uniform_model_jsd"][k].item() == pytest.approx(expected, abs=1e-9)
        wanted = abs(own.probs[k, 1] - other.probs[k, 1]).item()
        assert flat.statistics["uniform_model_tvd"][k].item() == pytest.approx(wanted)
    accuracy = next(s for s in flat.scores if (s.model, s.metric) == ("uniform", "accuracy"))
    assert accuracy.value == pytest.approx(flat.statistics["uniform_model_correct"].mean().item())


# --- seeds --------------------------------------------------------------------------------------------------------


def test_seeds(base, reviews, tmp_path):
    def of(n_seeds):
        return run_retraining_test(
            "seeds", RetrainingSetup(base, reviews, tmp_path, {"seeds": Seeds(n_seeds=n_seeds)})
        )

    found = of(3)
    own = found.statistics
    assert [t.folder.name for t in found.trained] == ["0", "2", "3"]
    each = np.stack([own[f"one_seed_jsd@{k}"].numpy() for k in (0, 2, 3)])
    assert np.allclose(own["seed_jsd"], np.median(each, axis=0)) and (each > 0).any(1).all()
    changes = np.stack([own[f"one_seed_tvd@{k}"].numpy() for k in (0, 2, 3)])
    assert np.allclose(own["seed_tvd"], changes.mean(0))
    assert torch.allclose(
        own["max_attention"], base.get_outputs(reviews["test"]).attention.amax(-1)
    )
    two = of(2)  # of an even number the mean of the two in the middle
    assert np.allclose(two.statistics["seed_jsd"], np.median(each[:2], axis=0))


# --- diagnostic MLP -----------------------------------------------------------------------------------------------


def test_guided_by_uniform_weights_is_trained_as_uniform_attention(base, reviews, tmp_path):
    guides = {}
    for name, split in reviews.items():
        own = make_guide(base.get_outputs(split))
        guides[name] = {k: torch.full_like(w, 1 / len(w)) for k, w in own.items()}
    changes = {"encoder": "mlp", "attention_size": None}
    guided = train_variant(
        base, reviews, tmp_path / "a", changes=changes | {"attention": "guided"}, guides=guides
    )
    plain = train_variant(base, reviews, tmp_path / "b", changes=changes | {"attention": "uniform"})
    for name, tensor in weights(guided.model).items():
        assert torch.allclose(tensor, weights(plain.model)[name], atol=1e-4), name
    assert guided.metrics == pytest.approx(plain.metrics, abs=1e-4)


def test_the_guides_are_what_they_say(base, reviews, tmp_path):
    found = run_retraining_test("diagnostic_mlp", RetrainingSetup(base, reviews, tmp_path))
    assert [t.folder.name for t in found.trained] == ["uniform", "trained", "base"]
    assert "adversary_guide_correct" not in found.statistics
    kinds = {t.folder.name: t.model.config.attention for t in found.trained}
    assert kinds == {"uniform": "uniform", "trained": "additive", "base": "guided"}
    assert all(t.model.config.encoder == "mlp" for t in found.trained)
    for name in ("uniform", "trained", "base"):
        accuracy = next(
            s for s in found.scores if (s.model, s.metric) == (f"{name} guide", "accuracy")
        )
        right = found.statistics[f"{name}_guide_correct"]
        assert accuracy.value == pytest.approx(right.mean().item())


# --- adversary ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def adversaries(base, reviews, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adversary")
    options = Adversary(lambdas=(0.0, 0.05), epochs=6)
    return run_retraining_test(
        "adversary", RetrainingSetup(base, reviews, folder, {"adversary": options})
    )


def test_the_second_term_moves_attention(adversaries):
    near, far = (adversaries.statistics[f"adversary_jsd@{k}"].mean() for k in (0.0, 0.05))
    assert far > near + 0.05
    assert len(adversaries.trained) == 2 and all(t.n_epochs <= 6 for t in adversaries.trained)


def test_adversaries_start_afresh(base, adversaries):
    """Not from the base, nor from what it started from: no word vector of a word that is in no text is shared."""
    own, other = (
        m.get_input_embeddings().weight for m in (base.model, adversaries.trained[0].model)
    )
    unused = base.tokenizer.unk_token_id
    assert not torch.allclose(own[unused], other[unused], atol=0.1)


def test_no_divergence_is_above_the_largest_there_is(adversaries, base, reviews):
    own, found = base.get_outputs(reviews["test"]), adversaries.statistics
    for k in (0.0, 0.05):
        ratio = found[f"adversary_jsd_over_bound@{k}"]
        assert (ratio[~ratio.isnan()] <= 1 + 1e-6).all()
        share = found[f"adversary_jsd@{k}"] / found["largest_jsd"]
        assert torch.allclose(ratio, share, equal_nan=True)
    a = own.attention.masked_fill(~own.mask, 1).amin(-1).numpy()
    expected = math.log(2) + (a * np.log(a) - (1 + a) * np.log1p(a)) / 2
    assert np.allclose(found["largest_jsd"], expected)


def test_a_divergence_above_the_bound_is_an_error_that_names_the_text(base, reviews):
    own = base.get_outputs(reviews["test"])
    bound = largest_jsd(own.attention, own.mask)
    too_far = bound.clone()
    too_far[2] += 0.01
    with pytest.raises(AttnProbeError, match=f"text {own.example_ids[2]} has a JSD of"):
        divide_by_bound(too_far, bound, own)


def test_baselines_are_those_of_the_audit(adversaries, base, reviews):
    reached = adversaries.statistics
    for name, options, atol in (("frontier", {}, 1e-9), ("search", {"method": "search"}, 1e-6)):
        rows = audit_by_name(base.name, reviews, tests={"adversarial": options}).to_pandas()
        own = rows[rows.statistic == "epsilon_max_jsd@0.05"].sort_values("example_id").value
        assert np.allclose(reached[f"{name}_jsd@0.05"], own.to_numpy(), atol=atol)
    for epsilon in (0.01, 0.05):
        moved = reached[f"search_tvd@{epsilon}"]
        assert (moved <= epsilon + 1e-9).all() and (moved > 0).any()
    assert (reached["frontier_jsd@0.05"] >= reached["search_jsd@0.05"] - 1e-9).all()


def test_epochs_of_a_regularised_adversary_are_scored_by_what_it_is_to_reach(
    base, reviews, tmp_path, monkeypatch
):
    """With λ 0 a text's objective is a total variation distance, at most 1 and so at most 16 in a batch of 16; its penalty,
    100 · mean ‖h − e‖² over 12 numbers drawn from N(0, 1), is far above that."""
    config = type(base.model.config).from_dict(base.model.config.to_dict() | {"tying": 100.0})
    regularised = replace(base, model=type(base.model)(config).eval(), cached_outputs={})
    found, own = [], adversary_training.AdversaryTrainer.evaluate

    def evaluate(self, *args, **options):
        found.append(own(self, *args, **options)["eval_loss"])
        logged.append([row["loss"] for row in self.state.log_history if "loss" in row][-1])
        return {"eval_loss": found[-1]}

    logged = []
    monkeypatch.setattr(adversary_training.AdversaryTrainer, "evaluate", evaluate)
    train_adversary(regularised, reviews, tmp_path, 0.0, Adversary(epochs=2))
    assert len(found) == 2 and all(0 < value <= 16 for value in found) and min(logged) > 100


@pytest.mark.slow
def test_three_classes(tmp_path):
    """No exact frontier and no ROC curve; the rest is there, F1 as the mean over the classes."""
    words = ("red", "green", "blue")
    rows = [{"text": f"it was {word} and so on", "label": k} for k, word in enumerate(words)] * 8
    data = {"train": rows, "validation": rows, "test": rows}
    sets = {name: load_examples(part, name) for name, part in data.items()}
    config = AttentionClassifierConfig(encoder="mlp", embedding_size=8, encoder_size=8)
    train_classifier(
        config,
        **data,
        output_dir=tmp_path / "base",
        progress=False,
        options=TrainingOptions(epochs=3, learning_rate=0.05),
    )
    chosen = {"adversary": Adversary(lambdas=(0.01,), epochs=1)}
    setup = RetrainingSetup(load_base_model(tmp_path / "base"), sets, tmp_path / "out", chosen)
    found = run_retraining_test("adversary", setup)
    assert not any(name.startswith("frontier") for name in found.statistics)
    assert {"search_jsd@0.01", "search_jsd@0.05"} <= set(found.statistics)
    assert {s.metric for s in found.scores} == {"f1", "accuracy"}
    assert next(s.value for s in found.scores if s.model == "base" and s.metric == "f1") == 1.0


# --- interrupted and finished -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(base, reviews, tmp_path_factory):
    """What comes out where nothing is interrupted."""
    return {
        train: train(base, reviews, tmp_path_factory.mktemp("whole") / "model")
        for train in (plain, imitating)
    }


@pytest.mark.slow
def test_interrupted_after_it_had_given_up(base, reviews, tmp_path, monkeypatch):
    """With nothing left to do but to save the best epoch, no further epoch is trained."""

    def train(folder):
        options = Adversary(epochs=30, patience=1)
        return train_adversary(base, reviews, folder, 0.02, options, learning_rate=0.3)

    def on_save(self, args, state, control, **options):
        if control.should_training_stop:
            raise SimulatedStopError

    whole = train(tmp_path / "whole")
    assert whole.n_epochs < 30
    with monkeypatch.context() as patched, pytest.raises(SimulatedStopError):
        patched.setattr(Stopwatch, "on_save", on_save)
        train(tmp_path / "cut")
    moved = (tmp_path / "cut").rename(tmp_path / "moved")
    continued = train(moved)
    assert continued.n_epochs == whole.n_epochs
    assert_equal_weights(continued.model, whole.model)


def test_other_settings_in_the_same_folder_are_refused(whole, base, reviews):
    folder = whole[plain].folder
    with pytest.raises(AttnProbeError, match="holds a training with epochs 3, not 2"):
        train_variant(base, reviews, folder, epochs=2)
    assert json.loads((folder / "training.json").read_text())["epochs"] == 3


# --- all of them --------------------------------------------------------------------------------------------------


def test_every_statistic_has_a_reading(flat, adversaries):
    for test, result in (("uniform", flat), ("adversary", adversaries)):
        found = result.statistics
        assert {name.split("@")[0] for name in found} == set(get_retraining_readings()[test])
        assert {len(values) for values in found.values()} == {40}
    by_default = ("uniform", "seeds", "adversary", "diagnostic_mlp")
    assert tuple(select_retraining_tests(None)) == by_default
    assert tuple(get_retraining_tests()) == (*by_default, "deception")
