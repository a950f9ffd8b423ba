"""An audit in shares: joined they are the one audit, row by row; what is missing is said."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

from hf_attnprobe import (
    Answers,
    AttnProbeError,
    AuditOptions,
    Data,
    Permutation,
    audit,
    evaluate_scores,
    join_shares,
    load_examples,
    read_audit,
)
from hf_attnprobe.audits.pipeline import estimate_audit
from hf_attnprobe.inference import answers
from hf_attnprobe.reports.report import Report, _join_provenance
from hf_attnprobe.reports.result import convert_report_to_json
from hf_attnprobe.statistics.sampling import list_share_indices
from tests.helpers import tiny_language_models
from tests.helpers.compare_rows import assert_same_rows
from tests.helpers.error_messages import refused, refuses


TESTS = ["correlation", "exchange", "erasure", Permutation(n_permutations=3)]
N = 3
ROUNDING = {"rtol": 1e-6, "atol": 1e-6}
"""Batches differ, and some numbers are float32."""


def shared(verb, folder, *, of=N, **options):
    """Runs every share of a verb that takes options and a folder; their folders."""
    for k in range(of):
        given = AuditOptions(share=f"{k}/{of}", shown_texts=0, prune=False, **options)
        verb(options=given, output_dir=folder, progress=False)
    return sorted(folder.iterdir())


def same_rows(shares, whole):
    assert_same_rows(shares.to_pandas(), whole.to_pandas(), tolerance=1e-5)


def agree(ours, theirs, where=""):
    """Plain data, numbers to rounding."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), where
        for key in theirs:
            agree(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for k, both in enumerate(zip(ours, theirs, strict=True)):
            agree(*both, f"{where}[{k}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, nan_ok=True, abs=1e-6, rel=1e-6), where
    else:
        assert ours == theirs, where


@pytest.fixture(scope="module")
def verb(checkpoint, reviews_folder):
    def run(**given):
        return audit(checkpoint, str(reviews_folder), TESTS, **given)

    return run


@pytest.fixture(scope="module")
def whole(verb):
    options = AuditOptions(shown_texts=0, prune=False)
    return verb(options=options, progress=False)


@pytest.fixture(scope="module")
def job(verb, tmp_path_factory):
    """The folders of three shares; do not write into them."""
    return shared(verb, tmp_path_factory.mktemp("job"))


def test_three_shares_are_one_audit(job, whole):
    joined = join_shares(job)
    same_rows(joined, whole)
    ours, theirs = convert_report_to_json(joined), convert_report_to_json(whole)
    for key in ("n", "answer", "score", "accuracy", "findings", "statistics", "comparisons"):
        agree(ours[key], theirs[key], key)
    assert joined.n == sum(len({*r}) for r in ids_of(job)) == 40
    ours, theirs = joined.charts(), whole.charts()
    assert [c.key for c in ours] == [c.key for c in theirs] and ours


def ids_of(job):
    return [join_shares([folder]).to_pandas().example_id for folder in job]


def test_every_text_is_in_one_share(job):
    found = [{*ids} for ids in ids_of(job)]
    assert all(found) and len(set.union(*found)) == sum(map(len, found)) == 40
    for of in (1, 2, 7, 64):
        parts = [list_share_indices(range(500), (k, of)) for k in range(of)]
        assert sorted(place for part in parts for place in part) == [*range(500)]


def test_a_share_that_is_missing_is_said(job, cli, tmp_path):
    report = join_shares(job[:2])
    assert report.notes[0].startswith("Progress: 2 of 3 shares.")
    assert "2 of 3 shares" in " ".join(str(report).split())  # on the first screen
    assert "shares" not in str(join_shares(job))
    assert not any("Progress" in note for note in join_shares(job).notes)
    page = tmp_path / "report.md"
    done = cli("report", *job[:2], "--output", page)
    assert done.code == 0 and "2 of 3 shares" in page.read_text()


@pytest.mark.slow
def test_a_share_goes_on_where_it_was(verb, job, tmp_path, copy_of):
    copy = copy_of(job[0].parent, "again")
    parts = sorted((copy / job[0].name / "rows").iterdir())
    parts[0].unlink()
    before = {part: part.stat().st_mtime_ns for part in parts[1:]}
    again = shared(verb, copy)
    assert all(part.stat().st_mtime_ns == when for part, when in before.items())
    same_rows(join_shares(again), join_shares(job))


@pytest.mark.slow
def test_shares_of_other_audits_are_refused(verb, job, tmp_path):
    others = shared(verb, tmp_path / "others", seed=1)
    with pytest.raises(
        AttnProbeError, match=r"are not shares of one audit, because they differ in .*seed"
    ):
        join_shares([job[0], others[1]])
    more = shared(verb, tmp_path / "more", of=2)
    for folders in ([job[0], job[0]], [job[0], more[1]]):
        refused("list each share of one split once", join_shares, folders)


@pytest.mark.parametrize("share", ["3/3", "x", "1", "-1/3", "0/0", "1/2/3"])
def test_a_share_that_there_is_not_is_refused(share, verb):
    refused("expected --share K/N with K from 0 to", verb, options=AuditOptions(share=share))


def test_a_share_without_a_text_is_refused(verb):
    with refuses(
        "share 0/999999 is empty, because the data set has only 40 texts. Use fewer shares"
    ):
        verb(options=AuditOptions(share="0/999999"), progress=False)


@pytest.mark.parametrize("other", [{"time": "1m"}, {"screen": 1}])
def test_what_chooses_by_all_texts_is_refused(other, verb):
    with pytest.raises(AttnProbeError, match="--share cannot be combined with --screen or --time"):
        verb(options=AuditOptions(share="0/2", **other))


def test_the_command_joins_shares(checkpoint, reviews_folder, cli, tmp_path):
    command = ("audit", "--model", checkpoint, "--dataset", reviews_folder, "--tests", "conicity")
    for k in range(2):
        done = cli(*command, "--share", f"{k}/2", "--output-dir", tmp_path)
        assert done.code == 0, done.err
    folders = sorted(tmp_path.glob("share-*"))
    done = cli("report", *folders, "--output", tmp_path / "report.json")
    assert done.code == 0, done.err
    assert json.loads((tmp_path / "report.json").read_text())["n"] == 40


def test_joined_shares_list_the_earlier_runs_of_all_shares():
    """A run of a joined audit is not a run of one of its shares."""
    shares = []
    for number in range(2):
        settings = {"model": "m", "dataset": "d", "share": f"{number}/2"}
        provenance = {
            "asked_for": settings,
            "share": (number, 2),
            "unknown_tokens": 0.0,
            "earlier_runs": [{**settings, "seed": 3}, {**settings, "batch_size": number}],
        }
        shares.append(Report("m", "d", 10, 0, (), provenance))
    joined = _join_provenance(shares)
    run = {"model": "m", "dataset": "d"}
    assert joined["asked_for"] == run
    assert joined["earlier_runs"] == [
        {**run, "seed": 3},
        {**run, "batch_size": 0},
        {**run, "batch_size": 1},
    ]


@pytest.mark.slow
def test_scores_are_judged_in_shares(checkpoint, reviews_folder, tmp_path):
    examples = load_examples(str(reviews_folder), "test")
    words = [len(text.split()) for text in examples["text"]]
    draws = np.random.default_rng(0)
    pairs = zip(examples["example_id"], words, strict=True)
    rows = [{"id": k, "unit": unit, "score": draws.random()} for k, n in pairs for unit in range(n)]
    (tmp_path / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def judged(**given):
        scores = tmp_path / "scores.jsonl"
        return evaluate_scores(checkpoint, str(reviews_folder), scores, ["erasure"], **given)

    options = AuditOptions(shown_texts=0, prune=False)
    folders = shared(judged, tmp_path / "job")
    same_rows(join_shares(folders), judged(options=options, progress=False))


def test_shares_of_different_scores_are_not_joined(checkpoint, reviews_folder, tmp_path, cli):
    """One share with the scores of one explainer, the other with those of another one."""
    examples = load_examples(str(reviews_folder), "test", limit=8)
    data = Data(str(reviews_folder), test_limit=8)
    words = [len(text.split()) for text in examples["text"]]
    numbers = np.random.default_rng(0)
    scores = [
        {k: numbers.random(n).tolist() for k, n in zip(examples["example_id"], words, strict=True)}
        for _ in range(2)
    ]
    for number, share_scores in enumerate(scores):
        options = AuditOptions(share=f"{number}/2", shown_texts=0, prune=False)
        given = {"options": options, "output_dir": tmp_path / "job", "progress": False}
        evaluate_scores(checkpoint, data, share_scores, ["erasure"], **given)
    folders = sorted((tmp_path / "job").iterdir())
    refused("differ in scores_fingerprint", join_shares, folders)
    assert "differ in scores_fingerprint" in cli("report", *folders).err
    # Both shares of the same scores are joined.
    given = {"options": AuditOptions(share="1/2", shown_texts=0, prune=False), "progress": False}
    evaluate_scores(
        checkpoint, data, scores[0], ["erasure"], output_dir=tmp_path / "again", **given
    )
    joined = join_shares([folders[0], tmp_path / "again" / "share-1-of-2"])
    assert joined.n == len(examples)
    # A list does not name its texts, so that nobody knows whether two lists belong together.
    refused(
        "a list of scores cannot be combined with --share",
        evaluate_scores,
        checkpoint,
        data,
        list(scores[0].values()),
        ["erasure"],
        **given,
    )


def test_a_share_is_not_written_through_a_link(verb, tmp_path):
    """A link in place of the folder of a share leads out of the folder of the job."""
    (tmp_path / "job").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "job" / "share-0-of-2").symlink_to(tmp_path / "elsewhere")
    options = AuditOptions(share="0/2", shown_texts=0, prune=False)
    refused("leads out of the output folder", verb, options=options, output_dir=tmp_path / "job")
    assert not [*(tmp_path / "elsewhere").iterdir()]


@pytest.mark.parametrize(("test", "are_own"), [("sources", True), ("head_ablation", False)])
def test_a_language_model_is_audited_in_shares(test, are_own, tmp_path, monkeypatch):
    """A share answers its own prompts; the others' too where a test takes something from them."""
    words, n_answered, generate = (
        tiny_language_models.tokenizer(chat=False),
        [],
        answers.generate_answers,
    )
    model = tiny_language_models.llama(words), words
    rows = [
        {"context": row["context"], "question": row["question"]}
        for row in tiny_language_models.ROWS * 3
    ]

    def generated(model, tokenizer, prompts, *others):
        n_answered.append(len(prompts))
        return generate(model, tokenizer, prompts, *others)

    def asked(verb=audit, **given):
        return verb(model, Answers(rows, units="sentence"), [test], **given)

    monkeypatch.setattr(answers, "generate_answers", generated)
    folders = shared(asked, tmp_path / "job", of=2)
    options = AuditOptions(shown_texts=0, prune=False)
    joined, whole = join_shares(folders), asked(options=options, progress=False)
    same_rows(joined, whole)
    estimated = asked(verb=estimate_audit, options=AuditOptions(share="1/3"))
    assert estimated.n_texts == 2  # which are not among the first two of all
    assert sum(n_answered[:2]) == (len(rows) if are_own else 2 * len(rows)) and all(n_answered)
    if test == "sources":
        order = ["example_id", "unit"]
        ours, theirs = (one.sentences().sort_values(order) for one in (joined, whole))
        assert len(ours) == sum(len(text.tokens) for text in whole.examples) > 0
        assert ours.text.tolist() == theirs.text.tolist()
        np.testing.assert_allclose(ours.leave_one_out, theirs.leave_one_out, **ROUNDING)


RAY = """
{shares}
{ray}
ray.shutdown()
audit("reader", "data", ["permutation"], output_dir="whole", progress=False)
"""
LOCAL = {"ray.init()": "ray.init(num_cpus=2, num_gpus=2, include_dashboard=False)", "512": "2"}
"""A local Ray is told that there are GPUs, since none is asked for by what runs."""


@pytest.mark.slow
def test_shares_on_a_real_local_ray(run_python, tmp_path):
    """The page's own function and block; the shares joined are the audit of one process."""
    pytest.importorskip("ray", reason="Ray is not installed (pip install ray)")
    page = (Path(__file__).parents[2] / "docs/many_machines.md").read_text()
    shares, ray = (
        next(
            block
            for block in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
            if is_it in block
        )
        for language, is_it in (("python", "def share("), ("py", "import ray"))
    )
    for given, local in LOCAL.items():
        assert given in ray
        ray = ray.replace(given, local)
    shares = shares.partition("for k in range(2):")[0]  # what Ray does instead
    (tmp_path / "job.py").write_text(RAY.format(shares=shares, ray=ray))
    done = run_python("job.py", cwd=tmp_path, timeout=600)
    assert done.code == 0, done.err
    folders = sorted((tmp_path / "job").iterdir())
    assert [folder.name for folder in folders] == ["share-0-of-2", "share-1-of-2"]
    same_rows(join_shares(folders), read_audit(tmp_path / "whole"))
