"""Metadata of model cards: results, numbers and names that are written and read back."""

import dataclasses
import math

import numpy as np
import pytest
import yaml
from huggingface_hub import parse_eval_result_entries
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_attnprobe.cards.card import render_card, update_readme
from hf_attnprobe.cards.metadata import (
    AuditSummary,
    CardContent,
    DatasetReference,
    build_eval_result_files,
    build_eval_results,
    build_metadata,
    strip_local_folders,
)
from hf_attnprobe.statistics.grades import Answer
from tests.helpers.sample_cards import CONFIG, RECORD, card, check_plain, finding, names, reread


def test_the_results_are_read_back_as_they_were_written(tmp_path):
    made = card(finding(), finding(rule="removal", answer=Answer.YES))
    read = reread(update_readme(None, made), tmp_path)
    assert read.data.eval_results == build_eval_results(made)
    assert read.data.model_name == "bilstm"
    kinds = [r.metric_type for r in read.data.eval_results]
    assert kinds == ["accuracy", "f1", *["attention_faithfulness"] * 2]
    assert read.data.eval_results[0].metric_value == 0.75
    told = read.data.eval_results[2]
    assert (told.metric_value, told.metric_args["ci95"]) == (0.22, [0.2, 0.24])
    assert (told.metric_args["n"], told.metric_args["answer"]) == (40, "no")
    assert told.dataset_type == "SetFit/sst2"


numbers = st.one_of(
    st.floats(), st.floats(width=32).map(np.float32), st.integers(-5, 5).map(np.int64)
)


NAMES = dict.fromkeys(("sentence", "name", "label", "dataset"), names)


@settings(max_examples=15)
@given(
    value=numbers,
    low=numbers,
    yardsticks=st.dictionaries(names, numbers, max_size=3),
    score=numbers,
    said=st.fixed_dictionaries(NAMES),
)
def test_odd_numbers_and_names(value, low, yardsticks, score, said, tmp_path_factory):
    changes = {"value": value, "ci95": (low, value), "yardsticks": yardsticks}
    odd = finding(**changes, sentence=said["sentence"])
    record = RECORD | {"metrics": {"test_f1": float(score)}, "dataset": said["dataset"]}
    config = CONFIG | {"id2label": {0: said["label"], 1: "b"}}
    made = card(odd, name=said["name"], record=record, config=config)
    text = update_readme(None, made)
    read = reread(text, tmp_path_factory.mktemp("odd"))
    check_plain(build_metadata(made).to_dict())
    check_plain(read.data.to_dict())
    wanted = build_eval_results(made)
    assert (read.data.eval_results or []) == wanted
    told = [r for r in wanted if r.metric_type == "attention_faithfulness"]
    assert len(told) == math.isfinite(value)
    assert update_readme(text, made) == text  # whatever the names, our part is found again
    assert "python/" not in text


def test_what_is_not_on_the_hub_has_no_id_of_it(tmp_path):
    record = {"dataset": "/data/claims.csv", "metrics": {"test_f1": 0.5}}
    made = card(record=record)
    (score,) = build_eval_results(made)
    assert (score.dataset_type, score.dataset_name) == ("local", "claims.csv")
    audit = AuditSummary(
        DatasetReference.from_name("/data/claims.csv"), "test", 40, 0, None, (finding(),)
    )
    local = CardContent(made.checkpoint, (audit,))
    named = CardContent(made.checkpoint, (audit,), "me/claims")
    assert {r.dataset_type for r in build_eval_results(local)} == {"local"}
    assert {r.dataset_type for r in build_eval_results(named)} == {"me/claims"}
    assert reread(update_readme(None, local), tmp_path).data.eval_results == build_eval_results(
        local
    )


def test_names_are_those_of_the_hub_or_the_last_part_of_a_folder(tmp_path):
    assert DatasetReference.from_name("SetFit/sst2") == DatasetReference("sst", "SetFit/sst2")
    assert DatasetReference.from_name("sst=/data/mine").hub_id == "SetFit/sst2"
    assert DatasetReference.from_name(str(tmp_path / "mine")) == DatasetReference("mine")
    assert DatasetReference.from_name("babi1=data/babi") == DatasetReference("babi1")
    assert strip_local_folders("C:\\models\\a") == "a"


def test_no_number_of_fewer_than_ten_different_texts_is_published():
    made = card(finding())

    def results_of(n):
        audit = AuditSummary(
            DatasetReference.from_name("/data/claims.csv"),
            "test",
            40,
            0,
            None,
            (dataclasses.replace(finding(), n=n),),
        )
        return build_eval_results(CardContent(made.checkpoint, (audit,)))

    assert len(results_of(10)) == len(results_of(9)) + 1


@pytest.mark.parametrize(("n", "n_files"), [(9, 0), (10, 1)])
def test_no_file_for_the_hub_has_a_number_of_fewer_than_ten_texts(n, n_files):
    assert len(build_eval_result_files(card(finding(n=n)))) == n_files


def test_a_card_states_on_how_many_texts_its_answer_is_based():
    made = card(finding())
    audit = AuditSummary(
        DatasetReference.from_name("claims"), "test", 300, 0, "Cannot say.", n_answered=30
    )
    text = render_card(CardContent(made.checkpoint, (audit,)))
    assert (
        "Audit of 300 texts from `claims` (split `test`); the answer is based on 30 texts" in text
    )
    whole = dataclasses.replace(audit, n_answered=300)
    assert "is based on" not in render_card(CardContent(made.checkpoint, (whole,)))


def test_results_of_audits_are_in_the_format_that_the_hub_reads():
    """huggingface_hub parses every file; each audit has one, and no number is lost."""
    findings = (finding(), finding(rule="effect", value=0.5, ci95=None), finding(rule="accuracy"))
    made = card(*findings, finding(rule="faithfulness", value=math.nan))
    (audit,) = made.audits
    url = "https://huggingface.co/datasets/acme/bilstm-attention-audit"
    published = dataclasses.replace(audit, rows_url=url)
    local = dataclasses.replace(audit, data=DatasetReference.from_name("/data/claims.csv"))
    made = dataclasses.replace(made, audits=(audit, published, local))
    files = build_eval_result_files(made)
    assert list(files) == [
        ".eval_results/attnprobe-sst-test.yaml",
        ".eval_results/attnprobe-sst-test-2.yaml",
    ]
    first, second = (parse_eval_result_entries(yaml.safe_load(text)) for text in files.values())
    assert [(entry.dataset_id, entry.task_id, entry.value) for entry in first] == [
        ("SetFit/sst2", "attention_importance", 0.22),
        ("SetFit/sst2", "attention_effect", 0.5),
    ]
    assert first[0].notes == (
        "answer: no, 95% interval 0.200 to 0.240, 40 texts of split test, seed 0"
    )
    assert first[1].notes == "answer: no, 40 texts of split test, seed 0"
    assert {entry.source_url for entry in first} == {None}
    assert {entry.source_url for entry in second} == {url}
    named = build_eval_result_files(dataclasses.replace(made, data_id="acme/claims"))
    (path,) = named.keys() - files.keys()
    assert path == ".eval_results/attnprobe-claims.csv-test.yaml"
    assert {entry["dataset"]["id"] for entry in yaml.safe_load(named[path])} == {"acme/claims"}
