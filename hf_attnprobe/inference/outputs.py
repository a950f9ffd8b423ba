"""The predictions and the attention of a model on every text of a split, and what imposes it on another."""

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
from hf_attnprobe.core.hardware import in_portions
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.functional.intervention import normalise
from hf_attnprobe.inference.batching import sort_by_length, collate
from hf_attnprobe.inference.encoding import Text, tokenize
from hf_attnprobe.protocol import Observation


if TYPE_CHECKING:
    import datasets


# Attention weights [content tokens] by example id: the input of a model with guided
# attention. One guide per split, since an id names a text within its split.
Guide = Mapping[int, Tensor]


@dataclass(frozen=True, eq=False)
class Outputs:
    """Predictions and attention for the texts of a split that have tokens, in the order of
    their ids.

    Attributes:
        example_ids: one per text.
        labels: int64 [texts].
        probs: [texts, classes].
        attention: [texts, tokens], the weights over a text's content tokens (no special
            ones) in their order, summing to 1, then padding. Where tokens are pieces of
            words, these are the weights of words.
        mask: bool [texts, tokens], False for padding.
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
    """Observes the texts in batches of similar length.

    Args:
        model: anything :func:`hf_attnprobe.wrap` takes.
        options: passed to ``wrap``.
    """
    adapter = wrap(model, **options)
    texts = sort_by_length(tokenize(tokenizer, examples, adapter).texts)
    for batch in in_portions(texts, batch_size):
        yield adapter.observe(collate(adapter, batch, tokenizer.pad_token_id or 0))


def read_outputs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    examples: "datasets.Dataset",
    **options: Any,
) -> Outputs:
    """Runs a model over a split and reads the attention of its first head.

    Weights on special tokens are left out and the rest is divided by its sum. The
    weight of a word in a hierarchical model is its weight in its sentence times that of
    the sentence. The arguments are those of :func:`observations`.
    """
    rows: list[tuple] = []
    for observation in observe_split(model, tokenizer, examples, **options):
        batch = observation.batch
        if observation.model.unit == "sentence":
            attention, content = _compute_word_weights(observation)
        else:
            attention = observation.read(observation.model.sites()[0]).detach()
            content = batch.content_mask
        weights = [normalise(w[c]) for w, c in zip(attention, content, strict=True)]
        probs = observation.probs.detach()
        assert batch.labels is not None  # ``collate`` gives every batch its labels
        rows += zip(batch.example_ids, batch.labels, probs, weights, strict=True)
    rows.sort(key=lambda row: row[0])
    ids, labels, all_probs, all_weights = zip(*rows, strict=True)
    is_real = [torch.ones_like(w, dtype=torch.bool) for w in all_weights]
    return Outputs(
        example_ids=ids,
        labels=torch.stack(labels).cpu(),
        probs=torch.stack(all_probs).cpu(),
        attention=pad_sequence(list(all_weights), batch_first=True).cpu(),
        mask=pad_sequence(is_real, batch_first=True).cpu(),
    )


def measure_texts(
    observations: Iterable[Observation],
    measure: Callable[[Observation], Mapping[str, Tensor]],
) -> dict[str, Tensor]:
    """What is measured of batches, each [batch, …], as [texts, …] in the order of their ids."""
    ids: list[int] = []
    parts: dict[str, list[Tensor]] = {}
    for observation in observations:
        ids += observation.batch.example_ids
        for name, values in measure(observation).items():
            parts.setdefault(name, []).append(values.detach().cpu())
    order = torch.tensor(ids).argsort()
    return {name: torch.cat(batches)[order] for name, batches in parts.items()}


def _compute_word_weights(observation: Observation) -> tuple[Tensor, Tensor]:
    """Word weights over all sentences, and which tokens are words.

    Both [batch, keys]; the attention of a hierarchical adapter is that of sentences.
    """
    words, sentences = (level.detach()[:, 0] for level in observation.attention)
    return (sentences @ words)[:, 0], observation.batch.inputs["units"] >= 0


def make_guide(outputs: Outputs) -> Guide:
    """Attention weights of every text, by example id."""
    rows = zip(outputs.example_ids, outputs.attention, outputs.mask, strict=True)
    return {k: weights[is_real] for k, weights, is_real in rows}


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
    """Probabilities for the texts, in the order of :class:`Outputs`.

    Args:
        guide: attention weights, for a model with guided attention.
        edit: the token ids to read of a text, in place of all of its own.

    Returns:
        float64 [texts, classes].
    """
    texts = tokenize(tokenizer, examples, PretrainedModelInfo(model)).texts
    texts = sorted(texts, key=lambda text: text.example_id)
    model = model.eval()
    probs = []
    for batch in in_portions(texts, batch_size):
        inputs = _pad_inputs(tokenizer, batch, edit)
        if guide is not None:
            inputs["guide"] = _pad_guide(guide, tokenizer, batch)
        inputs = {name: value.to(model.device) for name, value in inputs.items()}
        probs.append(model(**inputs).logits.double().softmax(-1).cpu())
    return torch.cat(probs)


def _pad_inputs(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[Text],
    edit: Callable[[Text], Sequence[int]] | None,
) -> dict[str, Tensor]:
    rows = []
    for text in texts:
        ids = text.inputs["input_ids"] if edit is None else list(edit(text))
        rows.append(ids or [tokenizer.pad_token_id])  # no model reads an empty text
    columns = {"input_ids": rows}
    is_pair = {"segment_ids", "token_type_ids"} <= texts[0].inputs.keys()
    if edit is None and is_pair:
        columns["token_type_ids"] = [text.inputs["token_type_ids"] for text in texts]
    return dict(tokenizer.pad(columns, return_tensors="pt"))


def _pad_guide(guide: Guide, tokenizer: PreTrainedTokenizerBase, texts: Sequence[Text]) -> Tensor:
    """Attention weights of the texts, [batch, keys]."""
    special = get_special_ids(tokenizer)
    rows = []
    for text in texts:
        row = build_guide_row(guide, text.example_id, text.inputs["input_ids"], special)
        rows.append(torch.tensor(row))
    return pad_sequence(rows, batch_first=True)


# --- Attention of one model, to be imposed on another ---


def build_guide_rows(
    guide: Guide,
    examples: "datasets.Dataset",
    input_ids: list[list[int]],
    special_ids: Collection[int],
) -> list[list[float]]:
    """The guide's weights at the tokens of every text, 0 at special tokens.

    Args:
        guide: weights of every text, as many as it has content tokens.
        examples: the texts.
        input_ids: their tokens.
        special_ids: tokens that attention never goes to, see :func:`get_special_ids`.

    Returns:
        Lists as long as those of ``input_ids``.

    Raises:
        AttnProbeError: a text without weights, or with another number of them than it
            has content tokens.
    """
    rows = zip(read_column(examples, "example_id"), input_ids, strict=True)
    return [build_guide_row(guide, k, tokens, special_ids) for k, tokens in rows]


def get_special_ids(tokenizer: PreTrainedTokenizerBase) -> set[int]:
    """Tokens that never receive attention; unknown words count as words."""
    return set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}


def build_guide_row(
    guide: Guide,
    example_id: int,
    tokens: list[int],
    special_ids: Collection[int],
) -> list[float]:
    """The guide's weights at the tokens of one text; see :func:`build_guide_rows`."""
    is_content = [token not in special_ids for token in tokens]
    n_content = sum(is_content)
    if n_content == 0:
        return [0.0] * len(tokens)
    if example_id not in guide:
        raise AttnProbeError(
            "expected attention weights for every text, the guide has none for text "
            f"{example_id}; read it on the same texts"
        )
    weights = torch.as_tensor(guide[example_id]).tolist()
    if len(weights) != n_content:
        raise AttnProbeError(
            f"expected {n_content} weights for text {example_id}, one per token, the "
            f"guide has {len(weights)}; guide and model must cut texts into the same "
            "tokens"
        )
    remaining = iter(weights)
    return [next(remaining) if content else 0.0 for content in is_content]
