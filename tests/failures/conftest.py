"""A tiny model and the shortest run of every verb that writes a folder."""

import pytest

from tests.helpers.data_folders import write_splits


TINY = ("--epochs", 1, "--encoder", "none", "--embedding-size", 4)
STUDY = """
def study(s):
    data = {{"dataset": "{data}"}}
    base = s.add("train", "base", {{}}, **data, epochs=1, encoder="none", embedding_size=4)
    s.add("audit", "audit", {{}}, **data, model=base, tests=["conicity"], test_limit=4)
"""


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """The folders of a tiny BiLSTM, a tiny BERT and a tiny language model."""
    from tests.helpers.bad_inputs import make_models

    return make_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def few(tmp_path_factory):
    """A folder of 40 training, 10 validation and 10 test texts."""
    from hf_attnprobe.data.synthetic import make_rationale_dataset

    return write_splits(tmp_path_factory.mktemp("few") / "data", make_rationale_dataset(60, seed=0))


@pytest.fixture(scope="session")
def base(few, tmp_path_factory):
    """The folder of a tiny trained classifier; do not write into it."""
    from hf_attnprobe import train

    folder = tmp_path_factory.mktemp("base") / "model"
    train(few, output_dir=folder, **tiny_training(), progress=False)
    return folder


def answering(folder, few):
    """A language model, prompts without answers, and scores of the test texts of a folder."""
    import pandas as pd

    from hf_attnprobe.data.examples import load_examples
    from tests.helpers import tiny_language_models, tiny_models

    tokenizer = tiny_language_models.tokenizer(chat=False)
    model = tiny_models.saved(folder / "speaker", tiny_language_models.llama(tokenizer), tokenizer)
    rows = [{**row, "answer": None} for row in tiny_language_models.ROWS * 2]
    pd.DataFrame(rows).to_json(folder / "asked.jsonl", orient="records", lines=True)
    examples = load_examples(few, "test")
    scores = [[float(len(word)) for word in text.split()] for text in examples["text"]]
    table = pd.DataFrame({"id": examples["example_id"][:], "score": scores})
    table.to_parquet(folder / "scores.parquet")
    return model, folder / "asked.jsonl", folder / "scores.parquet"


def tiny_training():
    """The arguments of the same training as ``TINY``."""
    from hf_attnprobe import TrainingOptions

    architecture = {"encoder": "none", "embedding_size": 4}
    return {"architecture": architecture, "options": TrainingOptions(epochs=1)}


@pytest.fixture(scope="session")
def commands(few, base, tmp_path_factory):
    """By verb a function from an output folder to its command, as texts."""
    file = tmp_path_factory.mktemp("study") / "small.py"
    file.write_text(STUDY.format(data=few))
    data = ("--dataset", few)
    tests = (*data, "--tests", "conicity", "--test-limit", 4)
    given = {
        "train": ("train", *data, *TINY),
        "audit": ("audit", "--model", base, *tests),
        "retrain": ("retrain", "--model", base, *data, "--tests", "uniform"),
        "study": ("study", file),
        "compare": ("compare", base, base, *tests[:-2]),
        "deception": ("retrain", "--model", base, *data, "--tests", "deception"),
        "demo": ("demo", "--n-examples", 60, "--epochs", 1, "--encoder", "none"),
    }
    given["deception"] += ("--set", "deception.words=the", "deception.epochs=1")
    speaker, asked, scores = answering(tmp_path_factory.mktemp("answers"), few)
    of_answers = ("--model", speaker, "--dataset", asked, "--tests", "sources")
    given |= {
        "answers": ("audit", *of_answers),
        "share": ("audit", *of_answers, "--share", "0/2"),
        "answers-by-head": ("audit", *of_answers[:-1], "head_ablation", "--layers", 0),
        "compare-answers": ("compare", speaker, "int8", *of_answers[2:]),
        "evaluate-scores": (
            "evaluate-scores",
            "--model",
            base,
            *tests[:2],
            "--test-limit",
            4,
            "--scores",
            scores,
        ),
        "compare-rounded": ("compare", base, "int8", *tests),
        "detection-limit": ("detection-limit", base, *data, "--test-limit", 8, "--doses", 0.5),
    }
    given["evaluate-scores"] += ("--tests", "input_erasure")

    def command(verb, folder):
        return [str(part) for part in (*given[verb], "--output-dir", folder)]

    return {verb: lambda folder, verb=verb: command(verb, folder) for verb in given}
