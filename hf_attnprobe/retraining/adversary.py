"""The test ``adversary``: can a whole model learn to attend elsewhere?

Source: Wiegreffe & Pinter 2019, Section 4.

Question: is there a model that makes the same predictions as the base model on all texts, although
its attention is different?
Measure: a model is trained from random weights on the loss Σ TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b).
Reported are its F1 and, per test text, the total variation distance (TVD) of its output and the
Jensen-Shannon divergence (JSD) of its attention from the base model's. λ trades the two terms
against each other, and several λ give a curve. The curve shows every λ on all texts. Statements
about "the chosen adversary" use cross-fitting: each half of the texts chooses the λ for the other
half, namely the one with the largest JSD among those that keep F1.
Compare: with other seeds and with uniform attention (two tests of their own). Per text, also with
the search of Jain & Wallace and with the exact frontier, that is, the largest JSD of any attention
that changes the output by at most ε. Both of these keep the base model's encoder, while a
trained adversary has an encoder of its own. The frontier is therefore a baseline and not a bound.
The bound is the largest JSD that any weights can have from the base model's. It is checked for
every text.
Reading: if the JSD is large and no F1 is lost, the attention could have been different. If the TVD
rises at small JSD, the attention is constrained.

The epoch with the lowest training loss is kept, as in the paper, which saves a second pass over the
data. If the base model is regularised, the penalties are part of the adversary's loss, because the
adversary must be a model of the same type. They are not part of the score that chooses the epoch,
because they would dominate it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.readings import make_share_reading
from hf_attnprobe.data.columns import read_column
from hf_attnprobe.data.examples import get_label_names
from hf_attnprobe.faithfulness.adversarial import (
    EPSILONS,
    FRONTIER_EPSILONS,
    adversarial,
)
from hf_attnprobe.faithfulness.options import Adversarial
from hf_attnprobe.functional.divergence import largest_jsd, tvd
from hf_attnprobe.inference.outputs import (
    Outputs,
    build_guide_rows,
    get_special_ids,
    make_guide,
    measure_texts,
    observe_split,
)
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.protocol import Observation, Site
from hf_attnprobe.retraining import register_retraining
from hf_attnprobe.retraining.base_model import (
    SPLIT_NAMES,
    BaseModel,
    ProgressSetting,
    RetrainingSetup,
    Splits,
    TrainedVariant,
    Variant,
    VariantResults,
    build_trained_variant,
    compare_with_base,
    disable_progress,
    get_shared_settings,
)
from hf_attnprobe.retraining.options import Adversary
from hf_attnprobe.retraining.verdict import CHOSEN_ADVERSARY
from hf_attnprobe.statistics.scores import compute_weighted_metrics, encode_one_hot
from hf_attnprobe.statistics.verdicts import RULES
from hf_attnprobe.training.classifier import (
    build_model,
    make_paper_trainer,
    resolve_procedure,
)
from hf_attnprobe.training.procedures import add_penalties
from hf_attnprobe.training.trainer import PlainTrainer, train_or_load


if TYPE_CHECKING:
    import datasets


JSD_TOLERANCE = 1e-6
"""Amount by which a JSD may exceed its bound through rounding."""


def compare_with_base_and_bound(
    base: BaseModel, model: PreTrainedModel, examples: "datasets.Dataset"
) -> dict[str, Tensor]:
    """Measure like :func:`compare_with_base`, and add the JSD as a share of its bound.

    Args:
        base: The base model.
        model: The adversary.
        examples: The test texts.

    Returns:
        The statistics of :func:`compare_with_base`, and ``jsd_over_bound`` [texts].
    """
    measurements = compare_with_base(base, model, examples)
    outputs = base.get_outputs(examples)
    bound = largest_jsd(outputs.attention, outputs.mask)
    shares = divide_by_bound(measurements["jsd"], bound, outputs)
    return measurements | {"jsd_over_bound": shares}


def add_chosen_adversary(results: VariantResults, options: Adversary) -> None:
    """Add the adversary that each half of the texts chose for the other half, and the baselines.

    Args:
        results: Measurements of all adversaries, to which the statistics are added.
        options: Options of the test, with the values of λ.
    """
    base_outputs, seed = results.setup.base_outputs, results.setup.seed
    probs = torch.stack(list(results.probs.values()))
    divergence = results.stack_statistic("adversary_jsd")
    choices = choose_across_halves(
        base_outputs.labels.numpy(),
        probs[0].numpy(),
        list(probs[1:].numpy()),
        list(divergence.numpy()),
        tolerance=RULES["loss"].yes,
        seed=seed,
    )
    texts = torch.arange(len(choices))
    measurements = {
        "probs": probs[1:][choices, texts],
        "lambda": torch.tensor(options.sorted_lambdas())[choices],
        "jsd": divergence[choices, texts],
        "tvd": results.stack_statistic("adversary_tvd")[choices, texts],
    }
    results.add_measurements(CHOSEN_ADVERSARY, "chosen", measurements)
    results.statistics["largest_jsd"] = largest_jsd(base_outputs.attention, base_outputs.mask)
    results.statistics |= measure_untrained_baselines(results.setup)


@register_retraining(
    title="Models trained to make the same predictions with different attention",
    summarize=add_chosen_adversary,
    readings={
        "adversary_jsd": (
            "the attention of the adversary with λ {key} diverges from the base model's by "
            "{mean:.2f} (at most 0.69)"
        ),
        "adversary_tvd": (
            "the output of the adversary with λ {key} differs from the base model's by {mean:.2f} "
            "(total variation distance, at most 1)"
        ),
        "adversary_correct": make_share_reading(
            "the adversary with λ {key} is correct for {mean:.0%} of the texts"
        ),
        "adversary_jsd_over_bound": make_share_reading(
            "the adversary with λ {key} reaches {mean:.0%} of the largest possible divergence"
        ),
        "chosen_lambda": "the λ chosen on the other half of the texts is {mean:g} on average",
        "chosen_jsd": (
            "the attention of the adversary chosen on the other half of the texts diverges from "
            "the base model's by {mean:.2f} (at most 0.69)"
        ),
        "chosen_tvd": (
            "the output of the adversary chosen on the other half of the texts differs from the "
            "base model's by {mean:.2f} (total variation distance, at most 1)"
        ),
        "chosen_correct": make_share_reading(
            "the adversary chosen on the other half of the texts is correct for {mean:.0%} of the "
            "texts"
        ),
        "frontier_jsd": (
            "with the base model's encoder, the farthest attention that changes the output by at "
            "most {key} reaches a divergence of {mean:.2f}"
        ),
        "search_jsd": (
            "the search finds attention that changes the output by at most {key} and reaches a "
            "divergence of {mean:.2f}"
        ),
        "search_tvd": (
            "the attention that the search finds for a limit of {key} changes the output by "
            "{mean:.3f}"
        ),
        "largest_jsd": (
            "the largest divergence of any attention from the base model's is {mean:.2f}"
        ),
    },
)
def adversary(setup: RetrainingSetup, options: Adversary) -> Iterator[Variant]:
    """Yield one adversary per λ, all trained with the base model's seed plus 1.

    Args:
        setup: Inputs that all tests share.
        options: The values of λ and the settings of the training.
    """
    for strength in options.sorted_lambdas():
        yield Variant(
            f"adversary {strength:g}",
            "adversary",
            partial(train_adversary, lambda_=strength, options=options),
            compare_with_base_and_bound,
            key=strength,
            folder=options.name_folder(strength),
        )


def divide_by_bound(divergence: Tensor, bound: Tensor, outputs: Outputs) -> Tensor:
    """Return a JSD as a share of its bound, in [0, 1], [texts].

    The share is NaN if the bound is 0, which is the case for texts with a single token.

    Args:
        divergence: The JSD, [texts].
        bound: The largest JSD of any attention from the base model's, [texts].
        outputs: The base model's outputs, for the example ids in the error message.

    Raises:
        AttnProbeError: If a JSD exceeds its bound.
    """
    exceeds_bound = divergence > bound + JSD_TOLERANCE
    if exceeds_bound.any():
        row = int(exceeds_bound.int().argmax())
        raise AttnProbeError(
            f"text {outputs.example_ids[row]} has a JSD of {divergence[row]:.4f}, but its largest "
            f"possible value is {bound[row]:.4f}; check that both models use the same tokenizer"
        )
    return torch.where(bound > 0, divergence / bound, torch.nan)


def measure_untrained_baselines(setup: RetrainingSetup) -> dict[str, Tensor]:
    """Measure how far attention can move per text without training, [texts] by ``statistic@ε``.

    The search is run on every model. The exact frontier is only known for two classes.

    Args:
        setup: Inputs that all tests share.
    """
    base = setup.base
    observed = observe_split(base.model, base.tokenizer, setup.splits["test"])
    return measure_texts(observed, partial(_measure_batch, seed=setup.seed))


def _measure_batch(observation: Observation, seed: int) -> dict[str, Tensor]:
    """Measure the divergence that search and exact frontier reach, [batch] by ``statistic@ε``."""
    model, site, statistics = observation.model, Site(), {}
    if observation.probs.shape[-1] == 2:
        exact = adversarial(
            observation, site, Adversarial(method="exact", epsilons=FRONTIER_EPSILONS)
        )
        for epsilon, values in exact.epsilon_max_jsd.items():
            statistics[f"frontier_jsd@{epsilon}"] = values
    options = Adversarial(method="search", epsilons=EPSILONS)
    search = adversarial(observation, site, options, seed=seed)
    for epsilon, values in search.epsilon_max_jsd.items():
        edit = search.attention[epsilon][None, :, None]
        probs = model.replay(observation, {0: edit})[0]
        statistics[f"search_jsd@{epsilon}"] = values
        statistics[f"search_tvd@{epsilon}"] = tvd(probs, observation.probs)
    return statistics


# --- Training of an adversary (Wiegreffe & Pinter 2019, Section 4) --------------------------------

TARGET_COLUMNS = ("base_probs", "base_attention")
"""Training columns that hold the base model's outputs and attention."""
LOWEST_OBJECTIVE_ARGUMENTS = {
    "metric_for_best_model": "loss",
    "greater_is_better": False,
    "remove_unused_columns": False,
}
"""Arguments of a Trainer that keeps the epoch with the lowest objective."""


