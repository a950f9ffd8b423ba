"""``pipeline("attention-explain")``: a text's prediction with the scores of its tokens."""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import torch
from transformers import Pipeline, PreTrainedModel
from transformers.utils import ModelOutput

from hf_attnprobe.charts.shown_text import ShownText
from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.origins import origin_of
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.integrations.text_explainer import CAUTION, TextExplainer


class AttentionExplainPipeline(Pipeline):
    """Predictions with what attention and other measures say of each token.

        explain = pipeline("attention-explain", model="bilstm-sst")
        explain("A gorgeous, witty movie.")
        explain([{"text": "…", "text_pair": "…"}, "another text"])

    Of each text a dict: ``prediction`` and ``probability``, ``tokens``, by name one number
    per token (``attention``, ``gradient``, ``leave_one_out``, and of attention classifiers
    ``adversary``), ``smallest_set`` (positions, or None where it is not known),
    ``numbers`` of the text, ``attention_of`` (which heads) and ``caution``.

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
        """The model ready to explain; ``explainer.html(text)`` is a piece of a page."""
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
        """A dict of every text.

        Args:
            inputs: a text, a dict of ``text`` with ``text_pair`` or ``choices``, or
                several of these.
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
        """The arguments of :meth:`TextExplainer.explain`."""
        if isinstance(input_, str):
            return {"text": input_}
        known = {"text", "text_pair", "choices"}
        if not isinstance(input_, Mapping) or "text" not in input_ or {*input_} - known:
            raise AttnProbeError(
                "expected a text or a dict of text with text_pair or choices, got "
                f"{input_!r:.80}; name the second text text_pair"
            )
        return dict(input_)

    def _forward(self, input_tensors: dict[str, Any], **given: Any) -> ModelOutput:
        return ModelOutput(shown=self.explainer.explain(**input_tensors))

    def postprocess(self, model_outputs: dict[str, Any], **given: Any) -> dict[str, Any]:
        """Plain data, to be printed or written as JSON."""
        return as_dict(model_outputs["shown"])


def as_dict(shown: ShownText) -> dict[str, Any]:
    """A shown text as the pipeline gives it."""
    flips = shown.smallest_set
    return {
        "prediction": shown.predicted,
        "probability": shown.probability,
        "tokens": list(shown.tokens),
        **{name: list(values) for name, values in shown.scores.items()},
        "smallest_set": None if flips is None else list(flips),
        "numbers": dict(shown.numbers),
        "attention_of": shown.attention_of or "the only head",
        "caution": CAUTION,
    }


def load(name: str, **options: Any) -> PreTrainedModel:
    """The model of a folder or a Hub id, as the class that was saved."""
    where = ("revision", "token", "subfolder", "trust_remote_code", "allow_pickle")
    place = {key: options[key] for key in where if options.get(key)}
    model = load_model(origin_of(name, **place))
    dtype = options.get("dtype")
    if isinstance(dtype, torch.dtype):
        torch.nn.Module.to(model, dtype)
    return model
