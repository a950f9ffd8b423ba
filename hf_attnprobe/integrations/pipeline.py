"""Explains one text, or one answer: ``pipeline("attention-explain")``, as data or HTML."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import compress
from typing import Any, Literal

import torch
from transformers import Pipeline, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import ModelOutput

from hf_attnprobe.audits.audited_model import is_language_model, make_subject
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.text_scores import Explainer, whole_attention
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.origins import origin_of
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import check_known, public_function
from hf_attnprobe.data.specs import Answers, Data
from hf_attnprobe.documents.blocks import Texts
from hf_attnprobe.documents.html import to_cell
from hf_attnprobe.inference.answers import answered, encode_answers, of_span
from hf_attnprobe.inference.choices import encode
from hf_attnprobe.inference.encoding import ImageReader
from hf_attnprobe.plots.shown_text import ShownText


CAUTION = (
    "One text cannot say whether attention explains this model: attention that looks "
    "plausible here may be one of many that give the same output, and measures of "
    "importance disagree on single texts. Audit the model on many texts."
)


OF_ANSWERS = ("context", "question", "answer", "other", "span", "units")
"""What a dict may have of which a language model's answer is explained."""
Units = Literal["sentence", "token", "word", "passage", "turn"]


class TextExplainer:
    """Explains texts with one model.

    Args:
        model: with a head for a task; it is left as it is.
        tokenizer: of the model.

    Raises:
        AttnProbeError: a model that cannot be audited, or another model's tokenizer.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model, self.tokenizer = model, tokenizer

    @cached_property
    def _explainer(self) -> Explainer:
        device = next(self.model.parameters()).device
        subject = make_subject((self.model, self.tokenizer), None, AuditOptions(), device)
        if isinstance(subject.tokenizer, ImageReader):
            raise AttnProbeError(
                "expected a model of texts, this one takes images; audit it instead"
            )
        site, of = whole_attention(subject.adapter)
        return Explainer(subject.adapter, subject.tokenizer, site, attention_of=of)

    @cached_property
    def _answers(self) -> bool:
        """Whether the model answers from a passage."""
        return is_language_model(self.model)

    def answer(
        self,
        context: str | Sequence[str],
        question: str,
        answer: str | None = None,
        *,
        other: str | None = None,
        span: str | tuple[int, int] | None = None,
        units: Units = "sentence",
    ) -> ShownText:
        """What a language model's answer from a passage rests on, see :func:`explain`."""
        if not self._answers:
            raise AttnProbeError(
                f"expected a language model (…ForCausalLM), got {type(self.model).__name__}; a "
                "text that it predicts is explained by explain_text"
            )
        row = {
            "context": context,
            "question": question,
            "answer": answer,
            "other": other,
        }
        data = Answers([{k: v for k, v in row.items() if v is not None}], units=units)
        explainer = self._explainer
        explainer.model.unit = units
        rows = answered(data.examples(), data, self.tokenizer, explainer.model, self.model)
        text = encode_answers(rows).texts[0]
        if span is not None:
            text = of_span(text, span, self.tokenizer)
            labelled = text.inputs["labelled"]
            if other and max(compress(text.inputs["other_ids"], labelled)) < 0:
                raise AttnProbeError(
                    "expected a part of the answer in which the other answer parts from it, "
                    f"got {span!r}; give a longer part, or no other answer"
                )
        return explainer.explain(text, rows[0])

    @torch.enable_grad()
    def explain(
        self,
        text: str | Mapping[str, Any],
        text_pair: str | None = None,
        *,
        choices: Sequence[str] | None = None,
    ) -> ShownText:
        """A text's prediction and the scores of its tokens.

        Args:
            text: alone, or the first of a pair; or a dict as the pipeline takes it.
            text_pair: the second of a pair: a question's context, a model's query.
            choices: of a multiple-choice model.

        Raises:
            AttnProbeError: no text, or not what the model reads.
        """
        if self._answers:
            return self.answer(**arguments_of_answer(text))
        if not isinstance(text, str):
            return self.explain(**arguments_of(text))
        for given in (
            text,
            *(choices or ([] if text_pair is None else [text_pair])),
        ):
            _check_text(given)
        if not text.strip():
            raise AttnProbeError("expected a text, got none; write some words")
        row: dict[str, Any] = {"text": [text]}
        if choices is not None:
            row["choices"] = [list(choices)]
        if text_pair is not None:
            row["second"] = [text_pair]
        pair = None if text_pair is None else "second"
        import datasets

        data = Data(datasets.Dataset.from_dict(row), text_pair_column=pair)
        explainer = self._explainer
        examples = data.examples(seed=0)
        encoded = encode(self.tokenizer, examples, explainer.model).texts[0]
        return explainer.explain(encoded, examples[0])

    def html(
        self,
        text: str | Mapping[str, Any],
        text_pair: str | None = None,
        **given: Any,
    ) -> str:
        """The same as HTML with its style, without a script."""
        return to_cell([Texts([self.explain(text, text_pair, **given)]), CAUTION])


