"""The converter of the authors' own files: every layout on small files, and what goes wrong."""

import re
import subprocess
import sys
from functools import partial

import datasets
import pandas as pd
import pytest

from examples import authors_files
from hf_attnprobe import load_examples as load
from hf_attnprobe import load_splits as load_all
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.data.examples import get_label_names
from hf_attnprobe.data.recipes import RECIPES
from tests.helpers.data_folders import write
from tests.helpers.error_messages import refusal


@pytest.fixture(autouse=True)
def converted(tmp_path_factory, monkeypatch):
    """Converts what stands behind the name of a data set, as a user does before it is read.

    What `datasets` prepares is kept for this test alone.
    """
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))
    datasets.disable_progress_bars()

    def convert(dataset):
        name, _, folder = dataset.partition("=")
        out = tmp_path_factory.mktemp("converted") / "out"
        authors_files.convert_dataset(name, folder, out)
        return f"{name}={out}"

    monkeypatch.setattr(f"{__name__}.converted_from", convert)


def converted_from(dataset):
    """Set by the fixture."""


def load_examples(dataset, split):
    return load(converted_from(dataset), split)


def load_splits(dataset):
    return load_all(converted_from(dataset))


def rows(dataset, split, *columns):
    """The values of some columns, a tuple per row, classes by their names."""
    examples = load_examples(dataset, split)
    names = get_label_names(examples)
    values = [examples[column][:] for column in columns]
    labels = columns.index("label") if "label" in columns else None
    if labels is not None:
        values[labels] = [names[label] for label in values[labels]]
    return list(zip(*values, strict=True))


message = partial(refusal, load_examples, split="train")


# --- bAbI ---------------------------------------------------------------------------------------------------------

STORY = """\
1 Mary moved to the bathroom.
2 John went to the hallway.
3 Where is Mary? \tbathroom\t1
4 Daniel went back to the hallway.
5 Where is Daniel? \thallway\t4
1 Sandra took the milk.
2 Where is the milk? \tbathroom\t1
"""
PLACES = "qa1_single-supporting-fact_{}.txt"
ASKED = ("text", "text_pair", "label", "rationale")
ANSWERED = [
    (
        "Mary moved to the bathroom . John went to the hallway",
        "Where is Mary",
        "bathroom",
        [0, 1, 2, 3, 4],
    ),
    # Mary moved to the bathroom . John went to the hallway . Daniel went back to the hallway
    # 0    1     2  3   4        5 6    7    8  9   10     11 12     13   14   15 16  17
    (
        "Mary moved to the bathroom . John went to the hallway . Daniel went back to the hallway",
        "Where is Daniel",
        "hallway",
        [12, 13, 14, 15, 16, 17],
    ),
    ("Sandra took the milk", "Where is the milk", "bathroom", [0, 1, 2, 3]),
]


def test_babi_as_text_files(tmp_path):
    for place in ("", "en-10k", "tasks_1-20_v1-2/en"):
        folder = tmp_path / f"b-{len(place)}"
        write(folder / place, **{PLACES.format(split): STORY for split in ("train", "test")})
        assert rows(f"babi1={folder}", "test", *ASKED) == ANSWERED
        # 15% of three are none; all are left to train on.
        assert load_examples(f"babi1={folder}", "train")["example_id"][:] == [0, 1, 2]


def test_babi_as_parquet_gives_the_same(tmp_path, caplog):
    first = ["Mary moved to the bathroom.", "John went to the hallway."]
    stories = [first, [*first, "Daniel went back to the hallway."], ["Sandra took the milk."]]
    features = datasets.Features(
        sentences=datasets.List(datasets.Value("string")),
        supporting_facts=datasets.List(datasets.Value("int16")),
        question=datasets.Value("string"),
        label=datasets.ClassLabel(names=["bathroom", "hallway"]),
        task=datasets.Value("int8"),
    )
    content = {
        "sentences": stories,
        "supporting_facts": [[0], [2], [0]],
        "question": ["Where is Mary?", "Where is Daniel?", "Where is the milk?"],
        "label": [0, 1, 0],
        "task": [1, 1, 1],
    }
    (tmp_path / "p/qa1").mkdir(parents=True)
    for split in ("train", "validation", "test"):
        path = tmp_path / "p/qa1" / f"{split}-00000-of-00001.parquet"
        datasets.Dataset.from_dict(content, features=features).to_parquet(path)
    for split in ("train", "validation", "test"):
        assert rows(f"babi1={tmp_path / 'p'}", split, *ASKED) == ANSWERED
    assert "1,000 questions" in caplog.text
    assert "of task 2 in" in message(f"babi2={tmp_path / 'p/qa1'}")


