"""A decoder with a passage: everything equals full passes with edits written by hand."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertLMHeadModel

from hf_attnprobe.adapters import wrap
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.head_ablation import head_ablation
from hf_attnprobe.faithfulness.registry import load_tests as registered
from hf_attnprobe.faithfulness.uniform_attention import uniform_attention
from hf_attnprobe.functional.divergence import compute_shifted_probability
from hf_attnprobe.protocol import ALL, KNOCKOUTS, Site
from hf_attnprobe.storage.rows import collect_statistics
from tests.helpers import transformer_families
from tests.helpers.manual_passes import (
    compute_answer_probs,
    create_prompt,
    edit_softmax,
    get_named_probs,
    measure_errors,
)
from tests.helpers.transformer_families import tiny_config, tiny_model


FAMILIES = {
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "LlamaForCausalLM": "llama",  # grouped queries
    "MistralForCausalLM": "mistral",  # a window shorter than the prompt
    "Gemma2ForCausalLM": "gemma2",  # windows and soft caps
    "Gemma3ForCausalLM": "gemma3_text",
    "Qwen3ForCausalLM": "qwen3",
    "FalconForCausalLM": "falcon",
    "BloomForCausalLM": "bloom",
    "GptOssForCausalLM": "gpt_oss",  # an explicit sink
    "DeepseekV3ForCausalLM": "deepseek_v3",  # keys and values through a latent
    "MixtralForCausalLM": "mixtral",
    "XGLMForCausalLM": "xglm",  # heads and texts in one axis
    "Qwen3NextForCausalLM": "qwen3_next",  # a hybrid: all rows run
    "OpenAIGPTLMHeadModel": "openai-gpt",  # no cache
}
WITHOUT_CACHE = {"Qwen3NextForCausalLM", "OpenAIGPTLMHeadModel"}
WINDOW = 5


def decoder(name="LlamaForCausalLM", **options):
    """A tiny random model, with a window of a few tokens where its family has one."""
    model_type = FAMILIES[name]
    model = tiny_model(name, model_type, **options)
    if not hasattr(tiny_config(model_type), "sliding_window"):
        return model
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(transformer_families.SMALL, "sliding_window", WINDOW)
        return tiny_model(name, model_type, **options)


def observed(adapter, prompt=None, **inputs):
    batch = adapter.prepare((prompt or create_prompt()).inputs(**inputs), (0,))
    return adapter.observe(batch)


@pytest.fixture(scope="module")
def adapter():
    return wrap(decoder())


@pytest.fixture(scope="module")
def observation(adapter):
    return observed(adapter)


@pytest.mark.parametrize("name", FAMILIES)
def test_everything_equals_full_passes_by_hand(name):
    adapter = wrap(decoder(name))
    found = measure_errors(adapter, decoder(name, attn_implementation="eager"), create_prompt())
    assert found.pop("identity") == 0 and max(found.values()) < 1e-5, found
    assert observed(adapter).state.first_run_row == (
        0 if name in WITHOUT_CACHE else create_prompt().first_row
    )


def test_windows_are_shorter_than_the_prompt():
    observation = observed(wrap(decoder("MistralForCausalLM")), create_prompt(behind=6))
    assert observation.model.get_visible_keys(observation, 0)[0, 0].any()
    assert decoder("MistralForCausalLM").config.sliding_window == WINDOW
    assert not observation.model.get_visible_keys(observation, 0)[0, -1].any()
    assert observation.attention[0][0, :, -1, -2].allclose(torch.ones(4))


@pytest.mark.parametrize(
    ("prompt", "dtype", "tolerance"),
    [
        (
            create_prompt(behind=0),
            torch.float32,
            1e-5,
        ),  # the last unit's last row predicts the answer
        (create_prompt(before=0, n_units=2), torch.float32, 1e-5),  # a unit begins with the sink
        (create_prompt(n_units=1, length=1, behind=1, n_answer=1), torch.float32, 1e-5),
        (create_prompt(n_units=6, length=1), torch.float32, 1e-5),
        (
            create_prompt(before=0, n_units=4, length=1),
            torch.float32,
            1e-5,
        ),  # the sink is the first unit
        (create_prompt(), torch.bfloat16, 0.03),
    ],
)
def test_other_prompts_equal_full_passes_by_hand(prompt, dtype, tolerance):
    model, eager = (decoder(**kind).to(dtype) for kind in ({}, {"attn_implementation": "eager"}))
    found = measure_errors(wrap(model), eager, prompt)
    assert found.pop("identity") == 0 and max(found.values()) < tolerance, found


@pytest.mark.parametrize(
    "prompt", [create_prompt(before=0, n_units=1), create_prompt(n_units=2, behind=0)]
)
def test_a_unit_of_the_first_token_alone_has_a_column(prompt):
    prompt = prompt._replace(units=[[0], *prompt.units[1:]])
    batch = wrap(decoder()).prepare(prompt.inputs(), (0,))
    assert batch.content_mask[0].tolist() == [True] * len(prompt.units) + [False] * 2


@pytest.mark.parametrize("rows", ["behind", "answer", "all"])
def test_rows(rows):
    prompt = create_prompt()
    adapter = wrap(decoder(), rows=rows)
    observation = observed(adapter, prompt)
    n_tokens = prompt.ids.shape[1] - 1
    first = {"behind": prompt.first_row, "answer": n_tokens - 2, "all": prompt.units[0][0]}[rows]
    assert adapter.get_row_positions(observation).tolist() == list(range(first, n_tokens))
    assert adapter.find_answer_rows(observation).sum() == prompt.n_answer
    same = adapter.replay(observation, {1: observation.attention[1][None]})[0]
    assert same.equal(observation.probs)
    assert (adapter.compute_native_probs(observation.batch) - observation.probs).abs().max() < 1e-6
    other = observed(wrap(decoder()), prompt)
    for by in ("deletion", "gap"):
        gone = observation.batch.content_mask[None]
        found = adapter.erase_inputs(observation, gone, operator=by)
        assert found.allclose(other.model.erase_inputs(other, gone, operator=by), atol=1e-6)


def test_tokens_per_pass_and_the_cache_change_nothing(observation):
    few, none = wrap(decoder(), tokens_per_pass=1), wrap(decoder())
    none._example_keys_values = None  # as of a model that does not go on from keys and values
    generator = torch.Generator().manual_seed(0)
    edits = torch.rand((5, *observation.attention[0].shape), generator=generator)
    outputs = torch.rand((5, 1, edits.shape[-2], 8), generator=generator)

    def answers(model):
        own = observed(model)
        return [
            model.replay(own, {0: edits, 1: edits}),
            model.replay_masked(own, {1: edits}, operator="sink"),
            model.replay_outputs(own, Site(0, 1), outputs),
            model.replay_outputs(own, Site(1, 2, 3), outputs),
            model.compute_leave_one_out(own),
        ]

    expected = answers(observation.model)
    for model in (few, none):
        for found, wanted in zip(answers(model), expected, strict=True):
            assert (found - wanted).abs().max() < 1e-6
    assert observed(none).state.first_run_row == 0 and observed(few).state.first_run_row > 0


class Largest(TorchDispatchMode):
    """Notes the most numbers that a tensor had which an operation made."""

    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **kwargs or {})
        if isinstance(made, torch.Tensor):
            self.n = max(self.n, made.numel())
        return made


def test_attention_keeps_to_kernels_for_any_length(adapter):
    allowed = []

    def note(*given):
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())

    notes = [model.register_forward_pre_hook(note) for model in (adapter.model, adapter.user_model)]
    adapter.compute_native_probs(observed(adapter).batch)
    for one in notes:
        one.remove()
    assert len(allowed) == 3 and not any(allowed) and torch.backends.cuda.cudnn_sdp_enabled()


def test_on_a_gpu_few_tokens_run_in_one_pass(adapter, observation, monkeypatch):
    left = map(observation.state.prompt.find_remaining_tokens, ([0], [1], [2]))
    first, *others = (adapter._create_deletion_pass(observation, some, "deletion") for some in left)
    assert not all(adapter._can_join([first], one) for one in others)
    monkeypatch.setattr(type(adapter.model), "device", torch.device("cuda"))
    assert all(adapter._can_join([first], one) for one in others)


def test_copies_share_the_weights_of_the_words(adapter, observation):
    """Frozen weights times a slice of a batch would be copied for every text of it."""
    n_copies, words = 64, adapter.model.get_output_embeddings().weight
    edits = {0: observation.attention[0].expand(n_copies, -1, -1, -1, -1)}
    adapter.replay(observation, edits)
    with Largest() as largest:
        adapter.replay(observation, edits)
    assert 0 < largest.n < n_copies * words.numel()


def test_outputs_of_heads_are_what_the_projection_reads(adapter, observation):
    """Replaced by hand in front of the output projection, at the rows behind."""
    model, prompt, width = decoder(), create_prompt(), 8
    new = torch.randn(2, 1, observation.attention[0].shape[2], width)
    found = adapter.replay_outputs(observation, Site(1, 2), new)
    for copy in range(2):

        def replace(module, args, copy=copy):
            hidden = args[0].clone()
            hidden[0, prompt.first_row :, 2 * width : 3 * width] = new[copy, 0]
            return (hidden,)

        with model.model.layers[1].self_attn.o_proj.register_forward_pre_hook(replace):
            expected = compute_answer_probs(model, prompt)
        named = get_named_probs(adapter, found[copy, 0], prompt.n_answer)
        kept = observation.batch.inputs["candidate_ids"][0]
        assert named.allclose(expected.gather(-1, kept), atol=1e-6)


def test_an_ablated_head_is_a_mean_over_other_prompts(adapter, observation):
    prompts = [create_prompt(), create_prompt(behind=6, seed=8), create_prompt(n_answer=1, seed=9)]
    batches = [adapter.prepare(p.inputs(), (n,)) for n, p in enumerate(prompts)]
    adapter.set_reference(*batches)
    reference = adapter.reference
    n_rows = [p.ids.shape[1] - 1 - p.first_row for p in prompts]
    assert reference.example_ids == (0, 1, 2) and reference.lengths.tolist() == n_rows
    site = Site(1, 0)
    mean = reference.outputs[1][:, 0].sum((0, 1)) / sum(n_rows)
    outputs = mean.expand(1, 1, n_rows[0], -1)
    expected = adapter.replay_outputs(observation, site, outputs)[0]
    found = head_ablation(observation, site)
    adapter.reference = None
    wanted = float((expected - observation.probs).abs().sum() / 2)
    assert found.mean_tvd.item() == pytest.approx(wanted)
    assert found.zero_tvd > 0 and found.resample_tvd > 0


def test_heads_that_share_keys(adapter):
    pairs = [[Site(n, k), Site(n, k + 1)] for n in (0, 1) for k in (0, 2)]
    assert adapter.shared_heads == pairs
    assert wrap(decoder("GPT2LMHeadModel")).shared_heads == []


def test_attention_by_token_is_that_of_the_eager_model(adapter, observation):
    prompt = create_prompt()
    with torch.no_grad():
        eager = decoder(attn_implementation="eager")
        expected = eager(prompt.ids[:, :-1], output_attentions=True).attentions
    read = adapter.read_token_attention(
        observation, lambda layer, weights, values: (weights, values)
    )
    for layer, (weights, values) in enumerate(read):
        assert weights.allclose(expected[layer][0, :, prompt.first_row :], atol=1e-6)
        assert values.shape == (4, prompt.ids.shape[1] - 1, 8)
    own = [weights @ values for weights, values in read]
    adapter.set_reference(observation.batch)
    outputs, adapter.reference = adapter.reference.outputs, None
    assert all(one.allclose(other[0], atol=1e-6) for one, other in zip(own, outputs, strict=True))


def test_the_slope_of_attention_is_that_of_a_small_change(adapter, observation):
    target = observation.get_target_classes(None)
    slopes = observation.attention_gradient
    for layer in (0, 1):
        own = observation.attention[layer]
        step = torch.zeros_like(own)
        step[0, 1, 2, 1] = 1e-2
        up, down = adapter.replay(observation, {layer: torch.stack([own + step, own - step])})
        change = (
            compute_shifted_probability(up, target) - compute_shifted_probability(down, target)
        ).sum() / 2e-2
        assert slopes[layer][0, 1, 2, 1].item() == pytest.approx(change.item(), rel=0.02, abs=1e-6)


def test_gradient_times_input_holds_attention(adapter, observation):
    """Against one backward pass of the eager model whose softmax is cut off by hand."""
    prompt, target = create_prompt(), observation.get_target_classes(None)
    model = decoder(attn_implementation="eager")
    ids = prompt.ids[:, :-1]
    embedded = model.get_input_embeddings()(ids).detach().requires_grad_()
    with edit_softmax(lambda layer, weights: weights.detach(), ids.shape[1]):
        logits = model(inputs_embeds=embedded, use_cache=False).logits[0, -prompt.n_answer :]
    said = observation.batch.inputs["candidate_ids"][0].gather(1, (target % 60).t())[:, 0]
    chosen = logits.double().softmax(-1)[range(prompt.n_answer), said].sum() / prompt.n_answer
    slope = (torch.autograd.grad(chosen, embedded)[0] * embedded.detach()).sum(-1)[0]
    found = adapter.compute_gradient_times_input(observation, target)[0]
    for number, unit in enumerate(prompt.units):
        assert found[number].item() == pytest.approx(slope[unit].sum().item(), rel=1e-3, abs=1e-8)


def test_the_answer_is_read_from_the_same_vector(adapter):
    prompt, other = create_prompt(), 11
    observation = observed(adapter, prompt, other=other)
    expected = compute_answer_probs(decoder(attn_implementation="eager"), prompt)
    said = expected.gather(1, prompt.ids[0, -2:, None])[:, 0]
    log_prob = adapter.compute_log_prob(observation, observation.probs).item()
    assert log_prob == pytest.approx(said.log().sum().item(), abs=1e-5)
    contrast = adapter.compute_contrast(observation, observation.probs).item()
    assert contrast == pytest.approx((said[0] / expected[0, other]).log().item(), abs=1e-5)
    assert adapter.compute_contrast(observed(adapter), observation.probs).isnan().all()
    kept = observation.batch.inputs["candidate_ids"][0]
    assert kept[:, 0].tolist() == prompt.ids[0, -2:].tolist() and kept[0, 1] == other
    copies = adapter.compute_log_prob(observation, observation.probs.expand(3, -1, -1))
    assert copies.shape == (3, 1)
    assert adapter.count_unit_tokens(observation).tolist() == [[3, 3, 3, 0, 0]]
    without = prompt._replace(ids=prompt.ids[:, [0, 1, 5, 9, *range(13, prompt.ids.shape[1])]])
    named = get_named_probs(adapter, adapter.compute_probs_without_passage(observation)[0], 2)
    wanted = compute_answer_probs(decoder(attn_implementation="eager"), without)
    assert named.allclose(wanted.gather(1, kept), atol=1e-6)


@pytest.mark.parametrize("use_cache", [True, False])
def test_what_is_generated_is_greedy(adapter, use_cache):
    prompt, model = create_prompt(), decoder()
    asking = prompt.ids[:, :-2]
    options = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False, "use_cache": use_cache}
    said = model.generate(asking, attention_mask=torch.ones_like(asking), **options)
    assert adapter.is_greedy(observed(adapter, prompt._replace(ids=said))).all()
    other = said.clone()
    other[0, -1] = (said[0, -1] + 1) % 60
    assert not adapter.is_greedy(observed(adapter, prompt._replace(ids=other))).any()


def test_uniform_attention_keeps_what_a_row_gives_the_passage(adapter, observation):
    flat = observation.attention[1].clone()
    flat[..., :3] = flat[..., :3].mean(-1, keepdim=True)
    expected = adapter.replay(observation, {1: flat[None]})[0]
    found = uniform_attention(observation, Site(1, ALL))
    change = float((expected - observation.probs).abs().sum() / 2)
    assert found.uniform_tvd.item() == pytest.approx(change, rel=1e-4)


def test_every_test_works_or_says_what_is_lacking(adapter, observation):
    refused = {
        "conicity": "one value vector per unit",
        "attribution_agreement": "IntegratedGradients",
    }
    for name, test in registered().items():
        for site in (Site(1, 1), Site(ALL, ALL)) if test.groups else (Site(1, 1),):
            reason = test.lacks(adapter, site)
            if name in refused:
                assert refused[name] in reason
            elif reason is None:
                found = collect_statistics(test.function(observation, site))
                assert {name.split("@")[0] for name in found} <= set(test.readings)


def test_three_layers_are_checked_at_first_and_others_when_edited(monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(transformer_families.SMALL, "num_hidden_layers", 5)
        adapter = wrap(tiny_model("LlamaForCausalLM", "llama"))
    observation = observed(adapter)
    adapter.self_check(observation.batch)
    assert adapter._unchecked_layers == {1, 3}
    adapter.replay(observation, {3: observation.attention[3][None]})
    assert adapter._unchecked_layers == {1}
    monkeypatch.setattr(
        type(adapter), "_replay_edits", lambda self, seen, edits, change: seen.probs[None]
    )
    with pytest.raises(AttnProbeError, match="self-check"):
        adapter.replay(observation, {1: observation.attention[1][None]})


BAD = {
    "the inputs lack labelled": lambda i: i.pop("labelled"),
    "a prompt that ends with its answer": lambda i: i["labelled"].zero_(),
    "expected a passage before the answer": lambda i: i["unit_ids"].fill_(-1),
    "token ids below 60, got 60": lambda i: i["input_ids"].fill_(60),
    "a batch with one prompt, got 2": lambda i: i.update({n: v.repeat(2, 1) for n, v in i.items()}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_prompts(message, adapter):
    inputs = {name: value.clone() for name, value in create_prompt().inputs().items()}
    BAD[message](inputs)
    with pytest.raises(AttnProbeError, match=message):
        adapter.prepare(inputs, (0,))


def test_bad_options(adapter, observation):
    with pytest.raises(AttnProbeError, match="rows to be one of behind, answer, all"):
        wrap(decoder(), rows="last")
    with pytest.raises(AttnProbeError, match=f"operator to be one of {', '.join(KNOCKOUTS)}"):
        adapter.replay_masked(observation, {0: torch.ones(1)}, operator="mask")
    with pytest.raises(AttnProbeError, match="one of deletion, gap, got 'mask'"):
        adapter.erase_inputs(observation, observation.batch.content_mask[None], operator="mask")
    bloom = observed(wrap(decoder("BloomForCausalLM")))
    with pytest.raises(AttnProbeError, match="accepts position_ids"):
        bloom.model.erase_inputs(bloom, bloom.batch.content_mask[None], operator="gap")
    with pytest.raises(AttnProbeError, match=r"expected attention of shape \[copies, 1, 4, "):
        adapter.replay(observation, {0: observation.attention[0]})
    broken = decoder()
    broken.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(AttnProbeError, match="finite logits"):
        observed(wrap(broken))


def test_an_encoder_is_no_language_model():
    with pytest.raises(AttnProbeError, match="is_decoder=True"):
        wrap(BertLMHeadModel(tiny_config("bert")))
