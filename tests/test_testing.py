"""The conformance check passes our adapters, and finds what is wrong with broken ones."""

from dataclasses import replace

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.classifier.adapter import ClassifierAdapter
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.protocol import Site
from hf_attnprobe.testing import check_adapter
from tests.adapters.classifier import test_adapter, test_hierarchical
from tests.adapters.classifier.test_adapter import IDS
from tests.helpers import adapter_families, tiny_models
from tests.helpers.error_messages import refuses


IN_ONE = {"distilbert": torch.float64, "gemma2": None, "gpt_neo": None}
"""Families that are checked in one precision; in the other rounding, or a mask, is in the way."""


@pytest.mark.parametrize("family", adapter_families.SOME)
def test_transformers_keep_the_protocol(family):
    words = None if family == "vit" else adapter_families.WORDS
    for dtype, given in ((None, None), (torch.float64, words)):
        if IN_ONE.get(family, dtype) is not dtype:
            continue
        adapter = wrap(adapter_families.get_shared_model(family), dtype=dtype)
        batch = adapter_families.prepare(adapter, words=given)
        check_adapter(adapter, batch)
        adapter.self_check(batch)
        assert adapter.supports_vmap == (family not in ("bloom", "falcon"))


@pytest.mark.parametrize("num_labels", [2, 4])
@pytest.mark.parametrize("encoder", ["bilstm", "cnn", "bigru+concat"])
def test_classifiers_keep_the_protocol(encoder, num_labels):
    adapter, seen = tiny_models.seen(test_adapter.make(encoder, "additive", num_labels), IDS)
    check_adapter(adapter, seen.batch)
    adapter, seen = test_hierarchical.observe(test_hierarchical.make("bigru", num_labels))
    check_adapter(adapter, seen.batch)


def broken(method, change):
    """An adapter of a GPT-2 in float64 whose method answers something else."""
    adapter = wrap(adapter_families.get_shared_model("gpt2"), dtype=torch.float64)
    original = getattr(adapter, method)
    setattr(adapter, method, lambda *a, **k: change(original(*a, **k), *a, **k))
    return adapter


def negated(slopes, *_):
    return [-slope for slope in slopes]


def transposed(values, *_):
    return tuple(value.transpose(1, 2) for value in values)


def unmasked(observation, batch):
    """Attention that leaks a little to padding."""
    attention = tuple(0.99 * a + 0.01 / a.shape[-1] for a in observation.attention)
    return replace(observation, attention=attention)


def noisy(observation, batch):
    return replace(observation, probs=observation.probs + torch.rand(1) * 1e-3)


def scaled(observation, batch):
    attention = tuple(2 * a for a in observation.attention)
    return replace(observation, attention=attention)


def deaf(probs, observation, attention):
    return observation.probs.expand_as(probs)


def of_the_batch(observation, batch):
    """A normalisation over the batch: every text depends on the others."""
    mean = observation.probs.mean(0, keepdim=True)
    return replace(observation, probs=0.9 * observation.probs + 0.1 * mean)


BUGS = [
    (
        "sites",
        lambda sites: [*sites, Site(7, 0)],
        "sites.. contains layer 7, but the model has 3 layers",
    ),
    ("get_visible_keys", lambda seen, *_: seen.float(), "layer 0: visible keys are not bool"),
    ("select_row", lambda row, *_: row[:, 1:], "a row of layer 0"),
    (
        "compute_gradient_times_input",
        lambda slope, *_: 0 * slope,
        "gradient × input is 0 at every token",
    ),
    ("compute_attention_gradient", negated, "layer 0: compute_attention_gradient differs from"),
    (
        "compute_leave_one_out",
        lambda p, *_: p.roll(1, dims=1),
        "compute_leave_one_out to equal erase_inputs of",
    ),
    ("erase_inputs", lambda probs, *_, **__: probs.flip(-1), "if nothing is erased"),
    ("read_unit_contents", lambda contents, _: contents[::-1], "positions of all explained units"),
    ("exchange_inputs", lambda probs, *_: probs[0], "exchange_inputs: expected the shape"),
    (
        "exchange_inputs",
        lambda probs, *_: probs.roll(1, dims=0) if len(probs) == 2 else probs.flip(-1),
        "an exchange in one text to leave the other texts unchanged",
    ),
    ("exchange_inputs", lambda probs, *_: probs.flip(-1), "if no unit is exchanged"),
    (
        "exchange_inputs",
        lambda probs, *_: torch.stack([probs[0], probs[1].flip(-1)]),
        "if units are exchanged for themselves",
    ),
    (
        "exchange_inputs",
        lambda probs, observation, *_: observation.probs.expand_as(probs),
        "an exchange of all units to change the probabilities",
    ),
    ("replay_outputs", lambda probs, *_: probs.flip(-1), "outputs of Site.*head=0"),
    (
        "replay_masked",
        lambda probs, *_: probs.flip(0),
        "masked attention of layer 0 to equal an edit",
    ),
    ("list_layers_below", lambda layers, layer: [], "list_layers_below"),
    ("compute_block_output", lambda output, *_: output[:1], "block outputs of layer 0"),
    ("compute_head_values", transposed, "head values of layer 0"),
    ("observe", unmasked, "attention exactly 0 at keys that are not visible"),
    ("observe", noisy, "probabilities to sum to 1|passes over the same batch differ"),
    ("observe", scaled, "rows of attention in layer 0 to sum to 1"),
    ("observe", of_the_batch, "with unchanged attention|the same probabilities of text 0 alone"),
    ("replay", deaf, "layer 0: an edit does not reach the output"),
    ("replay", lambda probs, *_: probs.roll(1, dims=0), "with unchanged attention in layer 0"),
    ("replay", lambda probs, *_: probs[0], "replayed probabilities of layer 0"),
]


@pytest.mark.parametrize(("method", "change", "message"), BUGS)
def test_a_bug_is_found(method, change, message):
    adapter = broken(method, change)
    batch = adapter_families.prepare(wrap(adapter_families.get_shared_model("gpt2")))
    with refuses(f"check_adapter: .*{message}".replace("|", "|check_adapter: .*")):
        check_adapter(adapter, batch)


def test_a_readout_that_is_not_linear_is_found():
    """Of an adapter that claims the wrong logits of each token beside the right replay."""

    class Wrong(ClassifierAdapter):
        def replay(self, observation, attention):
            return self._compute_probs(attention[0], super().compute_token_logits(observation))

        def compute_token_logits(self, observation):
            return 1.1 * super().compute_token_logits(observation)

        def compute_attention_gradient(self, observation, target):
            attention = observation.attention[0].clone().requires_grad_()
            probs = self.replay(observation, {0: attention[None]})[0]
            explained = probs.gather(-1, target[:, None]).sum()
            return list(torch.autograd.grad(explained, attention))

    _, seen = tiny_models.seen(test_adapter.make(), IDS)
    with pytest.raises(AttnProbeError, match="softmax of Σ a_t token_logits_t"):
        check_adapter(Wrong(test_adapter.make()), seen.batch)


def test_one_text_is_not_enough():
    adapter = wrap(adapter_families.get_shared_model("bert"))
    with pytest.raises(AttnProbeError, match="a batch of two or more texts"):
        check_adapter(adapter, adapter_families.prepare(adapter, adapter_families.TEXTS[:1]))
