"""Every kind of head on two families, against plain forward passes of the model itself."""

import math

import pytest
import torch
import transformers
from transformers.models.bert import modeling_bert
from transformers.models.roberta import modeling_roberta

from hf_attnprobe import Site
from hf_attnprobe.adapters import wrap
from hf_attnprobe.adapters.transformer.task_heads import N_CANDIDATE_WORDS
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.faithfulness.registry import load_tests as all_tests
from tests.helpers.error_messages import refuses


PAD, START, END, MASK = 1, 0, 2, 4
SCALE = 2.5
FAMILIES = {"Bert": modeling_bert, "Roberta": modeling_roberta}
CLASSES = {
    "tags": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "choice": "ForMultipleChoice",
    "words": "ForMaskedLM",
}
KINDS = {
    "labels": {"num_labels": 3, "problem_type": "multi_label_classification"},
    "number": {"num_labels": 1, "problem_type": "regression"},
    "logit": {"num_labels": 1},
    "tags": {"num_labels": 4},
    "span": {},
    "choice": {},
    "words": {},
}
FIRST = [START, 11, 12, 13, 14, 15, 16, END]
SECOND = [START, 21, 22, END]
PAIR = [START, 11, 12, END, 21, 22, 23, END]
MASKED = [START, 11, MASK, 13, 14, END]


def make(family, kind):
    config = getattr(transformers, f"{family}Config")(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        pad_token_id=PAD,
        initializer_range=0.4,
        **KINDS[kind],
    )
    torch.manual_seed(0)
    name = family + CLASSES.get(kind, "ForSequenceClassification")
    return getattr(transformers, name)(config).eval().double()


def texts_of(kind):
    """Token ids of two texts of different length, with their segments."""
    if kind == "span":
        return [PAIR, [START, 11, END, 21, 22, END]]
    return [MASKED, [START, MASK, 12, END]] if kind == "words" else [FIRST, SECOND]


def segments_of(ids):
    """-1 for special tokens, 0 up to the first end token, then 1."""
    after = ids.index(END)
    return [
        -1 if token in (START, END) else int(place > after and END in ids[after:-1])
        for place, token in enumerate(ids)
    ]


def collated(rows, n_keys=None):
    n_keys = n_keys or max(map(len, rows))

    def padded(values, filler):
        return torch.tensor([[*row, *[filler] * (n_keys - len(row))] for row in values])

    return {
        "input_ids": padded(rows, PAD),
        "attention_mask": padded([[1] * len(row) for row in rows], 0),
        "special_tokens_mask": padded(
            [[int(token in (START, END, MASK)) for token in row] for row in rows], 1
        ),
        "segment_ids": padded([segments_of(row) for row in rows], -1),
    }


def prepare(adapter, kind, rows, **options):
    inputs = collated(rows, **options)
    if kind == "choice":  # the second choice is another text of the same length
        other = {**inputs, "input_ids": inputs["input_ids"].clone()}
        content = inputs["special_tokens_mask"] == 0
        other["input_ids"][content] += 5
        inputs = {name: torch.stack([inputs[name], other[name]], 1) for name in inputs}
    return adapter.prepare(inputs, tuple(range(len(rows))))


def call(model, ids):
    """The model's output for one text, by itself."""
    tokens = torch.tensor([ids])
    if type(model).__name__.endswith("ForMultipleChoice"):
        tokens = tokens[:, None]
    with torch.no_grad():
        return model(input_ids=tokens, attention_mask=torch.ones_like(tokens))


def chosen_text(model, ids):
    """Of the two choices in `prepare`, the one the model prefers, and both logits."""
    other = [token if token in (START, END) else token + 5 for token in ids]
    logits = [float(call(model, row).logits) for row in (ids, other)]
    return (ids, other)[logits[1] > logits[0]], logits


def by_hand(model, kind, ids, whole=None, gone=None):
    """The prediction as nested probabilities, written anew from the models' docs.

    Args:
        ids: of a text, perhaps without the token at `gone` of `whole`.
    """
    if kind == "choice":
        text, logits = chosen_text(model, whole or ids)
        kept = [token for place, token in enumerate(text) if place != gone]
        logits[logits.index(max(logits))] = float(call(model, kept).logits)
        return [torch.tensor(logits, dtype=torch.float64).softmax(-1)]
    output = call(model, ids)
    if kind == "labels":
        p = output.logits[0].sigmoid()
        return [torch.stack([1 - q, q]) for q in p]
    if kind == "logit":
        q = output.logits[0, 0].sigmoid()
        return [torch.stack([1 - q, q])]
    if kind == "number":
        return [output.logits[0] / SCALE]
    places = [place for place in range(len(whole or ids)) if place != gone]
    if kind == "span":
        segments = segments_of(whole or ids)
        parts = []
        for logits in (output.start_logits[0], output.end_logits[0]):
            inside = [k for k, place in enumerate(places) if segments[place] == 1]
            p = logits[inside].softmax(-1)
            part = torch.zeros(len(whole or ids)).double()
            part[[places[k] for k in inside]] = p
            parts.append(part)
        return parts
    p = output.logits[0].softmax(-1)
    read = MASK if kind == "words" else None
    tokens = whole or ids
    is_read = [token == read if read else token not in (START, END) for token in tokens]
    wanted = [place for place in range(len(tokens)) if is_read[place]]
    return [p[places.index(place)] if place in places else None for place in wanted]


