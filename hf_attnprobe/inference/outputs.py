"""Runs a model over a split and returns its predictions and attention.

One model's attention can be imposed on another model: a *guide* holds the attention weights for
every text, and a model with guided attention uses them instead of its own weights.
"""

from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.pretrained import PretrainedModelInfo
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.hardware import split_into_chunks
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.functional.intervention import normalise
from hf_attnprobe.inference.batching import collate, sort_by_length
from hf_attnprobe.inference.encoding import Text, tokenize
from hf_attnprobe.protocol import Observation


if TYPE_CHECKING:
    import datasets


Guide = Mapping[int, Tensor]
"""Attention weights of one model that are imposed on another model, by text id.

Each text has a vector `[content tokens]`, without special tokens.
"""


@dataclass(frozen=True, eq=False)
class Outputs:
    """Predictions and attention for all nonempty texts in a split, sorted by text id.

    Attributes:
        example_ids: Text ids.
        labels: Labels, int64 `[texts]`.
        probs: Probabilities, `[texts, classes]`.
        attention: Attention weights, `[texts, tokens]`. Each row contains the weights on a text's
            content tokens, without special tokens; they sum to 1 and are followed by padding. If the
            model attends to words of several tokens, there is one weight per word.
        mask: False at padding, bool `[texts, tokens]`.
    """

    example_ids: tuple[int, ...]
    labels: Tensor
    probs: Tensor
    attention: Tensor
    mask: Tensor


def observe_split(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    *,
    batch_size: int = 64,
    **options: Any,
) -> Iterator[Observation]:
    """Run a model on all texts in a split, in batches of similar length.

    Args:
        model: Any model that :func:`hf_attnprobe.wrap` accepts.
        tokenizer: The model's tokenizer.
        examples: The texts.
        batch_size: Number of texts per batch.
        **options: Further arguments for ``wrap``.

    Yields:
        For each batch, an observation: the model's outputs and its attention.
    """
    adapter = wrap(model, **options)
    texts = sort_by_length(tokenize(tokenizer, examples, adapter).texts)
    for batch_texts in split_into_chunks(texts, batch_size):
        yield adapter.observe(collate(adapter, batch_texts, tokenizer.pad_token_id or 0))


def read_outputs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    **options: Any,
) -> Outputs:
    """Run a model over a split, and return predictions and the first head's attention.

    Weights on special tokens are removed, and the remaining weights are divided by their sum. In a
    hierarchical model, a word's weight within its sentence is multiplied by the sentence's weight.

    Args:
        model: Any model that :func:`hf_attnprobe.wrap` accepts.
        tokenizer: The model's tokenizer.
        examples: The texts.
        **options: Further arguments for :func:`observe_split`.

    Returns:
        The predictions and attention.
    """
    # Each row holds a text's id, label, probabilities and attention weights.
    rows: list[tuple] = []
    for observation in observe_split(model, tokenizer, examples, **options):
        batch = observation.batch
        if observation.model.unit == "sentence":
            attention, is_content = _compute_word_weights(observation)
        else:
            attention = observation.read(observation.model.sites()[0]).detach()
            is_content = batch.content_mask
        weights = [
            normalise(text_attention[text_is_content])
            for text_attention, text_is_content in zip(attention, is_content, strict=True)
        ]
        probs = observation.probs.detach()
        # Collated batches always have labels.
        assert batch.labels is not None
        rows += zip(batch.example_ids, batch.labels, probs, weights, strict=True)
    rows.sort(key=lambda row: row[0])
    ids, labels, all_probs, all_weights = zip(*rows, strict=True)
    masks = [torch.ones_like(weights, dtype=torch.bool) for weights in all_weights]
    return Outputs(
        example_ids=ids,
        labels=torch.stack(labels).cpu(),
        probs=torch.stack(all_probs).cpu(),
        attention=pad_sequence(list(all_weights), batch_first=True).cpu(),
        mask=pad_sequence(masks, batch_first=True).cpu(),
    )


