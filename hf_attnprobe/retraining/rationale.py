"""Does attention lie on the words that are enough? Mohankumar et al. 2020, Section 5.2.

Question: of the tokens that suffice for the model's answer, a rationale, how much
          attention do they get?
Measure:  a selector is trained to keep few tokens from which the model, which stays as it
          is, still tells the true class: reward ln p(true class) + λ · share of tokens
          left out. Per test text, of the tokens it keeps (probability over ½): their
          share of the tokens, and of the attention that the model has on the whole text.
Compare:  the two shares: as many tokens at random get, on average, their share of tokens.
          Whether the model is right on the rationale alone, beside the whole text.
Reading:  much attention on a short rationale with no loss of accuracy: attention is where
          the deciding words are. A long rationale, or one that loses accuracy, says
          nothing of attention: the selector has found none. Another selector may find
          other tokens that are enough too.

The paper's code reads attention on the shortened text; here, it is that on the text as it
is. The paper's settings for models without its penalties: ``--selector-size 256
--rationale-sparsity 0.2``.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_attnprobe.adapters.pretrained import PretrainedFacts
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.inference.outputs import predict
from hf_attnprobe.readings import TestReadings, share
from hf_attnprobe.retraining.base import (
    Base,
    Progress,
    Splits,
    Trained,
    compare_probs,
    is_correct,
    silent,
)
from hf_attnprobe.retraining.options import Rationale
from hf_attnprobe.retraining.registry import register_retraining
from hf_attnprobe.retraining.token_selector import TokenSelector, train_selector
from hf_attnprobe.statistics.scores import Score


if TYPE_CHECKING:
    import datasets

READINGS: TestReadings = {
    "rationale_length": share("the selector keeps {mean:.0%} of a text's tokens"),
    "rationale_attention": share(
        "the tokens that the selector keeps have {mean:.0%} of the base's attention on "
        "the whole text"
    ),
    "rationale_attention_above_length": (
        "the share of attention of the tokens that the selector keeps is {mean:+.2f} "
        "above their share of the tokens, which as many at random get on average"
    ),
    "rationale_correct": share(
        "from the tokens that the selector keeps alone, the base is right in {mean:.0%} of texts"
    ),
}


@dataclass(frozen=True)
class RationaleResult:
    """Result of :func:`rationale`; tensors are [texts].

    Attributes:
        rationale_length: share of the tokens that are selected, in [0, 1].
        rationale_attention: their share of the base's attention, in [0, 1].
        rationale_attention_above_length: the second minus the first.
        rationale_correct: 1 where the base is right on the selected tokens alone, else 0.
        selected: bool [texts, tokens], in the layout of the base's ``attention``.
        scores: of the base on the texts and on their rationales alone.
        trained: the selector.
    """

    rationale_length: Tensor
    rationale_attention: Tensor
    rationale_attention_above_length: Tensor
    rationale_correct: Tensor
    selected: Tensor
    scores: tuple[Score, ...]
    trained: tuple[Trained, ...]


@register_retraining(
    title="A selector of the tokens that are enough",
    readings=READINGS,
    options=Rationale,
    n_models=lambda options: 1,
    default=False,
)
def rationale(
    base: Base,
    splits: Splits,
    options: Rationale = Rationale(),
    *,
    output_dir: str | Path,
    seed: int = 0,
    progress: Progress = silent,
) -> RationaleResult:
    """Trains a token selector and weighs the base's attention on what it selects.

    Args:
        splits: train, validation and test texts.
        options: of the selector.
        output_dir: folder of the selector; what an interrupted run left there is
            continued.
        seed: of the bootstrap; the selector is trained with the base's own.
    """
    trained = train_selector(base, splits, Path(output_dir), options, progress=progress)
    own = base.outputs(splits["test"])
    assert isinstance(trained.model, TokenSelector)
    selected, left = _select(base, trained.model, splits["test"])
    shortened = predict(
        base.model,
        base.tokenizer,
        splits["test"],
        edit=lambda text: left[text.example_id],
    )
    length = selected.sum(-1).double() / own.mask.sum(-1)
    attention = (own.attention * selected).sum(-1)
    probs = {"base": own.probs, "rationale alone": shortened}
    return RationaleResult(
        length,
        attention,
        attention - length,
        is_correct(shortened, own.labels),
        selected,
        compare_probs(own.labels, probs, reference="base", seed=seed),
        (trained,),
    )


@torch.no_grad()
def _select(
    base: Base, selector: TokenSelector, examples: "datasets.Dataset"
) -> tuple[Tensor, dict[int, list[int]]]:
    """The selected tokens of every text, and its ids with the others blanked.

    Shape: bool [texts, tokens], texts in the order of their ids, content tokens only.
    """
    texts = tokenize(base.tokenizer, examples, PretrainedFacts(base.model)).texts
    content_mask = base.model.attention_classifier.content_mask
    pad_id = base.tokenizer.pad_token_id
    rows, left = [], {}
    for text in sorted(texts, key=lambda text: text.example_id):
        ids = torch.tensor([text.inputs["input_ids"]], device=selector.device)
        mask = torch.ones_like(ids)
        content = content_mask(mask, ids)
        kept = selector(ids, mask) > 0
        left[text.example_id] = ids.where(kept | ~content, pad_id)[0].tolist()
        rows.append(kept[content].cpu())
    return pad_sequence(rows, batch_first=True), left
