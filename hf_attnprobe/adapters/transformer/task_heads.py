"""Task heads: convert a model's output to its prediction, one class per kind of task.

A head reads *scores* off the model's output, [batch, …], and turns scores into the vector
that tests compare (:mod:`hf_attnprobe.functional.predictions`). Where a prediction is
read from tokens, ``reads`` [batch, keys] among the inputs numbers them (−1: not read),
so that they are found again in a text that has become shorter.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.functional import predictions
from hf_attnprobe.functional.predictions import Prediction, list_label_names


Inputs = Mapping[str, Tensor]
Run = Callable[[Inputs], Any]
"""The model on some inputs, without edits: inputs -> its output."""

N_CANDIDATE_WORDS = 100
"""Of a masked word's candidates, so many are told apart; see :class:`MaskedWordHead`."""
LOGIT_MEANINGS = ("auto", "probability", "number")


class TaskHead:
    """Base class: for a model that returns some numbers per text.

    Attributes:
        prediction: the vector that comes out.
        output: what the model's output must have, for errors.
    """

    output = "logits [batch, classes]"

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction

    def can_read(self, result: Any) -> bool:
        """Whether the head can read a model's output."""
        logits = getattr(result, "logits", None)
        return logits is not None and logits.dim() == 2

    def build_arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments for the model."""
        return dict(inputs)

    def select_inputs(self, inputs: Inputs, run: Run) -> dict[str, Tensor]:
        """Inputs of the explained texts, [batch, keys] each."""
        return dict(inputs)

    def add_readout_inputs(self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run) -> dict[str, Tensor]:
        """Adds to the inputs what the whole text determines for its shortened copies.

        Args:
            inputs: of whole texts.
            mask: bool [batch, keys], real tokens.
            content: bool [batch, keys], those that are explained.
            run: the model, for what depends on its output.
        """
        return dict(inputs)

    def convert_labels(self, labels: Tensor, inputs: Inputs) -> Tensor:
        """Labels, numbered as the prediction's outcomes; −1 where there is none."""
        return labels

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Scores [batch, scores] from a model's output."""
        return result.logits

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Prediction vector [..., batch, entries] from scores [..., batch, scores].

        Args:
            inputs: those that the scores are of.
        """
        return scores.softmax(-1)


class BinaryLogitHead(TaskHead):
    """A single logit: the log-odds of the second of two classes."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        return torch.cat([-scores, scores], dim=-1).sigmoid()


class MultiLabelHead(TaskHead):
    """A logit per label, each the log-odds of that label."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        each = torch.stack([-scores, scores], dim=-1).sigmoid()
        return each.flatten(-2) / scores.shape[-1]


class RegressionHead(TaskHead):
    """Regression: one number, or several."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        above = (scores - self.prediction.origin) / self.prediction.scale
        return torch.stack([above, -above], dim=-1).flatten(-2) / scores.shape[-1]


class TokenTagHead(TaskHead):
    """Tags: a distribution over classes at every token that is read."""

    output = "logits [batch, keys, classes]"

    def can_read(self, result: Any) -> bool:
        logits = getattr(result, "logits", None)
        return logits is not None and logits.dim() == 3

    def add_readout_inputs(self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run) -> dict[str, Tensor]:
        """Reads the labelled words' first tokens, or every word's."""
        read = content
        if "labelled" in inputs:
            read = inputs["labelled"].bool() & mask
        if not read.any(1).all():
            raise AttnProbeError(
                "expected a word with a tag in every text, got a text without one; leave it out"
            )
        return dict(inputs) | _numbered(read)

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """[batch, slots · classes]; NaN at slots that the text has lost."""
        return self._at_slots(result.logits, inputs).flatten(1)

    def _at_slots(self, values: Tensor, inputs: Inputs) -> Tensor:
        """Values [batch, keys, width] of tokens, gathered as [batch, slots, width]."""
        place, is_there = _find(inputs, values.shape[1], values.device)
        index = place[..., None].expand(-1, -1, values.shape[-1])
        return values.gather(1, index).where(is_there[..., None], torch.nan)

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        slots = inputs["slots"][:, 0]
        each = scores.unflatten(-1, (slots.shape[-1], -1)).softmax(-1)
        each = each.where(slots[..., None], 0) / slots.sum(-1)[:, None, None]
        return _filled(each.flatten(-2), inputs)