def by_name_next_and_rest(p, kept):
    """Of a distribution over words those that are kept, the next one, and the others."""
    is_kept = torch.isin(torch.arange(len(p)), kept)
    best = p[~is_kept].max()[None]
    return torch.cat([p[kept], best, p[~is_kept].sum()[None] - best])


def mean_distance(before, after, kind):
    """The mean over parts of ½ Σ|p − q|; a part that is gone counts as unchanged."""
    if kind == "number":
        return float((before[0] - after[0]).abs())
    if kind == "words":
        kept = before[0].topk(min(N_CANDIDATE_WORDS, len(before[0]) - 2)).indices
        both = ([by_name_next_and_rest(p, kept) for p in parts] for parts in (before, after))
        before, after = both
    pairs = zip(before, after, strict=True)
    return sum(0.0 if q is None else float((p - q).abs().sum() / 2) for p, q in pairs) / len(before)


@pytest.fixture(scope="module", params=[(f, k) for f in FAMILIES for k in KINDS], ids="-".join)
def case(request):
    """Kind, model, adapter, and what the adapter saw of two texts."""
    family, kind = request.param
    model = make(family, kind)
    adapter = wrap(model, level="token", mask_id=MASK, scale=SCALE)
    return kind, model, adapter, adapter.observe(prepare(adapter, kind, texts_of(kind)))


def test_the_prediction_is_the_models_own(case):
    kind, model, adapter, observation = case
    about = adapter.prediction
    assert about.kind == {"logit": "classes"}.get(kind, kind)
    torch.testing.assert_close(adapter.compute_native_probs(observation.batch), observation.probs)
    for row, ids in enumerate(texts_of(kind)):
        expected = by_hand(model, kind, ids)
        grouped = about.group_by_part(observation.probs[row])
        if kind == "number":
            torch.testing.assert_close(
                about.decode_number(observation.probs[row]) / SCALE, expected[0]
            )
            continue
        if kind == "words":
            kept = observation.batch.inputs["candidate_ids"][row, 0]
            expected = [by_name_next_and_rest(expected[0], kept)]
        for part, p in zip(grouped, expected, strict=False):
            torch.testing.assert_close(part[: len(p)], p.double(), atol=1e-6, rtol=1e-6)


def test_an_edit_arrives_as_in_the_models_own_attention(case, monkeypatch):
    """Uniform attention in a head of the last layer, written into the model's code."""
    kind, model, _adapter, observation = case
    (module,) = (m for name, m in FAMILIES.items() if type(model).__name__.startswith(name))
    model.set_attn_implementation("eager")
    calls = []

    def uniform_in_one_head(module, query, key, value, attention_mask, **kwargs):
        weights = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).softmax(-1)
        calls.append(None)
        if len(calls) % 2 == 0:
            weights[:, 1] = 1 / weights.shape[-1]
        return (weights @ value).transpose(1, 2).contiguous(), weights

    monkeypatch.setattr(module, "eager_attention_forward", uniform_in_one_head)
    result = all_tests()["uniform_attention"].function(observation, Site(1, 1))
    monkeypatch.undo()
    for row, ids in enumerate(texts_of(kind)):
        before = by_hand(model, kind, ids)
        chosen, logits = chosen_text(model, ids) if kind == "choice" else (None, None)
        monkeypatch.setattr(module, "eager_attention_forward", uniform_in_one_head)
        if kind == "choice":  # of the one that is preferred
            logits[logits.index(max(logits))] = float(call(model, chosen).logits)
            after = [torch.tensor(logits, dtype=torch.float64).softmax(-1)]
        else:
            after = by_hand(model, kind, ids)
        monkeypatch.undo()
        expected = mean_distance(before, after, kind)
        assert expected > 1e-6
        assert float(result.uniform_tvd[row]) == pytest.approx(expected, rel=1e-5)


