"""Gradio app for a Hub Space, which explains the prediction for a text that the user types.

Run it with ``python app.py``. It needs Gradio, which is not a dependency of this package.
"""

import functools
from typing import Any

import gradio as gr
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.checkpoints import load_model, load_tokenizer
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.integrations.pipeline import explain_html


TITLE = "Does attention explain this prediction?"
"""Title of the web page."""
DESCRIPTION = (
    "Type a text and the Hub id of a text classifier. Each token is shaded by its attention, "
    "and separately by the change in the prediction when the token is left out. One text proves nothing: "
    "`attnprobe audit` tests a model on many texts, with baselines and confidence intervals."
)
"""Description of the web page, as Markdown. It appears below the title."""
DEFAULT_MODEL = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"
"""Hub id of the default model on the web page."""
DEFAULT_TEXT = "a wonderful film with a dull end"
"""Default text on the web page."""


@functools.lru_cache(maxsize=2)
def load_classifier(model: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a text classifier and its tokenizer from the Hub, without running code from the Hub."""
    return load_model(model, task="text-classification"), load_tokenizer(model)


def explain_as_html(text: str, model: str) -> str:
    """Explain the prediction of a model for one text as HTML.

    Args:
        text: The text.
        model: Hub id of the model.

    Returns:
        An HTML fragment.

    Raises:
        gr.Error: The text is empty, or the model cannot be loaded.
    """
    try:
        if not text.strip():
            raise AttnProbeError("the text is empty; type at least one word")
        return explain_html(*load_classifier(model.strip()), text)
    except AttnProbeError as error:
        raise gr.Error(str(error)) from error


def build_interface() -> Any:
    """Build the Gradio page with fields for the text and the model."""
    return gr.Interface(
        explain_as_html,
        [
            gr.Textbox(DEFAULT_TEXT, label="Text", lines=4),
            gr.Textbox(DEFAULT_MODEL, label="Model (Hub id)"),
        ],
        gr.HTML(label="Attention and importance"),
        title=TITLE,
        description=DESCRIPTION,
        flagging_mode="never",
        api_name="explain",
    )


if __name__ == "__main__":
    build_interface().launch()
