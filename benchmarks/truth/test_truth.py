"""Models of known truth: their formulas against loops, their truths by exchanging words."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

from benchmarks.truth import coverage, field, run, thresholds, trained
from benchmarks.truth.kinds import CONSTRUCTED, EVERY_KIND, KINDS, MISLEADING, MIXTURES, _is_right
from benchmarks.truth.measure import rows_of
from benchmarks.truth.model import Formula
from benchmarks.truth.nuisances import NUISANCES
from hf_attnprobe.faithfulness.uniform_attention import measure_path_share
from hf_attnprobe.protocol import Site
from hf_attnprobe.reports.verdict import compute_findings
from hf_attnprobe.statistics.calibration_table import describe_nearest_kinds, load_calibration_table
from hf_attnprobe.statistics.rows import Texts
from hf_attnprobe.statistics.scale import CLASSIFIER_PARTS, compute_faithfulness
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.testing import check_adapter


ROOT = Path(__file__).parents[2]
N = 40
REDUNDANT = {"two equal keys", "repeated key", "half around", "graded", "by default, 50%"}
"""Kinds with truth yes in which one word of several, or of one of two classes, is not enough."""
LOCKED = {"two keys together", "by default, 5%"}
"""Kinds in which a word exchanged for one of another class is no evidence."""


def drawn(name: str, n: int = N, **knobs):
    kind = replace(EVERY_KIND[name], **knobs)
    model, batch = kind.draw(name, seed=1, n_texts=n)
    return model, batch, model.observe(batch)


def without(batch, row: int, gone: set[int]):
    """One text without some words, as a batch of its own: rows taken out by hand."""
    n = int(batch.mask[row].sum())
    kept = [k for k in range(n) if k not in gone]
    inputs = {name: column[row : row + 1, kept] for name, column in batch.inputs.items()}
    return replace(
        batch,
        inputs=inputs,
        mask=inputs["mask"],
        content_mask=inputs["mask"],
        example_ids=(row,),
        labels=None,
    )


# --- the formula -----------------------------------------------------------------------------

FORMULAS = {
    "retrieval": Formula(),
    "neighbour's state": Formula(looks="behind a mark", reads=-1),
    "mark itself lit": Formula(reads=1),
    "last word": Formula(looks="last"),
    "backup key": Formula(looks="first mark"),
    "ornament": Formula(shared=1.0),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_probabilities_by_hand(name):
    """Sums over words in plain Python, a text at a time."""
    _, batch, observed = drawn(name, 5, others=1.0, formula=FORMULAS[name])
    formula, words = FORMULAS[name], batch.inputs
    for row, real in enumerate(batch.mask):
        n = int(real.sum())
        scores = words["score"][row, :n].tolist()
        marks = [k for k in range(n) if words["mark"][row, k]]
        looked = {
            "nowhere": [],
            "last": [n - 1],
            "behind a mark": [k + 1 for k in marks],
            "first mark": marks[:1],
        }[formula.looks]
        for k in looked:
            scores[k] += float(words["pull"][row, k])
        total = math.fsum(math.exp(s) for s in scores)
        values = words["value"][row]
        logits = np.zeros(values.shape[-1])
        for k in range(n):
            at = k + formula.reads
            state = values[at].numpy() if 0 <= at < n else 0 * logits
            if formula.shared:
                state = values[:n].sum(0).numpy()
            logits += math.exp(scores[k]) / total * state
        odds = np.exp(logits - logits.max())
        assert observed.probs[row].numpy() == pytest.approx(odds / odds.sum(), abs=1e-12)


def test_a_not_turns_what_is_said_and_a_lock_needs_all_keys():
    model, batch, observed = drawn("negation", right=1.0)
    value = batch.inputs["value"].sum(1)
    assert (observed.probs.argmax(-1) != value.argmax(-1)).all()
    model, batch, observed = drawn("two keys together", value_noise=0.0)
    lock = batch.inputs["lock"].bool()
    one = lock & (lock.cumsum(-1) == 1)
    assert model.erase_inputs(observed, one[None])[0] == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["last word", "behind a mark", "backup key", "mark itself lit"])
def test_a_deleted_word_is_a_text_that_never_had_it(name):
    model, batch, observed = drawn(name, 4)
    after = model.compute_leave_one_out(observed)
    for row, real in enumerate(batch.mask):
        for k in range(int(real.sum())):
            shorter = model.observe(without(batch, row, {k})).probs[0]
            assert after[row, k].numpy() == pytest.approx(shorter.numpy(), abs=1e-12)


def test_shares_and_margins_are_what_the_kind_says():
    knobs = {"score_noise": 0.0, "value_noise": 0.0}
    _, _, observed = drawn("half around", **knobs)
    lead = observed.probs.log().diff(dim=-1).abs()[:, 0]
    assert observed.attention[0].amax(-1).numpy() == pytest.approx(0.85)
    assert lead.numpy() == pytest.approx(2.0)
    _, _, observed = drawn("last word", **knobs)
    assert observed.attention[0].amax(-1).numpy() == pytest.approx(0.85)
    _, _, observed = drawn("decoy", **knobs)
    assert observed.attention[0].amax(-1).numpy() == pytest.approx(0.84)


def test_the_model_keeps_the_protocol():
    model, batch, _ = drawn("retrieval, 5 classes", 6)
    check_adapter(model, batch)


# --- the truths, by exchange -----------------------------------------------------------------


def flipped(model, batch, observed, places) -> float:
    """Share of texts decided otherwise when the word at a place says another class."""
    rows = torch.arange(len(places))
    inputs = dict(batch.inputs)
    for name in ("value", "rest"):
        inputs[name] = inputs[name].clone()
        inputs[name][rows, places] = inputs[name][rows, places].roll(1, -1)
    after = model.observe(replace(batch, inputs=inputs)).probs.argmax(-1)
    return float((after != observed.probs.argmax(-1)).double().mean())


@pytest.mark.parametrize("name", [k for k in KINDS if k not in REDUNDANT | LOCKED])
def test_the_attended_word_decides_where_the_truth_says_so(name):
    model, batch, observed = drawn(name)
    attention = observed.read(Site())
    follows = flipped(model, batch, observed, attention.argmax(-1))
    if name == "last word":
        follows = flipped(model, batch, observed, batch.mask.sum(-1) - 1)
    truth = KINDS[name].truth
    if truth == "yes":
        assert follows >= 0.85
    if truth == "no" and name not in ("ornament", "path of weight 0", "constant values"):
        assert follows <= 0.2
    least = attention.masked_fill(~batch.mask, 2).argmin(-1)
    if truth == "yes":
        assert flipped(model, batch, observed, least) <= 0.05


IDLE = {name for name, kind in MISLEADING.items() if kind.why == KINDS["ornament"].why}
"""Misleading kinds in which any other attention would give nearly the same output."""
SHARED = {"three votes", "five votes", "seven votes", "exact zeros, two keys"}
"""Misleading kinds with truth yes in which one word of several is not enough."""


@pytest.mark.parametrize("name", [k for k in MISLEADING if MISLEADING[k].truth != "partly"])
def test_the_attended_word_of_misleading_kinds_decides_where_the_truth_says_so(name):
    """What a word says is exchanged, so nothing is deleted and no place changes."""
    model, batch, observed = drawn(name, 20 if MISLEADING[name].n_classes >= 100 else N)
    top = observed.read(Site()).argmax(-1)
    follows = flipped(model, batch, observed, top)
    if name in IDLE:
        shares = measure_path_share(observed, Site())
        assert shares.mean() <= 0.06
    elif MISLEADING[name].truth == "no":
        assert follows <= 0.1
    elif name not in SHARED:
        assert follows >= 0.85


@pytest.mark.parametrize("share", [0.02, 0.05, 0.3, 0.6, 0.8])
def test_the_path_share_is_the_share_of_the_logit_that_attention_carries(share):
    """The margin with even weights, computed from the formula of the kind."""
    name = f"{share:.0%} through attention"
    knobs = {"value_noise": 0.0, "score_noise": 0.0, "lengths": (12, 12)}
    _, _, observed = drawn(name, **knobs)
    # Even weights leave 1/12 of what passes through attention instead of .85 of it.
    expected = share * (1 - (1 / 12) / 0.85)
    assert measure_path_share(observed, Site()).numpy() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("name", ["ornament", "path of weight 0", "constant values"])
def test_where_attention_is_idle_no_other_attention_changes_anything(name):
    model, batch, observed = drawn(name)
    attention = observed.attention[0]
    moved = torch.where(batch.mask[:, None, None], attention.roll(1, -1), 0)
    moved = moved / moved.sum(-1, keepdim=True)
    after = model.replay(observed, {0: moved[None]})[0]
    assert after.numpy() == pytest.approx(observed.probs.numpy(), abs=1e-12)


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0])
def test_a_mixture_is_right_in_its_share_of_texts(p):
    _, batch, observed = drawn(f"right in {100 * p:.0f}%")
    attended = observed.read(Site()).argmax(-1, keepdim=True)
    said = batch.inputs["value"].amax(-1).gather(-1, attended)
    assert float((said > 1).double().mean()) == pytest.approx(p)


@given(st.floats(0, 1), st.integers(1, 300))
def test_of_any_number_of_texts_as_many_are_right_as_can_be(share, n):
    assert abs(sum(_is_right(k, share) for k in range(n)) - n * share) <= 1


def test_fewer_texts_are_the_first_of_more():
    _, few, _ = drawn("retrieval", 10)
    _, more, _ = drawn("retrieval", 20)
    assert torch.equal(few.labels, more.labels[:10])
    longest = few.mask.shape[1]
    assert torch.equal(few.inputs["value"], more.inputs["value"][:10, :longest])


@pytest.mark.parametrize("name", [n for n in NUISANCES if n not in ("other words", "around")])
def test_at_every_level_of_a_nuisance_the_attended_words_carry_the_prediction(name):
    for level in NUISANCES[name].levels:
        model, batch = NUISANCES[name].kind(1.0, level).draw(name, seed=2, n_texts=20)
        observed = model.observe(batch)
        n_keys = level if "keys" in name else 1
        attended = observed.read(Site()).topk(n_keys, dim=-1).indices
        gone = torch.zeros_like(batch.mask).scatter(1, attended, True)
        after = model.erase_inputs(observed, gone[None])[0]
        is_less = after.amax(-1) < observed.probs.amax(-1)
        assert is_less.double().mean() > 0.9 or (name, level) == ("context", 1.0)


# --- the field's numbers, trained readers, files -----------------------------------------------


def test_aopc_by_a_loop():
    model, batch, observed = drawn("retrieval", 3)
    found = field.aopc(model, batch)
    for row, real in enumerate(batch.mask):
        n = int(real.sum())
        order = observed.read(Site())[row, :n].argsort(descending=True).tolist()
        predicted = int(observed.probs[row].argmax())
        losses = []
        for step in range(1, n):
            after = model.observe(without(batch, row, set(order[:step]))).probs[0, predicted]
            losses.append(float(observed.probs[row, predicted] - after))
        losses.append(float(observed.probs[row, predicted]) - 0.5)  # nothing is left
        assert float(found[row]) == pytest.approx(np.mean(losses), abs=1e-12)


def test_auroc_is_mann_whitneys_u():
    draws = np.random.default_rng(0)
    first, second = draws.integers(0, 6, 30) / 1.0, draws.integers(0, 5, 20) / 1.0
    u = mannwhitneyu(first, second).statistic
    assert field.auroc(first, second) == pytest.approx(u / (30 * 20))


@pytest.mark.parametrize("task", trained.CAN_LEARN)
def test_a_reader_is_asked_for_one_word_and_an_exchange_says_the_other_class(task):
    texts = trained.drawn(task, 50, seed=0)
    words = {int(k): (m, c) for m in (0, 1) for c in (0, 1) for k in trained.vocabulary()[m, c]}
    for row in range(50):
        asked, beside = int(texts.asked[row]), int(texts.beside[row])
        ids = texts.ids[row].tolist()
        assert asked != beside and words[ids[asked]][1] == int(texts.labels[row])
        assert ids[beside] in words and 0 not in ids[: int(texts.lengths[row])]
        if task == "marked":
            assert [words[k][0] for k in ids if k].index(1) == asked
    twice = trained.exchanged(trained.exchanged(texts, texts.asked), texts.asked)
    assert torch.equal(twice.ids, texts.ids)
    once = trained.exchanged(texts, texts.asked).ids != texts.ids
    assert torch.equal(once.int().argmax(-1), texts.asked) and (once.sum(-1) == 1).all()


def test_what_is_kept_is_not_measured_again(tmp_path):
    file = tmp_path / "kinds" / "pointer" / "0.json"
    run.kept(file, lambda: {"said": []})
    run.kept(file, lambda: pytest.fail("measured twice"))
    assert json.loads(file.read_text())["said"] == []


def test_the_package_says_of_a_pointer_yes_and_of_a_decoy_no(tmp_path):
    """The lean path: tests, rows and rules of the package, on two kinds."""
    from benchmarks.truth.measure import measured

    for name, expected in (("pointer", "yes"), ("decoy", "no")):
        model, batch, _ = drawn(name)
        (said,) = measured(model, batch, seed=0, n_texts=[N])
        assert said["answer"] == expected
        assert said["follows"]["other"] <= 0.1
        assert set(said["field"]) == {*field.COLUMNS, "AOPC"}


# --- copies of a text --------------------------------------------------------------------------

COPIED = "right in 50%"
OF_FAITHFULNESS = ("scale", "exchange", "erasure")


def copied(seed: int, n_texts: int, n_copies: int):
    """A model, and a batch in which every text occurs several times."""
    model, batch = MIXTURES[COPIED].draw(COPIED, seed=seed, n_texts=n_texts)
    places = torch.arange(n_texts * n_copies) % n_texts
    inputs = {name: column[places] for name, column in batch.inputs.items()}
    return model, model.prepare(inputs, tuple(range(len(places))), batch.labels[places])


def faithfulness_of(rows):
    (found,) = [f for f in compute_findings(rows, ("a", "b")) if f.rule == "faithfulness"]
    return found


def test_padding_and_ids_are_no_part_of_an_identity():
    _, few = MIXTURES[COPIED].draw(COPIED, seed=1, n_texts=2)
    _, more = MIXTURES[COPIED].draw(COPIED, seed=1, n_texts=40)
    assert few.mask.shape[1] < more.mask.shape[1]
    assert few.identities.tolist() == more.identities[:2].tolist()
    assert len({*more.identities.tolist()}) == 40
    _, batch = copied(1, 2, 3)
    assert batch.identities.tolist() == few.identities.tolist() * 3


@pytest.mark.slow
def test_the_interval_of_ten_copies_of_twenty_texts_covers_the_truth():
    """In twelve draws at least 11 times, as other intervals; it would not if each copy counted."""
    model, batch = MIXTURES[COPIED].draw(COPIED, seed=0, n_texts=1000)
    truth = faithfulness_of(rows_of(model, batch, seed=0, tests=OF_FAITHFULNESS)).value
    n_inside = n_inside_if_all_count = 0
    for seed in range(1, 13):
        model, batch = copied(seed, 20, 10)
        rows = rows_of(model, batch, seed=seed, tests=OF_FAITHFULNESS)
        found = faithfulness_of(rows)
        assert found.n == 20 and str(found.answer) == "cannot say"
        n_inside += found.ci95[0] <= truth <= found.ci95[1]
        low, high = faithfulness_of(without_identity(rows)).ci95
        n_inside_if_all_count += low <= truth <= high
    assert n_inside >= 11
    assert n_inside_if_all_count < 11


def without_identity(rows):
    return rows.select(lambda test, statistic, *_: statistic != "identity")


# --- the data sheet --------------------------------------------------------------------------


def test_the_sheet_is_of_these_kinds_and_of_these_thresholds():
    data = json.loads((ROOT / "hf_attnprobe" / "statistics" / "calibration.json").read_text())
    score, path_share = RULES["faithfulness"], RULES["path_share"]
    graded = {"partly": score.partly, "yes": score.yes, "path_share": path_share.yes}
    assert data["thresholds"] == graded
    known = load_calibration_table()
    assert {k.name: (k.description, k.truth) for k in known.kinds} == {
        name: (kind.says, kind.truth) for name, kind in EVERY_KIND.items()
    }


def test_errors_are_those_of_the_answers_kind_by_kind():
    known = load_calibration_table()
    for errors in known.errors:
        own = [k for k in known.kinds if k.truth == errors.truth and k.name in CONSTRUCTED]
        wrong = [k.name for k in own if set(k.answers) & set(thresholds.WRONG[errors.truth])]
        assert sorted(errors.wrong) == sorted(wrong) and errors.kinds == len(own)
        assert f"{len(wrong)} of {len(own)} kinds" in known.sentence
        assert all(name in errors.sentence for name in wrong)


def test_a_kind_is_nearest_to_itself_and_what_is_not_known_does_not_count():
    for kind in load_calibration_table().kinds:
        assert load_calibration_table().find_nearest(kind.scores, n=1)[0].scores == kind.scores
    retrieval = next(k for k in load_calibration_table().kinds if k.name == "retrieval")
    assert retrieval.description in describe_nearest_kinds({**retrieval.scores, "another": 3.0})


def test_the_page_is_what_the_sheet_says():
    page = (ROOT / "docs" / "calibration.md").read_text()
    for kind in load_calibration_table().kinds:
        row = next(line for line in page.splitlines() if line.startswith(f"| {kind.name} |"))
        counts = ", ".join(f"{answer} {n}" for answer, n in kind.answers.items())
        assert row.endswith(f"| {counts} |") and f"| {kind.scores['faithfulness']:.2f} |" in row


def made_up(rows):
    names = ("kind", "truth", "seed", "right", "faithfulness", "path_share")
    models = pd.DataFrame(rows, columns=names)
    for rule in ("faithfulness", "path_share"):
        models[f"{rule} low"] = models[rule] - 0.02
        models[f"{rule} high"] = models[rule] + 0.02
        models[f"{rule} n"] = 200
    return models


def test_thresholds_are_the_middle_of_those_with_the_fewest_errors():
    mixed = [(f"right in {10 * p}%", "no", 0, p / 10, 0.9 * p / 10, 0.3) for p in range(11)]
    kinds = [
        ("a", "yes", 0, 1.0, 0.9, 0.4),
        ("b", "yes", 0, 1.0, 0.7, 0.4),
        ("c", "partly", 0, 1.0, 0.5, 0.4),
        ("d", "no", 0, 1.0, 0.1, 0.4),
        ("idle", "no", 0, 1.0, 0.9, 0.0),
        ("open", "partly", 0, 1.0, 0.61, 0.4),
    ]
    models = made_up([*mixed, *kinds])
    assert thresholds.share_at(thresholds.curve(models), 0.45) == pytest.approx(0.5)
    partly, yes = thresholds.chosen(models)
    # "yes" must be between "open" and b, and "partly" at most c; .375 is the middle of .3 to .45.
    assert (partly, yes) == pytest.approx((0.35, 0.65))
    told = thresholds.answers(models, 0.45, 0.6)[-6:].tolist()
    assert told == ["yes", "yes", "partly", "no", "no", "cannot say"]
    wrong, n = thresholds.wrong_kinds(models, thresholds.answers(models, 0.45, 0.75), "yes")
    assert (wrong, n) == (["b"], 2)


def test_a_sample_of_a_pool_has_the_faithfulness_of_its_texts():
    draws = np.random.default_rng(0)
    names = [name for part in CLASSIFIER_PARTS for name in coverage.columns_of(part)]
    pool = {name: draws.random(50) for name in names}
    places = draws.integers(50, size=40)
    frame = pd.DataFrame(pool).iloc[places].reset_index(drop=True)
    assert compute_faithfulness(coverage.sampled(pool, places)) == compute_faithfulness(
        Texts.from_frame(frame)
    )
