"""Options of a card."""

from dataclasses import dataclass

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import HUB_ID, Options, option


@dataclass(frozen=True)
class PublishingOptions(Options):
    """Where a checkpoint is published on the Hub."""

    push_to_hub: str | None = option(
        None,
        "publish model, tokenizer, code and card in this repository of the Hub, and the rows "
        "and reports of its audits, without texts, as the data set ORG/NAME-attention-audit",
        metavar="ORG/NAME",
    )
    private: bool = option(False, "make new repositories private")
    token: str | None = option(
        None,
        "of the Hub, one that may write (default: the one that is logged in)",
        secret=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        name = self.push_to_hub
        if name is not None and not HUB_ID.fullmatch(name):
            raise AttnProbeError(
                f"expected a repository of the Hub as ORG/NAME, got {name!r}; give both"
            )


@dataclass(frozen=True)
class CardOptions(PublishingOptions):
    """What a card says beyond the audits, and where it is published."""

    publish_texts: bool = option(
        False,
        "publish the texts too that the reports of its audits show, for anybody to read",
    )
    data_id: str | None = option(
        None,
        "Hub id of the data it was trained and audited on, where their name does not tell",
        metavar="ORG/NAME",
    )
    license: str | None = option(
        None, "license of the model, as the Hub names it, such as apache-2.0"
    )
    trust_remote_code: bool = option(False, "run code that comes with the model in its folder")
    allow_pickle: bool = option(
        False,
        "read weights that are not safetensors; reading those can run code hidden in them",
    )
