"""Nothing of a checkpoint runs, no text steers a terminal or a page, nothing is written beside the output folder."""

import ast
import json
import os
import pickle
import re
from pathlib import Path

import pytest
import torch

import hf_attnprobe
from hf_attnprobe import AttnProbeError, SavedModel, audit
from hf_attnprobe.checkpoints import load_model, load_tokenizer, locate_checkpoint
from hf_attnprobe.storage.folders import check_available
from tests.helpers import tiny_models
from tests.helpers.error_messages import refused, refuses


ROWS = [{"text": "the film was dull .", "label": 0}, {"text": "a wonderful plot", "label": 1}]
FEW = {"tests": ["uniform_attention"], "progress": False}


class Trap:
    """A pickle that writes a file while it is read."""

    def __init__(self, canary: Path):
        self.canary = canary

    def __reduce__(self):
        return (os.mkdir, (str(self.canary),))


@pytest.fixture
def canary(tmp_path):
    """A folder that exists as soon as any trap has run."""
    return tmp_path / "canary"


@pytest.fixture
def model(tokenizer, tmp_path):
    """The folder of a tiny BERT."""
    made = tiny_models.bert(tokenizer, layers=1, spread=0.02, max_position_embeddings=128)
    return tiny_models.saved(tmp_path / "model", made, tokenizer)


def change(file: Path, **values):
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def set_pickles(folder: Path, canary: Path):
    """Traps under every name that Transformers, peft or a Trainer gives a pickle."""
    names = ("pytorch_model.bin", "training_args.bin", "optimizer.pt", "scheduler.pt")
    for name in (*names, "rng_state.pth", "adapter_model.bin", "vocab.pkl"):
        (folder / name).write_bytes(pickle.dumps(Trap(canary)))


def set_modules(folder: Path, canary: Path):
    """Code beside the weights, under the names that libraries look for."""
    code = f"import os\nos.makedirs({str(canary)!r}, exist_ok=True)\n"
    classes = (
        "from transformers import BertConfig, BertForSequenceClassification as B, "
        "PreTrainedTokenizerFast\n"
        "class EvilConfig(BertConfig):\n    model_type = 'evil'\n"
        "class Evil(B):\n    config_class = EvilConfig\n"
        "class EvilTokenizer(PreTrainedTokenizerFast):\n    pass\n"
    )
    for name in ("evil", "handler", "conftest", "modeling", "sitecustomize"):
        (folder / f"{name}.py").write_text(code + classes)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    jinja = f"{{{{ cycler.__init__.__globals__.os.mkdir({str(canary)!r}) }}}}"
    (folder / "chat_template.jinja").write_text(jinja)


def test_the_traps_work(tmp_path, model, canary):
    """They run where they are allowed to; else nothing here could fail."""
    set_pickles(model, canary)
    pickle.loads((model / "pytorch_model.bin").read_bytes())
    canary.rmdir()
    set_modules(model, canary)
    own = {"AutoConfig": "evil.EvilConfig", "AutoModelForSequenceClassification": "evil.Evil"}
    change(model / "config.json", model_type="evil", auto_map=own)
    load_model(model, trust_remote_code=True)
    assert canary.exists()


def test_what_lies_beside_the_weights_is_not_run(model, canary):
    set_pickles(model, canary)
    set_modules(model, canary)
    own = {"AutoModelForSequenceClassification": "evil.Evil"}
    change(model / "config.json", auto_map=own)
    tokenizer_own = {"AutoTokenizer": [None, "evil.EvilTokenizer"]}
    change(model / "tokenizer_config.json", auto_map=tokenizer_own)
    assert audit(model, ROWS, **FEW).statistics
    assert not canary.exists()


