"""Classifiers of bags with one attention distribution per class, against passes written by hand."""

import pytest
import torch

from hf_attnprobe import Data, TrainingOptions, audit, check_adapter
from hf_attnprobe.adapters import wrap
from hf_attnprobe.models.attention_classifier import (
    AttentionClassifierConfig,
    AttentionClassifierForSequenceClassification,
)
from hf_attnprobe.training.run import train
from tests.helpers.bag_models import WIDTH, make_bags


def compute_class_logits(parameters, bag):
    """Return the logits and the maps of one bag, with a loop over the classes."""
    prefix = "attention_classifier.attention."
    states = bag @ parameters["attention_classifier.encoder.linear.weight"].T
    states = torch.tanh(states + parameters["attention_classifier.encoder.linear.bias"])
    hidden, gate = (
        states @ parameters[f"{prefix}{name}.weight"].T + parameters[f"{prefix}{name}.bias"]
        for name in ("projection", "gate")
    )
    gated = hidden.tanh() * gate.sigmoid()
    logits, maps = [], []
    for query, weight, bias in zip(
        parameters[f"{prefix}query.weight"],
        parameters["classifier.weight"],
        parameters["classifier.bias"],
        strict=True,
    ):
        maps.append((gated @ query).softmax(0))
        logits.append((maps[-1] @ states) @ weight + bias)
    return torch.stack(logits), torch.stack(maps)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_each_class_has_its_own_map(n_classes):
    torch.manual_seed(0)
    config = AttentionClassifierConfig(
        inputs="features",
        feature_size=WIDTH,
        attention="gated",
        encoder="mlp",
        encoder_size=6,
        class_attention=True,
        num_labels=n_classes,
    )
    model = AttentionClassifierForSequenceClassification(config).double().eval()
    parameters = dict(model.state_dict())
    bags = [torch.randn(n, WIDTH, dtype=torch.float64) * 3 for n in (5, 8)]
    features = torch.nn.utils.rnn.pad_sequence(bags, batch_first=True)
    mask = (torch.arange(8) < torch.tensor([[5], [8]])).long()
    output = model(features=features, attention_mask=mask, output_attentions=True)
    adapter = wrap(model)
    batch = adapter.prepare({"features": features, "attention_mask": mask}, (0, 1))
    check_adapter(adapter, batch)
    observation = adapter.observe(batch)
    without = adapter.compute_leave_one_out(observation)
    assert len(adapter.sites()) == n_classes
    for index, bag in enumerate(bags):
        logits, maps = compute_class_logits(parameters, bag)
        torch.testing.assert_close(output.logits[index], logits)
        torch.testing.assert_close(output.attentions[0][index, 0, :, : len(bag)], maps)
        torch.testing.assert_close(observation.probs[index], logits.softmax(0))
        for site, expected in zip(adapter.sites(), maps, strict=True):
            torch.testing.assert_close(observation.read(site)[index, : len(bag)], expected)
        for instance in range(len(bag)):
            shortened = torch.cat([bag[:instance], bag[instance + 1 :]])
            expected = compute_class_logits(parameters, shortened)[0].softmax(0)
            torch.testing.assert_close(without[index, instance], expected)


@pytest.mark.slow
def test_a_trained_model_is_saved_and_audited(tmp_path):
    data = Data(make_bags(120, 0), holdout=0.3)
    options = TrainingOptions(epochs=10, learning_rate=0.03)
    folder = tmp_path / "model"
    architecture = {"class_attention": True, "encoder_size": 12}
    trained = train(
        data, output_dir=folder, architecture=architecture, options=options, progress=False
    )
    assert trained.metrics["test_roc_auc"] > 0.9
    assert "one distribution per class" in (folder / "README.md").read_text()
    report = audit(str(folder), data, "permutation", progress=False)
    heads = {(row.layer, row.head) for row in report.to_pandas().itertuples()}
    assert {(0, 0), (0, 1)} <= heads


def test_class_attention_is_refused_for_other_models():
    with pytest.raises(ValueError, match="inputs='features' and attention='gated'"):
        AttentionClassifierConfig(class_attention=True)
    assert "class_attention" not in AttentionClassifierConfig().to_dict()