def measure_texts(
    observations: Iterable[Observation],
    measure: Callable[[Observation], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """Apply a measurement to all batches, and sort the results by text id.

    Args:
        observations: The model's outputs and attention for all batches.
        measure: Function that returns values `[batch, ...]` by name for one batch.

    Returns:
        Values `[texts, ...]` by name, sorted by text id.
    """
    ids: list[int] = []
    batch_values: dict[str, list[Tensor]] = {}
    for observation in observations:
        ids += observation.batch.example_ids
        for name, values in measure(observation).items():
            batch_values.setdefault(name, []).append(values.detach().cpu())
    order = torch.tensor(ids).argsort()
    return {name: torch.cat(values)[order] for name, values in batch_values.items()}


def _compute_word_weights(observation: Observation) -> tuple[Tensor, Tensor]:
    """Compute how much attention each word of a text gets in a hierarchical model.

    Such a model attends to the words in each sentence, and then to the sentences.

    Args:
        observation: The model's outputs and attention for a batch.

    Returns:
        The weights of the words, and a mask of the tokens that are words, both `[batch, keys]`.
    """
    word_attention, sentence_attention = (
        level_attention.detach()[:, 0] for level_attention in observation.attention
    )
    # A word's weight within its sentence is multiplied by the sentence's weight. The matrix product
    # does this for all words, because a word has weight 0 in the rows of other sentences.
    word_weights = (sentence_attention @ word_attention)[:, 0]
    is_word = observation.batch.inputs["units"] >= 0
    return word_weights, is_word


def make_guide(outputs: Outputs) -> Guide:
    """Collect a model's attention weights, so that another model can be trained to use them.

    These weights are called a guide.

    Args:
        outputs: The model's predictions and attention.

    Returns:
        Attention weights without padding, by text id.
    """
    rows = zip(outputs.example_ids, outputs.attention, outputs.mask, strict=True)
    return {example_id: weights[mask] for example_id, weights, mask in rows}


@torch.no_grad()
def predict(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    *,
    guide: Guide | None = None,
    edit: Callable[[Text], Sequence[int]] | None = None,
    batch_size: int = 128,
) -> Tensor:
    """Predict class probabilities for texts.

    Args:
        model: A classifier.
        tokenizer: The model's tokenizer.
        examples: The texts.
        guide: Attention weights, for a model with guided attention.
        edit: Function that returns replacement token ids for a text; None for unchanged texts.
        batch_size: Number of texts per batch.

    Returns:
        Probabilities, float64 `[texts, classes]`, sorted by text id.
    """
    texts = tokenize(tokenizer, examples, PretrainedModelInfo(model)).texts
    texts = sorted(texts, key=lambda text: text.example_id)
    model = model.eval()
    probs = []
    for batch_texts in split_into_chunks(texts, batch_size):
        inputs = _pad_inputs(tokenizer, batch_texts, edit)
        if guide is not None:
            inputs["guide"] = _pad_guide(guide, tokenizer, batch_texts)
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        probs.append(model(**inputs).logits.double().softmax(-1).cpu())
    return torch.cat(probs)


def _pad_inputs(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    edit: Callable[[Text], Sequence[int]] | None,
) -> dict[str, Tensor]:
    """Make model inputs from several texts, padded to the length of the longest text.

    Args:
        tokenizer: The model's tokenizer.
        texts: The texts.
        edit: Function that returns replacement token ids for a text; None for unchanged texts.

    Returns:
        Inputs `[texts, tokens]` by name.
    """
    rows = []
    for text in texts:
        ids = text.inputs["input_ids"] if edit is None else list(edit(text))
        # Models cannot read an empty text, so it is replaced with one padding token.
        rows.append(ids or [tokenizer.pad_token_id])
    columns = {"input_ids": rows}
    is_pair = {"segment_ids", "token_type_ids"} <= texts[0].inputs.keys()
    if edit is None and is_pair:
        columns["token_type_ids"] = [text.inputs["token_type_ids"] for text in texts]
    return dict(tokenizer.pad(columns, return_tensors="pt"))


def _pad_guide(guide: Guide, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text]) -> Tensor:
    """Return the attention weights that a model must use for a batch, `[batch, keys]`.

    Args:
        guide: Attention weights of another model, by text id.
        tokenizer: The model's tokenizer.
        texts: The texts in the batch. Shorter texts are padded with weights of 0.
    """
    special_ids = get_special_ids(tokenizer)
    rows = []
    for text in texts:
        weights = build_guide_row(guide, text.example_id, text.inputs["input_ids"], special_ids)
        rows.append(torch.tensor(weights))
    return pad_sequence(rows, batch_first=True)


# --- Attention from one model that is imposed on another -------------------------------------------


def build_guide_rows(
    guide: Guide,
    examples: "datasets.Dataset",
    input_ids: list[list[int]],
    special_ids: Collection[int],
) -> list[list[float]]:
    """Assign given attention weights to the tokens of every text, and 0 to special tokens.

    Args:
        guide: Attention weights of another model, by text id.
        examples: The texts.
        input_ids: Token ids for every text.
        special_ids: Tokens that never receive attention, see :func:`get_special_ids`.

    Returns:
        For every text, one weight for every token.

    Raises:
        AttnProbeError: If the guide does not have one weight for every content token.
    """
    rows = zip(read_column(examples, "example_id"), input_ids, strict=True)
    return [build_guide_row(guide, example_id, ids, special_ids) for example_id, ids in rows]


def get_special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Return the ids of tokens without attention: all special tokens except the unknown token."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def build_guide_row(
    guide: Guide,
    example_id: int,
    tokens: list[int],
    special_ids: Collection[int],
) -> list[float]:
    """Assign the guide's weights to the tokens in one text, and 0 to special tokens.

    Args:
        guide: Attention weights for every text.
        example_id: Text id.
        tokens: Token ids for the text.
        special_ids: Tokens that never receive attention.

    Returns:
        One weight for every token id.

    Raises:
        AttnProbeError: If the guide does not have one weight for every content token.
    """
    is_content = [token not in special_ids for token in tokens]
    n_content = sum(is_content)
    if n_content == 0:
        return [0.0] * len(tokens)
    if example_id not in guide:
        raise AttnProbeError(
            f"the guide (the imposed attention weights) does not contain text {example_id}. "
            "Compute the guide for the same texts."
        )
    weights = torch.as_tensor(guide[example_id]).tolist()
    if len(weights) != n_content:
        raise AttnProbeError(
            f"expected {n_content} guide weights for text {example_id}, one per token, got "
            f"{len(weights)}. Compute the guide with the tokenizer of the model."
        )
    row = [0.0] * len(tokens)
    content_positions = [position for position, content in enumerate(is_content) if content]
    for position, weight in zip(content_positions, weights, strict=True):
        row[position] = weight
    return row