def test_code_is_refused_in_one_line(model, canary):
    """Of a model; of a tokenizer with code the files without it are read."""
    set_modules(model, canary)
    own = {
        "AutoConfig": "evil.EvilConfig",
        "AutoModelForSequenceClassification": "evil.Evil",
        "AutoTokenizer": [None, "evil.EvilTokenizer"],
    }
    kinds = {"model_type": "evil", "tokenizer_class": "EvilTokenizer"}
    change(model / "tokenizer_config.json", auto_map=own, **kinds)
    assert type(load_tokenizer(model)).__name__ != "EvilTokenizer"
    change(model / "config.json", auto_map=own, **kinds)
    refused("trust", load_model, model)
    assert not canary.exists()


@pytest.mark.parametrize("allowed", [False, True])
def test_a_pickle_that_runs_code_never_does(model, canary, allowed):
    """Not even where pickles are allowed: PyTorch then reads weights and nothing else."""
    set_pickles(model, canary)
    (model / "model.safetensors").unlink()
    with refuses() as error:
        audit(SavedModel(model, allow_pickle=allowed), ROWS, **FEW)
    assert ("--allow-pickle" in str(error.value)) != allowed
    assert not canary.exists()


def test_pickled_weights_are_read_where_that_is_said(model):
    whole = load_model(model)
    torch.save(whole.state_dict(), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    with pytest.raises(AttnProbeError, match=r"in the safetensors format.*--allow-pickle"):
        load_model(model)
    same = load_model(model, allow_pickle=True).state_dict()
    for name, weight in whole.state_dict().items():
        assert torch.equal(same[name], weight)


def test_an_index_of_safetensors_may_not_name_a_pickle(model, canary):
    set_pickles(model, canary)
    names = load_model(model).state_dict()
    (model / "model.safetensors").unlink()
    index = {"weight_map": dict.fromkeys(names, "pytorch_model.bin"), "metadata": {}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    refused("--allow-pickle", load_model, model)
    assert not canary.exists()


@pytest.mark.parametrize("named", ["w.safetensors.index.json", "adapter_model.bin"])
def test_a_configuration_may_not_name_pickled_weights(named, model):
    """Even where the usual weights are there, and the pickle holds nothing but weights."""
    weights = load_model(model).state_dict()
    torch.save(weights, model / "adapter_model.bin")
    index = {"weight_map": dict.fromkeys(weights, "adapter_model.bin"), "metadata": {}}
    (model / "w.safetensors.index.json").write_text(json.dumps(index))
    change(model / "config.json", transformers_weights=named)
    with pytest.raises(AttnProbeError, match=r"in the safetensors format.*--allow-pickle"):
        load_model(model)
    load_model(model, allow_pickle=True)


@pytest.mark.parametrize("named", [True, False])
def test_an_index_names_files_beside_it(named, model):
    """Whether it is the usual one or named by the configuration."""
    name = "w.safetensors.index.json" if named else "model.safetensors.index.json"
    weights = load_model(model).state_dict()
    (model / "model.safetensors").rename(model / "a.safetensors")
    index = {"weight_map": dict.fromkeys(weights, "a.safetensors"), "metadata": {}}
    (model / name).write_text(json.dumps(index))
    if named:
        change(model / "config.json", transformers_weights=name)
    load_model(model)
    (model / "a.safetensors").rename(model.parent / "a.safetensors")
    (model / "b.safetensors").write_bytes(b"")
    index["weight_map"] = dict.fromkeys(weights, "../a.safetensors")
    (model / name).write_text(json.dumps(index))
    with refuses(r"must list only files in the same folder, got '\.\./a\."):
        load_model(model)


def test_an_adapter_of_peft_is_data_too(model, canary, tmp_path):
    pytest.importorskip("peft")
    folder = tmp_path / "adapter"
    folder.mkdir()
    config = {"base_model_name_or_path": str(model), "peft_type": "LORA"}
    config |= {"task_type": "SEQ_CLS", "r": 2, "target_modules": ["query"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    set_pickles(folder, canary)
    refused("--allow-pickle", load_model, folder)
    own = {"peft_type": "PROMPT_TUNING", "prompt_tuning_init": "TEXT"}
    own["tokenizer_kwargs"] = {"trust_remote_code": True}
    change(folder / "adapter_config.json", **own)
    refused(
        "choose another type, such as LoRA",
        load_model,
        locate_checkpoint(folder, allow_pickle=True),
    )
    assert not canary.exists()


def test_attention_that_is_code_of_the_hub_is_refused(model):
    change(model / "config.json", text_config={"attn_implementation": "evil/kernel"})
    with pytest.raises(AttnProbeError, match=r"evil/kernel.*--trust-remote-code"):
        load_model(model)


# --- what is printed and written ----------------------------------------------------------------------------------

HOSTILE = "\x1b[31m\x9b2J\u202e<img src=x onerror=alert(1)>![](http://h)|`"


def test_only_one_place_prints():
    for file in Path(hf_attnprobe.__file__).parent.rglob("*.py"):
        source = file.read_text()
        for node in ast.walk(ast.parse(source)) if "print(" in source else ():
            called = getattr(getattr(node, "func", None), "id", None)
            assert called != "print", f"{file}: say it with terminal.show"


def test_hostile_names_are_shown_and_do_nothing(model, tmp_path, cli):
    """A model, class names and texts that would colour, clear and load."""
    named = {0: f"no {HOSTILE}", 1: "yes\x1b]0;title\x07"}
    back = {name: k for k, name in named.items()}
    change(model / "config.json", id2label=named, label2id=back)
    folder = model.rename(tmp_path / "model \x1b[31m <b>")
    data = tmp_path / "data"
    data.mkdir()
    known = "the film was dull and the plot was wonderful "
    rows = [{"text": f"{8 * known}{HOSTILE}", "label": 0}, {"text": known, "label": 1}]
    lines = "\n".join(map(json.dumps, rows))
    (data / "test.jsonl").write_text(lines)
    out = tmp_path / "out"
    flags = ["--model", folder, "--dataset", data, "--output-dir", out]
    done = cli("audit", *flags, "--tests", "uniform_attention")
    assert done.code == 0, done.err
    for text in (done.out, done.err, (out / "report.md").read_text()):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
    code = re.compile(r"(?<!`)`[^`|\n]+`(?!`)")
    report = re.sub("```.*?```", "", (out / "report.md").read_text(), flags=re.DOTALL)
    said = code.sub("", report)
    assert not re.search(r"(?<!\\)<(img|b)\b|(?<!\\)\]\(", said)
    assert "<img src=x" not in (out / "report.html").read_text()


def test_an_error_is_one_line_whatever_was_typed(cli):
    done = cli("audit", "--model", "no\x1b[2J\nsuch", "--dataset", "x")
    assert done.code == 1
    assert len(done.err.splitlines()) == 1
    assert "\x1b" not in done.err


@pytest.mark.parametrize(
    "words",
    [
        ["audit", "--\x1b[31m"],
        ["audit", "--\x1b[31m\nattnprobe: all is well=1"],
        ["\x1b[31m"],
        ["audit", "--seed", "\x1b[31m"],
        ["audit", "--set", "\x1b[31m"],
        ["report", "\x1b[31m", "--for\u202emat", "x"],
        ["compare", "a", "b", "c\x07", "--dtype", "\x1b]0;x\x07"],
    ],
)
def test_a_usage_error_holds_no_escape_characters(words, cli):
    """An unknown flag was printed as it was typed."""
    done = cli(*words)
    assert done.code in (1, 2)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", done.err)
    assert len(done.err.splitlines()) <= 2


# --- where is written ---------------------------------------------------------------------------------------------


def test_links_out_of_the_output_folder_are_refused(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    (out / "audit.json").write_text("{}")
    (out / "inside").mkdir()
    (out / "link").symlink_to(out / "inside")
    assert check_available(out, "audit.json") == out
    (out / "rows").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(AttnProbeError, match=r"rows.*leads out of"):
        check_available(out, "audit.json")
    assert check_available(out / "inside") == out / "inside"
