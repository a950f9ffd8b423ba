"""Task heads, which convert a model's output to a prediction; one class per task.

A task head first computes *scores* `[batch, ...]` from the model's output. It then converts the
scores to the prediction vector that tests compare, see `hf_attnprobe.functional.predictions`. The
two steps are separate because replays are checked on scores, which are more precise.

Some predictions consist of one decision per token, for example tags. Each decision has a numbered
*slot*. The input `reads` `[batch, keys]` contains each token's slot, or -1 for tokens without a
decision. With it, the tokens are found again in a shortened text.
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
"""Model inputs by name, including inputs that only task heads use."""
Run = Callable[[Inputs], Any]
"""Function that runs the unedited model on inputs and returns its output."""

N_CANDIDATE_WORDS = 100
"""Number of candidate words for a masked word.

The candidates are the most likely words for the unedited text. Each of them has its own entry in
the prediction vector. All other words share the last two entries; see `MaskedWordHead`.
"""
LOGIT_MEANINGS = ("auto", "probability", "number")
"""Possible meanings of the only logit of a model, as values of the option ``predicts``.

- "probability": the logit is the log-odds of the second of two classes.
- "number": the logit is a predicted number (regression).
- "auto": the meaning follows from `problem_type` in the model's configuration.
"""


class TaskHead:
    """Base class for task heads, and the head for models with one logit per class.

    Args:
        prediction: Meaning of the prediction vector.

    Attributes:
        output: Required model output, as text for error messages.
        fixed_arguments: Keyword arguments with which the model is always called.
    """

    output = "logits [batch, classes]"

    def __init__(self, prediction: Prediction) -> None:
        self.prediction = prediction
        self.fixed_arguments: dict[str, Any] = {}

    def can_read(self, result: Any) -> bool:
        """Check whether the head can read a model's output.

        Args:
            result: The model's output object.
        """
        logits = getattr(result, "logits", None)
        return logits is not None and logits.dim() == 2

    def build_arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs and the fixed arguments as the model's keyword arguments.

        Subclasses override this method if the model expects inputs of another shape.

        Args:
            inputs: Model inputs.
        """
        return {**inputs, **self.fixed_arguments}

    def select_inputs(self, inputs: Inputs, run: Run) -> dict[str, Tensor]:
        """Return the inputs unchanged, because each example consists of a single text.

        Subclasses override this method if an example consists of several texts, such as the
        choices of a multiple-choice question. They then select the text to explain.

        Args:
            inputs: Inputs for whole examples.
            run: Function that runs the model.

        Returns:
            Inputs for one text per example, each `[batch, keys]`.
        """
        return dict(inputs)

    def add_readout_inputs(
        self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run
    ) -> dict[str, Tensor]:
        """Return the inputs unchanged, because the model makes one prediction per text.

        Subclasses override this method if the model makes one prediction per token. They then add
        inputs that mark the tokens whose predictions are used, such as `reads`. With these inputs,
        the same tokens are found again in a shortened text.

        Args:
            inputs: Inputs for the whole texts.
            mask: Real tokens, bool `[batch, keys]`.
            content: Which tokens are explained (not special tokens or padding), bool
                `[batch, keys]`.
            run: Function that runs the model.

        Returns:
            The inputs, including the added inputs.
        """
        return dict(inputs)

    def convert_labels(self, labels: Tensor, inputs: Inputs) -> Tensor:
        """Return the labels unchanged, because they are class indices already.

        Subclasses override this method if labels must be converted to outcome indices of the
        prediction.

        Args:
            labels: Data set labels.
            inputs: Inputs for the same texts.

        Returns:
            Outcome indices, with -1 for missing labels.
        """
        return labels

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Return the model's logits as scores `[batch, scores]`.

        Subclasses override this method if the model has other outputs, or if the prediction is
        read from some of the logits only.

        Args:
            result: The model's output object.
            inputs: Inputs that the model was run on.
        """
        return result.logits

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute class probabilities, the softmax of the scores.

        Subclasses override this method if the prediction is not one of several classes.

        Args:
            scores: Scores `[..., batch, scores]`.
            inputs: Inputs that the model was run on.

        Returns:
            Prediction vectors `[..., batch, entries]`.
        """
        return scores.softmax(-1)


