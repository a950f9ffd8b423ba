"""Task heads, which convert a model's output to a prediction; one class per task.

A head first computes *scores* `[batch, ...]` from the model's output. It then converts scores to
the prediction vector that tests compare, see `hf_attnprobe.functional.predictions`. The two steps
are separate because replays are checked on scores, which are more precise.

Some predictions consist of one decision per token, for example tags. Each such decision has a
*slot*. The input `reads` `[batch, keys]` contains the slot of each token, or -1, so that the tokens
are found again in a shortened text.
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
"""Model inputs by name, together with the inputs that only task heads use."""
Run = Callable[[Inputs], Any]
"""Function that runs the model on inputs, without edits, and returns its output."""

N_CANDIDATE_WORDS = 100
"""Number of most likely words with an outcome of their own, for each predicted word.

All other words share the remaining outcomes; see `MaskedWordHead`.
"""
LOGIT_MEANINGS = ("auto", "probability", "number")
"""Meanings of a single logit that users can choose; "auto" follows the model's configuration."""


class TaskHead:
    """Base class for task heads, and the head for models with one logit per class.

    Args:
        prediction: Meaning of the prediction vector.

    Attributes:
        output: Description of the model output that the head needs, for error messages.
    """

    output = "logits [batch, classes]"

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction

    def can_read(self, result: Any) -> bool:
        """Check whether the head can read a model's output.

        Args:
            result: The model's output object.
        """
        logits = getattr(result, "logits", None)
        return logits is not None and logits.dim() == 2

    def build_arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Build the keyword arguments of the model.

        Args:
            inputs: Model inputs.
        """
        return dict(inputs)

    def select_inputs(self, inputs: Inputs, run: Run) -> dict[str, Tensor]:
        """Select the inputs of the texts to explain, if an example consists of several texts.

        Args:
            inputs: Inputs for whole examples.
            run: Function that runs the model.

        Returns:
            Inputs of one text per example, `[batch, keys]` each.
        """
        return dict(inputs)

    def add_readout_inputs(
        self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run
    ) -> dict[str, Tensor]:
        """Add inputs that depend on the whole text and are needed for its shortened copies.

        Args:
            inputs: Inputs for the whole texts.
            mask: Real tokens, bool `[batch, keys]`.
            content: Explained tokens, bool `[batch, keys]`.
            run: Function that runs the model.

        Returns:
            The inputs and the additional ones.
        """
        return dict(inputs)

    def convert_labels(self, labels: Tensor, inputs: Inputs) -> Tensor:
        """Convert labels to indices of the prediction's outcomes.

        Args:
            labels: Data set labels.
            inputs: Inputs for the same texts.

        Returns:
            Outcome indices, -1 for missing labels.
        """
        return labels

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Compute scores `[batch, scores]` from the output of the model.

        Args:
            result: The model's output object.
            inputs: Inputs that the model was run on.
        """
        return result.logits

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute prediction vectors `[..., batch, entries]` from scores.

        Args:
            scores: Scores `[..., batch, scores]`.
            inputs: Inputs that the model was run on.
        """
        return scores.softmax(-1)


class BinaryLogitHead(TaskHead):
    """Head for models with a single logit, the log-odds of the second of two classes."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute the probabilities of both classes, `[..., batch, 2]`."""
        return torch.cat([-scores, scores], dim=-1).sigmoid()


class MultiLabelHead(TaskHead):
    """Head for models with one logit per label, the log-odds of that label."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute both probabilities of each label, divided by the number of labels."""
        probs = torch.stack([-scores, scores], dim=-1).sigmoid()
        return probs.flatten(-2) / scores.shape[-1]


class RegressionHead(TaskHead):
    """Head for models that predict one number or several numbers."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute the distance to the origin in units of the scale, with both signs."""
        distance = (scores - self.prediction.origin) / self.prediction.scale
        return torch.stack([distance, -distance], dim=-1).flatten(-2) / scores.shape[-1]


