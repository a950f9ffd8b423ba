"""The base trained again, otherwise (Wiegreffe & Pinter 2019): three tests.

``uniform``, Section 3.2: is attention needed here at all?

Question: does the same model, trained from scratch with every token weighted 1/T, classify
          as well?
Measure:  F1 of the positive class (macro for over two classes), accuracy and area under
          the ROC curve on the test texts, beside the base's; the paired bootstrap interval
          of their difference over the test texts.
Compare:  per text, how far the two models' outputs (total variation) and attentions
          (Jensen-Shannon) are apart.
Reading:  where nothing is lost, attention explains nothing: the paper drops such data sets
          ("attention is not explanation if you don't need it").

``seeds``, Section 3.3: how much does attention vary by chance?

Question: trained again with another seed, does the same model look at the same tokens?
Measure:  per test text, the Jensen-Shannon divergence of each run's attention to the
          base's, median over the runs; the total variation distance of their outputs, mean
          over the runs.
Compare:  by the base's largest weight in the papers' four bins, and by predicted class.
          This is the baseline for every adversary: what is no farther than another seed is
          no counter-example.
Reading:  0 every run attends alike; .69 the attention is the seed's, not the task's.

``diagnostic_mlp``, Section 3.4: does attention tell another model something?

Question: given a model's attention weights, does a model that knows no context classify
          better than without?
Measure:  F1, accuracy and area under the ROC curve on the test texts of a token-wise layer
          (``encoder="mlp"``) whose attention is imposed, not trained: c = Σ a_t h_t with
          the weights of a guide.
Compare:  the guides: uniform weights; the layer's own additive attention, trained with it;
          the base's weights; those of a trained adversary.
Reading:  base above the trained one: its weights carry information about tokens that does
          not depend on the model. Adversary far below: its weights do not, whatever it
          predicts.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.records import RECORD
from hf_attnprobe.core.options import Options
from hf_attnprobe.core.readings import share
from hf_attnprobe.inference.outputs import Guide, read_outputs, to_guide
from hf_attnprobe.retraining import register_retraining
from hf_attnprobe.retraining.base_model import (
    SPLITS,
    Base,
    Setup,
    Splits,
    Tested,
    Variant,
    outputs_alone,
    train_again,
)
from hf_attnprobe.retraining.options import Adversary, Seeds


# --- Uniform attention ---------------------------------------------------------------------------


@register_retraining(
    title="A model trained with uniform attention",
    readings={
        "uniform_model_tvd": (
            "the model trained with uniform attention predicts {mean:.2f} of 1 away from the base"
        ),
        "uniform_model_jsd": (
            "the base's attention is a divergence of {mean:.2f} (at most 0.69) away from uniform"
        ),
        "uniform_model_correct": share(
            "the model trained with uniform attention is right in {mean:.0%} of texts "
        ),
    },
)
def uniform(setup: Setup, options: Options) -> Iterator[Variant]:
    """The base with ``attention="uniform"``."""
    flat = partial(train_again, changes={"attention": "uniform"})
    yield Variant("uniform", "uniform_model", flat)


# --- Other seeds ---------------------------------------------------------------------------------


def all_seeds(tested: Tested, options: Seeds) -> None:
    """Median divergence and mean change of output over the runs, and how peaked the base is."""
    tested.statistics |= {
        "max_attention": tested.setup.own.attention.amax(-1),
        # Of an even number of runs, quantile gives the mean of the two in the middle.
        "seed_jsd": tested.of_each("one_seed_jsd").quantile(0.5, dim=0),
        "seed_tvd": tested.of_each("one_seed_tvd").mean(0),
    }


@register_retraining(
    title="The same model with other seeds",
    together=all_seeds,
    readings={
        "max_attention": "the token with the most attention has {mean:.2f} of it",
        "seed_jsd": (
            "another seed moves the attention by a divergence of {mean:.2f} (at most "
            "0.69; median over the runs)"
        ),
        "seed_tvd": "another seed moves the output by {mean:.2f} of 1 (mean over the runs)",
        "one_seed_jsd": "seed {key} moves the attention by a divergence of {mean:.2f}",
        "one_seed_tvd": "seed {key} moves the output by {mean:.2f} of 1",
        "one_seed_correct": share("seed {key} is right in {mean:.0%} of texts"),
    },
)
def seeds(setup: Setup, options: Seeds) -> Iterator[Variant]:
    """The base with the seeds 0, 1, 2, … without its own.

    The paper's are 50, 257, 500231, 100078, 12504, 90754789, 8988812 and 2; no seed is
    better than another.
    """
    for seed in other_seeds(setup.base.settings.seed, options.n_seeds):
        train = partial(train_again, seed=seed)
        yield Variant(f"seed {seed}", "one_seed", train, key=seed, folder=str(seed))


def other_seeds(own: int, n: int) -> list[int]:
    """The first n seeds that are not the base's.

    >>> other_seeds(1, 3)
    [0, 2, 3]
    """
    return [seed for seed in range(n + 1) if seed != own][:n]


# --- Attention of another model ------------------------------------------------------------------

UNREGULARISED = {
    "residual_connection": "none",
    "tying": 0.0,
    "mlm_weight": 0.0,
    "conicity_weight": 0.0,
}
CONTEXT_FREE = {"encoder": "mlp", "attention_size": None, **UNREGULARISED}


@register_retraining(
    title="A model without context, guided by attention weights",
    reference="trained guide",
    readings={
        f"{name}_guide_correct": share(
            f"{with_it}, a model without context is right in {{mean:.0%}} of texts"
        )
        for name, with_it in (
            ("uniform", "guided by uniform weights"),
            ("trained", "with attention of its own"),
            ("base", "guided by the base's weights"),
            ("adversary", "guided by the adversary's weights"),
        )
    },
)
def diagnostic_mlp(setup: Setup, options: Options) -> Iterator[Variant]:
    """A context-free model with each guide, with the base's settings and seed."""
    for name, attention in (("uniform", "uniform"), ("trained", "additive")):
        train = partial(train_again, changes={**CONTEXT_FREE, "attention": attention})
        yield Variant(f"{name} guide", f"{name}_guide", train, outputs_alone, folder=name)
    yield guided(
        "base guide",
        "base_guide",
        setup,
        lambda: setup.base.model,
        CONTEXT_FREE,
        folder="base",
    )
    adversary = guiding_adversary(setup)
    if adversary is not None:
        yield guided(
            "adversary guide",
            "adversary_guide",
            setup,
            lambda: load_model(adversary),
            CONTEXT_FREE,
            # Two adversaries guide two models: the folder tells which one it was.
            folder=f"adversary-{adversary.name}",
        )


