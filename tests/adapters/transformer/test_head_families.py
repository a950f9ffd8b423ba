"""Every other kind of head on models of other families than BERT, against plain forward passes."""

import pytest
import torch
import transformers
from torch import Tensor

from hf_attnprobe import Site
from hf_attnprobe.adapters import wrap
from hf_attnprobe.faithfulness.registry import load_tests as all_tests
from tests.helpers.adapter_families import SIZES, TEXTS, encode, make
from tests.helpers.error_messages import refuses


MASK = 50
SEGMENTS = ([-1, 0, 0, 1, 1, 1, 1, 1, -1], [-1, 0, 0, 1, -1], [-1, 0, 0, 1, 1, 1, -1])
SUFFIX = {
    "tags": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
    "words": "ForMaskedLM",
}
KINDS = {"roberta": "words", "distilbert": "span", "albert": "choice span", "llama": "span"}
KINDS |= {"electra": "tags words", "deberta_v2": "tags choice", "modernbert": "words span"}
KINDS |= {"xlnet": "choice tags", "gpt2": "tags span", "t5": "tags span", "bart": "span"}
CASES = [(family, kind) for family, kinds in KINDS.items() for kind in kinds.split()]


def tokens(head, row):
    """Of a text; a word is masked where one is to be predicted."""
    ids = list(TEXTS[row])
    if head == "words":
        ids[2] = MASK
    return ids


def inputs(model, head, rows):
    """Padded as the model asks, with segments and choices."""
    encoded = encode(model, [tokens(head, row) for row in rows])
    encoded["special_tokens_mask"] |= (encoded["input_ids"] == MASK).long()
    if head == "span":
        n_keys = encoded["input_ids"].shape[1]
        of_rows = [[*SEGMENTS[r], *[-1] * (n_keys - len(SEGMENTS[r]))] for r in rows]
        encoded["segment_ids"] = torch.tensor(of_rows)
    if head == "choice":
        other = {**encoded, "input_ids": encoded["input_ids"].clone()}
        other["input_ids"][encoded["special_tokens_mask"] == 0] += 5
        encoded = {name: torch.stack([encoded[name], other[name]], 1) for name in other}
    return encoded


@torch.no_grad()
def by_hand(model, head, row) -> list[Tensor]:
    """The distributions of one text's parts, from a forward pass of it alone."""
    ids = torch.tensor([tokens(head, row)])
    content = (ids != 2) & (ids != 3)
    if head == "choice":
        ids = torch.stack([ids, ids + 5 * content], 1)
        output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
        return [output.logits[0].softmax(-1)]
    output = model(input_ids=ids, attention_mask=torch.ones_like(ids))
    if head == "span":
        inside = torch.tensor(SEGMENTS[row]) == 1
        both = output.start_logits[0], output.end_logits[0]
        return [logits[inside].softmax(-1) for logits in both]
    read = ids[0] == MASK if head == "words" else content[0]
    return [*output.logits[0][read].softmax(-1)]


@pytest.mark.parametrize(("family", "head"), CASES, ids=map("-".join, CASES))
def test_a_head_of_another_family(family, head):
    """Its own probabilities, padded or not; the identity edit; edits that arrive."""
    model = make(family, head=SUFFIX[head], num_labels=2 if head == "span" else 3).double()
    adapter = wrap(model, level="token", mask_id=MASK)

    def observe(rows):
        return adapter.observe(adapter.prepare(inputs(model, head, rows), tuple(rows)))

    together = observe([0, 1, 2])
    for row in range(3):
        expected = by_hand(model, head, row)
        for observation, place in ((together, row), (observe([row]), 0)):
            parts = adapter.prediction.group_by_part(observation.probs[place])
            for part, p in zip(parts, expected, strict=False):
                if head == "words":
                    p = p[observation.batch.inputs["candidate_ids"][place, 0]]
                found = part[part > 0] if head == "span" else part
                torch.testing.assert_close(found[: len(p)], p, atol=1e-8, rtol=1e-6)
    torch.testing.assert_close(adapter.compute_native_probs(together.batch), together.probs)
    for layer, attention in enumerate(together.attention):
        same = adapter.replay(together, {layer: attention[None]})[0]
        torch.testing.assert_close(same, together.probs)
        uniform = all_tests()["uniform_attention"].function(together, Site(layer, 0))
        assert float(uniform.uniform_tvd.max()) > 1e-9
    assert together.compute_leave_one_out_importance().isfinite().all()
    assert together.compute_gradient_importance().isfinite().all()


NOT_COVERED = {
    "FNetForTokenClassification": "expected softmax attention",
    "CanineForQuestionAnswering": "token embedding table",
    "IBertForMultipleChoice": "expected softmax attention",  # of whole numbers
    "LongformerForTokenClassification": "banded, pooled or approximated",
    "LongformerForQuestionAnswering": "failed on an example text or image",
    "FunnelForMaskedLM": "banded, pooled or approximated",
}


@pytest.mark.parametrize("name", NOT_COVERED)
def test_what_is_not_covered_says_so_in_one_line(name):
    family = name.partition("For")[0]
    sizes = {**SIZES, "num_labels": 2, "pad_token_id": 0}
    if family == "Funnel":
        sizes = {"d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 48}
        sizes |= {"block_sizes": [1, 1], "vocab_size": 60}
    if family == "Longformer":
        sizes |= {"attention_window": 8, "sep_token_id": 2}
    if family == "Canine":
        del sizes["vocab_size"]
    if family == "IBert":
        sizes["quant_mode"] = True
    model = getattr(transformers, name)(getattr(transformers, f"{family}Config")(**sizes))
    with refuses(NOT_COVERED[name]):
        wrap(model.eval(), mask_id=MASK)