def test_what_is_wrong_with_babi_files(tmp_path):
    train = PLACES.format("train")
    write(tmp_path / "a", **{train: STORY})
    assert f"expected {PLACES.format('test')} in" in message(f"babi1={tmp_path / 'a'}")
    assert f"found {train}" in message(f"babi1={tmp_path / 'a'}")
    spoilt = STORY.replace("bathroom\t1\n4", "bathroom\t9\n4")
    write(tmp_path / "b", **{train: spoilt, PLACES.format("test"): STORY})
    assert ".txt, line 3: expected a question" in message(f"babi1={tmp_path / 'b'}")
    assert "found qa1_single" in message(f"babi2={tmp_path / 'a'}")
    assert "`attnprobe datasets babi2`" in message(f"babi2={tmp_path / 'a'}")


# --- CNN ----------------------------------------------------------------------------------------------------------


def test_cnn_as_question_files(tmp_path):
    article = "@entity10 met @entity2\nin @entity3 ."
    names = "@entity10:Mary\n@entity2:John\n"
    question = f"http://x\n\n{article}\n\n@placeholder met him\n\n@entity10\n\n{names}"
    for split in ("training", "validation", "test"):
        write(tmp_path / "cnn/questions" / split, a__question=question)
    data = f"cnn={tmp_path}"
    asked = ("@entity10 met @entity2 in @entity3 .", "@placeholder met him", "@entity10")
    assert rows(data, "test", *ASKED[:3]) == [asked]
    assert get_label_names(load_examples(data, "test")) == ["@entity2", "@entity3", "@entity10"]
    spoilt = tmp_path / "cnn/questions/training/b.question"
    spoilt.write_text(question.replace("\n\n@entity10\n", "\n\nMary\n"))
    assert "b.question: expected an answer such as @entity3, got 'Mary'" in message(data)
    spoilt.write_text("http://x\n\narticle")
    assert "b.question: expected address, article, question" in message(data)


def test_cnn_as_prepared_for_the_papers_code(tmp_path):
    block = "@placeholder met him\n@entity1\n@entity1 met @entity0 .\n@entity1:Mary\n"
    write(tmp_path, train__txt=f"{block}\n{block}\n", dev__txt=block, test__txt=block)
    row = ("@entity1 met @entity0 .", "@placeholder met him", "@entity1")
    assert rows(f"cnn={tmp_path}", "train", *ASKED[:3]) == [row, row]
    names = get_label_names(load_examples(f"cnn={tmp_path}", "validation"))
    assert names == ["@entity0", "@entity1"]
    (tmp_path / "dev.txt").unlink()
    assert "expected dev.txt in" in message(f"cnn={tmp_path}")


# --- inference ----------------------------------------------------------------------------------------------------


def pair(label, number):
    texts = {"sentence1": f"A man sleeps {number}.", "sentence2": "Nobody is awake."}
    return {"gold_label": label, "pairID": str(number), **texts}


PAIRS = [pair(label, k) for k, label in enumerate(["neutral", "-", "entailment", "contradiction"])]


def test_snli_and_multinli_as_json_lines(tmp_path):
    names = ("contradiction", "entailment", "neutral")
    files = {f"snli_1.0_{s}.jsonl": PAIRS for s in ("train", "dev", "test")}
    write(tmp_path / "s/snli_1.0", **files)
    found = load_examples(f"snli={tmp_path / 's'}", "validation")
    assert (found["label"][:], tuple(get_label_names(found))) == ([2, 1, 0], names)
    assert found["text"][1] == "A man sleeps 2." and found["text_pair"][0][0] == "N"
    splits = ("train", "dev_matched", "dev_mismatched")
    files = {f"multinli_1.0_{split}.jsonl": PAIRS for split in splits}
    files["multinli_1.0_dev_matched.jsonl"] = [pair("neutral", 7), *PAIRS]
    write(tmp_path / "m", **files)
    splits = load_splits(f"multinli={tmp_path / 'm'}")
    sizes = {name: len(part) for name, part in splits.items()}
    assert sizes == {"train": 3, "validation": 3, "test": 4}
    (tmp_path / "m/multinli_1.0_train.jsonl").write_text("{}\n")
    assert ".jsonl, line 1: expected the field 'sentence1'" in message(f"multinli={tmp_path / 'm'}")
    (tmp_path / "m/multinli_1.0_train.jsonl").write_text("no json\n")
    assert "line 1: expected a JSON object" in message(f"multinli={tmp_path / 'm'}")


