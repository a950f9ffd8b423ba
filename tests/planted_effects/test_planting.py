"""Planted effects: what a small dose changes in a copy of the model, and what it leaves as it was."""

import pytest
import torch

from hf_attnprobe import AttnProbeError
from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.audits.setup import AuditRequest, prepare_audit
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.planted_effects import planting as spikes
from tests.helpers import planted_models, tiny_models
from tests.planted_effects.cases import build_case


def fitted(kind: str) -> tuple:
    """Model, spike, and batches without and with the token."""
    model, words, data, site = build_case(kind)
    options = AuditOptions(groups=False)
    job = prepare_audit(AuditRequest(model, data, ["head_ablation"], options, words))
    adapter, texts = job.audited_model.adapter, job.tokenized.texts
    token = spikes.find_unused_token(texts, len(words), words.all_special_ids, 0)
    new = [spikes.insert_token(text, token, 0) for text in texts]
    n = adapter.max_batch_size or len(texts)
    plain, with_token = (
        [collate(adapter, part[k : k + n], 0) for k in range(0, len(part), n)]
        for part in (texts, new)
    )
    return (
        model,
        spikes.fit_planted_effect(model, plain, with_token, site, token),
        plain,
        with_token,
    )


@pytest.fixture(
    scope="module", params=tiny_models.daily(["bert", "classifier", "llama"], ("bert", "llama"))
)
def one(request):
    model = build_case(request.param)[0]
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    model, spike, plain, with_token = fitted(request.param)
    return model, spike, plain, with_token, before


def odds(model, batches) -> torch.Tensor:
    with torch.no_grad():
        return torch.cat(
            [
                spikes.compute_log_odds(model(**batch.tokenizer_output).logits, batch.inputs)
                for batch in batches
            ]
        )


def test_at_dose_0_texts_without_the_token_get_the_models_own_output(one):
    model, spike, plain, _, before = one
    twin = spikes.make_modified_copy(model, spike, 0.0)
    for batch in plain:
        ours, own = twin(**batch.tokenizer_output).logits, model(**batch.tokenizer_output).logits
        assert torch.allclose(ours, own, rtol=0, atol=1e-6)
    changed = [n for n, w in twin.state_dict().items() if not w.equal(before.get(n, w))]
    assert changed == [n for n in changed if "embed" in n] and len(changed) == 1


def test_the_users_model_stays_as_it_was_byte_by_byte(one):
    model, spike, *_, before = one
    spikes.make_modified_copy(model, spike, 3.0)
    assert model.state_dict().keys() == before.keys()
    assert all(weight.equal(before[name]) for name, weight in model.state_dict().items())


def test_a_small_dose_is_the_mean_change_of_the_log_odds(one):
    model, spike, _, with_token, _ = one
    dose = 0.01
    void, said = (spikes.make_modified_copy(model, spike, size) for size in (0.0, dose))
    change = float((odds(said, with_token) - odds(void, with_token)).mean())
    assert change == pytest.approx(spike.sign * dose, rel=0.05)


def test_of_an_attention_classifier_the_log_odds_are_those_computed_by_hand():
    model, spike, _, (batch,) = fitted("classifier")
    twin = spikes.make_modified_copy(model, spike, 2.0)
    with torch.no_grad():
        void = spikes.make_modified_copy(model, spike, 0.0)(
            **batch.tokenizer_output, output_attentions=True, output_hidden_states=True
        )
        attention, states = void.attentions[0][:, 0, 0], void.hidden_states[0]
        margin = 2.0 * float(spike.write.sum()) * (attention * (states @ spike.read)).sum(-1)
        expected = void.logits[:, 1] - void.logits[:, 0] + margin
        found = twin(**batch.tokenizer_output).logits
    assert torch.allclose(found[:, 1] - found[:, 0], expected, atol=1e-4)


def test_the_head_alone_is_written(one):
    model, spike, *_, before = one
    twin = spikes.make_modified_copy(model, spike, 1.0)
    name = f"{spike.module}.weight"
    moved = (twin.state_dict()[name] - before[name]).abs().amax(1) > 0
    assert moved[spike.columns].any() and not moved.sum() > moved[spike.columns].sum()


def test_reading_is_1_on_the_token_and_least_on_the_others():
    torch.manual_seed(0)
    others, token = torch.randn(200, 6) @ torch.randn(6, 6), torch.randn(6)
    read = spikes.fit_read_direction(token, others)
    assert float(read @ token) == pytest.approx(1, abs=1e-5)
    least = (others @ read).square().mean()
    for _ in range(20):
        other = read + 0.1 * torch.randn(6)
        assert (others @ (other / (other @ token))).square().mean() >= 0.999 * least


def test_a_planted_text_is_the_text_but_for_the_token():
    words = build_case("llama")[1]
    request = AuditRequest(*build_case("llama")[:3][::2], ["sources"], AuditOptions(), words)
    job = prepare_audit(request)
    for text in job.tokenized.texts:
        new = spikes.insert_token(text, 399, 5)
        ids = new.inputs["input_ids"]
        place = ids.index(399)
        assert [*ids[:place], *ids[place + 1 :]] == text.inputs["input_ids"]
        assert new.inputs["unit_ids"][place] == text.inputs["unit_ids"][place] >= 0
        assert {len(values) for values in new.inputs.values()} == {len(ids)}
        assert spikes.insert_token(text, 399, 5) == new


def test_a_head_whose_words_cancel_out_says_so(monkeypatch):
    monkeypatch.setattr(spikes, "MIN_GRADIENT_AGREEMENT", 1.0)
    with pytest.raises(
        spikes.CannotPlantEffectError,
        match="cannot change the predictions of all texts in the same direction",
    ):
        fitted("llama")


def test_texts_that_use_every_token_are_refused():
    request = AuditRequest(
        *build_case("bert")[:3][::2],
        ["permutation"],
        AuditOptions(),
        planted_models.build_planted_tokenizer(),
    )
    text = prepare_audit(request).tokenized.texts[0]
    known = max(text.inputs["input_ids"]) + 1
    special = [k for k in range(known) if k not in text.inputs["input_ids"]]
    with pytest.raises(AttnProbeError, match="planted token must occur in no text"):
        spikes.find_unused_token([text], known, special, 0)
