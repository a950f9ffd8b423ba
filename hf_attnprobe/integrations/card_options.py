"""Options for model cards and their publication."""

from dataclasses import dataclass

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import HUB_ID_PATTERN, Options, option


@dataclass(frozen=True)
class PublishingOptions(Options):
    """Options for publishing a checkpoint on the Hub."""

    push_to_hub: str | None = option(
        None,
        "publish model, tokenizer, code and card in this repository on the Hub, and the rows "
        "and reports of its audits, without texts, as the data set ORG/NAME-attention-audit",
        metavar="ORG/NAME",
    )
    private: bool = option(False, "make new repositories private")
    token: str | None = option(
        None,
        "token of the Hub with write access (default: the token of hf auth login)",
        secret=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.push_to_hub
        if name is not None and not HUB_ID_PATTERN.fullmatch(name):
            raise AttnProbeError(
                f"push_to_hub must be a repository id of the form ORG/NAME, got {name!r}"
            )


@dataclass(frozen=True)
class CardOptions(PublishingOptions):
    """Options for writing and publishing a model card."""

    publish_texts: bool = option(
        False,
        "also publish the example texts in the reports of its audits, for anybody to read",
    )
    data_id: str | None = option(
        None,
        "Hub id of the data set for training and audits, if its name is not the id",
        metavar="ORG/NAME",
    )
    license: str | None = option(
        None, "license of the model, by its name on the Hub, such as apache-2.0"
    )
    trust_remote_code: bool = option(False, "run code that comes with the model in its folder")
    allow_pickle: bool = option(
        False,
        "read weights that are not safetensors; such files can run hidden code",
    )