class MaskedWordHead(TokenTagHead):
    """Masked words: the likeliest words by name, then the next one, then all others.

    The likeliest are those of the whole text. Whatever of the others is the likeliest has
    an outcome of its own, so that a decision for it is seen; the rest together is nothing
    that could be decided for.
    """

    def __init__(self, prediction: Prediction, mask_id: int) -> None:
        super().__init__(prediction)
        self.mask_id = mask_id

    def add_readout_inputs(self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run) -> dict[str, Tensor]:
        """Reads the masks; ``kept`` [batch, slots, words] are the likeliest words."""
        read = (inputs["input_ids"] == self.mask_id) & mask
        if not read.any(1).all():
            raise AttnProbeError(
                "expected a mask token in every text, got a text without one; write "
                "the tokenizer's mask token in place of the word to predict"
            )
        placed = dict(inputs) | _numbered(read)
        logits = self._at_slots(run(placed).logits, placed).nan_to_num(0)
        n_kept = count_candidate_words(logits.shape[-1])
        return {**placed, "kept": logits.topk(n_kept).indices}

    def convert_labels(self, labels: Tensor, inputs: Inputs) -> Tensor:
        """Returns token ids as positions among the likeliest words, the last one for any other."""
        kept = inputs["kept"]
        wanted = labels.to(kept.device)
        if wanted.dim() == 1:
            wanted = wanted[:, None]
        hits = kept == wanted[..., None]
        other = kept.shape[-1] + 2
        place = hits.int().argmax(-1)
        place = place.where(hits.any(-1), other)
        return place.where(wanted >= 0, -1)

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        logits = self._at_slots(result.logits, inputs)
        kept = inputs.get("kept")
        if kept is None:  # while the model's layout is found
            return logits.flatten(1)
        return compute_candidate_scores(logits, kept).flatten(1)


class SpanHead(TaskHead):
    """Start and end of an answer: two distributions over the context."""

    output = "start_logits and end_logits [batch, keys]"

    def can_read(self, result: Any) -> bool:
        return getattr(result, "start_logits", None) is not None and (
            getattr(result, "end_logits", None) is not None
        )

    def add_readout_inputs(self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run) -> dict[str, Tensor]:
        """Reads every token of the second segment, as Transformers' pipeline does."""
        read = mask & ~inputs["special_tokens_mask"].bool()
        segments = inputs.get("segment_ids")
        if segments is not None and (segments == 1).any():
            read = read & (segments == 1)
        if not read.any(1).all():
            raise AttnProbeError(
                "expected a context beside every question, got a question without one; "
                "name its column with --text-pair-column"
            )
        keys = torch.arange(read.shape[1], device=read.device)
        return {
            **inputs,
            "reads": keys.where(read, -1),
            "slots": read[:, None],
        }

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """[batch, 2 · slots]; −inf at positions outside the context."""
        both = torch.stack([result.start_logits, result.end_logits], dim=1)
        place, is_there = _find(inputs, both.shape[-1], both.device)
        values = both.gather(-1, place[:, None].expand(-1, 2, -1))
        return values.where(is_there[:, None], -torch.inf).flatten(1)

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        each = scores.unflatten(-1, (2, -1)).softmax(-1) / 2
        return _filled(each.flatten(-2), inputs)


