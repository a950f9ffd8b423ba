"""What the papers optimise, how, and how the result is scored; no Trainer in sight."""

from dataclasses import dataclass, replace

import torch

from hf_attnprobe.attention_classifier import AttentionClassifierConfig
from hf_attnprobe.errors import AttnProbeError


@dataclass(frozen=True)
class Procedure:
    """How a paper trained its classifiers.

    max_grad_norm: gradients are clipped to it, 0 for not at all. plateau_factor: what the learning rate is multiplied by
    after every epoch whose validation score is no better. patience: so many such epochs end the training, None for
    never. weighted: for two classes the positive one weighs n_negative / n_positive and a batch is summed.
    metric: the validation score; None is ROC-AUC for two classes, accuracy for more.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    min_document_frequency: int
    max_grad_norm: float
    plateau_factor: float
    patience: int | None
    amsgrad: bool
    weighted: bool
    metric: str | None


PROCEDURES = {
    "jain-wallace": Procedure(
        8, 32, 1e-3, 1e-5, 1, 0.0, 1.0, None, amsgrad=True, weighted=True, metric=None
    ),
    # Of IMDB and Yahoo Answers. The paper's bound of 5 counts words, here it counts the documents that have them.
    "serrano-smith": Procedure(
        15,
        64,
        4e-4,
        0.0,
        5,
        10.0,
        0.5,
        5,
        amsgrad=False,
        weighted=False,
        metric="accuracy",
    ),
}


def papers_procedure(recipe: str, encoder: str, **changes) -> Procedure:
    """The procedure named, with what is not None in ``changes`` in place of its own.

    Raises:
        AttnProbeError: no procedure of that name.
    """
    if recipe not in PROCEDURES:
        raise AttnProbeError(
            f"expected a recipe of {', '.join(PROCEDURES)}, got {recipe!r}"
        )
    longer = (
        {"epochs": 60, "patience": 10}
        if recipe == "serrano-smith" and encoder == "none"
        else {}
    )
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(PROCEDURES[recipe], **(longer | given))


def papers_config(recipe: str = "jain-wallace", **changes) -> AttentionClassifierConfig:
    """The architecture of a paper, with what is not None in ``changes`` in place of its own.

    ``serrano-smith`` is their FLAN with a BiGRU, or with ``hierarchical=True`` their HAN, and the dropout rates of IMDB
    (Serrano & Smith 2019, released code).

    Raises:
        AttnProbeError: sizes that make no model.
    """
    changes = {name: value for name, value in changes.items() if value is not None}
    own = _serrano_smith(**changes) if recipe == "serrano-smith" else {}
    try:
        return AttentionClassifierConfig(**(own | changes))
    except ValueError as error:  # the checkpoint code knows no error but Python's
        raise AttnProbeError(str(error)) from error


def _serrano_smith(encoder: str = "bigru", hierarchical: bool = False, **_) -> dict:
    return {
        "encoder": encoder,
        "embedding_size": 200,
        "encoder_size": 50 if encoder in ("bigru", "bilstm") else 100,  # per direction
        "kernel_sizes": (3, 5),
        "attention_size": 200 if encoder == "none" else 100,
        "embedding_dropout": 0.444,
        "sentence_dropout": 0.220 if hierarchical else 0.0,
        "logit_dropout": 0.246 if hierarchical else 0.346,
    }


def papers_optimizer(
    model, *, learning_rate: float, weight_decay: float, amsgrad: bool = True
) -> torch.optim.Optimizer:
    """Adam; weight decay on everything but attention (Jain & Wallace 2019, released code)."""
    attention = {id(p) for name, p in model.named_parameters() if ".attention." in name}
    groups = [
        {
            "params": [p for p in model.parameters() if id(p) not in attention],
            "weight_decay": weight_decay,
        },
        {
            "params": [p for p in model.parameters() if id(p) in attention],
            "weight_decay": 0.0,
        },
    ]
    return torch.optim.Adam(
        [g for g in groups if g["params"]],
        lr=learning_rate,
        amsgrad=amsgrad,
        fused=True,
    )