class BinaryLogitHead(TaskHead):
    """Head for binary classifiers with a single logit, the log-odds of the second class."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute the probabilities of both classes, `[..., batch, 2]`."""
        return torch.cat([-scores, scores], dim=-1).sigmoid()


class MultiLabelHead(TaskHead):
    """Head for multi-label classifiers, whose logits are each label's log-odds."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute for each label the probabilities that it is absent and that it is present.

        They are divided by the number of labels, so that all entries of a prediction vector sum to
        1.
        """
        probs = torch.stack([-scores, scores], dim=-1).sigmoid()
        return probs.flatten(-2) / scores.shape[-1]


class RegressionHead(TaskHead):
    """Head for models that predict one number or several numbers."""

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Convert predicted numbers to vectors that can be compared like probabilities.

        Each number y becomes two entries d and -d, with d = (y - origin) / scale. The entries are
        divided by the count of numbers. The total variation distance between two such vectors is
        the mean absolute difference of the numbers, in units of the scale.
        """
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
        """Add inputs that mark the tokens whose predicted tags are used.

        These are the first tokens of all labelled words. If there are no labels, they are all
        explained tokens. See `_number_slots` for the added inputs.
        """
        is_predicting = content
        if "labelled" in inputs:
            is_predicting = inputs["labelled"].bool() & mask
        if not is_predicting.any(1).all():
            raise AttnProbeError(
                "every text must have at least one word with a tag, but a text has none. Remove texts "
                "without tags."
            )
        return dict(inputs) | _number_slots(is_predicting)

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Compute scores `[batch, slots · classes]`, with NaN for slots whose token is erased."""
        return self._gather_slots(result.logits, inputs).flatten(1)

    def _gather_slots(self, values: Tensor, inputs: Inputs) -> Tensor:
        """Select the values of the tokens whose predictions are used.

        Args:
            values: Values for all tokens, `[batch, keys, width]`.
            inputs: Inputs with the numbers of these tokens (slots), see `_number_slots`.

        Returns:
            Values `[batch, slots, width]`; NaN for a token that has been erased.
        """
        position, is_present = _find_slot_positions(inputs, values.shape[1], values.device)
        # `gather` needs one index per value, so the slots' positions are repeated along the width.
        index = position[..., None].expand(-1, -1, values.shape[-1])
        return values.gather(1, index).where(is_present[..., None], torch.nan)

    def compute_probs(self, scores: Tensor, inputs: Inputs) -> Tensor:
        """Compute the probabilities of the outcomes for each token whose prediction is used (slot).

        They are divided by the number of slots in the text, so that all entries of a prediction
        vector sum to 1.
        """
        slots = inputs["slots"][:, 0]
        probs = scores.unflatten(-1, (slots.shape[-1], -1)).softmax(-1)
        probs = probs.where(slots[..., None], 0) / slots.sum(-1)[:, None, None]
        return _fill_missing_parts(probs.flatten(-2), inputs)


class MaskedWordHead(TokenTagHead):
    """Head for models that predict masked words.

    The possible outcomes for each masked word are: every candidate word (the most likely words for
    the unedited text), the next most likely word, and all other words together. The next most
    likely word may change with an edit; its separate outcome shows if the model then prefers it to
    all candidates. The last outcome never counts as the model's decision.

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
        """Add inputs that mark the mask tokens and contain their most likely words.

        The most likely words are the candidates for a prediction. They are stored as the input
        `candidate_ids`, int `[batch, mask tokens, words]`. See `_number_slots` for the other added
        inputs.
        """
        is_predicting = (inputs["input_ids"] == self.mask_id) & mask
        if not is_predicting.any(1).all():
            raise AttnProbeError(
                "expected a mask token in every text, but a text has none; replace the word to "
                "predict with the mask token"
            )
        with_slots = dict(inputs) | _number_slots(is_predicting)
        logits = self._gather_slots(run(with_slots).logits, with_slots).nan_to_num(0)
        n_candidates = count_candidate_words(logits.shape[-1])
        return {**with_slots, "candidate_ids": logits.topk(n_candidates).indices}

    def convert_labels(self, labels: Tensor, inputs: Inputs) -> Tensor:
        """Convert token ids to candidate indices.

        A word that is not a candidate gets an index that no prediction has, so that it never counts
        as correctly predicted. Missing labels, which are negative, get -1.
        """
        candidates = inputs["candidate_ids"]
        token_ids = labels.to(candidates.device)
        if token_ids.dim() == 1:
            token_ids = token_ids[:, None]
        matches = candidates == token_ids[..., None]
        # Two outcomes follow the candidates: the next most likely word, and all other words.
        n_outcomes = candidates.shape[-1] + 2
        index = matches.int().argmax(-1)
        index = index.where(matches.any(-1), n_outcomes)
        return index.where(token_ids >= 0, -1)

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Compute scores for the masked words; see `compute_candidate_scores`."""
        logits = self._gather_slots(result.logits, inputs)
        candidates = inputs.get("candidate_ids")
        if candidates is None:
            # While the model's layout is being determined, there are no candidates yet.
            return logits.flatten(1)
        return compute_candidate_scores(logits, candidates).flatten(1)


