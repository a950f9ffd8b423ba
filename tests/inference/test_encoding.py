"""Pairs of texts: what a model is fed is what its tokenizer makes of the pair."""

import warnings
from dataclasses import replace

import evaluate
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
    pipeline,
)

from hf_attnprobe import AttnProbeError, AuditOptions, audit, get_metric_path, load_examples, wrap
from hf_attnprobe.data.examples import compute_dataset_fingerprint
from hf_attnprobe.inference.batching import collate
from hf_attnprobe.inference.encoding import tokenize
from hf_attnprobe.integrations.publishing import AuditFolder, summarize_audit
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused


WORDS = ["a", "man", "is", "sleeping", "the", "dog", "runs", "nobody", "moves", "un", "##happy"]
ROWS = [
    {"premise": "a man is sleeping", "hypothesis": "the dog runs", "label": 0},
    {"premise": "the dog runs", "hypothesis": "nobody moves the man", "label": 1},
    {"premise": "nobody", "hypothesis": "a dog is a dog unhappy", "label": 2},
    {"premise": "the man moves unhappy", "hypothesis": "", "label": 1},
    {"premise": "", "hypothesis": "the man", "label": 0},
]
SPECIAL = ["<pad>", "<unk>", "<s>", "</s>"]
TEMPLATES = {
    "bert": ("<s> $A </s>", "<s> $A </s> $B:1 </s>:1"),
    "roberta": ("<s> $A </s>", "<s> $A </s> </s> $B </s>"),
    "t5": ("$A </s>", "$A </s> $B </s>"),
    "gpt2": None,
}


def make_tokenizer(kind):
    """A tokenizer of pieces of words that pairs texts as those of ``kind`` do."""
    vocabulary = {token: k for k, token in enumerate([*SPECIAL, *WORDS])}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    if TEMPLATES[kind] is not None:
        single, pair = TEMPLATES[kind]
        core.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[("<s>", 2), ("</s>", 3)]
        )
    names = ["input_ids", "attention_mask"]
    if kind == "bert":
        names.append("token_type_ids")
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_input_names=names,
    )


def audited(model, rows, tests=("permutation",), folder=None, **options):
    """An audit in which single heads and pairs of heads are left out."""
    options = AuditOptions(**{"single_heads": False, "prune": False} | options)
    given = {"options": options, "output_dir": folder, "progress": False}
    return audit(model, rows, list(tests), **given)


def make_model(kind, n_positions=40, n_words=len(SPECIAL) + len(WORDS)):
    sizes = {"max_position_embeddings": n_positions, "num_labels": 3, "pad_token_id": 0}
    if kind == "bert":
        return tiny_models.bert(n_words, spread=0.5, **sizes)
    torch.manual_seed(0)
    sizes |= {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 16, "initializer_range": 0.5, "vocab_size": n_words}
    return RobertaForSequenceClassification(RobertaConfig(**sizes, type_vocab_size=1)).eval()


def pairs(rows=ROWS):
    return load_examples(rows, "test")


def encoded(kind, rows=ROWS, **options):
    model = wrap(make_model("bert", **options))
    return tokenize(make_tokenizer(kind), pairs(rows), model)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_the_tokens_are_those_of_the_tokenizer_given_both_texts(kind):
    tokenizer = make_tokenizer(kind)
    for text, row in zip(encoded(kind).texts, ROWS, strict=True):
        # A lone call takes an empty second text for none, a batch for an empty one.
        batch = tokenizer([row["premise"]], [row["hypothesis"]])
        expected = {name: values[0] for name, values in batch.items()}
        assert expected.keys() <= text.inputs.keys()
        for name, values in expected.items():
            assert text.inputs[name] == values
        n_words = len((row["premise"] + " " + row["hypothesis"]).split())
        numbers = [k for k in text.inputs["word_ids"] if k >= 0]
        assert sorted(set(numbers)) == list(range(n_words)) and numbers == sorted(numbers)
        for segment, words in enumerate((row["premise"], row["hypothesis"])):
            marks = zip(text.inputs["input_ids"], text.inputs["segment_ids"], strict=True)
            ids = [k for k, s in marks if s == segment]
            assert ids == tokenizer(words, add_special_tokens=False)["input_ids"]


def test_long_pairs_are_cut_at_the_longer_text_and_counted():
    made = encoded("bert", n_positions=8)
    tokenizer = make_tokenizer("bert")
    for text, row in zip(made.texts, ROWS, strict=True):
        expected = tokenizer([row["premise"]], [row["hypothesis"]], truncation=True, max_length=8)
        assert text.inputs["input_ids"] == expected["input_ids"][0]
    lengths = [len(tokenizer([r["premise"]], [r["hypothesis"]])["input_ids"][0]) for r in ROWS]
    assert made.n_truncated == sum(length > 8 for length in lengths) > 0


