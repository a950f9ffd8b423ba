"""Three tests that train the base model again under other conditions (Wiegreffe & Pinter 2019).

``uniform`` (Section 3.2): is attention needed for this task?

Question: does the same model perform as well if it is trained from scratch with uniform attention,
so that every token has the weight 1/T?
Measure: F1 of the positive class (macro F1 for more than two classes), accuracy and ROC-AUC on the
test texts, compared with the base model by a paired bootstrap over the test texts.
Compare: for each text, the total variation distance between the outputs of the two models, and the
Jensen-Shannon divergence between their attention weights.
Reading: if nothing is lost, attention explains nothing on this data set. The paper excludes such
data sets ("attention is not explanation if you don't need it").

``seeds`` (Section 3.3): how much does attention vary by chance?

Question: does the same model attend to the same tokens if it is trained with another seed?
Measure: for each test text, the Jensen-Shannon divergence between the attention of each run and of
the base model (median over the runs), and the total variation distance between their outputs (mean
over the runs).
Compare: by the base model's largest attention weight, in the four bins of the papers, and by
predicted class. The divergence is the baseline for every adversary: an adversary that is no farther
from the base model than another seed is no counter-example.
Reading: 0 means that all runs attend to the same tokens. A value near 0.69 means that the seed
determines the attention, not the task.

``diagnostic_mlp`` (Section 3.4): are the attention weights useful to another model?

Question: does a model without context classify better with the attention weights of another model?
Measure: F1, accuracy and ROC-AUC on the test texts, for a layer that reads each token by itself
(``encoder="mlp"``). Its attention is imposed instead of trained: c = Σ a_t h_t, with the weights
a_t of a guide.
Compare: four guides, namely uniform weights, the layer's own trained additive attention, the
base model's weights, and the weights of a trained adversary.
Reading: if the base model's weights lead to a higher score than the layer's own attention, they
contain information about the tokens that does not depend on the model. If the adversary's weights
lead to a much lower score, they lack this information, although the adversary predicts like the
base model.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers import PreTrainedModel

from hf_attnprobe.checkpoints.loading import load_model
from hf_attnprobe.checkpoints.records import RECORD_FILE
from hf_attnprobe.core.options import Options
from hf_attnprobe.core.readings import make_share_reading
from hf_attnprobe.inference.outputs import Guide, make_guide, read_outputs
from hf_attnprobe.retraining import register_retraining
from hf_attnprobe.retraining.base_model import (
    SPLIT_NAMES,
    BaseModel,
    RetrainingSetup,
    Splits,
    TrainedVariant,
    Variant,
    VariantResults,
    measure_predictions,
    train_variant,
)
from hf_attnprobe.retraining.options import Adversary, Seeds


if TYPE_CHECKING:
    import datasets


# --- Uniform attention ---------------------------------------------------------------------------


@register_retraining(
    title="A model trained with uniform attention",
    readings={
        "uniform_model_tvd": (
            "the output of the model trained with uniform attention differs from the base "
            "model's by {mean:.2f} (total variation distance, at most 1)"
        ),
        "uniform_model_jsd": (
            "the base model's attention diverges from uniform attention by {mean:.2f} (at most "
            "0.69)"
        ),
        "uniform_model_correct": make_share_reading(
            "the model trained with uniform attention is correct for {mean:.0%} of the texts"
        ),
    },
)
def uniform(setup: RetrainingSetup, options: Options) -> Iterator[Variant]:
    """Yield a model that is trained like the base model, but with equal attention weights.

    Args:
        setup: Inputs that all tests share, such as the base model and the texts.
        options: Not used; this test has no options.
    """
    train = partial(train_variant, changes={"attention": "uniform"})
    yield Variant("uniform", "uniform_model", train)


# --- Other seeds ---------------------------------------------------------------------------------


def add_seed_summaries(results: VariantResults, options: Seeds) -> None:
    """Summarize, for each text, how much attention and output change with other seeds.

    The change of the attention is the median JSD over all seeds. The change of the output is the
    mean total variation distance. Each text's largest attention weight is added too.

    Args:
        results: Measurements for all seeds, to which the statistics are added.
        options: Not used.
    """
    results.statistics |= {
        "max_attention": results.setup.base_outputs.attention.amax(-1),
        # For an even number of seeds, `quantile` averages the two middle values.
        "seed_jsd": results.stack_statistic("one_seed_jsd").quantile(0.5, dim=0),
        "seed_tvd": results.stack_statistic("one_seed_tvd").mean(0),
    }


@register_retraining(
    title="The same model with other seeds",
    summarize=add_seed_summaries,
    readings={
        "max_attention": "the largest attention weight of a text is {mean:.2f}",
        "seed_jsd": (
            "with another seed, the attention diverges from the base model's by {mean:.2f} (at "
            "most 0.69; median over the runs)"
        ),
        "seed_tvd": (
            "with another seed, the output changes by {mean:.2f} (total variation distance, at "
            "most 1; mean over the runs)"
        ),
        "one_seed_jsd": "with seed {key}, the attention diverges by {mean:.2f} (at most 0.69)",
        "one_seed_tvd": "with seed {key}, the output changes by {mean:.2f} (at most 1)",
        "one_seed_correct": make_share_reading(
            "with seed {key}, {mean:.0%} of the texts are correct"
        ),
    },
)
def seeds(setup: RetrainingSetup, options: Seeds) -> Iterator[Variant]:
    """Yield variants of the base model that are trained with other seeds, one per seed.

    The seeds are 0, 1, 2, … without the base model's seed. The paper uses 50, 257, 500231, 100078,
    12504, 90754789, 8988812 and 2, but any seeds serve the purpose.

    Args:
        setup: Inputs that all tests share, such as the base model and the texts.
        options: The number of seeds.
    """
    for seed in list_other_seeds(setup.base.settings.seed, options.n_seeds):
        train = partial(train_variant, seed=seed)
        yield Variant(f"seed {seed}", "one_seed", train, key=seed, folder=str(seed))


def list_other_seeds(base_seed: int, n: int) -> list[int]:
    """Return n different seeds, the smallest ones from 0 that are not the base model's seed.

    >>> list_other_seeds(1, 3)
    [0, 2, 3]

    Args:
        base_seed: The base model's seed.
        n: Number of seeds to return.
    """
    return [seed for seed in range(n + 1) if seed != base_seed][:n]


# --- Attention of another model ------------------------------------------------------------------

NO_REGULARISATION = {
    "residual_connection": "none",
    "tying": 0.0,
    "mlm_weight": 0.0,
    "conicity_weight": 0.0,
}
"""Configuration fields with the values that disable all regularisation."""
CONTEXT_FREE_SETTINGS = {"encoder": "mlp", "attention_size": None, **NO_REGULARISATION}
"""Configuration fields of a model without context. Its encoder is an MLP, which reads each token by
itself."""


@register_retraining(
    title="A model without context, guided by attention weights",
    reference="trained guide",
    readings={
        f"{name}_guide_correct": make_share_reading(
            f"a model without context {source} is correct for {{mean:.0%}} of the texts"
        )
        for name, source in (
            ("uniform", "with uniform weights"),
            ("trained", "with its own trained attention"),
            ("base", "with the base model's weights"),
            ("adversary", "with the adversary's weights"),
        )
    },
)
def diagnostic_mlp(setup: RetrainingSetup, options: Options) -> Iterator[Variant]:
    """Yield one context-free model per guide, trained with the base model's settings and seed.

    A guide is a source of attention weights. The guide ``adversary`` is only used if an adversary
    exists or will be trained.

    Args:
        setup: Inputs that all tests share, such as the base model and the texts.
        options: Not used; this test has no options.
    """
    for name, attention in (("uniform", "uniform"), ("trained", "additive")):
        train = partial(train_variant, changes={**CONTEXT_FREE_SETTINGS, "attention": attention})
        yield Variant(f"{name} guide", f"{name}_guide", train, measure_predictions, folder=name)
    yield make_guided_variant(
        "base guide",
        "base_guide",
        setup,
        lambda: setup.base.model,
        CONTEXT_FREE_SETTINGS,
        folder="base",
    )
    adversary = find_guiding_adversary(setup)
    if adversary is not None:
        yield make_guided_variant(
            "adversary guide",
            "adversary_guide",
            setup,
            lambda: load_model(adversary),
            CONTEXT_FREE_SETTINGS,
            # The name of the folder includes the adversary, because a different adversary would
            # guide a different model.
            folder=f"adversary-{adversary.name}",
        )


def find_guiding_adversary(setup: RetrainingSetup) -> Path | None:
    """Find the adversary whose attention weights another model, without context, will use.

    Several adversaries have different weights λ. The one closest to Table 3 of the paper is chosen.

    Args:
        setup: Inputs that all tests share, such as the base model and the texts.

    Returns:
        The adversary's folder; None if it was not and will not be trained.
    """
    # The adversary is available if its test is selected, or if an earlier run has trained it.
    options = setup.test_options.get("adversary")
    folder = setup.folder / "adversary" / (options or Adversary()).guide_folder
    is_available = options is not None or (folder / RECORD_FILE).is_file()
    return folder if is_available else None


def make_guided_variant(
    name: str,
    statistic: str,
    setup: RetrainingSetup,
    load_guide: Callable[[], PreTrainedModel],
    changes: Mapping[str, Any],
    folder: str,
) -> Variant:
    """Return a variant that uses the attention weights of another model.

    The weights are imposed both in training and on the test texts.

    Args:
        name: Variant name.
        statistic: Prefix for its statistic names.
        setup: Inputs that all tests share, such as the base model and the texts.
        load_guide: Function that returns the other model. It is called when the variant is trained.
        changes: Configuration fields that differ from the base model, with their values.
        folder: Checkpoint folder below the test folder.
    """
    guided_changes = {**changes, "attention": "guided", "attention_size": None}

    @cache
    def get_guides() -> dict[str, Guide]:
        return compute_guides(load_guide(), setup.base, setup.splits)

    def train(*args: Any, **options: Any) -> TrainedVariant:
        return train_variant(*args, changes=guided_changes, guides=get_guides(), **options)

    def measure(
        base: BaseModel, model: PreTrainedModel, examples: "datasets.Dataset"
    ) -> dict[str, Tensor]:
        return measure_predictions(base, model, examples, get_guides()["test"])

    return Variant(name, statistic, train, measure, folder=folder)


def compute_guides(model: PreTrainedModel, base: BaseModel, splits: Splits) -> dict[str, Guide]:
    """Compute a model's attention weights for every text, so that another model can use them.

    Args:
        model: The model that computes the weights, called the guide.
        base: The base model. If it is the guide, its cached outputs are used.
        splits: Train, validation and test texts.

    Returns:
        For each split, the attention weights by example id.
    """
    guides = {}
    for name in SPLIT_NAMES:
        if model is base.model:
            outputs = base.get_outputs(splits[name])
        else:
            outputs = read_outputs(model, base.tokenizer, splits[name])
        guides[name] = make_guide(outputs)
    return guides
