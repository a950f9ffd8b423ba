"""Several audits beside one another: differences by hand, what is refused, and the page."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats

from hf_attnprobe.reports.comparison import compare_reports
from hf_attnprobe.reports.paired_differences import UNCLEAR_DIFFERENCE_TEXT
from hf_attnprobe.statistics.differences import ModelPair, compare_model_pairs
from tests.helpers.sample_comparisons import IMPORTANCE, N, by_name, report_of, rows_of, values


@pytest.fixture(scope="module")
def base():
    return report_of(rows_of(1))


@pytest.fixture(scope="module")
def moved():
    return report_of(rows_of(2, moved=0.1), model="models/tuned")


@pytest.fixture(scope="module")
def compared(base, moved):
    return compare_reports([base, moved])


def test_differences_are_those_of_pandas_and_scipy(base, moved, compared):
    for name, statistic in by_name(compared).items():
        ours, theirs = (values(r.to_pandas(), name) for r in (base, moved))
        wanted = theirs - ours
        found = statistic.differences[0]
        assert found.value == pytest.approx(wanted.mean(), abs=1e-12)
        assert (found.first, found.other) == pytest.approx((ours.mean(), theirs.mean()))
        assert (found.n, found.paired) == (N, True)
        by_scipy = scipy.stats.bootstrap(
            (wanted.to_numpy(),), np.mean, method="percentile", rng=0
        ).confidence_interval
        assert found.ci95 == pytest.approx(tuple(by_scipy), abs=wanted.std() / 30)
        low, high = found.simultaneous
        assert low < found.ci95[0] and found.ci95[1] < high


def test_only_what_the_interval_excludes_is_told(compared):
    told = {n: s.differences[0].has_clear_sign for n, s in by_name(compared).items()}
    assert told["attention_leave_one_out_tau"] and told["attention_gradient_tau"]
    assert not told["median_tvd"] and not told["max_tvd"]
    assert "attention_leave_one_out_p_value" not in told


def test_simultaneous_intervals_cover_all_truths_at_once():
    """Twelve differences without any truth: all intervals hold 0 in about 95% of draws."""
    generator = np.random.default_rng(3)
    n_drawn, all_hold = 40, 0
    for _ in range(n_drawn):
        first, other = generator.normal(size=(2, 60, 12))
        for paired in (True, False):
            sides = ModelPair(pd.DataFrame(first), pd.DataFrame(other), paired)
            found = compare_model_pairs([sides])[0]
            ends = np.array([d.simultaneous for d in found])
            all_hold += bool(((ends[:, 0] < 0) & (ends[:, 1] > 0)).all())
    assert 0.87 < all_hold / (2 * n_drawn) < 1


def test_the_other_order_turns_the_signs(base, moved, compared):
    turned = by_name(compare_reports([moved, base]))
    for name, statistic in by_name(compared).items():
        one, other = statistic.differences[0], turned[name].differences[0]
        assert one.value == pytest.approx(-other.value, abs=1e-15)
        assert one.ci95 == pytest.approx([-end for end in other.ci95[::-1]])
        assert one.simultaneous == pytest.approx([-e for e in other.simultaneous[::-1]])
        assert one.has_clear_sign == other.has_clear_sign


def test_accuracy_is_paired_by_text(base, moved, compared):
    right = [
        values(r.to_pandas(), "predicted_class") == values(r.to_pandas(), "label")
        for r in (base, moved)
    ]
    question = next(q for q in compared.questions if q.rule == "accuracy")
    wanted = right[1].mean() - right[0].mean()
    assert question.differences[0].value == pytest.approx(wanted)


def question_of(comparison, rule):
    return next(q for q in comparison.questions if q.rule == rule)


def test_what_is_graded_is_compared(base, moved, compared):
    """Of each audit as graded; text by text, so that a difference has an interval."""
    first, other = (report.to_pandas() for report in (base, moved))
    graded = {"importance": IMPORTANCE, "effect": "standard_tvd", "path_share": "path_share"}
    for rule, statistic in graded.items():
        wanted = values(other, statistic) - values(first, statistic)
        assert question_of(compared, rule).differences[0].value == pytest.approx(wanted.mean())

    def place_of_mass(rows):
        overlap, chance = (
            values(rows, f"{k}@attention").mean() for k in ("mass", "mass_by_chance")
        )
        return (overlap - chance) / (1 - chance)

    difference = question_of(compared, "mass").differences[0]
    assert difference.value == pytest.approx(place_of_mass(other) - place_of_mass(first), abs=1e-4)
    for audit, report in enumerate((base, moved)):
        score = question_of(compared, "faithfulness").means[audit]
        assert score == compared.scores[audit] == report.score and score.n == N
    parts = [question_of(compared, rule).differences[0].value for rule in ("importance", "mass")]
    whole = question_of(compared, "faithfulness").differences[0]
    assert whole.value == pytest.approx(np.mean(parts)) and whole.has_clear_sign


def test_what_differs_is_listed_and_nothing_else(compared):
    assert {s.name for s in compared.settings} == {"model", "model fingerprint"}
    assert any("another training seed" in caution for caution in compared.cautions)


def in_line(text):
    """Without the breaks of lines and the signs of Markdown."""
    return " ".join(text.replace("\\", "").split())


def test_every_difference_stands_in_the_table_of_answers(compared):
    """Of every question, in Markdown as it was measured; of every statistic in the rows."""
    lines = [line.strip("| ").split(" | ") for line in compared.to_markdown().splitlines()]
    cells = {line[0]: line[3] for line in lines if len(line) == 4}
    for question in compared.questions:
        (found,) = question.differences
        side = "higher" if found.value > 0 else "lower"
        told = f"{side}: {found.value:+.2f} [" if found.has_clear_sign else UNCLEAR_DIFFERENCE_TEXT
        assert told in cells[question.question].replace("\\", "")
    frame = compared.summary_frame().set_index("statistic")
    for name, statistic in by_name(compared).items():
        (found,) = statistic.differences
        shown = frame.loc[name, ["first_mean", "mean", "difference"]]
        assert [*shown] == [found.first, found.other, found.value]