# --- ERASER -------------------------------------------------------------------------------------------------------


def evidence(docid, start, end):
    return {"docid": docid, "start_token": start, "end_token": end, "text": "…"}


def note(name, label, query, evidences, docids=None):
    found = {"annotation_id": name, "classification": label, "query": query, "query_type": None}
    return found | {"evidences": evidences, "docids": docids}


def eraser(folder, notes, documents, as_lines=False):
    """A folder of ERASER's with the same notes in all splits."""
    files = {f"{split}.jsonl": notes for split in ("train", "val", "test")}
    write(folder, **files)
    if as_lines:
        lines = [{"docid": k, "document": text} for k, text in documents.items()]
        return write(folder, **{"docs.jsonl": lines})
    write(folder / "docs", **documents)
    return folder


@pytest.mark.parametrize("as_lines", [False, True])
def test_eraser_with_a_text_or_a_text_and_a_query(tmp_path, as_lines):
    documents = {"r1": "a  dull film .\n\nit is long", "r2": "great !\n", "p": "so it is"}
    of_r1 = [[evidence("r1", 1, 2)], [evidence("r1", 6, 7)]]
    notes = [note("r1", "NEG", "good?", of_r1), note("r2", "POS", "good?", [])]
    folder = eraser(tmp_path / "m/movies", notes, documents, as_lines)
    found = load_examples(f"eraser-movies={tmp_path / 'm'}", "validation")
    assert "text_pair" not in found.column_names
    assert rows(f"eraser-movies={folder}", "test", "text", "label", "rationale") == [
        ("a dull film . it is long", "NEG", [1, 6]),
        ("great !", "POS", []),
    ]
    # Two documents behind one another: positions of the second come after the first.
    notes = [note("x", "True", "is it? || yes", [[evidence("p", 1, 3)]], ["r2", "p"])]
    folder = eraser(tmp_path / "q", notes, documents, as_lines)
    expected = [("great ! so it is", "is it? || yes", "True", [3, 4])]
    for name in ("boolq", "multirc", "fever", "evidence-inference"):
        assert rows(f"eraser-{name}={folder}", "test", *ASKED) == expected


def test_eraser_with_a_rationale_in_both_texts(tmp_path):
    documents = {"7_premise": "a man sleeps", "7_hypothesis": "nobody is awake"}
    marks = [[evidence("7_hypothesis", 2, 3), evidence("7_premise", 1, 3)]]
    notes = [
        note("7", "entailment", "a man sleeps … ?", marks),
        note("7", "neutral", "?", [[evidence("7_hypothesis", 0, 1)]]),
    ]
    data = f"eraser-esnli={eraser(tmp_path / 'e', notes, documents)}"
    assert rows(data, "test", *ASKED, "rationale_pair") == [
        ("a man sleeps", "nobody is awake", "entailment", [1, 2], [2]),
        ("a man sleeps", "nobody is awake", "neutral", [], [0]),
    ]


def test_eraser_with_choices(tmp_path):
    documents = {"c1": "where do fish live ?"}
    choices = "a tree [sep] water [sep] sand [sep] air [sep] a box"
    notes = [note("c1", "B", choices, [[evidence("c1", 2, 4)]])]
    folder = eraser(tmp_path / "e", notes, documents)
    found = load_examples(f"eraser-cose={folder}", "test")
    assert found[0]["choices"] == ["a tree", "water", "sand", "air", "a box"]
    assert (found["label"][:], found["rationale"][:]) == ([1], [[2, 3]])
    assert found["text"][:] == ["where do fish live ?"]
    eraser(folder, [note("c1", "G", choices, [])], documents)
    assert "expected one of the letters A, B, C, D, E" in message(f"eraser-cose={folder}")


