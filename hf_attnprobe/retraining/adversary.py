"""The test ``adversary``: can a whole model learn to attend elsewhere?

Source: Wiegreffe & Pinter 2019, Section 4.

Question: is there a model that makes the same predictions as the base model on all texts, although
its attention is different?
Measure: a model is trained from random weights on the loss Σ TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b).
The report contains its F1 and, for each test text, two distances from the base model: the total
variation distance (TVD) between the outputs, and the Jensen-Shannon divergence (JSD) between the
attention weights. λ trades the two terms against each other, and several λ give a curve. The curve
shows every λ on all texts. Statements about "the chosen adversary" use cross-fitting: each half of
the texts chooses a λ for the other half. It takes the largest JSD among the adversaries that keep
F1.
Compare: with other seeds and with uniform attention, which are separate tests. Each text is also
compared with the search by Jain & Wallace and with the exact frontier, which is the largest
possible JSD for an output change up to ε. Both keep the base model's encoder, while a trained
adversary has its own encoder. The frontier is therefore a baseline and not a bound.
The bound is the largest JSD that any weights can have from the base model's. It is checked for
every text.
Reading: if the JSD is large and no F1 is lost, the attention could have been different. If the TVD
rises at small JSD, the attention is constrained.

The epoch with the lowest training loss is kept, as in the paper, which saves a second pass over the
data. If the base model is regularised, the adversary's loss includes the penalties, because both
models must have the same type. The score that chooses the epoch leaves them out, because they would
dominate it.
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
    CURVE_EPSILONS,
    EPSILONS,
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
"""Largest rounding error, in nats, of a Jensen-Shannon divergence (JSD). An error is raised if a
JSD exceeds its maximum by more than this."""


def compare_with_base_and_bound(
    base: BaseModel, model: PreTrainedModel, examples: "datasets.Dataset"
) -> dict[str, Tensor]:
    """Compare the outputs and the attention of an adversary with those of the base model.

    The difference in attention (JSD) is also divided by the largest JSD that is possible.

    Args:
        base: The base model (the trained model with which others are compared).
        model: The adversary.
        examples: The test texts.

    Returns:
        The measurements from :func:`compare_with_base`, and ``jsd_over_bound`` [texts]: the JSD
        divided by the largest JSD that any attention weights can have, in [0, 1].
    """
    measurements = compare_with_base(base, model, examples)
    outputs = base.get_outputs(examples)
    bound = largest_jsd(outputs.attention, outputs.mask)
    shares = divide_by_bound(measurements["jsd"], bound, outputs)
    return measurements | {"jsd_over_bound": shares}


def add_chosen_adversary(results: VariantResults, options: Adversary) -> None:
    """Choose one of several adversaries, and add its statistics to the results.

    The adversaries were trained with different weights λ. Each half of the texts determines which
    adversary is used for the other half, see :func:`choose_across_halves`. Statistics about other
    attention without any training are added too.

    Args:
        results: Measurements of all adversaries, to which the statistics are added.
        options: Test options, with all values of λ.
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
    # Select the chosen adversary's values for every text. The first probabilities are those of the
    # base model.
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
    """Yield adversaries: models that imitate the base model's output with other attention.

    There is one adversary for each λ, the weight of different attention in the loss. All of them
    are trained with the base model's seed plus 1.

    Args:
        setup: Inputs that all tests share, such as the base model and the texts.
        options: All values of λ, and the training settings.
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
    """Divide the distance of two models' attention by its largest possible value, for each text.

    Args:
        divergence: Distance (JSD) between the attention of a model and the base model, [texts].
        bound: Largest JSD that any attention can have from the base model's, [texts].
        outputs: The base model's outputs, for the example ids in the error message.

    Returns:
        Quotients in [0, 1], [texts]. They are NaN for texts with a single token, whose bound is 0.

    Raises:
        AttnProbeError: If a JSD exceeds its bound.
    """
    exceeds_bound = divergence > bound + JSD_TOLERANCE
    if exceeds_bound.any():
        row = int(exceeds_bound.int().argmax())
        raise AttnProbeError(
            f"text {outputs.example_ids[row]} has a JSD of {divergence[row]:.4f}, but at most "
            f"{bound[row]:.4f} is possible. Check that both models use the same tokenizer."
        )
    return torch.where(bound > 0, divergence / bound, torch.nan)


def measure_untrained_baselines(setup: RetrainingSetup) -> dict[str, Tensor]:
    """Measure how different the base model's attention can be if its output hardly changes.

    No model is trained. The output may change by at most ε. For each ε, a search (Jain & Wallace
    2019) looks for attention as different as possible. For two classes, the largest possible
    difference (the exact frontier) is computed too. Differences are measured as JSD.

    Args:
        setup: Inputs that all tests share, such as the base model and the texts.

    Returns:
        ``search_jsd``, ``search_tvd`` and, for two classes, ``frontier_jsd``. Their names end with
        ``@ε``, and each has one value per test text.
    """
    base = setup.base
    observed = observe_split(base.model, base.tokenizer, setup.splits["test"])
    return measure_texts(observed, partial(_measure_batch, seed=setup.seed))


def _measure_batch(observation: Observation, seed: int) -> dict[str, Tensor]:
    """Measure how far a batch's attention can change if the output changes by at most ε.

    Args:
        observation: The base model's outputs and attention for a batch.
        seed: Seed for the search.

    Returns:
        These values for each ε, [batch]:

        - ``search_jsd@ε``: JSD between the base model's attention and the attention that the search
          finds.
        - ``search_tvd@ε``: output change with the attention that the search finds.
        - ``frontier_jsd@ε``: largest possible JSD, only for two classes.
    """
    model, site, statistics = observation.model, Site(), {}
    if observation.probs.shape[-1] == 2:
        exact = adversarial(observation, site, Adversarial(method="exact", epsilons=CURVE_EPSILONS))
        for epsilon, values in exact.epsilon_max_jsd.items():
            statistics[f"frontier_jsd@{epsilon}"] = values
    options = Adversarial(method="search", epsilons=EPSILONS)
    search = adversarial(observation, site, options, seed=seed)
    for epsilon, values in search.epsilon_max_jsd.items():
        # The shape is [copies, batch, heads, queries, keys], with one copy and one head.
        edit = search.attention[epsilon][None, :, None]
        probs = model.replay(observation, {0: edit})[0]
        statistics[f"search_jsd@{epsilon}"] = values
        statistics[f"search_tvd@{epsilon}"] = tvd(probs, observation.probs)
    return statistics


# --- Training of an adversary (Wiegreffe & Pinter 2019, Section 4) --------------------------------

TARGET_COLUMNS = ("base_probs", "base_attention")
"""Columns with the base model's output probabilities and attention weights, which are added to an
adversary's training texts."""
ADVERSARY_TRAINER_ARGUMENTS = {
    "metric_for_best_model": "loss",
    "greater_is_better": False,
    "remove_unused_columns": False,
}
"""Arguments for the Trainer of Transformers, when it trains an adversary.

The epoch with the lowest loss is kept. Without ``remove_unused_columns``, the Trainer would remove
the columns in :data:`TARGET_COLUMNS`.
"""