class AdversaryTrainer(PlainTrainer):
    """Trainer that minimises an objective which compares the model with the base model.

    Every training batch contains the base model's outputs and attention. The Trainer keeps
    the epoch with the lowest mean objective over the training batches of that epoch, so no second
    pass over the data is needed. If the model is regularised, the penalties are part of the loss,
    but not of the objective that chooses the epoch.

    Attributes:
        objective: Function ``objective(probs, attention, base_probs, base_attention, mask)`` that
            returns a scalar.
        batch_objectives: Objectives of the batches of the current epoch.
    """

    objective: Callable[..., Tensor]

    def __init__(self, *args: Any, objective: Callable[..., Tensor], **options: Any) -> None:
        super().__init__(*args, **options)
        self.objective = objective
        self.batch_objectives: list[Tensor] = []

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the objective plus penalties, or the classification loss for held-out texts.

        Args:
            model: The model.
            inputs: A batch.
            return_outputs: Whether to return the model's outputs too.
            num_items_in_batch: See :meth:`transformers.Trainer.compute_loss`.
        """
        if TARGET_COLUMNS[0] not in inputs:
            return super().compute_loss(model, inputs, return_outputs)
        targets = [inputs.pop(name) for name in TARGET_COLUMNS]
        assert isinstance(model, AttentionClassifierForSequenceClassification)
        ids, real = inputs["input_ids"], inputs["attention_mask"]
        mask = model.attention_classifier.build_content_mask(real, ids)
        outputs = model(ids, real, output_attentions=True)
        probs, attention = (
            outputs.logits.softmax(-1),
            outputs.attentions[0][:, 0, 0],
        )
        objective = self.objective(probs, attention, *targets, mask)
        self.batch_objectives.append(objective.detach())
        loss = add_penalties(objective, outputs, torch.sum)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Return the mean objective over the batches of the epoch that has just ended.

        Args:
            *args: Not used.
            **options: Not used.
        """
        mean_objective = torch.stack(self.batch_objectives).mean().item()
        self.batch_objectives = []
        return self.report_metrics({"eval_loss": mean_objective})


