"""The Space's page: type a text, see where the model looks and what its decision needs.

Run it with ``python app.py``. Gradio is in the Space's requirements and not in the
package's.
"""

import functools
from typing import Any

import gradio as gr
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.checkpoints import load_model, load_tokenizer
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.integrations.pipeline import explain_html


TITLE = "Does attention explain this prediction?"
SAID = (
    "Type a text and name a text classifier of the Hub. Its tokens are shaded by attention, "
    "beside what leaving each of them out changes. One text proves nothing: `attnprobe "
    "audit` tests a model on many, against yardsticks and with intervals."
)
MODEL = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"
TEXT = "a wonderful film with a dull end"


@functools.lru_cache(maxsize=2)
def loaded(model: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A classifier of the Hub with its tokenizer; code that comes with it is not run."""
    return load_model(model, task="text-classification"), load_tokenizer(model)


def explain(text: str, model: str) -> str:
    """The text view as HTML.

    Raises:
        gr.Error: no text, or a model that does not load, in one line.
    """
    try:
        if not text.strip():
            raise AttnProbeError("expected a text, got none; type some words")
        return explain_html(*loaded(model.strip()), text)
    except AttnProbeError as error:
        raise gr.Error(str(error)) from error


def interface() -> Any:
    """The page."""
    return gr.Interface(
        explain,
        [
            gr.Textbox(TEXT, label="Text", lines=4),
            gr.Textbox(MODEL, label="Model (Hub id)"),
        ],
        gr.HTML(label="What the model looks at"),
        title=TITLE,
        description=SAID,
        flagging_mode="never",
        api_name="explain",
    )


if __name__ == "__main__":
    interface().launch()