def test_what_is_wrong_with_eraser_files(tmp_path):
    notes = [note("r", "NEG", "?", [[evidence("r", 0, 9)]])]
    data = f"eraser-movies={eraser(tmp_path / 'e', notes, {'r': 'too short'})}"
    assert "expected evidence within the 2 tokens of 'r', got tokens 0 to 9" in message(data)
    (tmp_path / "e/docs/r").unlink()
    assert "expected the document 'r'" in message(data)
    (tmp_path / "e/docs").rmdir()
    assert "expected docs.jsonl in" in message(data)
    (tmp_path / "e/val.jsonl").unlink()
    assert "expected val.jsonl in" in message(data)


# --- tables -------------------------------------------------------------------------------------------------------


def tweet(n_words, number=0):
    return f"tweet {number} " + "w " * (n_words - 3) + "end"


def test_adr_as_the_papers_table_with_its_lengths(tmp_path):
    texts, splits = [tweet(n) for n in (5, 6, 99, 100)], ("train", "dev", "test")
    table = {"text": texts * 3, "label": [0, 1, 0, 1] * 3}
    table["exp_split"] = [split for split in splits for _ in texts]
    (tmp_path / "a").mkdir()
    pd.DataFrame(table).to_csv(tmp_path / "a/adr_dataset.csv", index=False)
    for split in ("train", "validation", "test"):
        found = load_examples(f"adr={tmp_path / 'a'}", split)
        assert [len(text.split()) for text in found["text"]] == [6, 99]
        assert found["label"][:] == [1, 0]
    assert get_label_names(found) == ["no reaction", "adverse reaction"]


def test_adr_as_tweets_with_labels(tmp_path):
    lines = [f'{tweet(9, k)} "so"\t{int(k < 20)}' for k in range(100)]
    folder = write(tmp_path / "t", tweets__tsv="\n".join(["text\tlabel", *lines]) + "\n")
    splits = load_splits(f"adr={folder}")
    test = splits["test"]["label"][:]
    assert (len(test), sum(test)) == (20, 4)  # a fifth of either class
    sizes = {name: len(part) for name, part in splits.items()}
    assert sizes == {"train": 68, "validation": 12, "test": 20}
    texts = [text for part in splits.values() for text in part["text"]]
    assert len(set(texts)) == 100 and all(text.endswith('"so"') for text in texts)
    assert load_splits(f"adr={folder}")["test"][:] == splits["test"][:]
    write(folder, tweets__tsv="\n".join(lines))
    assert "a first line with the columns text, label" in message(f"adr={folder}")
    write(folder, tweets__tsv="text\tlabel\nso\tyes\n")
    assert "row 0: expected 0 or 1 as label, got 'yes'" in message(f"adr={folder}")
    write(folder, other__tsv="")
    assert "expected one TSV file" in message(f"adr={folder}")


CODES = {
    "11": "25000 2851",
    "12": "25001 28521",
    "13": "2500 2851 28529",
    "14": "2859",
    "15": "25002 2851",
    "16": "2851",
    "17": "28522",
    "18": "2851",
}


# --- MIMIC --------------------------------------------------------------------------------------------------------

NOTE = "Admission Date:  [**2101-10-20**]\nthe patient of [**Hospital 18**] is {} ."


def mimic(folder, gz=False):
    """Notes and diagnoses of eight admissions in the columns of MIMIC-III."""
    folder.mkdir()
    columns = ["HADM_ID", "CHARTDATE", "CATEGORY", "DESCRIPTION", "ISERROR", "TEXT"]
    day, summary = "2101-01-01", ("Discharge summary", "Report", "")
    texts = [
        ("11", "2101-02-02", "Discharge summary", "Addendum", "", "And later ill ."),
        ("11", "2101-03-01", *summary, NOTE.format(11)),
        ("11", day, "Nursing", "Report", "", "not this"),
        ("12", day, "Discharge summary", "Report", "1", "an error"),
        *((str(k), day, *summary, NOTE.format(k)) for k in range(12, 19)),
        ("", day, *summary, "of no admission"),
    ]
    texts = pd.DataFrame(texts, columns=columns).assign(SUBJECT_ID=1)
    each = [(key, n, code) for key in CODES for n, code in enumerate(CODES[key].split())]
    diagnoses = pd.DataFrame(each, columns=["HADM_ID", "SEQ_NUM", "ICD9_CODE"])
    ending = ".gz" if gz else ""
    texts.to_csv(folder / f"NOTEEVENTS.csv{ending}", index=False)
    diagnoses.to_csv(folder / f"DIAGNOSES_ICD.csv{ending}", index=False)
    for split, keys in {"train": [11, 12, 13], "dev": [14], "test": [15, 16]}.items():
        (folder / f"{split}_50_hadm_ids.csv").write_text("\n".join(map(str, keys)))
    return folder