def test_an_audit_of_pairs_predicts_what_the_pipeline_does():
    for kind in ("bert", "roberta"):
        model, tokenizer = make_model(kind), make_tokenizer(kind)
        report = audited((model, tokenizer), ROWS, ["uniform_attention"])
        rows = report.to_pandas()[report.to_pandas().test == "prediction"]
        ours = rows.pivot(index="example_id", columns="statistic", values="value")
        classify = pipeline("text-classification", model=model, tokenizer=tokenizer)
        for k in [k for k, row in enumerate(ROWS) if row["hypothesis"]]:
            pair = {"text": ROWS[k]["premise"], "text_pair": ROWS[k]["hypothesis"]}
            best = classify(pair)
            assert ours.loc[k, "probability"] == pytest.approx(best["score"], abs=1e-6)
            assert f"LABEL_{int(ours.loc[k, 'predicted_class'])}" == best["label"]


def test_segments_reach_the_batch_and_single_texts_have_none():
    adapter = wrap(make_model("bert"))
    texts = encoded("bert").texts[:2]
    batch = collate(adapter, texts, 0)
    expected = [text.inputs["segment_ids"] for text in texts]
    assert batch.segments.tolist() == expected
    rows = [{"text": "the dog runs"}]
    single = tokenize(make_tokenizer("bert"), load_examples(rows, "test"), adapter)
    assert collate(adapter, single.texts, 0).segments is None


def test_swapped_texts_are_other_data_with_another_answer():
    swapped = [{**row, "premise": row["hypothesis"], "hypothesis": row["premise"]} for row in ROWS]
    assert compute_dataset_fingerprint(pairs()) != compute_dataset_fingerprint(pairs(swapped))
    adapter = wrap(make_model("bert"))
    probs = [
        adapter.observe(collate(adapter, encoded("bert", rows).texts, 0)).probs
        for rows in (ROWS, swapped)
    ]
    assert ((probs[0] - probs[1]).abs().amax(1) > 1e-4).all()


def test_rationales_of_both_texts_mark_tokens_of_their_own():
    rows = [{**ROWS[1], "rationale": [2], "rationale_pair": [0, 3]}]
    adapter = wrap(make_model("bert"))
    texts = tokenize(make_tokenizer("bert"), pairs(rows), adapter).texts
    # <s> the dog runs </s> nobody moves the man </s>
    expected = [False] * 3 + [True, False, True, False, False, True, False]
    assert list(texts[0].rationale) == expected


def test_a_second_text_that_is_a_number_is_one_line():
    rows = [*ROWS[:2], {**ROWS[2], "hypothesis": 3}]
    refused("'hypothesis'", load_examples, rows, "test")


def test_a_second_text_that_is_none_is_empty():
    rows = [*ROWS[:2], {**ROWS[2], "hypothesis": None}]
    assert load_examples(rows, "test")["text_pair"][2] == ""


def test_two_ways_to_read_the_texts_are_asked_about():
    rows = [{**row, "text": "something else"} for row in ROWS]
    refused("premise with hypothesis or text", load_examples, rows, "test")
    single = load_examples(rows, "test", text_column="text")
    assert "text_pair" not in single.column_names
    chosen = load_examples(rows, "test", text_pair_column="hypothesis")
    assert chosen["text"][:] == [row["premise"] for row in ROWS]
    assert chosen["text_pair"][:] == [row["hypothesis"] for row in ROWS]
    joined = load_examples(rows, "test", text_column=["premise", "hypothesis"])
    assert joined["text"][0] == "a man is sleeping the dog runs"
    assert "text_pair" not in joined.column_names
    again = load_examples(chosen, "test")
    assert again[:] == chosen[:] and again.features == chosen.features


@pytest.mark.parametrize(("segment", "number"), [("text", 0), ("text_pair", 1)])
def test_leave_one_out_of_a_segment_is_a_rerun_without_its_words(segment, number):
    model, tokenizer = make_model("bert"), make_tokenizer("bert")
    adapter = wrap(model)
    texts = tokenize(tokenizer, pairs(ROWS[:3]), adapter, segment=segment).texts
    batch = collate(adapter, texts, 0)
    observation = adapter.observe(batch)
    without = adapter.compute_leave_one_out(observation)
    n_explained = 0
    for row, given in enumerate(ROWS[:3]):
        both = [given["premise"].split(), given["hypothesis"].split()]
        places = batch.content_mask[row].nonzero()[:, 0].tolist()
        n_explained += len(places)
        assert len(places) == len(both[number])
        for k, place in enumerate(places):
            shorter = [list(words) for words in both]
            del shorter[number][k]
            first, second = (" ".join(words) for words in shorter)
            inputs = tokenizer([first], [second], return_tensors="pt")
            by_hand = model(**inputs).logits.softmax(-1)[0]
            assert torch.allclose(without[row, place], by_hand, atol=1e-6)
    assert n_explained > 5
    everything = torch.ones_like(batch.mask)[None]
    erased = adapter.erase_inputs(observation, everything)[0]
    for row, given in enumerate(ROWS[:3]):
        held = [given["premise"], given["hypothesis"]]
        held[number] = ""
        inputs = tokenizer([held[0]], [held[1]], return_tensors="pt")
        by_hand = model(**inputs).logits.softmax(-1)[0]
        assert torch.allclose(erased[row], by_hand, atol=1e-6)