def arguments_of(given: Any) -> dict[str, Any]:
    """Arguments of :meth:`TextExplainer.explain` from a text or a dict with its parts.

    Raises:
        AttnProbeError: neither.
    """
    if isinstance(given, str):
        return {"text": given}
    known = {"text", "text_pair", "choices"}
    is_known = isinstance(given, Mapping) and isinstance(given.get("text"), str)
    if not is_known or {*given} - known:
        raise AttnProbeError(
            "expected a text or a dict of text with text_pair or choices, got "
            f"{given!r:.80}; name the second text text_pair"
        )
    return dict(given)


def arguments_of_answer(given: Any) -> dict[str, Any]:
    """Arguments of :meth:`TextExplainer.answer` from a dict with them.

    Raises:
        AttnProbeError: no such dict.
    """
    if not isinstance(given, Mapping) or not {"context", "question"} <= {*given}:
        raise AttnProbeError(
            f"expected a dict of context and question for a language model, got {given!r:.80}; "
            "give the passage that it answers from"
        )
    check_known("part", given, OF_ANSWERS)
    return dict(given)


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise AttnProbeError(f"expected a text, got {text!r:.80}; write some words")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AttnProbeError(
            f"expected a text of whole characters, got half of one at {error.start}; mend it"
        ) from error


@public_function
def explain(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    context: str | Sequence[str],
    question: str,
    answer: str | None = None,
    *,
    other: str | None = None,
    span: str | tuple[int, int] | None = None,
    units: Units = "sentence",
) -> ShownText:
    """Explains what a language model's answer from a passage rests on.

        print(explain(model, tokenizer, passage, "Who directs it?"))

    Every unit is deleted and knocked out; see :class:`ShownText`, whose ``units`` has a row for
    each. It takes seconds, writes nothing, and says nothing of other texts: see :func:`audit`.

    Args:
        model: a …ForCausalLM; it is left as it is.
        tokenizer: of the model, a fast one.
        context: the passage, or several.
        question: about it.
        answer: what is explained; None: what the model says, greedily.
        other: another answer; at the first token where they part, ``contrast`` says what the
            answer's lead over it loses without each unit.
        span: a part of the answer, as it is written or by its characters; None: the whole.
        units: parts of the passage that are compared, see :class:`Answers`.

    Raises:
        AttnProbeError: another model, a passage of one unit, or no such part of the answer.
    """
    explainer = TextExplainer(model, tokenizer)
    return explainer.answer(context, question, answer, other=other, span=span, units=units)


@public_function
def explain_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str | Mapping[str, Any],
    text_pair: str | None = None,
    **given: Any,
) -> ShownText:
    """One text with its prediction and scores, see :meth:`TextExplainer.explain`."""
    return TextExplainer(model, tokenizer).explain(text, text_pair, **given)


@public_function
def explain_html(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str | Mapping[str, Any],
    text_pair: str | None = None,
    **given: Any,
) -> str:
    """The same as HTML, see :meth:`TextExplainer.html`."""
    return TextExplainer(model, tokenizer).html(text, text_pair, **given)


