"""Every benchmark runs: tiny, as a user starts it. Its numbers are measured elsewhere and stand in its README."""

from pathlib import Path

import pytest

from hf_attnprobe import AuditOptions, audit
from tests.helpers import tiny_language_models, tiny_models


BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
DATA = "--dataset {data} --limit 4 --repeats 1"
TINY = {
    "bags": "--draws 1 --bags 20 --test-bags 12 --steps 5 --models gated --tasks pos-neg",
    "citations": "{speaker} --scale 0.1",
    "erasure": f"--model {{classifier}} {DATA}",
    "every_set": "--model {bert} --dataset {data} --limit 2 --units 9",
    "first_audit": f"--model {{classifier}} {DATA}",
    "heads": f"--model {{bert}} {DATA} --heads 2 --n-permutations 4 --no-peers --memory "
    "--base-words 8 --base-copies 1",
    "head_ablation": "{audit}",
    "induction": "{out} --seeds 0 --questions 2 --steps 4",
    "language": "{speaker} {out} --prompts 4 --masks 4",
    "language_audit": "{speaker} --prompts 2 --dtype float32",
    "language_deletions": "{speaker} --prompts 1",
    "language_exchange": "{speaker} --prompts 2 --output {out}",
    "language_gpu": "--shape tiny --prompts 2 --tokens 60 --sentences 4",
    "language_peers": "{speaker} --prompts 1 --layer 1",
    "language_speed": "--tokens 40 --behind 6 --memory 60",
    "large_bags": "--instances 30 --size 8 --passes 2",
    "maps": "bypass --draws 1",
    "results": "--list --folder {out}",
    "row_storage": "--texts 60 --texts-per-part 20",
    "scale": "400 --folder {out} --shares 3",
    "selection_coverage": "--audit {audit} --n-texts 4 --n-samples 3 --n-draws 5",
}
HELPERS = {"peers", "plain", "results_tables", "sides", "work"}  # imported by others
OF_A_CHECKOUT = {"mutation"}  # runs the whole suite on copies of it


@pytest.fixture(scope="module")
def given(checkpoint, reviews_folder, tokenizer, tmp_path_factory):
    """What the commands name: three models, data, and an audit of four heads."""
    folder = tmp_path_factory.mktemp("benchmarks")
    model = tiny_models.bert(tokenizer, layers=2, heads=2)
    bert = tiny_models.saved(folder / "bert", model, tokenizer)
    options = AuditOptions(groups=False)
    given = {"options": options, "output_dir": folder / "audit", "progress": False}
    audit(bert, str(reviews_folder), ["uniform_attention", "head_ablation"], **given)
    chat = tiny_language_models.tokenizer()
    speaker = tiny_models.saved(folder / "speaker", tiny_language_models.llama(chat), chat)
    places = {"bert": bert, "audit": folder / "audit", "speaker": speaker}
    return {"classifier": checkpoint, "data": reviews_folder, **places}


@pytest.mark.slow
@pytest.mark.parametrize("name", TINY)
def test_a_benchmark_runs(name, given, run_python, tmp_path):
    command = TINY[name].format(**given, out=tmp_path / "out").split()
    done = run_python(BENCHMARKS / f"{name}.py", *command)
    assert done.code == 0, done.err[-2000:]
    assert any(character.isdigit() for character in done.out)


def test_every_benchmark_has_a_tiny_run():
    scripts = {file.stem for file in BENCHMARKS.glob("*.py")}
    assert scripts == {*TINY, *HELPERS, *OF_A_CHECKOUT}
