"""Which attention an audit means, and how much of it lies where no text is shown."""

import dataclasses

import numpy as np
import pytest
import torch

from hf_attnprobe.reports.audit_document import describe_attention_site
from tests.helpers import tiny_models
from tests.helpers.audit_by_name import audit_by_name
from tests.helpers.page_reader import Reader
from tests.helpers.written_by_hand import compute_amounts, weigh_heads
from tests.reports.test_head_sentences import TEXTS, pair_tokenizer


@pytest.fixture(scope="module")
def bert():
    return tiny_models.bert(40, spread=0.5, attn_implementation="eager")


def audited(model, texts, **options):
    options = {"tests": ["permutation"], "n_permutations": 2} | options
    return audit_by_name(model, texts, tokenizer=pair_tokenizer(), **options)


def test_the_share_on_special_tokens_by_hand(bert):
    """The weighted mean over all heads of the row of [CLS], at [CLS] and [SEP]."""
    report = audited(bert, TEXTS, single_heads=False)
    tokenizer, expected = pair_tokenizer(), []
    for text in TEXTS:
        given = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            maps = bert(**given, output_attentions=True).attentions
        is_word = torch.ones_like(given["input_ids"], dtype=torch.bool)
        is_word[:, [0, -1]] = False
        weights = weigh_heads(compute_amounts(bert, given, is_word)[..., 0])
        row = (torch.stack(maps)[..., 0, :] * weights[..., None]).sum((0, 2))[0]
        expected.append(float(row[0] + row[-1]))
    found = report.to_pandas()[report.to_pandas().statistic == "special_attention"]
    found = found[(found.layer == -1) & (found["head"] == -1)]
    assert found.sort_values("example_id").value.tolist() == pytest.approx(expected, abs=1e-5)
    share = np.mean(expected)
    line = f"weighted mean of 4 heads from [CLS]; {share:.0%} of it is on special tokens"
    assert describe_attention_site(report) == f"{line}, which are not displayed"
    assert f"{line}, which are not displayed" in " ".join(report.to_text(verbose=True).split())
    assert f"{line}, which are not displayed" in report.to_markdown()
    words = Reader(report.to_html()).words
    assert words.index(line) < words.index("special_attention")


def test_heads_one_by_one_are_no_one_attention(bert):
    assert describe_attention_site(audited(bert, TEXTS[:4], groups=False)) == ""


def test_a_text_of_a_pair_that_is_held_is_not_explained(bert):
    pairs = [{"text": a, "text_pair": b} for a, b in zip(TEXTS[:4], TEXTS[4:8], strict=True)]
    line = describe_attention_site(audited(bert, pairs, segment="text", single_heads=False))
    assert "special tokens and the fixed text, which are not displayed" in line


def test_a_classifier_attends_to_its_text_alone(checkpoint, reviews):
    report = audit_by_name(str(checkpoint), reviews["test"], tests=["permutation"], test_limit=5)
    rows = report.to_pandas()
    assert (rows[rows.statistic == "special_attention"].value == 0).all()
    assert describe_attention_site(report) == "the only head"
    older = {k: v for k, v in report.provenance.items() if k != "attention"}
    assert describe_attention_site(dataclasses.replace(report, provenance=older)) == ""
