"""Options of :func:`hf_attnprobe.cite`."""

from dataclasses import dataclass
from typing import Literal

from hf_attnprobe.core.options import Options, option


@dataclass(frozen=True)
class CiteOptions(Options):
    """Options for the prompts, the generated answers and the number format.

    The help text of each field describes it.
    """

    template: str | None = option(
        None,
        "text with {context} and {question} in it, used as the user turn, or as the complete prompt "
        "if the tokenizer has no chat template. {context} becomes the numbered passages. Use the "
        "wording with which the answers were generated",
        metavar="TEXT",
    )
    max_new_tokens: int = option(
        128,
        "maximum length of a generated answer, in tokens; answers are generated for rows without an "
        "answer",
        at_least=1,
        at_most=4096,
    )
    dtype: Literal["float32", "float64", "bfloat16", "float16"] | None = option(
        None,
        "number format of the computation (default: the checkpoint's format)",
        basic=False,
    )
