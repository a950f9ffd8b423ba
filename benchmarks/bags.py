"""Verdicts on bags with known truth, for gated attention of this package and for models of torchmil.

The tasks are the three algorithmic unit tests of Raff & Holt 2023 and the three toy problems of xMIL
(Hense et al. 2024), with Gaussian vectors in the place of images. It is known which instances decide
the label. A verdict is opposite to the truth if it is "no" although attention ranks these instances
above the others (AUC of at least 0.9), or "yes" although it does not (AUC of at most 0.55).

    python benchmarks/bags.py --draws 10 --models gated ABMIL CLAM_SB
"""

import argparse
import time
from importlib.util import find_spec

import numpy as np
import torch
from torch import nn

from hf_attnprobe import audit
from hf_attnprobe.adapters import wrap
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)


SIZE = 8
N_DIGITS = 10
TRUE_AUC, FALSE_AUC = 0.9, 0.55
"""Smallest AUC at which attention ranks the deciding instances first, and largest at which it does not."""


def build_bag(generator, keys, others, label):
    """Shuffle deciding and other instances, and mark the deciding ones."""
    vectors = np.concatenate([np.reshape(keys, (-1, SIZE)), others])
    order = generator.permutation(len(vectors))
    is_key = (np.arange(len(vectors)) < len(vectors) - len(others))[order]
    return {"features": vectors[order], "is_key": is_key, "label": label}


def draw_single_concept(generator, label):
    """Draw a bag with instances of a concept if it is positive, or an instance near -10 if negative."""
    keys = generator.normal(-10, 0.1, (1, SIZE))
    if label:
        spread = generator.choice([3.0, 1.0], generator.integers(1, 4))[:, None]
        keys = generator.normal(spread == 1.0, spread, (len(spread), SIZE))
    return build_bag(generator, keys, generator.normal(size=(16, SIZE)), label)


def draw_concepts(generator, counts, label):
    """Draw a bag with `counts[0]` instances around 2 and `counts[1]` around 3."""
    concepts = zip((2, 3), counts, strict=True)
    keys = np.concatenate([generator.normal(mean, 0.1, (n, SIZE)) for mean, n in concepts])
    others = generator.normal(size=(generator.integers(4, 13), SIZE))
    return build_bag(generator, keys, others, label)


def draw_multiple_concepts(generator, label):
    """Draw a bag with both concepts if it is positive, or with one of them if it is negative."""
    n = int(generator.integers(1, 4))
    counts = (n, n) if label else generator.permutation([1, 0])
    return draw_concepts(generator, counts, label)


def draw_false_frequency(generator, label):
    """Draw a positive bag with one instance per concept, or a negative bag with 2 to 5 of one."""
    counts = (1, 1) if label else generator.permutation([int(generator.integers(2, 6)), 0])
    return draw_concepts(generator, counts, label)


def draw_digits(generator, digits, key_digits, label):
    """Build a bag whose instances are vectors around the centres of digits."""
    centres = np.random.default_rng(0).normal(0, 2, (N_DIGITS, SIZE))
    is_key = np.isin(digits, key_digits)
    vectors = centres[digits] + generator.normal(0, 0.3, (len(digits), SIZE))
    return build_bag(generator, vectors[is_key], vectors[~is_key], label)


def draw_four_bags(generator, label):
    """Draw a bag of class 0 (neither 8 nor 9), 1 (only 8), 2 (only 9), or 3 (both digits)."""
    digits = [*generator.integers(0, 8, 12), *((), (8,), (9,), (8, 9))[label]]
    return draw_digits(generator, np.array(digits), [8, 9], label)


def draw_positive_negative(generator, label):
    """Draw a bag with more of the digits 4 and 6 (class 1), or more of 5 and 7 (class 0)."""
    n_more, n_less = 3, int(generator.integers(0, 2))
    sides = ([4, 6], [5, 7]) if label else ([5, 7], [4, 6])
    digits = [
        *generator.choice(sides[0], n_more),
        *generator.choice(sides[1], n_less),
        *generator.choice([0, 1, 2, 3, 8, 9], 10),
    ]
    return draw_digits(generator, np.array(digits), [4, 5, 6, 7], label)


def draw_adjacent_pairs(generator, label):
    """Draw a bag whose two digits below 5 are consecutive if it is positive, and not if negative."""
    first = int(generator.integers(0, 4))
    keys = [first, first + 1] if label else generator.choice([0, 2, 4], 2, replace=False)
    digits = [*keys, *generator.integers(5, N_DIGITS, 10)]
    return draw_digits(generator, np.array(digits), keys, label)