def test_an_audit_of_a_segment_is_another_audit_and_says_which(tmp_path):
    pair = make_model("bert"), make_tokenizer("bert")

    def run(segment, rows=ROWS, folder=None):
        return audited(pair, rows, ["correlation", "input_erasure"], folder, segment=segment)

    whole, second = run(None), run("text_pair", folder=tmp_path / "out")
    card = summarize_audit(AuditFolder(tmp_path / "out", replace(second, examples=())), "me/pairs")
    assert card.has_pairs  # where no text is shown
    said, of_pairs = (" ".join(r.to_text(verbose=True).split()) for r in (second, whole))
    assert "second text of each pair" in said and "second text of each pair" not in of_pairs
    assert "Columns that contain the texts: premise with hypothesis." in of_pairs
    assert (whole.n, second.n, second.provenance["skipped_empty"]) == (5, 4, 1)
    report = (tmp_path / "out" / "report.md").read_text()
    assert r"| segment | text\_pair |" in report
    assert "| text columns | premise with hypothesis |" in report
    with pytest.raises(AttnProbeError):
        run("text", folder=tmp_path / "out")
    refused("--segment", run, "text", rows=[{"text": "the dog runs", "label": 0}])


def test_the_metric_takes_pairs_and_says_what_the_audit_says():
    model, tokenizer = make_model("bert"), make_tokenizer("bert")
    metric = evaluate.load(get_metric_path())
    options = {"single_heads": False, "prune": False, "segment": "text"}
    rows = ROWS[:2]
    given = [{"text": r["premise"], "text_pair": r["hypothesis"]} for r in rows]
    kinds = {"tests": ["correlation"], "model": model, "tokenizer": tokenizer, **options}
    labels = [row["label"] for row in rows]
    found = metric.compute(predictions=given, references=labels, **kinds)
    for prediction, label in zip(given, labels, strict=True):
        metric.add(prediction=prediction, reference=label)
    again = metric.compute(**kinds)
    assert repr(again) == repr(found)  # NaN is no more equal to itself than to others
    report = audited((model, tokenizer), rows, ["correlation"], segment="text")
    assert str(report.answer) == found["answer"]
    wanted = report.to_pandas().query("statistic == 'attention_gradient_tau' and head < 0")
    names = [k for k in found if k.startswith("correlation_attention_gradient_tau")]
    assert names and len(wanted) == len(names) * len(rows)
    for name in names:
        layer, head = map(int, name.split("_layer")[1].split("_head"))
        chosen = wanted[(wanted.layer == layer) & (wanted["head"] == head)]
        assert found[name] == chosen.sort_values("example_id").value.tolist()


# --- models that take their inputs by **kwargs -------------------------------------------------------------------


class ByKwargs(BertForSequenceClassification):
    """Names two of its inputs and takes the third all the same."""

    def forward(self, input_ids, attention_mask, **kwargs):
        return super().forward(input_ids, attention_mask, **kwargs)


def in_peft(kind, **settings):
    """A BERT in peft's wrapper."""
    peft = pytest.importorskip("peft")
    settings = getattr(peft, kind)(task_type="SEQ_CLS", **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of peft's own making
        return peft.get_peft_model(make_model("bert"), settings)


def lora():
    """One with weights added that change what it says."""
    model = in_peft("LoraConfig", r=2, target_modules=["query", "value"])
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:  # or LoRA's B is 0 and changes nothing
                weight.normal_(0, 0.5)
    return model.eval()


def by_kwargs():
    return ByKwargs(make_model("bert").config).eval()


@pytest.mark.parametrize("make", [lora, by_kwargs])
def test_no_input_is_lost_on_the_way(make):
    model, tokenizer = make(), make_tokenizer("bert")
    in_pipeline = pipeline("text-classification", model=model, tokenizer=tokenizer)
    for subject in ((model, tokenizer), in_pipeline):
        rows = audited(subject, ROWS).to_pandas()
        found = rows[rows.statistic == "probability"].set_index("example_id").value
        for k, row in enumerate(ROWS):
            own = tokenizer([row["premise"]], [row["hypothesis"]], return_tensors="pt")
            with torch.no_grad():
                said = model(**own).logits.softmax(-1).max()
                del own["token_type_ids"]
                without = model(**own).logits.softmax(-1).max()
            assert found[k] == pytest.approx(float(said), abs=1e-5)
            assert abs(said - without) > 1e-3  # the input matters


def test_added_weights_are_read_through_their_wrapper():
    model, tokenizer = lora(), make_tokenizer("bert")
    told, inner = (
        audited((given, tokenizer), ROWS, ["permutation", "input_erasure"])
        for given in (model, model.get_base_model())
    )
    assert told.to_pandas().equals(inner.to_pandas())


def test_prompts_are_refused():
    model = in_peft("PromptTuningConfig", num_virtual_tokens=3)
    with pytest.raises(
        AttnProbeError, match="type PROMPT_TUNING cannot be audited, because it adds a prompt"
    ):
        audit((model, make_tokenizer("bert")), ROWS, ["permutation"], progress=False)