def said(number, more=""):
    return f"Admission Date: DE the patient of DE is {number} .{more}"


@pytest.mark.parametrize("gz", [False, True])
def test_diabetes_from_mimics_own_tables(tmp_path, gz):
    data = f"diabetes={mimic(tmp_path / 'm', gz)}"
    assert rows(data, "train", "text", "label") == [
        (said(11, " And later ill ."), "diabetes"),
        (said(12), "no diabetes"),
        (said(13), "no diabetes"),
    ]
    assert rows(data, "validation", "text") == [(said(14),)]
    # 250.02 is another code than 250.00.
    assert rows(data, "test", "label") == [("no diabetes",), ("no diabetes",)]
    (tmp_path / "m/dev_50_hadm_ids.csv").unlink()
    assert "expected dev_50_hadm_ids.csv in" in message(data)


def test_anemia_leaves_out_both_and_neither(tmp_path):
    folder = mimic(tmp_path / "m")
    splits = load_splits(f"anemia={folder}").values()
    found = {re.search(r"is (\d+)", row["text"])[1]: row["label"] for s in splits for row in s}
    # 13 has both, 14 neither of the two.
    assert found == {"11": 1, "12": 0, "15": 1, "16": 1, "17": 0, "18": 1}
    (folder / "DIAGNOSES_ICD.csv").unlink()
    assert "expected DIAGNOSES_ICD.csv in" in message(f"anemia={folder}")


def test_mimic_as_camls_tables(tmp_path):
    labels = ["250.00;285.1", "401.9;285.21", "285.1;285.29"]
    table = pd.DataFrame({"SUBJECT_ID": range(3), "HADM_ID": range(3), "LABELS": labels})
    table = table.assign(TEXT="the first note has these seven words here")
    for kind in ("50", "full"):
        for split in ("train", "dev", "test"):
            table.to_csv(tmp_path / f"{split}_{kind}.csv", index=False)
    splits, anemia = ("train", "validation", "test"), []
    for split in splits:
        assert load_examples(f"diabetes={tmp_path}", split)["label"][:] == [1, 0, 0]
        anemia += _labels(f"anemia={tmp_path}", split)
    assert sorted(anemia) == [0, 0, 0, 1, 1, 1]
    table.drop(columns="LABELS").to_csv(tmp_path / "dev_50.csv", index=False)
    assert "expected the columns TEXT, LABELS" in message(f"diabetes={tmp_path}")


def _labels(dataset, split):
    """The labels of a split that may be empty."""
    try:
        return load_examples(dataset, split)["label"][:]
    except AttnProbeError as error:
        assert "passes the filters" in str(error)
        return []


# --- the script -----------------------------------------------------------------------------------------------------


def test_the_readers_are_of_the_data_sets_that_say_so():
    assert {name for name, r in RECIPES.items() if r.authors_files} == {*authors_files.READERS}


def in_a_process(*arguments):
    command = [sys.executable, authors_files.__file__, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_the_script_converts_and_says_what_is_missing(tmp_path):
    files = {PLACES.format(split): STORY for split in ("train", "test")}
    out = tmp_path / "out"
    done = in_a_process("babi1", write(tmp_path / "babi", **files), out)
    assert done.returncode == 0, done.stderr
    assert load(f"babi1={out}", "test")["text_pair"][0] == "Where is Mary"
    done = in_a_process("babi2", tmp_path / "babi", tmp_path / "none")
    assert done.returncode == 1
    assert done.stderr.startswith("authors_files: expected the files of babi2")
    done = in_a_process("sst", tmp_path / "babi", tmp_path / "none")
    assert done.returncode == 1 and "expected one of babi1" in done.stderr
    assert in_a_process().returncode == 1