def train_adversary(
    base: BaseModel,
    splits: Splits,
    folder: Path,
    lambda_: float,
    options: Adversary = Adversary(),
    *,
    progress: ProgressSetting = disable_progress,
    **settings: Any,
) -> TrainedVariant:
    """Train a new model of the base model's configuration on the loss Σ TVD − λ·KL, or load it.

    All parameters are trained with the optimizer of the base model, and the epoch with the lowest
    objective is kept. If the base model is regularised, its penalties are added to the loss with
    their weights. A finished model in ``folder`` is loaded, and an interrupted training is
    continued.

    Args:
        base: The base model.
        splits: Train, validation and test texts.
        folder: Folder of the adversary's checkpoint.
        lambda_: Weight of the divergence, at least 0.
        options: Scale of the TVD, epochs and patience; the list of λ is not used.
        progress: Decides whether a progress bar is displayed.
        **settings: Training settings that replace the base model's, such as ``learning_rate``. The
            default seed is the base model's plus 1, so that the two models do not start from the
            same weights.

    Raises:
        AttnProbeError: If the folder holds another training.
    """
    resolved = replace(
        base.settings,
        seed=base.settings.seed + 1,
        epochs=options.epochs,
        patience=options.patience,
        plateau_factor=1.0,
    )
    resolved = replace(resolved, **settings)
    tvd_scale = options.tvd_scale
    record = get_shared_settings(resolved) | {"lambda": lambda_, "tvd_scale": tvd_scale}

    def prepare(folder: Path) -> tuple[PlainTrainer, PreTrainedTokenizerBase]:
        names = get_label_names(splits["train"])
        model = build_model(base.make_config(), base.tokenizer, names, resolved.word_vectors)
        objective = partial(compute_adversary_loss, lambda_=lambda_, tvd_factor=options.tvd_factor)
        trainer = make_paper_trainer(
            model,
            base.tokenizer,
            {name: splits[name] for name in SPLIT_NAMES},
            folder,
            resolve_procedure(resolved, model.config),
            seed=resolved.seed,
            progress=progress(folder),
            settings=LOWEST_OBJECTIVE_ARGUMENTS,
            make_columns=partial(_make_target_columns, base),
            trainer_class=partial(AdversaryTrainer, objective=objective),
        )
        return trainer, base.tokenizer

    return build_trained_variant(folder, train_or_load(folder, record, prepare))