class TokenTagHead(TaskHead):
    """Head for models that predict a tag for each word."""

    output = "logits [batch, keys, classes]"

    def can_read(self, result: Any) -> bool:
        """Check whether the model's output has logits for each token."""
        logits = getattr(result, "logits", None)
        return logits is not None and logits.dim() == 3

    def add_readout_inputs(
        self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run
    ) -> dict[str, Tensor]:
        """Assign a slot to the first token of every labelled word, or of every word."""
        is_read = content
        if "labelled" in inputs:
            is_read = inputs["labelled"].bool() & mask
        if not is_read.any(1).all():
            raise AttnProbeError(
                "expected a word with a tag in every text, got a text without one; "
                "leave this text out"
            )
        return dict(inputs) | _number_slots(is_read)

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Compute scores `[batch, slots · classes]`, NaN for slots whose token is erased."""
        return self._gather_slots(result.logits, inputs).flatten(1)

    def _gather_slots(self, values: Tensor, inputs: Inputs) -> Tensor:
        """Gather values `[batch, keys, width]` of tokens as `[batch, slots, width]`."""
        position, is_present = _find_slot_positions(inputs, values.shape[1], values.device)
        index = position[..., None].expand(-1, -1, values.shape[-1])
        return values.gather(1, index).where(is_present[..., None], torch.nan)

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute a distribution for each slot, divided by the number of slots."""
        slots = inputs["slots"][:, 0]
        probs = scores.unflatten(-1, (slots.shape[-1], -1)).softmax(-1)
        probs = probs.where(slots[..., None], 0) / slots.sum(-1)[:, None, None]
        return _fill_missing_parts(probs.flatten(-2), inputs)


class MaskedWordHead(TokenTagHead):
    """Head for models that predict masked words.

    Each masked word has one outcome for each of the most likely words of the whole text, one
    outcome for the next most likely word, and one for all other words together. The next most
    likely word, which may change with an edit, has its own outcome so that a decision for it is
    noticed. The last outcome is never decided for.

    Args:
        prediction: Meaning of the prediction vector.
        mask_id: Mask token id.
    """

    def __init__(self, prediction: Prediction, mask_id: int) -> None:
        super().__init__(prediction)
        self.mask_id = mask_id

    def add_readout_inputs(
        self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run
    ) -> dict[str, Tensor]:
        """Assign a slot to every mask token, and add its most likely words.

        The most likely words are stored as `kept`, int `[batch, slots, words]`.
        """
        is_read = (inputs["input_ids"] == self.mask_id) & mask
        if not is_read.any(1).all():
            raise AttnProbeError(
                "expected a mask token in every text, got a text without one; replace the word "
                "to predict by the tokenizer's mask token"
            )
        with_slots = dict(inputs) | _number_slots(is_read)
        logits = self._gather_slots(run(with_slots).logits, with_slots).nan_to_num(0)
        n_candidates = count_candidate_words(logits.shape[-1])
        return {**with_slots, "kept": logits.topk(n_candidates).indices}

    def convert_labels(self, labels: Tensor, inputs: Inputs) -> Tensor:
        """Convert token ids to indices of candidate words, or to the last outcome's index."""
        candidates = inputs["kept"]
        token_ids = labels.to(candidates.device)
        if token_ids.dim() == 1:
            token_ids = token_ids[:, None]
        matches = candidates == token_ids[..., None]
        other_index = candidates.shape[-1] + 2
        index = matches.int().argmax(-1)
        index = index.where(matches.any(-1), other_index)
        return index.where(token_ids >= 0, -1)

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Compute the scores of the candidate words; see `compute_candidate_scores`."""
        logits = self._gather_slots(result.logits, inputs)
        candidates = inputs.get("kept")
        if candidates is None:
            # There are no candidates yet while the layout of the model is being determined.
            return logits.flatten(1)
        return compute_candidate_scores(logits, candidates).flatten(1)


class SpanHead(TaskHead):
    """Head for models that predict the start and the end of an answer within a context."""

    output = "start_logits and end_logits [batch, keys]"

    def can_read(self, result: Any) -> bool:
        """Check whether the model's output has start and end logits."""
        return getattr(result, "start_logits", None) is not None and (
            getattr(result, "end_logits", None) is not None
        )

    def add_readout_inputs(
        self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run
    ) -> dict[str, Tensor]:
        """Assign a slot to every token of the second segment, as in Transformers' pipeline."""
        is_read = mask & ~inputs["special_tokens_mask"].bool()
        segments = inputs.get("segment_ids")
        if segments is not None and (segments == 1).any():
            is_read = is_read & (segments == 1)
        if not is_read.any(1).all():
            raise AttnProbeError(
                "expected a context for every question, got a question without one; "
                "name the context column with --text-pair-column"
            )
        keys = torch.arange(is_read.shape[1], device=is_read.device)
        return {
            **inputs,
            "reads": keys.where(is_read, -1),
            "slots": is_read[:, None],
        }

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Compute scores `[batch, 2 · slots]`, -inf at positions outside the context."""
        logits = torch.stack([result.start_logits, result.end_logits], dim=1)
        position, is_present = _find_slot_positions(inputs, logits.shape[-1], logits.device)
        values = logits.gather(-1, position[:, None].expand(-1, 2, -1))
        return values.where(is_present[:, None], -torch.inf).flatten(1)

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute one distribution for the start and one for the end, each divided by 2."""
        probs = scores.unflatten(-1, (2, -1)).softmax(-1) / 2
        return _fill_missing_parts(probs.flatten(-2), inputs)


