"""The draws of a control: how many, where they are kept, gone on with, and what each alone would say."""

import pandas as pd
import pytest

import recompute
import zoo
from hf_attnprobe import AuditOptions, Correlation, Data, audit, read_audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.auditing import sweep
from hf_attnprobe.auditing.control import n_draws


TESTS = ["correlation", "input_erasure"]


def run(model, tokenizer, data, folder, **options):
    given = {"tokenizer": tokenizer, "output_dir": folder, "progress": False}
    return audit(model, data, TESTS, options=AuditOptions(**options), **given)


@pytest.fixture(scope="module")
def data(reviews):
    return reviews["test"].remove_columns("rationale")


@pytest.fixture(scope="module")
def whole(make_model, tokenizer, data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return run(make_model("mlp"), tokenizer, data, folder), folder


def test_how_many_there_are_by_default(make_model, tokenizer):
    one_head, many = wrap(make_model()), wrap(zoo.bert(tokenizer, layers=1, spread=0.02))
    assert n_draws(AuditOptions(), one_head) == 5
    assert n_draws(AuditOptions(), many) == 1
    assert n_draws(AuditOptions(time="90s"), one_head) == 1
    for adapter in (one_head, many):
        assert n_draws(AuditOptions(control_draws=3), adapter) == 3


def test_each_is_kept_by_itself_and_another_one(whole):
    report, folder = whole
    draws = recompute.read_draws(folder)
    assert list(draws) == [f"draw-{n}" for n in range(5)]
    assert not (folder / "control" / "rows").exists()
    gamma = [
        rows[rows.statistic == "attention_leave_one_out_agreement"]
        .set_index("example_id")
        .value.sort_index()
        for rows in draws.values()
    ]
    assert {len(own) for own in gamma} == {report.n}
    for k, first in enumerate(gamma):
        for second in gamma[:k]:
            assert (first - second).abs().max() > 1e-3
    assert "5 draws" in report.provenance["control"]


def test_a_transformer_has_one(tokenizer, data, tmp_path):
    run(zoo.bert(tokenizer, layers=1, spread=0.02), tokenizer, Data(data, test_limit=4), tmp_path)
    assert list(recompute.read_draws(tmp_path)) == ["draw-0"]


def same_audit(report, folder, other, other_folder):
    """Up to the rounding of other batches."""
    assert len(report.findings) == len(other.findings)
    for ours, theirs in zip(report.findings, other.findings, strict=True):
        assert ours.sentence == theirs.sentence
        assert (ours.answer, ours.other_draws) == (theirs.answer, theirs.other_draws)
        assert ours.value == pytest.approx(theirs.value, abs=1e-9)
        assert ours.yardsticks == pytest.approx(theirs.yardsticks, abs=1e-9)
    first, second = recompute.read_draws(folder), recompute.read_draws(other_folder)
    assert list(first) == list(second)
    key = ["test", "statistic", "example_id", "layer", "head"]
    for name, rows in first.items():
        ours, theirs = (
            x.sort_values(key, ignore_index=True)[[*key, "value"]] for x in (rows, second[name])
        )
        pd.testing.assert_frame_equal(ours, theirs, rtol=0, atol=1e-6)


def test_more_texts_are_gone_on_with(whole, make_model, tokenizer, data, tmp_path):
    run(make_model("mlp"), tokenizer, Data(data, test_limit=11), tmp_path)
    few = recompute.read_draws(tmp_path)
    assert all(rows.example_id.nunique() == 11 for rows in few.values())
    report = run(make_model("mlp"), tokenizer, data, tmp_path)
    same_audit(report, tmp_path, *whole)


class Killed(BaseException):
    pass


@pytest.mark.parametrize("n_written", [2, 5])
def test_after_a_kill_too(whole, make_model, tokenizer, data, tmp_path, monkeypatch, n_written):
    left, write = [n_written], sweep.append_rows

    def until_killed(*args, **kwargs):
        if not left[0]:
            raise Killed
        left[0] -= 1
        write(*args, **kwargs)

    with monkeypatch.context() as killed:
        killed.setattr(sweep, "append_rows", until_killed)
        with pytest.raises(Killed):
            run(make_model("mlp"), tokenizer, data, tmp_path)
    assert not (tmp_path / "summary.json").exists()
    report = run(make_model("mlp"), tokenizer, data, tmp_path)
    same_audit(report, tmp_path, *whole)


def test_a_report_read_again_knows_all_draws(whole):
    report, folder = whole
    again = read_audit(folder)
    assert again.findings == report.findings and again.contrasts == report.contrasts


def test_how_often_another_draw_changes_the_answer(whole):
    """Each draw alone, in plain pandas."""
    report, folder = whole
    rows, limits = recompute.read(folder / "rows"), recompute.thresholds()
    members = recompute.predictions(rows).index
    n_checked = 0
    for finding in report.findings:
        if finding.group != "all" or finding.rule not in ("importance", "removal"):
            continue
        differs = 0
        for own in recompute.read_draws(folder).values():
            numbers, _ = recompute.graded_numbers(rows, own, members)
            graded, _ = numbers[finding.rule]
            ends = graded.interval()
            possible = recompute.possible_grades(ends, graded.n, limits[finding.rule])
            answer = possible.pop() if len(possible) == 1 else "cannot say"
            differs += answer != finding.answer
        assert finding.other_draws == pytest.approx(differs / 5)
        n_checked += 1
    assert n_checked


def test_options_of_a_test_reach_the_draws(make_model, tokenizer, data, tmp_path):
    audit(
        make_model("mlp"),
        Data(data, test_limit=4),
        [Correlation(tops=(2,))],
        tokenizer=tokenizer,
        output_dir=tmp_path,
        progress=False,
    )
    for rows in recompute.read_draws(tmp_path).values():
        assert "attention_gradient_top_overlap@2" in set(rows.statistic)
