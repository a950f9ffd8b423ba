"""Explanations of single texts and answers, as functions and as a Transformers pipeline.

:func:`explain_text`, :func:`explain_html` and :func:`explain` explain a single text, and
:class:`AttentionExplainPipeline` implements ``pipeline("attention-explain")``. All of them use
:class:`TextExplainer`.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any, Literal

import torch
from torch import nn
from transformers import Pipeline, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.adapters.wrappers import unwrap_module
from hf_attnprobe.attention_map import AttentionMap
from hf_attnprobe.audits.audited_model import is_language_model, load_audited_model
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.text_scores import Explainer, choose_model_attention
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.origins import locate_checkpoint
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import check_known_names, public_function
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.documents.blocks import ExampleTexts
from hf_attnprobe.documents.html import render_cell_html
from hf_attnprobe.inference.answers import encode_answers, prepare_prompts, restrict_answer
from hf_attnprobe.inference.choices import encode_examples
from hf_attnprobe.inference.encoding import InputReader
from hf_attnprobe.inference.model_inputs import list_missing_inputs
from hf_attnprobe.inference.word_boundaries import choose_level
from hf_attnprobe.plots.highlighted_text import CERTIFIED_MAP_NAME, HighlightedText


logger = logging.getLogger(__name__)

CAUTION = (
    "One text cannot show whether attention explains this model: attention that looks "
    "plausible here may be one of many that give the same output, and measures of "
    "importance disagree on single texts. Audit the model on many texts."
)
"""Warning that is added to every explanation of a single text."""
LANGUAGE_MODEL_INPUT_KEYS = ("context", "question", "answer", "other", "span", "units")
"""Keys that an input dict can have if the model is a language model."""
CLASSIFIER_INPUT_KEYS = ("text", "text_pair", "choices")
"""Keys that an input dict can have if the model is a classifier."""
LOADING_OPTIONS = ("revision", "token", "subfolder", "trust_remote_code", "allow_pickle")
"""Options of ``transformers.pipeline`` that are used to load the model."""
Units = Literal["sentence", "token", "word", "passage", "turn"]
"""Units into which a passage can be split. Each unit gets a score."""


class TextExplainer:
    """Explains the predictions of one model for single texts.

    Args:
        model: A model with a head for a task, or a language model. It is not changed.
        tokenizer: Its tokenizer.
        attention_map: Attention map of this model, whose scores are added as "map"; None for no map.

    Raises:
        AttnProbeError: The model cannot be audited, the tokenizer belongs to another model, or the map
            belongs to another model.
    """

    def __init__(
        self,
        model: nn.Module,
        tokenizer: PreTrainedTokenizerBase,
        attention_map: AttentionMap | None = None,
    ) -> None:
        self.model, self.tokenizer = unwrap_module(model), tokenizer
        self.attention_map = attention_map

    @cached_property
    def _explainer(self) -> Explainer:
        """Object that computes the importance scores of tokens for this model."""
        device = next(self.model.parameters()).device
        subject = load_audited_model((self.model, self.tokenizer), None, AuditOptions(), device)
        if isinstance(subject.tokenizer, InputReader):
            raise AttnProbeError(
                "cannot explain a model for images. Use a model for texts, or use "
                "hf_attnprobe.audit, which also accepts images."
            )
        missing_inputs = list_missing_inputs(subject.adapter.model, {})
        if missing_inputs:
            logger.warning(
                "the model also reads %s, which a single text does not have, so the model uses its "
                "default values",
                ", ".join(missing_inputs),
            )
        site, attention_name = choose_model_attention(subject.adapter)
        compute_map, map_name = None, CERTIFIED_MAP_NAME
        if self.attention_map is not None:
            self.attention_map.check_model(subject.adapter)
            compute_map, map_name = self.attention_map.compute_scores, self.attention_map.name
        return Explainer(
            subject.adapter,
            subject.tokenizer,
            site,
            attention_of=attention_name,
            compute_map=compute_map,
            map_name=map_name,
        )

    @cached_property
    def _is_language_model(self) -> bool:
        """Whether the model generates an answer from a passage."""
        return is_language_model(self.model)

    def explain_answer(
        self,
        context: str | Sequence[str],
        question: str,
        answer: str | None = None,
        *,
        other: str | None = None,
        span: str | tuple[int, int] | None = None,
        units: Units = "sentence",
    ) -> HighlightedText:
        """Measure how much an answer of a language model depends on each unit of a passage.

        Args:
            context: The passage, or several passages.
            question: The question about the passage.
            answer: The answer to explain; None for the answer that the model generates.
            other: Another answer to compare.
            span: Part of the answer to explain, as text or as start and end character.
            units: Units into which the passage is split.

        Returns:
            The passage with a score for each unit.

        Raises:
            AttnProbeError: The model is not a language model, the passage has only one unit, or the
                answer does not contain the span.
        """
        if not self._is_language_model:
            raise AttnProbeError(
                f"expected a language model (…ForCausalLM), got {type(self.model).__name__}. Use "
                "explain_text for other models."
            )
        fields = {"context": context, "question": question, "answer": answer, "other": other}
        row = {name: value for name, value in fields.items() if value is not None}
        data = Answers([row], units=units)
        explainer = self._explainer
        explainer.model.unit = units
        prompts = prepare_prompts(
            data.load_examples(), data, self.tokenizer, explainer.model, self.model
        )
        text = encode_answers(prompts).texts[0]
        if span is not None:
            text = restrict_answer(text, span, self.tokenizer)
            is_answer_token = text.inputs["labelled"]
            if other and max(compress(text.inputs["other_ids"], is_answer_token)) < 0:
                raise AttnProbeError(
                    f"the answer and the other answer have the same words in the span {span!r}. "
                    "Choose a longer span, or omit the other answer."
                )
        return explainer.explain(text, prompts[0])

    # Gradients are needed, even if the user calls the pipeline in inference mode.
    @torch.inference_mode(False)
    @torch.enable_grad()
    def explain(
        self,
        text: str | Mapping[str, Any],
        text_pair: str | None = None,
        *,
        choices: Sequence[str] | None = None,
    ) -> HighlightedText:
        """Predict a text, and score the importance of each token.

        Args:
            text: A text, or the first text of a pair, or a dict as for the pipeline. A language model
                needs a dict.
            text_pair: The second text of a pair, such as the context for a question.
            choices: Choices for a multiple-choice model.

        Returns:
            The text with a score for each token and ranking.

        Raises:
            AttnProbeError: The text is empty or has another type than the model needs.
        """
        if self._is_language_model:
            return self.explain_answer(**parse_answer_arguments(text))
        if not isinstance(text, str):
            return self.explain(**parse_text_arguments(text))
        pair_texts = [] if text_pair is None else [text_pair]
        for part in (text, *(choices or pair_texts)):
            _check_text(part)
        if not text.strip():
            raise AttnProbeError("the text is empty; write at least one word")
        columns: dict[str, Any] = {"text": [text]}
        if choices is not None:
            columns["choices"] = [list(choices)]
        if text_pair is not None:
            columns["second"] = [text_pair]
        import datasets

        data = Data(
            datasets.Dataset.from_dict(columns),
            text_pair_column=None if text_pair is None else "second",
        )
        explainer = self._explainer
        examples = data.load_examples(seed=0)
        if isinstance(explainer.model, TransformerAdapter):
            explainer.model.level = choose_level(self.tokenizer, examples)
        encoded_text = encode_examples(self.tokenizer, examples, explainer.model).texts[0]
        return explainer.explain(encoded_text, examples[0])

    def render_html(
        self,
        text: str | Mapping[str, Any],
        text_pair: str | None = None,
        **arguments: Any,
    ) -> str:
        """Explain a text and render the result as an HTML fragment with CSS, without scripts.

        Args:
            text: A text, or the first text of a pair; a dict for a language model.
            text_pair: The second text of a pair; None for a single text.
            arguments: ``choices`` for a multiple-choice model, see :meth:`explain`.
        """
        explained_text = self.explain(text, text_pair, **arguments)
        return render_cell_html([ExampleTexts([explained_text]), CAUTION])


def parse_text_arguments(text: Any) -> dict[str, Any]:
    """Convert a pipeline input to arguments for :meth:`TextExplainer.explain`.

    Args:
        text: A text, or a dict with the keys `CLASSIFIER_INPUT_KEYS`.

    Returns:
        Arguments by name.

    Raises:
        AttnProbeError: The input is neither a text nor such a dict.
    """
    if isinstance(text, str):
        return {"text": text}
    has_text = isinstance(text, Mapping) and isinstance(text.get("text"), str)
    if not has_text or set(text) - set(CLASSIFIER_INPUT_KEYS):
        raise AttnProbeError(
            "expected a text, or a dict with the key 'text' and optionally 'text_pair' or 'choices', "
            f"got {text!r:.80}"
        )
    return dict(text)


def parse_answer_arguments(prompt: Any) -> dict[str, Any]:
    """Convert a pipeline input to arguments for :meth:`TextExplainer.explain_answer`.

    Args:
        prompt: A dict with the keys `LANGUAGE_MODEL_INPUT_KEYS`.

    Returns:
        Arguments by name.

    Raises:
        AttnProbeError: The input is not such a dict.
    """
    if not isinstance(prompt, Mapping) or not {"context", "question"}.issubset(prompt):
        raise AttnProbeError(
            "a language model needs a dict with the keys 'context' (the passage) and 'question', "
            f"got {prompt!r:.80}"
        )
    check_known_names("key", prompt, LANGUAGE_MODEL_INPUT_KEYS)
    return dict(prompt)


def _check_text(text: object) -> None:
    """Raise an error if a value is not a string, or contains invalid Unicode characters."""
    if not isinstance(text, str):
        raise AttnProbeError(f"expected a text as a string, got {text!r:.80}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AttnProbeError(
            "the text contains an invalid Unicode character (an unpaired surrogate) at position "
            f"{error.start}; remove it"
        ) from error


@public_function
def explain(  # noqa: PLR0913
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    context: str | Sequence[str],
    question: str,
    answer: str | None = None,
    *,
    other: str | None = None,
    span: str | tuple[int, int] | None = None,
    units: Units = "sentence",
    attention_map: AttentionMap | None = None,
) -> HighlightedText:
    """Measure how much an answer of a language model depends on each unit of a passage.

    To measure the importance of a unit, it is deleted, and in a second measurement attention to it is
    blocked. This takes seconds and writes no files. The result applies to this text only; use
    :func:`audit` for conclusions about the model.

    Args:
        model: A model for causal language modelling (…ForCausalLM). It is not changed.
        tokenizer: Its tokenizer, a fast one.
        context: The passage, or several passages.
        question: The question about the passage.
        answer: The answer to explain; None for the answer that the model generates greedily.
        other: Another answer to compare. The scores then also contain ``contrast``: the decrease of
            the margin between both answers when a unit is deleted, at the first token that differs.
        span: Part of the answer to explain, as text or as start and end character; None for the
            whole answer.
        units: Units into which the passage is split.
        attention_map: Attention map of this model, from :func:`fit_map`. Its scores are added as ``map``.

    Returns:
        The passage with scores; its property ``units`` has one row per unit.

    Raises:
        AttnProbeError: The model is not a language model, the passage has only one unit, or the answer
            does not contain the span.

    Example:
        print(explain(model, tokenizer, passage, "Who directs it?"))
    """
    explainer = TextExplainer(model, tokenizer, attention_map)
    return explainer.explain_answer(context, question, answer, other=other, span=span, units=units)


@public_function
def explain_text(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    text: str | Mapping[str, Any],
    text_pair: str | None = None,
    attention_map: AttentionMap | None = None,
    **arguments: Any,
) -> HighlightedText:
    """Predict one text with a model, and score the importance of each token.

    Args:
        model: A classifier or a language model, which is not changed.
        tokenizer: The tokenizer of the model.
        text: A text, or the first text of a pair. A language model needs a dict with the keys
            ``context`` and ``question``.
        text_pair: The second text of a pair; None for a single text.
        attention_map: Attention map of this model, from :func:`fit_map`. Its scores are added as ``map``.
        arguments: ``choices`` for a multiple-choice model, see :meth:`TextExplainer.explain`.

    Returns:
        The text with a score for each token and ranking.

    Example:
        print(explain_text(model, tokenizer, "A gorgeous, witty movie."))
    """
    return TextExplainer(model, tokenizer, attention_map).explain(text, text_pair, **arguments)


@public_function
def explain_html(
    model: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    text: str | Mapping[str, Any],
    text_pair: str | None = None,
    attention_map: AttentionMap | None = None,
    **arguments: Any,
) -> str:
    """Explain a prediction like :func:`explain_text`, and render it as an HTML fragment.

    Args:
        model: A classifier or a language model, which is not changed.
        tokenizer: The tokenizer of the model.
        text: A text, or the first text of a pair. A language model needs a dict with the keys
            ``context`` and ``question``.
        text_pair: The second text of a pair; None for a single text.
        attention_map: Attention map of this model, from :func:`fit_map`. Its scores are added as ``map``.
        arguments: ``choices`` for a multiple-choice model, see :meth:`TextExplainer.explain`.

    Returns:
        HTML with CSS, without scripts.
    """
    return TextExplainer(model, tokenizer, attention_map).render_html(text, text_pair, **arguments)


class AttentionExplainPipeline(Pipeline):
    """Pipeline that returns predictions with token scores from attention and other measures.

    The result for a text is a dict with ``prediction``, ``probability``, ``tokens``, one list of scores
    per ranking (``attention``, ``gradient``, ``leave_one_out``), ``attention_of`` (the heads that the
    attention scores come from) and ``caution``.

    The input for a language model is a dict with ``context`` and ``question``, and optionally
    ``answer``, ``other``, ``span`` and ``units``, see :func:`explain`. In this case ``tokens`` are the
    units of the passage, and the result has three more keys: ``numbers`` (such as the share of attention
    on the passage), ``matters`` (positions of units whose deletion lowers the answer's probability by
    more than noise) and ``rests_on`` (a sentence that summarises ``matters``).

    Texts run one at a time, as in an audit, so ``batch_size`` has no effect.

    Example:
        explain = pipeline("attention-explain", model="bilstm-sst")
        explain("A gorgeous, witty movie.")
        pipeline("attention-explain", model="bilstm-sst", attention_map=attention_map)
        explain([{"text": "…", "text_pair": "…"}, "another text"])
    """

    _load_processor = False  # type: ignore[assignment]
    _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = False  # type: ignore[assignment]
    _load_video_processor = False  # type: ignore[assignment]
    _load_tokenizer = True  # type: ignore[assignment]
    attention_map: AttentionMap | None = None

    def _sanitize_parameters(self, **parameters: Any) -> tuple[dict, dict, dict]:
        attention_map = parameters.pop("attention_map", None)
        if parameters:
            raise AttnProbeError(
                "the pipeline attention-explain has no options except attention_map, got "
                f"{', '.join(parameters)}"
            )
        if attention_map is not None:
            if not isinstance(attention_map, AttentionMap):
                raise AttnProbeError(
                    "expected an AttentionMap for attention_map, got "
                    f"{type(attention_map).__name__}. Use AttentionMap.from_pretrained(folder)."
                )
            self.attention_map = attention_map
        return {}, {}, {}

    @cached_property
    def explainer(self) -> TextExplainer:
        """Explainer of this model; ``explainer.render_html(text)`` returns HTML."""
        # `pipeline` raises an error for a model without a tokenizer.
        assert self.tokenizer is not None
        return TextExplainer(self.model, self.tokenizer, self.attention_map)

    def __call__(
        self,
        inputs: Any,
        *args: Any,
        num_workers: int | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Explain one or several texts.

        Args:
            inputs: An input or a list of inputs. An input is a text, or a dict with ``text`` and
                ``text_pair`` or ``choices``. For a language model it is a dict with ``context`` and
                ``question``.
            args: Ignored.
            num_workers: Has no effect.
            batch_size: Has no effect.
            kwargs: Not allowed.

        Returns:
            One dict per input.

        Raises:
            AttnProbeError: An input is not valid for the model, or an option is unknown.
        """
        if "attention_map" in kwargs:
            raise AttnProbeError(
                "attention_map cannot be changed in a call. Set it when the pipeline is created, as in "
                'pipeline("attention-explain", model=model, attention_map=attention_map).'
            )
        self._sanitize_parameters(**kwargs)
        is_single = isinstance(inputs, str | Mapping) or not isinstance(inputs, Iterable)
        texts: Iterable[Any] = [inputs] if is_single else inputs
        return [self.run_single(text, {}, {}, {}) for text in texts]

    def preprocess(self, input_: Any, **parameters: Any) -> dict[str, Any]:
        """Return the input unchanged, since tokenisation is part of the explanation."""
        return {"input": input_}

    def _forward(self, input_tensors: dict[str, Any], **parameters: Any) -> ModelOutput:
        explained_text = self.explainer.explain(input_tensors["input"])
        return ModelOutput(explained_text=explained_text)

    def postprocess(self, model_outputs: dict[str, Any], **parameters: Any) -> dict[str, Any]:
        """Convert the explanation to plain data that can be printed or stored as JSON."""
        return convert_to_dict(model_outputs["explained_text"])