class MultipleChoiceHead(TaskHead):
    """Head for models that choose one of several texts.

    The chosen text is explained. The model computes the logit of each text separately, so the
    logits of the other texts are computed once and stay fixed.
    """

    output = "logits [batch, choices]"

    def build_arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Build the model's arguments, with a choice axis of size 1 for inputs `[batch, keys]`."""
        arguments = dict(inputs)
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.dim() == 2:
                arguments[name] = value.unsqueeze(1)
        return arguments

    def select_inputs(self, inputs: Inputs, run: Run) -> dict[str, Tensor]:
        """Select the chosen text from `[batch, choices, keys]`, and add the logits of all texts."""
        if inputs["input_ids"].dim() != 3:
            raise AttnProbeError(
                "expected several choices per text, got one; name the columns of the choices"
            )
        logits = run(inputs).logits
        chosen = logits.argmax(-1)
        rows = torch.arange(len(chosen), device=chosen.device)
        chosen_inputs = {name: value[rows, chosen] for name, value in inputs.items()}
        return chosen_inputs | {
            "known": logits[:, None],
            "chosen": chosen[:, None, None],
        }

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Compute the logits of all choices, with the chosen text's logit from `result`."""
        if "known" not in inputs:
            return result.logits
        fixed_logits, chosen = inputs["known"][:, 0], inputs["chosen"][:, 0]
        return fixed_logits.to(result.logits.dtype).scatter(-1, chosen, result.logits)


def _number_slots(is_read: Tensor) -> dict[str, Tensor]:
    """Number the tokens that a prediction is read from.

    Args:
        is_read: The tokens, bool `[batch, keys]`.

    Returns:
        `reads`, the slot of each token or -1, int `[batch, keys]`; and `slots`, which slots each
        text has, bool `[batch, 1, slots]`.
    """
    count = is_read.cumsum(1)
    n_slots = count[:, -1:]
    slots = torch.arange(int(n_slots.max()), device=is_read.device)
    return {
        "reads": (count - 1).where(is_read, -1),
        "slots": (slots < n_slots)[:, None],
    }


