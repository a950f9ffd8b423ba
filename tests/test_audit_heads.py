"""The audit of a Transformer's heads from the command line and in Python: a tiny BERT in a folder, with its tokenizer."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    FNetConfig,
    FNetForSequenceClassification,
)

from by_name import audit_by_name
from hf_attnprobe import build_tokenizer, rationale_dataset
from hf_attnprobe.auditing.head_tables import by_head
from hf_attnprobe.errors import AttnProbeError


N_LAYERS, N_HEADS = 2, 3


@pytest.fixture(scope="module")
def data():
    return rationale_dataset(60, seed=0)["test"]


@pytest.fixture(scope="module")
def tokenizer(data):
    tokenizer = build_tokenizer(data["text"])
    tokenizer.model_max_length = 64
    return tokenizer


@pytest.fixture(scope="module")
def config(tokenizer):
    return BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=N_HEADS,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,
    )


@pytest.fixture
def folder(config, tokenizer, tmp_path):
    torch.manual_seed(0)
    BertForSequenceClassification(config).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


def quick(model, data, **options):
    return audit_by_name(
        model, data, **{"test_limit": 4, "n_permutations": 3} | options
    )


def test_every_head_and_every_test(folder, data, tmp_path):
    report = quick(folder, data, output_dir=tmp_path / "out")
    heads = {(layer, head) for layer in range(N_LAYERS) for head in range(N_HEADS)}
    for name in (
        "median_tvd",
        "uniform_tvd",
        "zero_tvd",
        "mean_tvd",
        "epsilon_max_jsd@0.05",
        "attention_leave_one_out_tau",
    ):
        assert by_head(report.statistics, name).keys() == heads
    text = (tmp_path / "out" / "report.md").read_text()
    assert (
        "| layer | head 0 | head 1 | head 2 |" in text
        and "heads zero-ablated together" in text
    )
    assert report.prune.n_removed[-1] == len(heads) and report.prune.agreement[0] == 1.0


def test_the_prune_curve_can_be_left_out(folder, data, tmp_path, cli):
    kept, left_out = (
        quick(folder, data, test_limit=2, tests=["head_ablation"], prune=prune)
        for prune in (True, False)
    )
    assert (
        kept.prune is not None
        and left_out.prune is None
        and kept.statistics == left_out.statistics
    )
    data.select(range(2)).save_to_disk(tmp_path / "data")
    command = (
        "audit",
        "--model",
        folder,
        "--dataset",
        tmp_path / "data",
        "--split",
        "train",
        "--tests",
        "head_ablation",
    )
    assert cli(*command, "--no-prune", "--output-dir", tmp_path / "out").code == 0
    assert "zero-ablated together" not in (tmp_path / "out" / "report.md").read_text()


def test_chosen_layers_and_heads(folder, data):
    report = quick(folder, data, layers=[1], heads=[0, 2], tests=["uniform_attention"])
    assert by_head(report.statistics, "uniform_tvd").keys() == {(1, 0), (1, 2)}


def test_a_screen_tests_the_heads_it_puts_first(folder, data, tmp_path):
    screened = quick(
        folder, data, screen=2, tests=["uniform_attention"], output_dir=tmp_path / "out"
    )
    estimates = by_head(screened.statistics, "first_order_uniform")
    tested = by_head(screened.statistics, "uniform_tvd")
    assert len(estimates) == N_LAYERS * N_HEADS
    assert set(tested) == set(sorted(estimates, key=estimates.get)[-2:])
    everywhere = by_head(
        quick(folder, data, tests=["uniform_attention"]).statistics, "uniform_tvd"
    )
    for site, value in tested.items():
        assert value == pytest.approx(everywhere[site], abs=1e-6)
    with pytest.raises(
        AttnProbeError, match="belongs to another audit"
    ):  # other texts may put other heads first
        quick(
            folder,
            data,
            screen=2,
            tests=["uniform_attention"],
            output_dir=tmp_path / "out",
            test_limit=6,
        )


def test_batch_size_does_not_matter(folder, data):
    key = ["test", "statistic", "example_id", "layer", "head"]
    one, many = (
        quick(folder, data, batch_size=size).to_pandas().set_index(key).value
        for size in (1, 64)
    )
    assert one.index.sort_values().equals(many.index.sort_values())
    apart = (one - many).abs()
    ranks = apart.index.get_level_values("statistic").str.contains(
        "tau|p_value|significant"
    )
    assert apart[~ranks].max() < 1e-4  # float32, as loaded


def test_what_cannot_be_audited_says_why(folder, data, config, tokenizer, tmp_path):
    for options, said in (
        ({"layers": [7]}, "layer from 0 to 1, got 7"),
        ({"heads": [3]}, "head from 0 to 2, got 3"),
        ({"layers": []}, "at least one layer"),
        ({"query": 500}, "500"),
    ):
        with pytest.raises(AttnProbeError, match=said):
            quick(folder, data, output_dir=tmp_path / "out", **options)
    BertModel(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    with pytest.raises(AttnProbeError, match="attnprobe train --model"):
        quick(tmp_path / "base", data, output_dir=tmp_path / "out")
    fnet = FNetForSequenceClassification(
        FNetConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            intermediate_size=16,
        )
    )
    with pytest.raises(AttnProbeError, match="attention"):
        quick(fnet, data, tokenizer=tokenizer)
    small = BertForSequenceClassification(
        BertConfig.from_dict(config.to_dict() | {"vocab_size": 9})
    )
    with pytest.raises(AttnProbeError, match="tokenizer"):
        quick(small, data, tokenizer=tokenizer)
    broken = BertForSequenceClassification(config)
    broken.classifier.bias.data[0] = float("nan")
    with pytest.raises(AttnProbeError, match="finite"):
        quick(broken, data, tokenizer=tokenizer)
    assert not (tmp_path / "out").exists()


def test_long_texts_are_cut_and_counted_or_refused(folder, data):
    long = [
        {"example_id": 7, "text": " ".join(["film"] * 200), "label": 0},
        *data.to_list()[:2],
    ]
    report = quick(folder, long, tests=["uniform_attention"])
    assert report.provenance["truncated"] == 1 and report.n == 3
    with pytest.raises(
        AttnProbeError, match="text 7 has 202 tokens, the model reads 64"
    ):
        quick(folder, long, tests=["uniform_attention"], truncate=False)


def test_the_model_is_left_as_it_was_found(config, tokenizer, data):
    model = BertForSequenceClassification(config).train()
    before = {
        name: (m.training, len(m._forward_hooks), "forward" in m.__dict__)
        for name, m in model.named_modules()
    }
    quick(model, data, tokenizer=tokenizer, test_limit=2)
    with pytest.raises(AttnProbeError):
        quick(model, data, tokenizer=tokenizer, layers=[9])
    assert before == {
        name: (m.training, len(m._forward_hooks), "forward" in m.__dict__)
        for name, m in model.named_modules()
    }
    assert (
        all(p.requires_grad for p in model.parameters())
        and model.config._attn_implementation == "sdpa"
    )