class MultipleChoiceHead(TaskHead):
    """One of several texts. The chosen one is explained, the others are held.

    The model gives every choice a logit of its own, so that the logits of the others are
    what they were.
    """

    output = "logits [batch, choices]"

    def build_arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """One choice per text where tokens are [batch, keys]; else all of them."""
        given = dict(inputs)
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.dim() == 2:
                given[name] = value.unsqueeze(1)
        return given

    def select_inputs(self, inputs: Inputs, run: Run) -> dict[str, Tensor]:
        """The chosen text of [batch, choices, keys], and the logits of all choices."""
        if inputs["input_ids"].dim() != 3:
            raise AttnProbeError(
                "expected several choices per text, got one; name the columns of the choices"
            )
        logits = run(inputs).logits
        chosen = logits.argmax(-1)
        rows = torch.arange(len(chosen), device=chosen.device)
        kept = {name: value[rows, chosen] for name, value in inputs.items()}
        return kept | {
            "known": logits[:, None],
            "chosen": chosen[:, None, None],
        }

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        if "known" not in inputs:
            return result.logits
        held, chosen = inputs["known"][:, 0], inputs["chosen"][:, 0]
        return held.to(result.logits.dtype).scatter(-1, chosen, result.logits)


def _numbered(read: Tensor) -> dict[str, Tensor]:
    """``reads`` and ``slots`` of the tokens that are read, from bool [batch, keys].

    Slots are bool [batch, 1, slots], those that a whole text has.
    """
    count = read.cumsum(1)
    n_read = count[:, -1:]
    slots = torch.arange(int(n_read.max()), device=read.device)
    return {
        "reads": (count - 1).where(read, -1),
        "slots": (slots < n_read)[:, None],
    }


