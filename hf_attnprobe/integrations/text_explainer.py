"""One text explained, with a model that is loaded: data, or a piece of a page.

What ``pipeline("attention-explain")`` and the Space's app show.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.auditing.subject import make_subject
from hf_attnprobe.charts.shown_text import ShownText
from hf_attnprobe.data.arguments import Data
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.choices import encode
from hf_attnprobe.inference.images import ImageReader
from hf_attnprobe.page.document import fragment
from hf_attnprobe.page.html import tag
from hf_attnprobe.page.texts import text_view
from hf_attnprobe.texts import Explainer, whole_attention


CAUTION = (
    "One text cannot say whether attention explains this model: attention that looks "
    "plausible here may be one of many that give the same output, and measures of "
    "importance disagree on single texts. Audit the model on many texts."
)


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
        options = AuditOptions(control="none")
        subject = make_subject((self.model, self.tokenizer), None, options, device)
        if isinstance(subject.tokenizer, ImageReader):
            raise AttnProbeError(
                "expected a model of texts, this one takes images; audit it instead"
            )
        site, of = whole_attention(subject.adapter)
        return Explainer(subject.adapter, subject.tokenizer, site, attention_of=of)

    @torch.enable_grad()
    def explain(
        self,
        text: str,
        text_pair: str | None = None,
        *,
        choices: Sequence[str] | None = None,
    ) -> ShownText:
        """A text with its prediction and the scores of its tokens.

        Args:
            text: alone, or the first of a pair.
            text_pair: the second of a pair: a question's context, a model's query.
            choices: of a multiple-choice model.

        Raises:
            AttnProbeError: no text, or not what the model reads.
        """
        seconds: Sequence[str | None] = choices or [text_pair]
        for given in (text, *(choices or ([] if text_pair is None else [text_pair]))):
            _check_text(given)
        if not text.strip():
            raise AttnProbeError("expected a text, got none; write some words")
        strings = [(text, second) for second in seconds]
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
        return explainer.explain(encoded, strings)

    def html(self, text: str, text_pair: str | None = None, **given: Any) -> str:
        """The same as a piece of a page with its style, without script."""
        view = text_view(self.explain(text, text_pair, **given))
        return str(fragment(view, tag("p", CAUTION)))


def _check_text(text: object) -> None:
    if not isinstance(text, str):
        raise AttnProbeError(f"expected a text, got {text!r:.80}; write some words")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise AttnProbeError(
            f"expected a text of whole characters, got half of one at {error.start}; mend it"
        ) from error


def explain_text(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    text_pair: str | None = None,
    **given: Any,
) -> ShownText:
    """One text with its prediction and scores, see :meth:`TextExplainer.explain`."""
    return TextExplainer(model, tokenizer).explain(text, text_pair, **given)


def explain_html(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    text_pair: str | None = None,
    **given: Any,
) -> str:
    """The same as a piece of a page, see :meth:`TextExplainer.html`."""
    return TextExplainer(model, tokenizer).html(text, text_pair, **given)