class AttentionExplainPipeline(Pipeline):
    """Predictions with the scores that attention and other measures give each token.

        explain = pipeline("attention-explain", model="bilstm-sst")
        explain("A gorgeous, witty movie.")
        explain([{"text": "…", "text_pair": "…"}, "another text"])

    Of each text a dict: ``prediction`` and ``probability``, ``tokens``, by name one number
    per token (``attention``, ``gradient``, ``leave_one_out``), ``attention_of`` (which heads) and
    ``caution``.

    Of a language model a dict of ``context`` and ``question`` is explained, with ``answer``,
    ``other``, ``span`` and ``units`` as :func:`explain` takes them. ``tokens`` are the units of the passage,
    ``numbers`` the shares of attention on sink and passage and what the passage gains, ``matters`` the positions of those that cost the answer more than noise, and ``rests_on`` says
    what it rests on.

    Texts are run one by one, so ``batch_size`` changes nothing: their numbers are those
    of an audit.
    """

    _load_processor = False  # type: ignore[assignment]
    _load_image_processor = False  # type: ignore[assignment]
    _load_feature_extractor = False  # type: ignore[assignment]
    _load_video_processor = False  # type: ignore[assignment]
    _load_tokenizer = True  # type: ignore[assignment]

    def _sanitize_parameters(self, **given: Any) -> tuple[dict, dict, dict]:
        if given:
            raise AttnProbeError(
                f"expected no options of attention-explain, got {', '.join(given)}; leave them out"
            )
        return {}, {}, {}

    @cached_property
    def explainer(self) -> TextExplainer:
        """The explainer of this model; ``explainer.html(text)`` gives HTML."""
        assert self.tokenizer is not None  # pipeline() has refused
        return TextExplainer(self.model, self.tokenizer)

    def __call__(
        self,
        inputs: Any,
        *args: Any,
        num_workers: int | None = None,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> list[dict[str, Any]]:
        """Returns a dict for every text.

        Args:
            inputs: a text, a dict of ``text`` with ``text_pair`` or ``choices``, of a language
                model one of ``context`` and ``question``, or several of these.
            num_workers: changes nothing.
            batch_size: changes nothing.

        Raises:
            AttnProbeError: no text, not what the model reads, or unknown options.
        """
        self._sanitize_parameters(**kwargs)
        is_one = isinstance(inputs, str | Mapping) or not isinstance(inputs, Iterable)
        several: Iterable[Any] = [inputs] if is_one else inputs
        return [self.run_single(one, {}, {}, {}) for one in several]

    def preprocess(self, input_: Any, **given: Any) -> dict[str, Any]:
        """Returns what is explained, as it is."""
        return {"given": input_}

    def _forward(self, input_tensors: dict[str, Any], **given: Any) -> ModelOutput:
        return ModelOutput(shown=self.explainer.explain(input_tensors["given"]))

    def postprocess(self, model_outputs: dict[str, Any], **given: Any) -> dict[str, Any]:
        """Returns plain data that can be printed or written as JSON."""
        return as_dict(model_outputs["shown"])


def as_dict(shown: ShownText) -> dict[str, Any]:
    """An explained text as the pipeline returns it."""
    matters = shown.matters and list(shown.matters)
    of_answers = {
        "numbers": shown.numbers,
        "matters": matters,
        "rests_on": shown.rests_on,
    }
    return {
        "prediction": shown.predicted,
        "probability": shown.probability,
        "tokens": list(shown.tokens),
        **{name: list(values) for name, values in shown.scores.items()},
        **(of_answers if shown.unit else {}),
        "attention_of": shown.attention_of or "the only head",
        "caution": CAUTION,
    }


def load(name: str, **options: Any) -> PreTrainedModel:
    """Loads a folder or a Hub id as the class that was saved."""
    where = (
        "revision",
        "token",
        "subfolder",
        "trust_remote_code",
        "allow_pickle",
    )
    place = {key: options[key] for key in where if options.get(key)}
    model = load_model(origin_of(name, **place))
    dtype = options.get("dtype")
    if isinstance(dtype, torch.dtype):
        torch.nn.Module.to(model, dtype)
    return model