def _find(inputs: Inputs, n_keys: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Returns the position of each slot's token, and whether it has one; both [batch, slots].

    Without ``reads`` every token is a slot: while the model's layout is found.
    """
    if "reads" not in inputs:
        n_texts = len(inputs["input_ids"])
        place = torch.arange(n_keys, device=device).expand(n_texts, -1)
        return place, torch.ones_like(place, dtype=torch.bool)
    n_slots = inputs["slots"].shape[-1]
    slots = torch.arange(n_slots, device=device)
    found = inputs["reads"][:, None] == slots[:, None]
    place = found.int().argmax(-1)
    return place, found.any(-1)


def _filled(probs: Tensor, inputs: Inputs) -> Tensor:
    """Fills parts that a shortened text does not predict with the whole text's prediction."""
    whole = inputs.get("whole")
    return probs if whole is None else probs.where(~probs.isnan(), whole[:, 0])


ADAPTER_INPUTS = frozenset(
    [
        "units",
        "segment_ids",
        "labelled",
        "reads",
        "slots",
        "kept",
        "n_padded",
        "known",
        "chosen",
        "whole",
    ]
)
"""Inputs that are the adapter's own, and not the model's."""


def create_head(
    model: PreTrainedModel,
    *,
    predicts: str = "auto",
    scale: float | None = None,
    threshold: float | None = None,
    mask_id: int | None = None,
) -> TaskHead:
    """The head of a model, by its class and its configuration.

    Args:
        predicts: what a single logit is, "probability" or "number"; "auto" goes by the
            configuration's ``problem_type``, and takes it for a probability where that
            says nothing, as Transformers' pipeline does.
        scale: the unit of a number; default: 1.
        threshold: makes a decision of a number: above it or not.
        mask_id: the mask token, which masked language models need.

    Raises:
        AttnProbeError: an unknown ``predicts``, or a head that is not covered.
    """
    if predicts not in LOGIT_MEANINGS:
        raise AttnProbeError(
            f"expected predicts to be one of {', '.join(LOGIT_MEANINGS)}, got {predicts!r}"
        )
    name = type(model).__name__.removesuffix("Simple")  # XLNet's without a beam search
    suffix = next((suffix for suffix in HEADS_BY_CLASS_SUFFIX if name.endswith(suffix)), None)
    if suffix is None:
        return _of_texts(model, predicts, scale, threshold)
    if predicts == "number" or threshold is not None:
        given = "predicts" if threshold is None else "threshold"
        raise AttnProbeError(
            f"expected no {given} for a model of the kind {suffix}, which predicts no "
            "number; leave it out"
        )
    return HEADS_BY_CLASS_SUFFIX[suffix](model, mask_id)


def _tags(model: PreTrainedModel, mask_id: int | None) -> TokenTagHead:
    names = tuple(list_label_names(model.config.id2label))
    tags = Prediction(
        "tags",
        f"one of {len(names)} tags for every word that is read",
        outcomes=names,
        n_parts=None,
        n_outcomes=len(names),
    )
    return TokenTagHead(tags)


def _span(model: PreTrainedModel, mask_id: int | None) -> SpanHead:
    where = ("start", "end")
    return SpanHead(Prediction("span", "where the answer starts and ends", parts=where, n_parts=2))


def _choice(model: PreTrainedModel, mask_id: int | None) -> MultipleChoiceHead:
    return MultipleChoiceHead(Prediction("choice", "one of the choices"))


def _masked_words(model: PreTrainedModel, mask_id: int | None) -> MaskedWordHead:
    if mask_id is None:
        raise AttnProbeError(
            "expected a mask token for a masked language model, got none; load its "
            "tokenizer, or pass mask_id="
        )
    n_kept = count_candidate_words(model.config.get_text_config().vocab_size)
    words = Prediction(
        "words",
        f"the masked word: its {n_kept} likeliest candidates, the next one, and the others as one",
        n_parts=None,
        n_outcomes=n_kept + 2,
        has_rest=True,
    )
    return MaskedWordHead(words, mask_id)


HEADS_BY_CLASS_SUFFIX: Mapping[str, Callable[[PreTrainedModel, int | None], TaskHead]] = {
    "ForTokenClassification": _tags,
    "ForQuestionAnswering": _span,
    "ForMultipleChoice": _choice,
    "ForMaskedLM": _masked_words,
}
"""Heads that say something of parts of a text, by how the names of their classes end."""


def count_candidate_words(n_words: int) -> int:
    """Number of candidate words kept by name, for a vocabulary of this size."""
    return min(N_CANDIDATE_WORDS, n_words - 2)


def compute_candidate_scores(logits: Tensor, kept: Tensor) -> Tensor:
    """Logits of the words kept by name, of the next likeliest, and of all others together.

    Shape: logits [..., words], kept int [..., n] -> [..., n + 2], in float32 or more: a sum over
    a vocabulary in half precision is off by hundredths of a nat.
    """
    precise = torch.promote_types(logits.dtype, torch.float32)
    # Nothing in place, which vmap has no rule for; a softmax is faster than a logsumexp.
    others = logits.to(precise).scatter(-1, kept, -torch.inf)
    best, place = others.max(-1, keepdim=True)
    shares = others.softmax(-1)
    rest = shares.scatter(-1, place, 0).sum(-1, keepdim=True)
    odds = rest / shares.gather(-1, place)
    by_name = logits.gather(-1, kept)
    return torch.cat([by_name, best, best + odds.log()], dim=-1)


def _of_texts(
    model: PreTrainedModel,
    predicts: str,
    scale: float | None,
    threshold: float | None,
) -> TaskHead:
    """Heads that predict one thing for a whole text or image."""
    names = list_label_names(model.config.id2label)
    if predicts_number(model.config, predicts):
        is_said = getattr(model.config, "problem_type", None) == "regression"
        if len(names) > 1 and not is_said:
            raise AttnProbeError(
                f"expected a model with one logit for predicts number, got {len(names)} "
                f"classes: {', '.join(names[:5])}; leave it out"
            )
        unit = 1.0 if scale is None else scale
        about = predictions.make_number_prediction(scale=unit, threshold=threshold, n_parts=max(len(names), 1))
        return RegressionHead(about)
    if threshold is not None:
        number = ", or say --predicts number" if len(names) == 1 else ""
        raise AttnProbeError(
            f"expected a threshold for a model that predicts a number, this one "
            f"predicts classes ({len(names)}); leave it out{number}"
        )
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        return MultiLabelHead(predictions.make_label_prediction(names))
    if len(names) == 1:
        return BinaryLogitHead(predictions.make_class_prediction([f"not {names[0]}", names[0]]))
    return TaskHead(predictions.make_class_prediction(names))


def predicts_number(config: PreTrainedConfig, predicts: str = "auto") -> bool:
    """Whether logits are numbers, as asked for or by the configuration."""
    if predicts == "auto":
        return getattr(config, "problem_type", None) == "regression"
    return predicts == "number"
