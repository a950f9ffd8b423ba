"""The jobs of ``heads.py`` written on the tools people use today, each the way its documentation shows it.

Every function imports its peer itself, so that a peer that is not there costs nothing and the others still run.
Run with nnsight 0.8.1, captum 0.9.0 and ferret-xai 0.4.1; later ferret versions want an older Transformers.
"""

import copy
import warnings
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

from hf_attnprobe.functional.erasure import compute_removal_rank
from hf_attnprobe.protocol import AttentionModel, Batch


FERRET_PERCENT = tuple(range(10, 101, 10))


def installed(name: str) -> bool:
    """Whether a peer can be imported."""
    return find_spec(name) is not None


class NNsight:
    """Head edits of a BERT through a trace per edit; attention weights exist only in the eager implementation.

    The name of the operation is the one that ``print(….source)`` shows for Transformers 5.23; it is not public.
    """

    def __init__(self, model):
        from nnsight import NNsight as Wrapped

        eager = copy.deepcopy(model)
        eager.set_attn_implementation("eager")
        with warnings.catch_warnings(
            action="ignore"
        ):  # BERT's modules named `output`, once per module
            self.traced = Wrapped(eager)

    @torch.no_grad()
    def probabilities(
        self, inputs: Mapping[str, Tensor], layer: int, head: int, weights: Tensor
    ) -> Tensor:
        """[batch, classes] with ``weights`` [batch, queries, keys] in one head."""
        attention = self.traced.bert.encoder.layer[layer].attention.self
        with self.traced.trace(**inputs):
            dropped = attention.source.attention_interface_1.source.nn_functional_dropout_0
            edited = dropped.output.clone()
            edited[:, head] = weights
            dropped.output = edited
            logits = self.traced.output.logits.save()
        return logits.softmax(-1)


class Captum:
    """Feature ablation with one feature per token, a text at a time, each token replaced by [MASK], special ones too."""

    def __init__(self, model, mask_id: int):
        from captum.attr import FeatureAblation

        self.mask_id = mask_id
        self.ablation = FeatureAblation(lambda ids: model(input_ids=ids).logits.softmax(-1))

    @torch.no_grad()
    def leave_one_out(
        self, texts: Sequence[Sequence[int]], targets: Sequence[int], per_pass: int = 1
    ) -> list[Tensor]:
        """p − p(without token) of the target class, [tokens] per text; ``per_pass=1`` is captum's default."""
        return [
            self.ablation.attribute(
                torch.tensor([ids]),
                baselines=self.mask_id,
                target=target,
                perturbations_per_eval=per_pass,
            )[0]
            for ids, target in zip(texts, targets, strict=True)
        ]


class Ferret:
    """Leave-one-out and comprehensiveness of a text; ids are decoded and tokenized again on the way."""

    def __init__(self, model, tokenizer):
        from ferret.evaluators.faithfulness_measures import (
            AOPC_Comprehensiveness_Evaluation,
            TauLOO_Evaluation,
        )

        self.tokenizer = tokenizer
        self.tau, self.aopc = (
            evaluation(model, tokenizer)
            for evaluation in (TauLOO_Evaluation, AOPC_Comprehensiveness_Evaluation)
        )

    @torch.no_grad()
    def leave_one_out(self, texts: Sequence[str], targets: Sequence[int]) -> list[Tensor]:
        """p(without token) − p of the target class, [tokens] per text."""
        pairs = zip(texts, targets, strict=True)
        return [
            self.tau.compute_leave_one_out_occlusion(text, target=target) for text, target in pairs
        ]

    @torch.no_grad()
    def comprehensiveness(
        self, texts: Sequence[str], targets: Sequence[int], scores: Sequence[Tensor]
    ) -> list[float]:
        """AOPC over ferret's ten thresholds, tokens removed in the order of ``scores`` [tokens] (special ones included)."""
        from ferret.explainers.explanation import Explanation

        found = []
        for text, target, score in zip(texts, targets, scores, strict=True):
            tokens = self.tokenizer.convert_ids_to_tokens(self.tokenizer(text)["input_ids"])
            explanation = Explanation(text, tokens, score.numpy(), "attention", target)
            found.append(self.aopc.compute_evaluation(explanation, target=target).score)
        return found


def comprehensiveness(adapter: AttentionModel, batch: Batch, scores: Tensor) -> Tensor:
    """Ours by ferret's rule, from the forward pass on: the mean fall of the predicted class's probability without the top
    10, 20, …, 100% of a text's tokens, rounded down; what removes nothing, or the same again, does not count.

    Shape: scores [batch, keys] -> [batch], NaN where nothing counts.
    """
    observation, content = adapter.observe(batch), batch.content_mask
    counts = content.sum(-1) * torch.tensor(FERRET_PERCENT, device=content.device)[:, None] // 100
    new = counts.diff(dim=0, prepend=torch.zeros_like(counts[:1])) > 0
    top = (compute_removal_rank(scores, content) < counts[..., None]) & content & new[..., None]
    place = observation.get_target_classes(None)[None, :, None].expand(len(top), -1, -1)
    drops = observation.probs.gather(-1, place[0]) - adapter.erase_inputs(observation, top).gather(
        -1, place
    )
    return (drops[..., 0] * new).sum(0) / new.sum(0)