class AdversaryTrainer(PlainTrainer):
    """Trainer that minimises an objective which compares the model with the base model.

    Every training batch contains the base model's outputs and attention. The Trainer keeps
    the epoch with the lowest mean objective over its training batches, so no second pass over the
    data is needed. If the model is regularised, the loss includes the penalties, but the objective
    that chooses the epoch does not.

    Attributes:
        objective: Function ``objective(probs, attention, base_probs, base_attention, mask)`` that
            returns a scalar.
        batch_objectives: Objective of each batch in the current epoch.
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
        """Compute the loss of a batch.

        In training, it is the adversary's objective plus penalties. For held-out texts, it is the
        classification loss.

        Args:
            model: The adversary.
            inputs: A batch. Training batches also contain :data:`TARGET_COLUMNS`.
            return_outputs: Whether to return the model's outputs too.
            num_items_in_batch: See :meth:`transformers.Trainer.compute_loss`.
        """
        if TARGET_COLUMNS[0] not in inputs:
            return super().compute_loss(model, inputs, return_outputs)
        # The model does not accept these columns, so they are removed from its inputs.
        base_probs, base_attention = [inputs.pop(name) for name in TARGET_COLUMNS]
        assert isinstance(model, AttentionClassifierForSequenceClassification)
        ids, attention_mask = inputs["input_ids"], inputs["attention_mask"]
        content_mask = model.attention_classifier.build_content_mask(attention_mask, ids)
        outputs = model(ids, attention_mask, output_attentions=True)
        probs = outputs.logits.softmax(-1)
        # The model has one layer, one head and one query.
        attention = outputs.attentions[0][:, 0, 0]
        objective = self.objective(probs, attention, base_probs, base_attention, content_mask)
        self.batch_objectives.append(objective.detach())
        loss = add_penalties(objective, outputs, torch.sum)
        return (loss, outputs) if return_outputs else loss

    def evaluate(self, *args: Any, **options: Any) -> dict[str, float]:
        """Return the mean objective over the training batches since the last call.

        The Trainer calls this method instead of an evaluation on validation texts.

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
    """Train a model with similar outputs but different attention than the base model, or load it.

    The adversary has the base model's configuration and starts from random weights. Its loss is
    Σ TVD − λ·KL, see :func:`compute_adversary_loss`. All parameters are trained with the base
    model's optimizer, and the epoch with the lowest objective is kept. If the base model is
    regularised, its weighted penalties are added to the loss. A finished model in ``folder`` is
    loaded, and an interrupted training is continued.

    Args:
        base: The base model (the trained model with which others are compared).
        splits: Train, validation and test texts.
        folder: Folder of the adversary's checkpoint.
        lambda_: Weight of the divergence, at least 0.
        options: TVD scale, epochs and patience; ``lambdas`` is not used.
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
            settings=ADVERSARY_TRAINER_ARGUMENTS,
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
    """Return what an adversary is compared with in training: the base model's output and attention.

    They are added to the training texts as columns. Other splits get no such columns. For a text
    without tokens, the target is the same probability for every class.
    """
    if split != "train":
        return {}
    outputs = base.get_outputs(examples)
    probs_by_id = dict(zip(outputs.example_ids, outputs.probs.tolist(), strict=True))
    special_ids = get_special_ids(base.tokenizer)
    attention_rows = build_guide_rows(make_guide(outputs), examples, input_ids, special_ids)
    n_classes = len(base.class_names)
    equal_probs = [1 / n_classes] * n_classes
    example_ids = read_column(examples, "example_id")
    return {
        "base_attention": attention_rows,
        "base_probs": [probs_by_id.get(example_id, equal_probs) for example_id in example_ids],
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
    """Return the adversary's loss Σ TVD(ŷ_a, ŷ_b) − λ·KL(α_a‖α_b) for a batch, a finite scalar.

    The loss is low for a model with similar outputs but different attention than the base model
    (Wiegreffe & Pinter 2019, Section 4). ln α_b is clamped at ln 1e-10, since the KL would be
    infinite if a base model's weight underflows. Unlike the paper's code, this loss is not
    multiplied by class weights.

    Args:
        probs: The adversary's probabilities, [batch, classes].
        attention: The adversary's attention, [batch, keys].
        base_probs: The base model's probabilities, [batch, classes].
        base_attention: The base model's attention, [batch, keys].
        mask: True for the tokens that enter the KL, bool [batch, keys].
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
    """Choose the most divergent adversary for every text by two-fold cross-fitting.

    Choosing and measuring an adversary on the same texts would overestimate its divergence. The
    texts are therefore divided into two random halves, and each half chooses an adversary for the
    other half: the largest mean divergence among all adversaries that lose at most ``tolerance``
    F1. If all adversaries lose more, the half chooses the smallest loss.

    Args:
        labels: The true classes, [texts].
        base: The base model's probabilities, [texts, classes].
        adversaries: Probabilities of each adversary, [texts, classes].
        divergences: JSD between the attention of each adversary and the base model, [texts].
        tolerance: Largest acceptable F1 loss.
        seed: Seed for the division into halves.

    Returns:
        Indices into ``adversaries``, [texts].
    """
    half = np.random.default_rng(seed).permutation(len(labels)) % 2
    # Row h marks the texts that choose for half h, which are the texts of the other half.
    is_choosing = np.stack([half == 1, half == 0]).astype(float)
    f1_rows = []
    for probs in (base, *adversaries):
        scores = compute_weighted_metrics(labels, encode_one_hot(probs), is_choosing)
        f1_rows.append(scores["f1"])
    base_f1, *adversary_f1 = f1_rows
    f1_loss = base_f1 - np.stack(adversary_f1)
    divergence_sums = np.stack(divergences) @ is_choosing.T
    is_acceptable = f1_loss <= tolerance
    preference = np.where(is_acceptable, divergence_sums, -np.inf)
    preference = np.where(is_acceptable.any(0), preference, -f1_loss)
    chosen_by_half = preference.argmax(0)
    return chosen_by_half[half]
