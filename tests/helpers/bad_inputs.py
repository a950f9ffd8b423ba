"""Bad inputs made up by hypothesis, one command each, and what every one of them must keep.

A case is a command with the files it needs. It may end in a result, in one line or in a usage error, never in a traceback, a
hang, a half-written folder or a number that the model itself does not say.
"""

import contextlib
import csv
import io
import json
import re
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import hf_attnprobe.audits.api as auditing
from hf_attnprobe import AttnProbeError, build_tokenizer
from hf_attnprobe.cli import main
from hf_attnprobe.cli.commands import build_parser
from hf_attnprobe.faithfulness.options import Permutation
from tests.helpers import tiny_language_models, tiny_models


SECONDS = 60
"""No command on a handful of texts takes longer."""
TEXTS = ["the film was dull .", "a wonderful plot", "never again , a film"]
LABELS = {0: "negative", 1: "positive"}


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        say: what is bad, for a failure's message.
        arguments: of the command; MODEL and HERE stand for the model and the case's folder.
        files: what to write below the case's folder, by its relative path.
        model: "bilstm", "bert" or "llama".
        change: done to a copy of the model, ``model`` below the case's folder.
        done: folders that verbs have finished, to be found in the case's own; see :func:`finished`.
        edit: done to the case's folder.
        texts: by id, where what is read is known; of these a result is checked.
        rows: data in memory to audit, in place of a command.
    """

    say: str
    arguments: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    model: str = "bilstm"
    change: Callable[[Path], None] | None = None
    done: tuple[str, ...] = ()
    edit: Callable[[Path], None] | None = None
    texts: dict[int, str] | None = None
    rows: Any = None


CONTROL_CHARACTER = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]")
"""Matches a character that could change the look of a terminal."""


class Hang(BaseException):
    """Not an Exception, so that nobody takes it for one of a library."""


# --- the models ---------------------------------------------------------------------


def make_models(folder: Path) -> dict[str, Path]:
    """A BiLSTM and a BERT of a few hundred weights with a tokenizer each, and a language model."""
    tokenizer = build_tokenizer([*TEXTS, "and so on , it is film NULL"])
    names = {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    models = {
        "bilstm": tiny_models.classifier(tokenizer, embedding_size=8, encoder_size=4, **names),
        "bert": tiny_models.bert(tokenizer, layers=1, width=8, spread=0.02, **names),
    }
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 3
        tokenizer.model_max_length = 64 if name == "bert" else int(1e30)
        tiny_models.saved(folder / name, model, tokenizer)
    bytewise = tiny_language_models.tokenizer(chat=False)
    tiny_models.saved(folder / "llama", tiny_language_models.llama(bytewise), bytewise)
    return {name: folder / name for name in (*models, "llama")}


@cache
def finished(models: Path) -> Path:
    """A folder with one of each verb's, beside the models."""
    root = models / "done"
    for name, content in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    for name in DONE:
        arguments = command_of(OF_VERB.get(name, name), "bilstm" if name == "other" else "bert")
        arguments += ("--share", "0/2") if name == "shares" else ()
        model = models / ("bilstm" if name in ("other", "evaluate-scores") else "bert")
        place = [a.replace("MODEL", str(model)).replace("HERE", str(root)) for a in arguments]
        assert main([a.replace(str(root / "out"), str(root / name)) for a in place]) == 0, name
    return root


# --- what every case must keep --------------------------------------------------------


def outcome(case: Case, models: dict[str, Path]) -> tuple[str, str | None]:
    """("result" | "line" | "usage", what is wrong with it or None)."""
    with tempfile.TemporaryDirectory(prefix="bad-") as folder:
        return _outcome(case, models, Path(folder))


def _outcome(case: Case, models: dict[str, Path], folder: Path) -> tuple[str, str | None]:
    model = models[case.model]
    if case.change is not None:
        model = Path(shutil.copytree(model, folder / "model"))
        case.change(model)

    def place(text: str) -> str:
        return text.replace("MODELS", str(models["bert"].parent)).replace("HERE", str(folder))

    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        is_study = name == "study.py"
        (folder / name).write_bytes(place(content.decode()).encode() if is_study else content)
    for name in case.done:
        shutil.copytree(finished(models["bert"].parent) / name, folder / name)
    if case.edit is not None:
        case.edit(folder)
    before = _contents(folder)
    arguments = [place(argument.replace("MODEL", str(model))) for argument in case.arguments]
    out, err, reports = io.StringIO(), io.StringIO(), []
    with _recorded(reports), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code, trouble = _run(
            lambda: main(arguments) if case.rows is None else _in_memory(case, model)
        )
    said = err.getvalue()
    if CONTROL_CHARACTER.search(said):
        return "trouble", f"control characters: {said!r}"
    if trouble is not None or code not in (0, 1, 2, 3):
        return "trouble", trouble or f"exit code {code}: {said}"
    if code == 2:
        return "usage", None if "see attnprobe" in said else f"no usage: {said}"
    if code == 1:
        keeps = case.arguments[:1] == ("compare",)  # versions that were done before
        return "line", _wrong_with_line(said, before, _contents(folder), keeps)
    wrong = [_wrong_with(report, case, model) for report in reports]
    left = [str(file) for file in folder.rglob(".*") if not file.match(".answers-*.jsonl")]
    return "result", next(filter(None, wrong), f"left behind: {left}" if left else None)