def _find_slot_positions(
    inputs: Inputs, n_keys: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Find the position of each slot's token, and whether the text still has that token.

    While the layout of the model is being determined there is no input `reads`; then every token is
    a slot.

    Args:
        inputs: Inputs that the model was run on.
        n_keys: Number of tokens.
        device: Device of the result.

    Returns:
        Positions, int `[batch, slots]`, and bool `[batch, slots]`.
    """
    if "reads" not in inputs:
        n_texts = len(inputs["input_ids"])
        position = torch.arange(n_keys, device=device).expand(n_texts, -1)
        return position, torch.ones_like(position, dtype=torch.bool)
    n_slots = inputs["slots"].shape[-1]
    slots = torch.arange(n_slots, device=device)
    matches = inputs["reads"][:, None] == slots[:, None]
    position = matches.int().argmax(-1)
    return position, matches.any(-1)


def _fill_missing_parts(probs: Tensor, inputs: Inputs) -> Tensor:
    """Fill the parts of a prediction that a shortened text lacks with those of the whole text."""
    whole_probs = inputs.get("whole")
    return probs if whole_probs is None else probs.where(~probs.isnan(), whole_probs[:, 0])


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
"""Names of batch inputs that adapters use themselves and do not pass to the model."""


def create_head(
    model: PreTrainedModel,
    *,
    predicts: str = "auto",
    scale: float | None = None,
    threshold: float | None = None,
    mask_id: int | None = None,
) -> TaskHead:
    """Create the task head of a model from its class and its configuration.

    Args:
        model: The model.
        predicts: Meaning of a single logit, "probability" or "number". "auto" uses
            `problem_type` of the configuration. If that is not set, the logit is a probability, as
            in Transformers' pipeline.
        scale: Unit of a predicted number; 1 by default.
        threshold: Number above which a predicted number counts as a positive decision.
        mask_id: Mask token id, which masked language models need.

    Returns:
        The task head.

    Raises:
        AttnProbeError: If an option is invalid or does not apply to the model.
    """
    if predicts not in LOGIT_MEANINGS:
        raise AttnProbeError(
            f"expected predicts to be one of {', '.join(LOGIT_MEANINGS)}, got {predicts!r}"
        )
    # XLNet's question answering model without a beam search has this suffix.
    name = type(model).__name__.removesuffix("Simple")
    suffix = next((suffix for suffix in HEADS_BY_CLASS_SUFFIX if name.endswith(suffix)), None)
    if suffix is None:
        return _create_text_head(model, predicts, scale, threshold)
    if predicts == "number" or threshold is not None:
        option = "predicts" if threshold is None else "threshold"
        raise AttnProbeError(
            f"expected no {option} for a model of type {suffix}, because it does not predict a "
            "number; leave the option out"
        )
    return HEADS_BY_CLASS_SUFFIX[suffix](model, mask_id)


def _create_tag_head(model: PreTrainedModel, mask_id: int | None) -> TokenTagHead:
    """Create the head of a token classifier."""
    names = tuple(list_label_names(model.config.id2label))
    tags = Prediction(
        "tags",
        f"one of {len(names)} tags for every labelled word",
        outcomes=names,
        n_parts=None,
        n_outcomes=len(names),
    )
    return TokenTagHead(tags)


def _create_span_head(model: PreTrainedModel, mask_id: int | None) -> SpanHead:
    """Create the head of an extractive question answering model."""
    parts = ("start", "end")
    return SpanHead(Prediction("span", "the start and end of the answer", parts=parts, n_parts=2))


def _create_choice_head(model: PreTrainedModel, mask_id: int | None) -> MultipleChoiceHead:
    """Create the head of a multiple choice model."""
    return MultipleChoiceHead(Prediction("choice", "one of the choices"))


def _create_masked_word_head(model: PreTrainedModel, mask_id: int | None) -> MaskedWordHead:
    """Create the head of a masked language model."""
    if mask_id is None:
        raise AttnProbeError(
            "expected a mask token for a masked language model, got none; load the model's "
            "tokenizer, or pass mask_id="
        )
    n_candidates = count_candidate_words(model.config.get_text_config().vocab_size)
    words = Prediction(
        "words",
        f"the masked word: one of its {n_candidates} most likely candidates, the next most likely "
        "word, or any other word",
        n_parts=None,
        n_outcomes=n_candidates + 2,
        has_rest=True,
    )
    return MaskedWordHead(words, mask_id)


HEADS_BY_CLASS_SUFFIX: Mapping[str, Callable[[PreTrainedModel, int | None], TaskHead]] = {
    "ForTokenClassification": _create_tag_head,
    "ForQuestionAnswering": _create_span_head,
    "ForMultipleChoice": _create_choice_head,
    "ForMaskedLM": _create_masked_word_head,
}
"""Functions that create a task head, by the ending of the model's class name.

Classes without one of these endings predict something about the whole text or image.
"""


def count_candidate_words(n_words: int) -> int:
    """Return the number of words that have an outcome of their own.

    Args:
        n_words: Vocabulary size.
    """
    return min(N_CANDIDATE_WORDS, n_words - 2)


def compute_candidate_scores(logits: Tensor, candidates: Tensor) -> Tensor:
    """Compute the logits of the candidate words, of the next word, and of all others together.

    The result has float32 or higher precision. In half precision, a sum over a vocabulary would be
    wrong by hundredths of a nat.

    Args:
        logits: Logits `[..., words]`.
        candidates: Indices of the candidate words, int `[..., n]`.

    Returns:
        Logits `[..., n + 2]`.
    """
    precise = torch.promote_types(logits.dtype, torch.float32)
    # Operations in place have no rule in vmap. A softmax is faster than a logsumexp.
    other_logits = logits.to(precise).scatter(-1, candidates, -torch.inf)
    next_logit, next_word = other_logits.max(-1, keepdim=True)
    other_probs = other_logits.softmax(-1)
    rest_prob = other_probs.scatter(-1, next_word, 0).sum(-1, keepdim=True)
    odds = rest_prob / other_probs.gather(-1, next_word)
    candidate_logits = logits.gather(-1, candidates)
    return torch.cat([candidate_logits, next_logit, next_logit + odds.log()], dim=-1)


def _create_text_head(
    model: PreTrainedModel,
    predicts: str,
    scale: float | None,
    threshold: float | None,
) -> TaskHead:
    """Create the head of a model that predicts something about a whole text or image."""
    names = list_label_names(model.config.id2label)
    if predicts_number(model.config, predicts):
        is_regression = getattr(model.config, "problem_type", None) == "regression"
        if len(names) > 1 and not is_regression:
            raise AttnProbeError(
                f"expected a model with one logit for predicts number, got {len(names)} "
                f"classes: {', '.join(names[:5])}; leave the option out"
            )
        unit = 1.0 if scale is None else scale
        number = predictions.make_number_prediction(
            scale=unit, threshold=threshold, n_parts=max(len(names), 1)
        )
        return RegressionHead(number)
    if threshold is not None:
        hint = ", or set --predicts number" if len(names) == 1 else ""
        raise AttnProbeError(
            f"expected a threshold only for a model that predicts a number, but this one "
            f"predicts classes ({len(names)}); leave it out{hint}"
        )
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        return MultiLabelHead(predictions.make_label_prediction(names))
    if len(names) == 1:
        return BinaryLogitHead(predictions.make_class_prediction([f"not {names[0]}", names[0]]))
    return TaskHead(predictions.make_class_prediction(names))


def predicts_number(config: PreTrainedConfig, predicts: str = "auto") -> bool:
    """Check whether the logits of a model are predicted numbers.

    Args:
        config: Model configuration.
        predicts: The user's choice, one of `LOGIT_MEANINGS`.
    """
    if predicts == "auto":
        return getattr(config, "problem_type", None) == "regression"
    return predicts == "number"
