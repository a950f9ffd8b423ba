"""The adapter of hierarchical models against the model's own forward on texts with sentences deleted, and finite differences."""

import pytest
import torch

from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.classifier.hierarchical import HierarchicalAdapter
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.protocol import Site
from tests.helpers import tiny_models


SEP = 4
KINDS = [(e, n) for e in ("bigru", "cnn", "none", "bilstm", "mlp") for n in (2, 4)]
TEXTS = [[[5, 6, 7, 7], [8], [9, 5, 10], [8]], [[5, 6]], [[7, 9, 8], [6, 6], [10]], []]


def make(encoder="bigru", num_labels=2):
    fields = {"hierarchical": True, "sep_token_id": SEP, "kernel_sizes": (3, 5)}
    return tiny_models.classifier(
        read_out=5, query=5, encoder=encoder, num_labels=num_labels, **fields
    )


def ids_of(text):
    return torch.tensor([2, *(i for sentence in text for i in [*sentence, SEP]), 3])


def batch_of(texts, n_keys=None):
    rows = [ids_of(text) for text in texts]
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    ids = torch.nn.functional.pad(ids, (0, (n_keys or ids.shape[1]) - ids.shape[1]))
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def observe(model, texts=TEXTS, n_keys=None, **options):
    adapter = wrap(model, **options)
    return adapter, adapter.observe(
        adapter.prepare(batch_of(texts, n_keys), tuple(range(len(texts))))
    )


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_observation_equals_the_models_own_forward(kind):
    model = make(*kind)
    adapter, observation = observe(model)
    outputs = model.double()(**batch_of(TEXTS), output_attentions=True)
    assert type(adapter) is HierarchicalAdapter and adapter.sites() == [Site(layer=1, head=0)]
    torch.testing.assert_close(observation.probs, outputs.logits.softmax(-1), atol=1e-12, rtol=0)
    for ours, theirs in zip(observation.attention, outputs.attentions, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    assert observation.batch.content_mask.sum(-1).tolist() == [len(text) for text in TEXTS]
    assert observation.read(Site(1)).shape == observation.batch.mask.shape == (4, 4)


@pytest.mark.parametrize(
    "encoder", tiny_models.daily(["bigru", "cnn", "none"], tiny_models.FEW_ENCODERS)
)
def test_erased_sentences_are_deleted_or_masked(encoder):
    model = make(encoder, 4)
    adapter, observation = observe(model, mask_id=1)
    model = model.double()
    gone = torch.zeros(3, 4, 4, dtype=torch.bool)
    gone[1, 0, [0, 2]] = gone[1, 2, 1] = gone[2, 1, 0] = True
    deleted, masked = (
        adapter.erase_inputs(observation, gone, operator=by) for by in ("deletion", "mask")
    )
    for copy, row in torch.cartesian_prod(torch.arange(3), torch.arange(4)).tolist():
        erased = gone[copy, row]
        left = [s for k, s in enumerate(TEXTS[row]) if not erased[k]]
        replaced = [[1] * len(s) if erased[k] else s for k, s in enumerate(TEXTS[row])]
        for found, text in ((deleted, left), (masked, replaced)):
            expected = model(**batch_of([text])).logits.softmax(-1)[0]
            torch.testing.assert_close(found[copy, row], expected, atol=1e-12, rtol=0)
    with pytest.raises(AttnProbeError, match="erasure operator to be one of"):
        adapter.erase_inputs(observation, gone, operator="fire")


@pytest.mark.parametrize("kind", tiny_models.daily(KINDS, tiny_models.FEW_ENCODERS), ids=str)
def test_gradient_equals_finite_differences(kind):
    model = make(*kind)
    adapter, observation = observe(model)
    target, step = torch.tensor([1, 0, 1, 0]), 1e-6
    ours = adapter.compute_gradient_times_input(observation, target)
    base, batch = model.double().attention_classifier, batch_of(TEXTS)
    embeddings = base.embeddings(batch["input_ids"]).detach()

    def explained(scale):
        """The target's probability with the word vectors scaled; the weights of both levels are held by hand."""
        vectors = embeddings * scale[..., None]
        words, sentences = (a[:, 0] for a in observation.attention)
        probs = []
        for row in range(len(TEXTS)):
            rows = []
            for weights in words[row, : len(TEXTS[row])]:
                inside = weights > 0
                states = base.encode(vectors[row, inside][None], torch.ones(1, int(inside.sum())))[
                    0
                ]
                rows.append(weights[inside] @ states)
            context = torch.zeros(model.config.hidden_size, dtype=torch.float64)
            if rows:
                states = base.sentences.encode(
                    torch.stack(rows)[None], torch.ones(1, len(rows), dtype=torch.bool)
                )[0]
                context = sentences[row, 0, : len(rows)] @ states
            probs.append(model.decode(context).softmax(-1)[target[row]])
        return torch.stack(probs)

    units = observation.batch.inputs["units"]
    for sentence in range(4):  # all words of a sentence scaled at once: the sum over them
        nudge = step * (units == sentence).double()
        slope = (explained(1 + nudge) - explained(1 - nudge)) / (2 * step)
        torch.testing.assert_close(ours[:, sentence], slope.detach(), atol=1e-7, rtol=0)


def test_a_class_that_is_never_predicted():
    model = make(num_labels=4)
    with torch.no_grad():
        model.classifier.weight[2], model.classifier.bias[2] = 0, -60
    adapter, observation = observe(model)
    assert (observation.probs[:, 2] < 1e-12).all() and 2 not in observation.get_target_classes(
        None
    ).tolist()
    assert torch.isfinite(observation.with_target(2).compute_gradient_importance()).all()
    assert torch.isfinite(
        adapter.compute_attention_gradient(observation, torch.full((4,), 2))[1]
    ).all()