TASKS = {
    "single concept": (draw_single_concept, 2),
    "multiple concepts": (draw_multiple_concepts, 2),
    "false frequency": (draw_false_frequency, 2),
    "four bags": (draw_four_bags, 4),
    "pos-neg": (draw_positive_negative, 2),
    "adjacent pairs": (draw_adjacent_pairs, 2),
}
"""Function that draws a bag, and number of classes, for each task."""


def build_model(name, n_classes):
    """Return a model, and a function from padded bags to logits."""
    if name == "gated":
        config = AttentionClassifierConfig(
            inputs="features",
            feature_size=SIZE,
            attention="gated",
            encoder="mlp",
            encoder_size=32,
            num_labels=n_classes,
        )
        model = AttentionClassifierForSequenceClassification(config)
        return model, lambda bags, mask: model(features=bags, attention_mask=mask).logits
    from torchmil import models

    extractor = nn.Sequential(nn.Linear(SIZE, 32), nn.ReLU())
    model = getattr(models, name)(in_shape=(SIZE,), att_dim=32, gated=True, feat_ext=extractor)
    return model, lambda bags, mask: nn.functional.pad(model(bags, mask)[:, None], (1, 0))


def train(model, compute_logits, bags, n_steps):
    """Train a model on all bags at once."""
    tensors = [torch.tensor(bag["features"], dtype=torch.float32) for bag in bags]
    pad = nn.utils.rnn.pad_sequence
    features, mask = pad(tensors, True), pad([torch.ones(len(t)) for t in tensors], True)
    labels = torch.tensor([bag["label"] for bag in bags])
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    model.train()
    for _ in range(n_steps):
        loss = nn.functional.cross_entropy(compute_logits(features, mask), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def measure_auc(adapter, bags):
    """Return the mean AUC over bags: how often a deciding instance has more attention than another."""
    shares = []
    for bag in bags:
        features = torch.tensor(bag["features"])[None]
        inputs = {"features": features, "attention_mask": torch.ones(features.shape[:2])}
        attention = adapter.observe(adapter.prepare(inputs, (0,))).attention[0][0, 0, 0]
        keys, others = attention[bag["is_key"]], attention[~bag["is_key"]]
        if len(keys):
            shares.append((keys[:, None] > others).double().mean().item())
    return float(np.mean(shares))


def run_case(task, name, seed, options):
    """Train a model on a task, audit it and print a line.

    Returns:
        Whether the verdict is opposite to the truth; None if the model cannot learn the task.
    """
    draw, n_classes = TASKS[task]
    if n_classes > 2 and name != "gated":
        print(f"{task:18} {name:8} {seed:4}  the model has two classes only")
        return None
    generator = np.random.default_rng(seed)
    bags = [draw(generator, k % n_classes) for k in range(options.bags + options.test_bags)]
    train_bags, test_bags = bags[: options.bags], bags[options.bags :]
    torch.manual_seed(seed)
    model, compute_logits = build_model(name, n_classes)
    start = time.process_time()
    train(model, compute_logits, train_bags, options.steps)
    rows = [{name: bag[name] for name in ("features", "label")} for bag in test_bags]
    report = audit(model, rows, progress=False)
    answer, auc = str(report.answer), measure_auc(wrap(model), test_bags)
    is_opposite = (auc >= TRUE_AUC and answer == "no") or (auc <= FALSE_AUC and answer == "yes")
    accuracies = [f.yardsticks.get("accuracy") for f in report.findings if f.rule == "accuracy"]
    print(
        f"{task:18} {name:8} {seed:4} {accuracies[0] if accuracies else float('nan'):9.2f} "
        f"{auc:8.2f}  {answer:11} {report.score.value:12.2f} {time.process_time() - start:8.1f}"
        f"{'  OPPOSITE' if is_opposite else ''}",
        flush=True,
    )
    return is_opposite


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--bags", type=int, default=400)
    parser.add_argument("--test-bags", type=int, default=60)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--models", nargs="+", default=["gated", "ABMIL", "CLAM_SB"])
    options = parser.parse_args()
    if options.models != ["gated"] and find_spec("torchmil") is None:
        parser.error("torchmil is not installed; use --models gated")
    torch.set_num_threads(1)
    print(f"{'task':18} {'model':8} seed  accuracy  key AUC  {'answer':11} faithfulness  CPU s")
    cases = [
        run_case(task, name, seed, options)
        for seed in range(options.draws)
        for task in options.tasks
        for name in options.models
    ]
    cases = [is_opposite for is_opposite in cases if is_opposite is not None]
    print(f"{sum(cases)} of {len(cases)} verdicts are opposite to the truth")


if __name__ == "__main__":
    main()