def convert_to_dict(text: HighlightedText) -> dict[str, Any]:
    """Convert a text with its importance scores to the dict that the pipeline returns.

    Args:
        text: The explained text.

    Returns:
        Plain data by name, see :class:`AttentionExplainPipeline`.
    """
    fields: dict[str, Any] = {
        "prediction": text.predicted,
        "probability": text.probability,
        "tokens": list(text.tokens),
    }
    for name, values in text.scores.items():
        fields[name] = list(values)
    # Only explanations of a language model's answer have a unit.
    if text.unit:
        fields["numbers"] = text.numbers
        fields["matters"] = list(text.matters) if text.matters else text.matters
        fields["rests_on"] = text.importance_summary
    fields["attention_of"] = text.attention_of or "the only head"
    fields["caution"] = CAUTION
    return fields


def load_pipeline_model(name: str, **options: Any) -> PreTrainedModel:
    """Load a model for the pipeline with the class that its configuration names.

    Args:
        name: A folder or Hub id.
        options: Options of ``pipeline``. Only `LOADING_OPTIONS` and ``dtype`` have an effect.

    Returns:
        The model.
    """
    loading_options = {key: options[key] for key in LOADING_OPTIONS if options.get(key)}
    model = load_model(locate_checkpoint(name, **loading_options))
    dtype = options.get("dtype")
    if isinstance(dtype, torch.dtype):
        # The annotations of `PreTrainedModel.to` hide its arguments from the type checker.
        torch.nn.Module.to(model, dtype)
    return model