def _run(command: Callable[[], Any]) -> tuple[Any, str | None]:
    def ring(*_: Any) -> None:
        raise Hang

    former = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SECONDS)
    try:
        return command(), None
    except SystemExit as stop:
        return stop.code, None
    except BaseException:
        return None, traceback.format_exc()[-2000:]
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


def _in_memory(case: Case, model: Path) -> int:
    options = auditing.AuditOptions(shown_texts=0)
    tests = [Permutation(n_permutations=2)]
    try:
        auditing.audit(model, case.rows, tests, options=options, progress=False)
    except AttnProbeError as error:
        print(f"attnprobe: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _recorded(reports: list) -> Iterator[None]:
    """Every report that a command makes."""
    audit = auditing.audit

    def recorded(*arguments: Any, **options: Any) -> Any:
        reports.append(audit(*arguments, **options))
        return reports[-1]

    auditing.audit = recorded
    try:
        yield
    finally:
        auditing.audit = audit


def _contents(folder: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def _wrong_with_line(said: str, before: dict, after: dict, keeps: bool) -> str | None:
    lines = said.splitlines()
    ours = [line for line in lines if line.startswith("attnprobe: ")]
    if len(ours) != 1 or lines[-1] != ours[0] or "Traceback" in said:
        return f"not one line: {said}"
    if len(ours[0]) > 2000:
        return f"a line of {len(ours[0])} characters: {said[:300]}"
    steps = json.loads(after.get("out/study.json") or b"{}").get("steps", {})
    done = any(step["done"] for step in steps.values()) or "too short to run any test" in said
    if before != after and not (done or keeps):
        return f"refused, but wrote {sorted(set(after) ^ set(before)) or 'over files'}"
    return None


def _wrong_with(report: Any, case: Case, model: Path) -> str | None:
    """Whether the rows say what the model's own forward says of the same texts."""
    if case.texts is None:
        return None
    rows = report.to_pandas()
    said = rows[(rows.test == "prediction") & (rows.statistic == "probability")]
    said = dict(zip(said.example_id, said.value, strict=True))
    n_empty = report.provenance["skipped_empty"]
    if set(said) - set(case.texts) or len(said) + n_empty < len(case.texts):
        return f"rows of {sorted(said)}, {n_empty} empty, the texts have {sorted(case.texts)}"
    native = _native(model, [case.texts[number] for number in said])
    for (number, value), own in zip(said.items(), native, strict=True):
        if not abs(value - own) < 1e-5:
            text = case.texts[number]
            return f"text {number} {text[:60]!r}: probability {value}, own forward {own}"
    return None


def _native(folder: Path, texts: list[str]) -> list[float]:
    """The largest probability of each text by Transformers alone, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, return_dict=True).eval()
    is_bert = model.config.model_type == "bert"
    model = model if is_bert else model.double()
    longest = model.config.max_position_embeddings if is_bert else None
    cut = {"truncation": longest is not None, "max_length": longest}
    with torch.no_grad():
        logits = [model(**tokenizer(t, return_tensors="pt", **cut)).logits for t in texts]
    return [own.softmax(-1).max().item() for own in logits]


# --- odd things -----------------------------------------------------------------------


ODD_TEXTS = ["", " ", "\t\n", "\x00", "film \x00 film", "\x1b[31mred\x1b[0m", "<pad> <pad>"]
ODD_TEXTS += ["[CLS]", "[SEP] film [SEP]", "<pad>", "<sos> <eos>", "<unk>", "[MASK]", "שלום film"]
ODD_TEXTS += ["👩‍👩‍👧‍👦 film", "a\u0301\u0301\u0301", "\ufeffthe film", "the\u00a0film", "\u200b"]
ODD_TEXTS += ["\U0010ffff", "the\u2028film\u2029was\u0085dull", 'a "quoted, film', "a\r\nfilm"]
ODD_TEXTS += ["a\rfilm", "1e999"]
ODD_TEXTS += ["NULL", "nan", "NA", "None", "-1", "=cmd()", "<script>alert(1)</script>", "| a | b |"]
ODD_TEXTS += ["1984", "0.50", "True", "2020-01-31", "12:30", "a" * 3000, "film " * 300, ". " * 120]
ODD_NUMBERS = [0, 1, 2, -1, -2, 10**9, 4 * 10**18, 2**63, 10**30, -(10**30), 0.5, 1e308]
odd_value = st.one_of(
    st.sampled_from([*ODD_NUMBERS, None, True, False, "", "x", "0", [], {}, [0], [None], {"a": 1}]),
    st.sampled_from([float("nan"), float("inf"), ["a", 1], [[1]], "１", "0 1", "a" * 300]),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-2, 4), max_size=4),
)
WORDS = [*" ".join(TEXTS).split(), "unheard", "NULL", "film,", "a\tb"]
words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=9).map(" ".join)
printable = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)  # no halves of pairs
odd_text = st.one_of(words, st.sampled_from(ODD_TEXTS), printable)
odd_cell = st.one_of(odd_text, odd_value, st.just({"text": ["a"]}))
ODD_JSON = ["null", "[]", "{}", "[null]", "1", '"a"', "[1, 2]", "nan", '{"id": 0}', "", " ", "\n\n"]
ODD_JSON += ["[[]]", '{"id": 0, "score": [1, 2]}\nnull', '[{"id": 0, "score": 1}', "\ufeffnull"]
ODD_JSON += ["true", '{"text": null}']


def table_bytes(rows: list[dict[str, Any]], form: str) -> bytes:
    """A table as the bytes of a file."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if form in ("csv", "tsv"):
        file = io.StringIO()
        writer = csv.writer(file, delimiter="\t" if form == "tsv" else ",")
        writer.writerows([names, *([row.get(name) for name in names] for row in rows)])
        return file.getvalue().encode("utf-8", "replace")
    if form == "parquet":
        buffer = io.BytesIO()
        columns = {name: [row.get(name) for row in rows] for name in names}
        with contextlib.suppress(Exception):  # no table holds such a mixture
            pa.parquet.write_table(pa.table(columns), buffer)
            return buffer.getvalue()
    return json.dumps(rows).encode() if form == "json" else json_lines(rows)


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


ASKED = [
    {"context": "Ann lives in Rome. Bob lives in Oslo.", "question": "Where is Bob?"},
    {"context": "One. Two is more.", "question": "What is more?"},
]
ASKED = [row | {"answer": answer} for row, answer in zip(ASKED, ("Oslo", "Two"), strict=True)]
LABELLED = [{"text": text, "label": k % 2} for k, text in enumerate(TEXTS)]
GOOD = json_lines(LABELLED)
QUICK = ("--tests", "permutation", "--set", "permutation.n_permutations=2", "--shown-texts", "0")
SOURCES = ("--tests", "sources", "--units", "sentence", "--shown-texts", "1")
SCORES = [{"id": k, "score": [0.5] * len(text.split())} for k, text in enumerate(TEXTS)]
STUDY = """
def study(s):
    tests = {"permutation": {"n_permutations": 2}}
    for cell in s.grid(seed=[0, 1]):
        audited = {"model": "MODELS/bilstm", "dataset": "HERE/data.jsonl"}
        s.add("audit", "audit", cell, **cell, **audited, tests=tests)
    moves = {"statistic": "median_tvd", "threshold": 0.1, "means": "it matters"}
    s.add_table("Does it matter?", audit={"moves": moves})
"""
FILES = {"data.jsonl": GOOD, "asked.jsonl": json_lines(ASKED), "study.py": STUDY.encode()}
FILES |= {f"data/{split}.jsonl": GOOD for split in ("train", "validation", "test")}
FILES |= {"scores.jsonl": json_lines(SCORES)}
OF_LLAMA = {"scores.jsonl": json_lines([{"id": k, "score": [0.5, 0.5]} for k in range(2)])}
DONE = ("audit", "other", "shares", "evaluate-scores", "detection-limit", "compare")
OF_VERB = {"other": "audit", "shares": "audit"}


def command_of(verb: str, model: str) -> tuple[str, ...]:
    """A verb on a few texts that is right as it is."""
    data, quick = ("asked", SOURCES) if model == "llama" else ("data", QUICK)
    place = ("--output-dir", "HERE/out")
    given = ("--dataset", f"HERE/{data}.jsonl", *place)
    splits = ("--dataset", "HERE/data", *place)
    own = ("--model", "MODEL")
    small = ("--epochs", "1", "--embedding-size", "4", "--encoder-size", "2", "--device", "cpu")
    units = SOURCES[2:4] if model == "llama" else ()
    scores = ("--scores", "HERE/scores.jsonl", "--shown-texts", "1")
    commands: dict[str, tuple[str, ...]] = {
        "audit": (*own, *given, *quick),
        "evaluate-scores": (*own, *given, *scores),
        "detection-limit": ("MODEL", *given, *units, "--doses", "0.5"),
        "report": ("HERE/data.jsonl",),
        "train": (*splits, *small),
        "retrain": (*own, *splits, "--tests", "uniform"),
        "compare": ("MODEL", "int8", *given, *quick),
        "card": ("MODEL",),
        "demo": place,
        "study": ("HERE/study.py", *place),
        "datasets": (),
    }
    return (verb, *commands[verb])


# --- texts and data sets ----------------------------------------------------------------


def audited(say: str, file: str, content: bytes, keep: bool, *flags: str, **more: Any) -> Case:
    """The audit of a file."""
    place = ("--output-dir", "HERE/out") if keep else ("--json",)
    data = "HERE/folder" if file.startswith("folder/") else f"HERE/{file}"
    command = ("audit", "--model", "MODEL", "--dataset", data, *QUICK, *place, *flags)
    return Case(say, command, {file: content}, **more)


@st.composite
def bad_texts(draw: Callable) -> Case:
    """A few odd texts, from a file of any form or from memory."""
    texts = draw(st.lists(odd_text, min_size=1, max_size=4))
    model = draw(st.sampled_from(["bilstm", "bert"]))
    form = draw(st.sampled_from(["csv", "jsonl", "parquet", "memory", "tsv", "json"]))
    say = f"{model} {form} {texts!r:.500}"
    if form == "memory":
        texts += [draw(st.text(max_size=6)), "half \ud800"] if draw(st.integers(0, 4)) == 0 else []
        return Case(say, model=model, texts=dict(enumerate(texts)), rows=texts)
    rows = [{"text": text, "label": k % 2} for k, text in enumerate(texts)]
    given = {"model": model, "texts": dict(enumerate(texts))}
    return audited(say, f"data.{form}", table_bytes(rows, form), draw(st.booleans()), **given)


NAMES = "text sentence text_pair premise hypothesis tokens label labels example_id rationale "
NAMES += "evidence ner_tags answers choices image idx"
COLUMNS = [*NAMES.split(), "", "weird name"]
USUAL: dict[str, st.SearchStrategy] = {
    **dict.fromkeys(("text", "sentence", "text_pair", "premise", "hypothesis"), odd_text),
    "tokens": st.lists(words, max_size=3),
    **dict.fromkeys(("label", "labels"), st.integers(-1, 2)),
    "example_id": st.integers(-1, 3),
    **dict.fromkeys(
        ("rationale", "evidence", "ner_tags"), st.lists(st.integers(-1, 4), max_size=4)
    ),
}
DATA_FLAGS = ["--split train", "--split=", "--text-column text", "--text-column text sentence"]
DATA_FLAGS += ["--text-column label", "--text-pair-column text", "--text-pair-column label"]
DATA_FLAGS += ["--label-column text", "--label-column label labels", "--label-column nothing"]
DATA_FLAGS += ["--dataset-config x", "--test-limit 1", "--test-limit 999999999999", "", "", ""]


@st.composite
def bad_data(draw: Callable) -> Case:
    """Odd tables: columns, types, numbers, forms, and files that are none."""
    if draw(st.integers(0, 4)) == 0:
        return draw(torn_files())
    n_rows = draw(st.integers(1, 4))
    extra = draw(st.lists(st.sampled_from(COLUMNS), max_size=3, unique=True))
    names = [*(["text"] if draw(st.integers(0, 8)) else []), "label", *extra]
    columns = {name: draw(column_of(name, n_rows)) for name in dict.fromkeys(names)}
    rows = [{name: columns[name][k] for name in columns} for k in range(n_rows)]
    form = draw(st.sampled_from(["csv", "jsonl", "parquet", "rows", "columns", "frame", "tsv"]))
    model = draw(st.sampled_from(["bilstm", "bilstm", "bert"]))
    say = f"{model} {form} {rows!r:.700}"
    in_memory = {"rows": rows, "columns": columns, "frame": pd.DataFrame(columns)}
    if form in in_memory:
        return Case(say, rows=in_memory[form], model=model, texts=_known(columns))
    flags = draw(st.sampled_from(DATA_FLAGS)).split()
    where = draw(st.sampled_from([f"data.{form}", f"folder/test.{form}", f"A.{form}"]))
    more = {"model": model, "texts": _known(columns) if not flags else None}
    keep = draw(st.booleans())
    return audited(f"{say} {flags}", where, table_bytes(rows, form), keep, *flags, **more)


def _known(columns: dict[str, list]) -> dict[int, str] | None:
    """The texts by row, where it is plain which column they are, and no ids are given."""
    texts = columns.get("text")
    further = set(columns) - {"text", "label", "labels", "idx", "", "weird name"}
    if further or not texts or not all(isinstance(text, str) for text in texts):
        return None
    return dict(enumerate(texts))


@st.composite
def column_of(draw: Callable, name: str, n_rows: int) -> list[Any]:
    """Values of a column: mostly of its kind, sometimes not."""
    plain = USUAL.get(name, odd_value)
    mixed = st.one_of(plain, odd_value)
    alike = odd_value.map(lambda value: [value] * n_rows)
    each = [st.lists(of, min_size=n_rows, max_size=n_rows) for of in (plain, plain, mixed)]
    return draw(st.one_of(*each, alike))


@st.composite
def torn_files(draw: Callable) -> Case:
    """Bytes that are no table, or not all of one."""
    form = draw(st.sampled_from(["csv", "jsonl", "json", "parquet", "tsv", "txt", ""]))
    whole = table_bytes(LABELLED, form if form not in ("txt", "") else "csv")
    cut, way = draw(st.integers(0, len(whole))), draw(st.integers(0, 5))
    spoilt = [
        whole[:cut],
        whole[:cut] + bytes([draw(st.integers(0, 255))]) + whole[cut + 1 :],
        draw(st.binary(max_size=60)),
        b"\xff\xfe" + whole.decode("latin-1").encode("utf-16-le"),
        b"\xef\xbb\xbf" + whole,
        whole[:cut] + b'"' + whole[cut:],
    ][way]
    name = f"data.{form}" if form else "data"
    return audited(f"torn {name} way {way} at {cut}: {spoilt[:80]!r}", name, spoilt, way % 2 == 0)


# --- files that something happened to -----------------------------------------------------


@st.composite
def damage(draw: Callable, setting: st.SearchStrategy = odd_value) -> tuple[str, Callable]:
    """Something that happens to a file: to any one, and to one of JSON or of weights."""
    share, byte = draw(st.floats(0, 1)), draw(st.integers(0, 255))
    value, text = draw(setting), draw(st.sampled_from(ODD_JSON))
    way = draw(st.sampled_from(["within"] * 6 + ["torn", "flipped", "text", "gone"]))

    def spoil(file: Path) -> None:
        whole = file.read_bytes()
        at = int(share * len(whole))
        if way == "within" and file.suffix == ".json":
            file.write_text(json.dumps(_changed(json.loads(whole), share, value)))
        elif way == "within" and file.suffix == ".safetensors":
            _spoil_tensor(file, share, byte)
        elif way in ("within", "torn"):
            file.write_bytes(whole[:at])
        elif way == "flipped":
            file.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
        elif way == "text":
            file.write_text(text)
        else:
            file.unlink()

    return f"{way} {share:.3f} {byte} {value!r:.200} {text!r}", spoil


def _changed(held: Any, share: float, value: Any) -> Any:
    """Nested data in which one value, at a place that a share decides, is another one or gone."""
    if not isinstance(held, dict) or not held:
        return value
    name = sorted(held)[int(share * (len(held) - 1))]
    share = share * len(held) % 1
    if isinstance(held[name], dict) and share < 0.7:
        return held | {name: _changed(held[name], share / 0.7, value)}
    return {k: v for k, v in held.items() if k != name} | ({} if share > 0.9 else {name: value})


def _spoil_tensor(file: Path, share: float, byte: int) -> None:
    tensors = load_file(file)
    name = sorted(tensors)[int(share * (len(tensors) - 1))]
    tensor = tensors.pop(name)
    kinds = [torch.int64, torch.bool, torch.float16, torch.float64]
    others: list[dict[str, torch.Tensor]] = [
        {name: torch.full_like(tensor, float("nan"))},
        {name: torch.full_like(tensor, float("inf"))},
        {name: tensor.to(kinds[byte % 4])},
        {name: tensor.flatten()[: max(1, tensor.numel() // 2)].clone()},
        {},
        {name: tensor, f"{name}.other": tensor.clone()},
        {name: tensor * 1e30},
    ]
    save_file(tensors | others[byte % 7], file, metadata={"format": "pt"})


SETTINGS = "regression multi_label_classification bert gpt2 float16 bfloat16 int8 [PAD] absent "
SETTINGS += "left BertTokenizer GPT2TokenizerFast eager relu uniform additive"
ODD_SETTINGS = [{"1": "a", "2": "b"}, {"0": "a"}, {"0": "a", "1": "a"}, {"0": None, "1": 3}]
ODD_SETTINGS += [{"x": "y"}, ["BertModel"], ["BertForMaskedLM"], ["BertForTokenClassification"]]
ODD_SETTINGS += [["X"], ["input_ids"], {"quant_method": "bitsandbytes"}, {"0": [0]}, 10**12]
ODD_SETTINGS += [{"AutoConfig": "evil.Config", "AutoTokenizer": ["evil.T", None]}]
odd_setting = st.one_of(odd_value, st.sampled_from([*SETTINGS.split(), *ODD_SETTINGS]))
KEYS = "sep_token_id eos_token_id bos_token_id num_labels hierarchical problem_type torch_dtype "
KEYS += "auto_map quantization_config is_decoder pruned_heads attn_implementation return_dict "
KEYS += "output_attentions base_model_tp_plan n_layer id2label max_position_embeddings dtype "
KEYS += "model_max_length pad_token cls_token additional_special_tokens padding_side"
OF_MODEL = ["config.json"] * 6 + ["tokenizer_config.json"] * 2 + ["tokenizer.json"] * 2
OF_MODEL += ["model.safetensors"] * 3


@st.composite
def bad_checkpoints(draw: Callable) -> Case:
    """A model's folder with a value, a file or a tensor that is off."""
    model, name = draw(st.sampled_from(["bilstm", "bert"])), draw(st.sampled_from(OF_MODEL))
    how, spoil = draw(damage(odd_setting))
    more = draw(st.dictionaries(st.sampled_from(KEYS.split()), odd_setting, max_size=1))

    def change(folder: Path) -> None:
        file = folder / name
        if more and name.endswith("config.json"):
            file.write_text(json.dumps(json.loads(file.read_text()) | more))
        else:
            spoil(file)

    given = {"model": model, "change": change, "texts": dict(enumerate(TEXTS))}
    say = f"{model} {name} {more or how!r:.500}"
    return audited(say, "data.jsonl", GOOD, draw(st.integers(0, 2)) == 0, **given)


@st.composite
def folders(draw: Callable) -> Case:
    """A command that meets a folder of another verb, or one of its own that somebody edited."""
    name, other = draw(st.sampled_from(DONE)), draw(st.sampled_from(DONE))
    verbs = ["report", "report", "audit", "evaluate-scores", "compare", "detection-limit"]
    verbs += ["limits", "pair", "card"]
    verb, model = draw(st.sampled_from(verbs)), draw(st.sampled_from(["bert", "bilstm"]))
    below = {"shares": "/share-0-of-2", "compare": draw(st.sampled_from(["", "/0-model"]))}
    place = f"HERE/{name}{below.get(name, '')}"
    ending = draw(st.sampled_from(["", "html", "md", "json", "csv", "tex", "pdf"]))
    output = ("--output", f"HERE/x.{ending}") if ending else ()
    command = {
        "report": ("report", place, *output),
        "pair": ("report", place, f"HERE/{other}", *output),
        "limits": (*command_of("audit", model), "--limits", place),
        "card": ("card", "MODEL", place),
    }.get(verb) or tuple(place if a == "HERE/out" else a for a in command_of(verb, model))
    way, share = draw(st.sampled_from(["nothing", "mine", "file", "file"])), draw(st.floats(0, 1))
    how, spoil = draw(damage())

    def edit(folder: Path) -> None:
        files = [f for f in (folder / name).rglob("*.*") if f.suffix in (".json", ".parquet")]
        if way == "mine":
            (folder / name / "thesis.tex").write_text("mine")
        if way == "file":
            spoil(sorted(files)[int(share * (len(files) - 1))])

    change = _keep if verb == "card" else None
    say = f"{model} {command} after {way} {how}"
    return Case(say, command, FILES, model, change, tuple({name, other}), edit)


def _keep(_: Path) -> None:
    """Nothing: what is asked for is a copy."""


# --- flags ----------------------------------------------------------------------------


FLAG_WORDS = """
    0 1 2 3 5 17 100 -1 0.5 0.05 1.5 1e-3 999999999 1000000000000 4000000000000000000 1e9 1e308
    1e-300 nan inf -inf -- - 0x10 １ 1_0 ../../x /dev/null ~ $HOME %s {} None true 0.0 0.0+0.1 0.9
    1.0+ + positive negative film 1GB 1KB 999999TB permutation correlation default
    permutation.n_permutations=2 permutation.n_permutations= adversarial.epsilons=.1,x
"""
ODD_FLAGS = [*FLAG_WORDS.split(), "9" * 25, "", " ", "\n", "a\nb", "\t", "é" * 40, "a" * 400]
ODD_FLAGS += ["\x1b[2J", "\x00"]
LIKELY = {
    "head_sets": "0.0+0.1 0.0 shared 0.0+9.9 0",
    "target": "positive NEGATIVE 0 1 2 film -1",
    "time": "1s 2s 1 0.5s 1x",
    "thresholds": "faithfulness=.4,.7 effect=.1 removal=.1 effect=.7,.4 love=.1",
    "memory_budget": "100MB 2GB 1KB 1 2GB -1GB",
    "share": "0/2 1/2 0/1 2/2 1 a/b",
    "split": "test train validation dev",
    "limits": "HERE/spike HERE/audit HERE/nothing HERE/data.jsonl",
    "template": "{context}{question} {question}{context} {context} Say:",
    "spiked_heads": "0.0 0.1 1.0 9.9 0.0+0.1",
    "doses": "0.5 1 0.1 0",
    "heads": "0 1 all 7 -1",
    "layers": "0 1 -1",
}
"""Values that people give; of columns their names."""
OF_COLUMNS = "text label sentence context question answer nothing example_id"
UNDRAWN = {"help", "push_to_hub", "token", "private", "trust_remote_code", "output_dir", "dataset"}
"""Nothing is published, no code is allowed, and the place is given."""
REFUSED = ["--frobnicate", "--seed=x", "--epochs=0", "--test-limit=-1"]
DEAR = ("retrain", "study")
TRAINING = (*DEAR, "train", "demo")
MOVES = {"--test-limit", "--dtype", "--split", "--dataset", "--model", "--predicts"}
MOVES |= {"--text-column", "--target", "--no-truncate", "--subfolder", "--segment", "--weights"}
VERBS = (
    ["audit"] * 14
    + ["evaluate-scores", "compare", "detection-limit"] * 3
    + ["report", *TRAINING, "card", "datasets"]
)


@cache
def flags_of(verb: str) -> list[Any]:
    """The flags of a command that are drawn, as argparse holds them."""
    (commands,) = [a for a in build_parser()._actions if getattr(a, "choices", None)]
    every = [a for a in commands.choices[verb]._actions if a.option_strings]
    return [a for a in every if a.dest not in UNDRAWN]


@st.composite
def bad_flags(draw: Callable) -> Case:
    """A command that is right, and one to three flags behind it with values of every day or odd ones."""
    verb = draw(st.sampled_from(VERBS))
    models = (
        ["bert", "bilstm", "llama"]
        if verb in ("audit", "compare", "detection-limit")
        else ["bilstm"]
    )
    model = draw(st.sampled_from(models))
    given: list[str] = []
    drawn = st.lists(st.sampled_from(flags_of(verb)), min_size=1, max_size=3)
    for action in draw(drawn) if flags_of(verb) else []:
        given.append(draw(st.sampled_from(action.option_strings)))
        if action.nargs != 0:
            likely = OF_COLUMNS if action.dest.endswith("_column") else LIKELY.get(action.dest, "")
            usual = [*map(str, action.choices or ()), *likely.split()] * 4
            n_values = draw(st.integers(1, 2)) if action.nargs == "+" else 1
            given += [draw(st.sampled_from([*usual, *ODD_FLAGS])) for _ in range(n_values)]
    if verb in TRAINING and draw(st.booleans()):
        given.append(draw(st.sampled_from(REFUSED)))
    if verb == "demo" or (verb in DEAR and draw(st.integers(0, 4))):
        given.append("--frobnicate")  # a training is dear, its refusal is not
    is_plain = verb == "audit" and model != "llama" and not MOVES & set(given)
    command = (*command_of(verb, model), *given)
    change = _keep if verb == "card" else None
    files = FILES | (OF_LLAMA if model == "llama" else {})
    known = dict(enumerate(TEXTS)) if is_plain else None
    return Case(
        f"{model} {command}", command, files, model, change, ("detection-limit",), texts=known
    )


# --- command lines that are no commands ------------------------------------------------

STRAY_WORDS = ["-", "--", "---", "-x", "-v=1", "--=", "--=x", "--seed", "--seed=", "--output-dir"]
STRAY_WORDS += [
    "--model",
    "--dataset=",
    "--test",
    "--tests",
    "--set",
    "--set=erasure",
    "@data.jsonl",
]
STRAY_WORDS += ["audit", "report", "reprot", "nothing", "/", ".", "..", "~", "/dev/null", "*", "%s"]
STRAY_WORDS += ["HERE", "HERE/data.jsonl", "HERE/nothing/deep", "HERE/data.jsonl/x", "{x}", "$HOME"]
STRAY_WORDS += [
    "--\x1b[31m",
    "--\x1b]0;x\x07",
    "\u202e",
    "--help=x",
    "-h1",
    "--no-seed",
    "nan",
    "1e999",
]
STRAY_WORDS += ["--option", "--json=1", "--verbose=false", "a=b", "x@y", "0x10", "١٢", "\udcff"]
"""Words that do not belong where they are put."""


@st.composite
def mangled_commands(draw: Callable) -> Case:
    """A command that is right, some of whose words are dropped, repeated, exchanged, cut or replaced."""
    verb = draw(st.sampled_from([*dict.fromkeys(VERBS)]))
    words = [*command_of(verb, "bilstm")]
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, len(words)))
        stray = draw(st.sampled_from([*STRAY_WORDS, *ODD_FLAGS]))
        change = draw(st.sampled_from(["insert", "insert", "replace", "drop", "repeat", "cut"]))
        if change == "insert":
            words.insert(position, stray)
        elif change == "replace":
            words[position : position + 1] = [stray]
        elif change == "drop":
            del words[position : position + draw(st.integers(1, 2))]
        elif change == "repeat":
            words[position:position] = words[max(position - 2, 0) : position]
        else:
            words = words[: max(position, 1)]
    # A training is dear, its refusal is not.
    if verb in TRAINING:
        words.append("--frobnicate")
    return Case(f"{words}", tuple(words), FILES)


# --- passages with questions, and scores ------------------------------------------------


@st.composite
def asked(draw: Callable) -> Case:
    """Passages and questions with odd cells, in every form."""
    n = draw(st.integers(1, 3))
    further = ["answer", "other", "prompt", "messages", "example_id", "label"]
    extra = draw(st.lists(st.sampled_from(further), max_size=2, unique=True))
    names = ["context", "question", *extra]
    rows = [{k: ASKED[row % 2].get(k) or draw(odd_cell) for k in names} for row in range(n)]
    for _ in range(draw(st.integers(0, 2))):
        rows[draw(st.integers(0, n - 1))][draw(st.sampled_from(names))] = draw(odd_cell)
    form = draw(st.sampled_from(["csv", "tsv", "jsonl", "json", "parquet"]))
    command = ("audit", "--model", "MODEL", "--dataset", f"HERE/asked.{form}", *SOURCES)
    command += ("--output-dir", "HERE/out") if draw(st.booleans()) else ("--json",)
    files = {f"asked.{form}": table_bytes(rows, form)}
    return Case(f"{form} {rows!r:.600}", command, files, "llama")


@st.composite
def scores(draw: Callable) -> Case:
    """Scores for the units of texts that nearly fit."""
    model = draw(st.sampled_from(["bilstm", "bilstm", "llama"]))
    n_units = [2, 2] if model == "llama" else [len(text.split()) for text in TEXTS]
    extra = draw(st.sampled_from(["", "", "unit", "start end", "token", "start", "text"])).split()
    rows: list[dict[str, Any]] = [
        {"id": k, "score": [0.25 * j for j in range(n)], **{name: [*range(n)] for name in extra}}
        for k, n in enumerate(n_units)
    ]
    for _ in range(draw(st.integers(0, 2))):
        row, name = draw(st.sampled_from(rows)), draw(st.sampled_from(["id", "score", *extra]))
        if name == "id":
            row["id"] = draw(odd_cell)
        else:
            row[name] = row[name][: draw(st.integers(0, 4))] + draw(st.lists(odd_cell, max_size=1))
    if draw(st.booleans()):  # a row for each unit
        lists = [name for name in rows[0] if name != "id"]
        rows = [
            {"id": row["id"], **dict(zip(lists, values, strict=True))}
            for row in rows
            for values in zip(*(row[name] for name in lists), strict=False)
        ]
    form = draw(st.sampled_from(["jsonl", "parquet", "csv", "json", "tsv"]))
    content = table_bytes(rows, form)
    if draw(st.integers(0, 4)) == 0:
        form, content = "json", draw(st.sampled_from(ODD_JSON)).encode()
    command = command_of("evaluate-scores", model)
    command = tuple(a.replace("scores.jsonl", f"scores.{form}") for a in command)
    tests = ("--tests", "sources" if model == "llama" else "input_erasure")
    files = FILES | {f"scores.{form}": content}
    return Case(f"{form} {content[:500]!r}", (*command, *tests), files, model)


KINDS = {
    "texts": (bad_texts(), 1),
    "data": (bad_data(), 1),
    "checkpoints": (bad_checkpoints(), 1),
    "flags": (bad_flags(), 5),
    "commands": (mangled_commands(), 3),
    "asked": (asked(), 3),
    "scores": (scores(), 3),
    "folders": (folders(), 3),
}
"""What is drawn of each kind, and how many times as often as the others."""