def guiding_adversary(setup: Setup) -> Path | None:
    """The adversary of the paper's Table 3, where it is there or the test will train it."""
    chosen = setup.chosen.get("adversary")
    folder = setup.folder / "adversary" / (chosen or Adversary()).guide
    return folder if chosen is not None or (folder / RECORD).is_file() else None


def guided(
    name: str,
    statistic: str,
    setup: Setup,
    guide: Callable[[], PreTrainedModel],
    changes: Mapping[str, Any],
    folder: str,
) -> Variant:
    """A variant with another model's attention weights, in training and on the test texts.

    Args:
        guide: gives the other model, once the variant is trained.
        changes: further ones to the base's configuration.
    """
    guides = cache(lambda: guides_of(guide(), setup.base, setup.splits))
    imposed = {**changes, "attention": "guided", "attention_size": None}
    return Variant(
        name,
        statistic,
        lambda *where, **how: train_again(*where, changes=imposed, guides=guides(), **how),
        lambda base, model, texts: outputs_alone(base, model, texts, guides()["test"]),
        folder=folder,
    )


def guides_of(model: PreTrainedModel, base: Base, splits: Splits) -> dict[str, Guide]:
    """A model's attention on all splits, by split and example id."""
    guides = {}
    for name in SPLITS:
        if model is base.model:
            outputs = base.outputs(splits[name])
        else:
            outputs = read_outputs(model, base.tokenizer, splits[name])
        guides[name] = to_guide(outputs)
    return guides