class SpanHead(TaskHead):
    """Head for models that predict the start and the end of an answer within a context."""

    output = "start_logits and end_logits [batch, keys]"

    def can_read(self, result: Any) -> bool:
        """Check whether the model's output has start and end logits."""
        has_start = getattr(result, "start_logits", None) is not None
        has_end = getattr(result, "end_logits", None) is not None
        return has_start and has_end

    def add_readout_inputs(
        self, inputs: Inputs, mask: Tensor, content: Tensor, run: Run
    ) -> dict[str, Tensor]:
        """Add inputs that mark the tokens at which an answer may start or end.

        These are all tokens of the context. As in Transformers' pipeline, the context is the second
        segment.
        """
        is_predicting = mask & ~inputs["special_tokens_mask"].bool()
        segments = inputs.get("segment_ids")
        if segments is not None and (segments == 1).any():
            is_predicting = is_predicting & (segments == 1)
        if not is_predicting.any(1).all():
            raise AttnProbeError(
                "expected a context for every question, but a question has none; set "
                "--text-pair-column to the column with the contexts"
            )
        keys = torch.arange(is_predicting.shape[1], device=is_predicting.device)
        return {
            **inputs,
            "reads": keys.where(is_predicting, -1),
            "slots": is_predicting[:, None],
        }

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Compute the scores of all possible start and end tokens, `[batch, 2 · slots]`.

        The score of an erased token is -inf.
        """
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

    The text that the model chooses is explained. The model computes each text's logit separately,
    so the other texts' logits are computed once and stay fixed.
    """

    output = "logits [batch, choices]"

    def build_arguments(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Convert inputs `[batch, keys]` to `[batch, 1, keys]`, because the model expects choices.

        Each text is passed as the only choice. Other inputs are not changed.
        """
        arguments = dict(inputs)
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.dim() == 2:
                arguments[name] = value.unsqueeze(1)
        return arguments

    def select_inputs(self, inputs: Inputs, run: Run) -> dict[str, Tensor]:
        """Select for each example the choice with the highest logit, as the text to explain.

        Two inputs are added: the logits of all choices, `choice_logits`, and the index of the
        selected choice, `chosen`.
        """
        if inputs["input_ids"].dim() != 3:
            raise AttnProbeError(
                "expected several choices per example, got a single text; use data with several "
                "choices, such as a column 'choices'"
            )
        logits = run(inputs).logits
        chosen = logits.argmax(-1)
        rows = torch.arange(len(chosen), device=chosen.device)
        chosen_inputs = {name: value[rows, chosen] for name, value in inputs.items()}
        return chosen_inputs | {
            "choice_logits": logits[:, None],
            "chosen": chosen[:, None, None],
        }

    def compute_scores(self, result: Any, inputs: Inputs) -> Tensor:
        """Return the logits of all choices, `[batch, choices]`.

        The model only runs on the chosen text, so only its logit is taken from the model's output.
        The logits of the other choices were stored before and do not change.
        """
        if "choice_logits" not in inputs:
            return result.logits
        fixed_logits, chosen = inputs["choice_logits"][:, 0], inputs["chosen"][:, 0]
        return fixed_logits.to(result.logits.dtype).scatter(-1, chosen, result.logits)


def _number_slots(is_predicting: Tensor) -> dict[str, Tensor]:
    """Number the tokens whose predictions are used.

    A model may make predictions for all tokens, but only some of them are used, for example those
    at mask tokens. The number of such a token in its text is called its slot.

    Args:
        is_predicting: Whether the prediction for each token is used, bool `[batch, keys]`.

    Returns:
        Two inputs. `reads` contains the slot of each token, or -1 for other tokens, int
        `[batch, keys]`. `slots` is True for the slots that a text has, bool `[batch, 1, slots]`.
    """
    # The slot of a token is the number of such tokens before it.
    count = is_predicting.cumsum(1)
    n_slots = count[:, -1:]
    slots = torch.arange(int(n_slots.max()), device=is_predicting.device)
    return {
        "reads": (count - 1).where(is_predicting, -1),
        "slots": (slots < n_slots)[:, None],
    }


def _find_slot_positions(
    inputs: Inputs, n_keys: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Find the position of each token whose prediction is used (slot), in a shortened text.

    While the model's layout is being determined, there is no input `reads`, and the predictions for
    all tokens are used.

    Args:
        inputs: Inputs that the model was run on.
        n_keys: Number of tokens.
        device: Device for the result.

    Returns:
        Token positions, int `[batch, slots]`, and whether each slot's token is still present, bool
        `[batch, slots]`.
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
    """Replace predictions that are NaN by the predictions for the whole text.

    The prediction for a token is NaN if the token was erased.
    """
    whole_probs = inputs.get("whole_probs")
    if whole_probs is None:
        return probs
    return probs.where(~probs.isnan(), whole_probs[:, 0])


ADAPTER_INPUTS = frozenset(
    [
        "units",
        "segment_ids",
        "labelled",
        "reads",
        "slots",
        "candidate_ids",
        "n_padded",
        "choice_logits",
        "chosen",
        "whole_probs",
    ]
)
"""Batch inputs that only adapters and task heads use; they are not passed to the model.

- `units`: position that represents the unit (token or word) of each token.
- `segment_ids`: text within a pair (0 or 1) that each token belongs to.
- `labelled`: 1 for tokens with a label.
- `reads`: slot that is read from each token, or -1.
- `slots`: whether each text has each slot.
- `candidate_ids`: token ids of the candidate words for each masked word.
- `n_padded`: number of padding rows after an answer.
- `choice_logits`: logits of all choices of a multiple-choice question.
- `chosen`: index of the choice that the model predicts.
- `whole_probs`: prediction for the whole text, used for tokens that have been erased.
"""


def create_head(
    model: PreTrainedModel,
    *,
    predicts: str = "auto",
    scale: float | None = None,
    threshold: float | None = None,
    mask_id: int | None = None,
) -> TaskHead:
    """Create the task head that suits a model's class and configuration.

    Args:
        model: The model.
        predicts: Meaning of a single logit, "probability" or "number". "auto" follows the
            configuration's `problem_type`. If that is not set, the logit is a probability, as in
            Transformers' pipeline.
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
    # XLNet's question answering model without a beam search has the suffix "Simple".
    name = type(model).__name__.removesuffix("Simple")
    suffix = next((suffix for suffix in HEAD_CREATORS_BY_SUFFIX if name.endswith(suffix)), None)
    if suffix is None:
        return _create_text_head(model, predicts, scale, threshold)
    if predicts == "number" or threshold is not None:
        option = "predicts" if threshold is None else "threshold"
        raise AttnProbeError(
            f"{option} is only for models that predict a number, but {name} is for another task. "
            "Remove this option."
        )
    return HEAD_CREATORS_BY_SUFFIX[suffix](model, mask_id)


def _create_tag_head(model: PreTrainedModel, mask_id: int | None) -> TokenTagHead:
    """Create the task head for a token classifier."""
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
    """Create the task head for an extractive question answering model."""
    parts = ("start", "end")
    return SpanHead(Prediction("span", "the start and end of the answer", parts=parts, n_parts=2))


def _create_choice_head(model: PreTrainedModel, mask_id: int | None) -> MultipleChoiceHead:
    """Create the task head for a multiple choice model."""
    return MultipleChoiceHead(Prediction("choice", "one of the choices"))


def _create_masked_word_head(model: PreTrainedModel, mask_id: int | None) -> MaskedWordHead:
    """Create the task head for a masked language model."""
    if mask_id is None:
        raise AttnProbeError(
            "a masked language model needs a mask token. Load the model's tokenizer, or set mask_id "
            "to the id of the token."
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


HEAD_CREATORS_BY_SUFFIX: Mapping[str, Callable[[PreTrainedModel, int | None], TaskHead]] = {
    "ForTokenClassification": _create_tag_head,
    "ForQuestionAnswering": _create_span_head,
    "ForMultipleChoice": _create_choice_head,
    "ForMaskedLM": _create_masked_word_head,
}
"""Maps the suffix of a model's class name to the function that creates its task head.

For example, `_create_masked_word_head` creates the head for a `BertForMaskedLM` model. Model classes
with another suffix make one prediction for the whole text or image.
"""


def count_candidate_words(n_words: int) -> int:
    """Return the number of candidate words for a masked word.

    The number is smaller for small vocabularies, because at least two words must remain: the next
    most likely word, and another word.

    Args:
        n_words: Vocabulary size.
    """
    return min(N_CANDIDATE_WORDS, n_words - 2)


def compute_candidate_scores(logits: Tensor, candidates: Tensor) -> Tensor:
    """Reduce the logits of a whole vocabulary to a few logits.

    These are the logits of the candidate words, of the most likely word that is not a candidate,
    and of all remaining words together. The last one is the logsumexp over all remaining words, so
    that the softmax of the result contains the same probabilities as before. It is computed in
    float32 or more, because a sum over a vocabulary would be imprecise in half precision.

    Args:
        logits: Logits `[..., words]`.
        candidates: Indices of the candidate words, int `[..., candidates]`.

    Returns:
        Logits `[..., candidates + 2]`.
    """
    precise = torch.promote_types(logits.dtype, torch.float32)
    # Operations in place have no rule in vmap. A softmax is faster than a logsumexp.
    other_logits = logits.to(precise).scatter(-1, candidates, -torch.inf)
    next_logit, next_word = other_logits.max(-1, keepdim=True)
    other_probs = other_logits.softmax(-1)
    next_prob = other_probs.gather(-1, next_word)
    rest_prob = other_probs.scatter(-1, next_word, 0).sum(-1, keepdim=True)
    rest_logit = next_logit + (rest_prob / next_prob).log()
    candidate_logits = logits.gather(-1, candidates)
    return torch.cat([candidate_logits, next_logit, rest_logit], dim=-1)


def _create_text_head(
    model: PreTrainedModel,
    predicts: str,
    scale: float | None,
    threshold: float | None,
) -> TaskHead:
    """Create the task head for a model that makes one prediction per text or image."""
    names = list_label_names(model.config.id2label)
    if predicts_number(model.config, predicts):
        is_regression = getattr(model.config, "problem_type", None) == "regression"
        if len(names) > 1 and not is_regression:
            raise AttnProbeError(
                f"predicts='number' needs a model with one logit, but this model has {len(names)} "
                f"classes ({', '.join(names[:5])}). Remove this option."
            )
        unit = 1.0 if scale is None else scale
        number = predictions.make_number_prediction(
            scale=unit, threshold=threshold, n_parts=max(len(names), 1)
        )
        return RegressionHead(number)
    if threshold is not None:
        has_one_logit = len(names) == 1
        outputs = "a single class" if has_one_logit else f"{len(names)} classes"
        hint = ", or set --predicts number" if has_one_logit else ""
        raise AttnProbeError(
            "threshold is only for models that predict a number, but this model has "
            f"{outputs}. Leave threshold out{hint}."
        )
    if getattr(model.config, "problem_type", None) == "multi_label_classification":
        return MultiLabelHead(predictions.make_label_prediction(names))
    if len(names) == 1:
        return BinaryLogitHead(predictions.make_class_prediction([f"not {names[0]}", names[0]]))
    return TaskHead(predictions.make_class_prediction(names))


def predicts_number(config: PreTrainedConfig, predicts: str = "auto") -> bool:
    """Check whether a model's logits are predicted numbers (regression) and not class scores.

    Args:
        config: Model configuration.
        predicts: The option `predicts`, one of `LOGIT_MEANINGS`.
    """
    if predicts == "auto":
        return getattr(config, "problem_type", None) == "regression"
    return predicts == "number"