def test_leave_one_out_is_a_run_without_the_token(case):
    kind, model, _adapter, observation = case
    importance = observation.compute_leave_one_out_importance()
    for row, ids in enumerate(texts_of(kind)):
        before = by_hand(model, kind, ids)
        content = observation.batch.content_mask[row].nonzero()[:, 0].tolist()
        assert content
        for place in content:
            shorter = ids[:place] + ids[place + 1 :]
            after = by_hand(model, kind, shorter, whole=ids, gone=place)
            if kind == "span" and not any(part.any() for part in after):
                continue  # nothing of the context is left
            expected = mean_distance(before, after, kind)
            assert float(importance[row, place]) == pytest.approx(expected, abs=1e-9)


def test_padding_changes_nothing(case):
    kind, _, adapter, observation = case
    about = adapter.prediction
    for row, ids in enumerate(texts_of(kind)):
        alone = adapter.observe(prepare(adapter, kind, [ids]))
        n_keys = len(ids)
        together, apart = (
            about.group_by_part(o.probs[r]) for o, r in ((observation, row), (alone, 0))
        )
        shape = apart.shape
        torch.testing.assert_close(together[: shape[0], : shape[1]], apart)
        for name in ("compute_leave_one_out_importance", "compute_gradient_importance"):
            many, one = getattr(observation, name)(), getattr(alone, name)()
            torch.testing.assert_close(many[row, :n_keys], one[0], atol=1e-9, rtol=1e-6)


def test_gradients_are_finite_differences(case):
    """Of what is decided: the sum of its probabilities over parts, divided by them."""
    _kind, _model, adapter, observation = case
    target = observation.get_target_classes(None)
    slopes = adapter.compute_attention_gradient(observation, target)[0]
    attention = observation.attention[0]
    step = 1e-5

    def decided(edited):
        probs = adapter.replay(observation, {0: edited[None]})[0]
        entries = target[:, None] if target.dim() == 1 else target
        return probs.gather(-1, entries).sum(-1)

    for head, query, key in ((0, 1, 2), (1, 2, 1)):
        up, down = attention.clone(), attention.clone()
        up[:, head, query, key] += step
        down[:, head, query, key] -= step
        slope = (decided(up) - decided(down)) / (2 * step)
        found = slopes[:, head, query, key].double()
        torch.testing.assert_close(found, slope, atol=1e-6, rtol=1e-4)


def test_the_share_of_labels_that_are_met():
    adapter = wrap(make("Bert", "labels"))
    probs = adapter.head.compute_probs(torch.tensor([[2.0, -1.0, 3.0]] * 4), {})
    labels = torch.tensor([[1, 0, 1], [0, 1, 1], [0, -1, 1], [-1, -1, -1]])
    right = adapter.prediction.compute_accuracy(probs, labels)
    assert right.tolist() == pytest.approx([1, 1 / 3, 1 / 2, math.nan], nan_ok=True)


def test_a_threshold_makes_a_decision_of_a_number():
    model = make("Bert", "number")
    value = float(call(model, FIRST).logits)
    for threshold, side in ((value - 0.1, 0), (value + 0.1, 1)):
        adapter = wrap(model, level="token", threshold=threshold, scale=SCALE)
        observation = adapter.observe(prepare(adapter, "number", [FIRST]))
        assert adapter.prediction.decide(observation.probs).tolist() == [[side]]
        assert float(adapter.prediction.decode_number(observation.probs)) == pytest.approx(value)
        assert adapter.label_names[side].startswith(("above", f"{threshold:g}")[side])


@pytest.mark.parametrize(
    ("kind", "rows", "message"),
    [
        ("words", [FIRST], "expected a mask token in every text"),
        ("span", [FIRST, [START, 11, END, END]], "but a question has none"),
        ("choice", None, "expected several choices per example"),
    ],
)
def test_texts_that_a_head_cannot_read(kind, rows, message):
    adapter = wrap(make("Bert", kind), level="token", mask_id=MASK)
    with refuses(message):
        if rows is None:
            adapter.prepare(collated([FIRST]), (0,))
        else:
            inputs = collated(rows)
            if kind == "span":
                inputs["segment_ids"][0, 4:7] = 1
            adapter.prepare(inputs, tuple(range(len(rows))))


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("words", {}, "a masked language model needs a mask token"),
        ("logit", {"threshold": 0.5}, "threshold is only for models that predict a number"),
        ("logit", {"predicts": "vibes"}, "expected predicts to be one of"),
    ],
)
def test_options_that_do_not_fit_the_head(kind, options, message):
    with pytest.raises(AttnProbeError, match=message):
        wrap(make("Bert", kind), **options)