def _make_target_columns(
    base: BaseModel,
    split: str,
    examples: "datasets.Dataset",
    input_ids: list[list[int]],
) -> Mapping[str, list]:
    """Return the base model's outputs and attention as columns of the training texts.

    For a text without tokens, the target is the same probability for every class.
    """
    if split != "train":
        return {}
    outputs = base.get_outputs(examples)
    probs = dict(zip(outputs.example_ids, outputs.probs.tolist(), strict=True))
    special = get_special_ids(base.tokenizer)
    rows = build_guide_rows(make_guide(outputs), examples, input_ids, special)
    n_classes = len(base.class_names)
    equal = [1 / n_classes] * n_classes
    ids = read_column(examples, "example_id")
    return {
        "base_attention": rows,
        "base_probs": [probs.get(example_id, equal) for example_id in ids],
    }


def compute_adversary_loss(
    probs: Tensor,
    attention: Tensor,
    base_probs: Tensor,
    base_attention: Tensor,
    mask: Tensor,
    *,
    lambda_: float,
    tvd_factor: float = 1.0,
) -> Tensor:
    """Return Σ TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b) over the batch, a finite scalar.

    The loss is low for a model with similar outputs but different attention than the base model
    (Wiegreffe & Pinter 2019, Section 4). ln α_b is clamped at ln 1e-10, since the KL would be
    infinite if a weight of the base model underflows. Unlike the paper's code, this loss is not
    multiplied by class weights.

    Args:
        probs: The adversary's probabilities, [batch, classes].
        attention: The adversary's attention, [batch, keys].
        base_probs: The base model's probabilities, [batch, classes].
        base_attention: The base model's attention, [batch, keys].
        mask: The tokens that enter the KL, bool [batch, keys].
        lambda_: Weight of the KL, at least 0.
        tvd_factor: Factor on the TVD. The value 0.5 reproduces the paper's code, which halves the
            difference of two sigmoids.
    """
    distance = (probs - base_probs).abs().sum(-1) / 2
    smallest = torch.finfo(attention.dtype).tiny
    log_attention = attention.clamp_min(smallest).log()
    log_base = base_attention.clamp_min(1e-10).log()
    log_ratio = log_attention - log_base
    terms = (attention * log_ratio).masked_fill(~mask, 0)
    divergence = terms.sum(-1)
    loss = tvd_factor * distance - lambda_ * divergence
    return loss.sum()


# --- Choice of the reported adversary -------------------------------------------------------------


def choose_across_halves(
    labels: np.ndarray,
    base: np.ndarray,
    adversaries: Sequence[np.ndarray],
    divergences: Sequence[np.ndarray],
    *,
    tolerance: float,
    seed: int = 0,
) -> np.ndarray:
    """Choose the most divergent adversary for every text, on the other half of the texts.

    The largest of several measured divergences is too optimistic for the texts that it was chosen
    on. The texts are therefore divided into two random halves. Each half chooses, for the other
    half, the adversary with the largest mean divergence among those that lose at most ``tolerance``
    of F1. If all of them lose more, it chooses the one that loses least.

    Args:
        labels: The true classes, [texts].
        base: The base model's probabilities, [texts, classes].
        adversaries: Probabilities of each adversary, [texts, classes].
        divergences: JSD of each adversary's attention from the base model's, [texts].
        tolerance: Largest acceptable loss of F1.
        seed: Seed of the division into halves.

    Returns:
        Indices into ``adversaries``, [texts].
    """
    half = np.random.default_rng(seed).permutation(len(labels)) % 2
    is_choosing = np.stack([half == 1, half == 0]).astype(float)
    f1 = []
    for probs in (base, *adversaries):
        scores = compute_weighted_metrics(labels, encode_one_hot(probs), is_choosing)
        f1.append(scores["f1"])
    f1_loss = f1[0] - np.stack(f1[1:])
    mean_divergence = np.stack(divergences) @ is_choosing.T
    is_acceptable = f1_loss <= tolerance
    value = np.where(is_acceptable, mean_divergence, -np.inf)
    value = np.where(is_acceptable.any(0), value, -f1_loss)
    chosen_by_half = value.argmax(0)
    return chosen_by_half[half]
