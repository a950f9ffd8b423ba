"""Bad inputs made up by hypothesis, one command each, and what every one of them must keep.

A case is a command with the files it needs. It may end in a result, in one line or in a usage error, never in a traceback, a
hang, a half-written folder or a number that the model itself does not say.
"""

import contextlib
import csv
import io
import json
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import torch
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

import hf_attnprobe.auditing.run as auditing
import zoo
from hf_attnprobe import (
    AttnProbeError,
    build_tokenizer,
)
from hf_attnprobe.cli import main
from hf_attnprobe.cli.verbs import build_parser
from hf_attnprobe.faithfulness.options import Permutation


SECONDS = 60
"""No command on a handful of texts takes longer."""
TEXTS = ["the film was dull .", "a wonderful plot", "never again , a film"]
LABELS = {0: "negative", 1: "positive"}
QUICK = ["--tests", "permutation", "--set", "permutation.n_permutations=2"]
QUICK += ["--shown-texts", "0"]


@dataclass(frozen=True)
class Case:
    """One command.

    Attributes:
        kind: what is bad.
        say: what it is, for a failure's message.
        arguments: of the command, or of ``audit`` where ``rows`` are given.
        files: what to write below the case's folder, by its relative path.
        change: done to a copy of the model, ``model`` below the case's folder.
        model: "bilstm" or "bert".
        texts: by id, where what is read is known; of these a result is checked.
        rows: data in memory, in place of a command.
        call: a function of model and folder, in place of a command.
        prepare: puts into the case's folder what it finds there, given that of the models.
    """

    kind: str
    say: str
    arguments: tuple[str, ...] = ()
    files: dict[str, bytes] = field(default_factory=dict)
    change: Callable[[Path], None] | None = None
    model: str = "bilstm"
    texts: dict[int, str] | None = None
    rows: Any = None
    call: Callable[[Path, Path], Any] | None = None
    prepare: Callable[[Path, Path], None] | None = None


LINES: Counter[str] = Counter()
"""How often which line was said, by its first words."""


class Hang(BaseException):
    """Not an Exception, so that nobody takes it for one of a library."""


# --- the models ---------------------------------------------------------------------


def make_models(folder: Path) -> dict[str, Path]:
    """A BiLSTM and a BERT of a few hundred weights with a tokenizer each."""
    tokenizer = build_tokenizer([*TEXTS, "and so on , it is film NULL"])
    names = {"id2label": LABELS, "label2id": {v: k for k, v in LABELS.items()}}
    models = {
        "bilstm": zoo.classifier(tokenizer, embedding_size=8, encoder_size=4, **names),
        "bert": zoo.bert(tokenizer, layers=1, width=8, spread=0.02, **names),
    }
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 3
        tokenizer.model_max_length = 64 if name == "bert" else int(1e30)
        zoo.saved(folder / name, model, tokenizer)
    return {name: folder / name for name in models}


# --- what every case must keep --------------------------------------------------------


def outcome(case: Case, models: dict[str, Path]) -> tuple[str, str | None]:
    """("result" | "line" | "usage", what is wrong with it or None)."""
    folder = Path(tempfile.mkdtemp(prefix="bad-"))
    try:
        return _outcome(case, models, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _outcome(case: Case, models: dict[str, Path], folder: Path) -> tuple[str, str | None]:
    model = models[case.model]
    if case.change is not None:
        model = Path(shutil.copytree(model, folder / "model"))
        case.change(model)
    for name, content in case.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        is_study = name == "study.py"
        (folder / name).write_bytes(
            content.replace(b"HERE", str(folder).encode()) if is_study else content
        )
    if case.prepare is not None:
        case.prepare(models["bert"].parent, folder)
    before = _contents(folder)
    out, err, reports = io.StringIO(), io.StringIO(), []
    with _recorded(reports), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code, trouble = _run(case, model, folder)
    if trouble is not None:
        return "trouble", trouble
    said = err.getvalue()
    if code == 2:
        return "usage", None if "see attnprobe" in said else f"no usage: {said}"
    if code == 1:
        return "line", _wrong_with_line(said, before, _contents(folder))
    if code not in (0, 3):
        return "trouble", f"exit code {code}: {said}"
    wrong = [_wrong_with(report, case, model) for report in reports]
    left = [str(file) for file in folder.rglob(".*") if file.name != ".eval_results"]
    if left:
        wrong.append(f"left behind: {left}")
    return "result", next(filter(None, wrong), None)


def _run(case: Case, model: Path, folder: Path) -> tuple[Any, str | None]:
    def place(text: str) -> str:
        return text.replace("MODEL", str(model)).replace("HERE", str(folder))

    try:
        with _no_longer_than(SECONDS):
            if case.rows is not None:
                return _in_memory(case, model), None
            if case.call is not None:
                return _called(case.call, model, folder), None
            return main([place(argument) for argument in case.arguments]), None
    except SystemExit as stop:
        return stop.code, None
    except Hang:
        return None, f"longer than {SECONDS} s\n{traceback.format_exc()[-2000:]}"
    except BaseException:
        return None, traceback.format_exc()[-2000:]


def _in_memory(case: Case, model: Path) -> int:
    options = auditing.AuditOptions(shown_texts=0)
    tests = [Permutation(n_permutations=2)]
    try:
        auditing.audit(model, case.rows, tests, options=options, progress=False)
    except AttnProbeError as error:
        print(f"attnprobe: {error}", file=sys.stderr)
        return 1
    return 0


def _called(call: Callable[[Path, Path], Any], model: Path, folder: Path) -> int:
    try:
        call(model, folder)
    except AttnProbeError as error:
        print(f"attnprobe: {error}", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    def ring(*_: Any) -> None:
        raise Hang

    former = signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, former)


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
    found = sorted(folder.rglob("*"))
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in found
    }


def _wrong_with_line(said: str, before: dict, after: dict) -> str | None:
    lines = said.splitlines()
    ours = [line for line in lines if line.startswith("attnprobe: ")]
    if len(ours) != 1 or lines[-1] != ours[0] or "Traceback" in said:
        return f"not one line: {said}"
    LINES[ours[0].removeprefix("attnprobe: ")[:60]] += 1
    if len(ours[0]) > 2000:
        return f"a line of {len(ours[0])} characters: {said[:300]}"
    may_go_on = _has_finished_step(after) or "give more with --time" in said
    if before != after and not may_go_on:
        return f"refused, but wrote {sorted(set(after) ^ set(before)) or 'over files'}"
    return None


def _has_finished_step(contents: dict[str, Any]) -> bool:
    """A study that is refused at a later step keeps those before."""
    state = json.loads(contents.get("out/study.json") or b"{}")
    return any(step["done"] for step in state.get("steps", {}).values())


def _wrong_with(report: Any, case: Case, model: Path) -> str | None:
    """Whether the rows say what the model's own forward says of the same texts."""
    if case.texts is None:
        return None
    rows = report.to_pandas()
    said = rows[(rows.test == "prediction") & (rows.statistic == "probability")]
    said = dict(zip(said.example_id, said.value, strict=True))
    unknown = set(said) - set(case.texts)
    if unknown:
        return f"rows of ids {sorted(unknown)}, the texts have {sorted(case.texts)}"
    n_empty = report.provenance["skipped_empty"]
    if len(said) + n_empty < len(case.texts):
        return f"{len(said)} rows and {n_empty} empty of {len(case.texts)} texts"
    native = _native(model, [case.texts[number] for number in said])
    for (number, value), own in zip(said.items(), native, strict=True):
        if not abs(value - own) < 1e-5:
            text = case.texts[number]
            return f"text {number} {text[:60]!r}: probability {value}, own forward {own}"
    return None


def _native(folder: Path, texts: list[str]) -> list[float]:
    """The largest probability of each text by Transformers alone, one text at a time."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, return_dict=True)
    is_bert = model.config.model_type == "bert"
    model = model.eval() if is_bert else model.eval().double()
    longest = model.config.max_position_embeddings if is_bert else None
    found = []
    for text in texts:
        inputs = tokenizer(
            text, return_tensors="pt", truncation=longest is not None, max_length=longest
        )
        with torch.no_grad():
            found.append(model(**inputs).logits.softmax(-1).max().item())
    return found


# --- odd things -----------------------------------------------------------------------


ODD_TEXTS = [
    "",
    " ",
    "\t\n",
    "\x00",
    "film \x00 film",
    "\x1b[31mred\x1b[0m",
    "[CLS]",
    "[SEP] film [SEP]",
    "<pad>",
    "<pad> <pad>",
    "<sos> <eos>",
    "<unk>",
    "[MASK]",
    "👩‍👩‍👧‍👦 film",
    "שלום film",
    "a\u0301\u0301\u0301",
    "\ufeffthe film",
    "the\u2028film\u2029was\u0085dull",
    "the\u00a0film",
    "\u200b",
    'a "quoted, film',
    "a\r\nfilm",
    "a\rfilm",
    "NULL",
    "nan",
    "NA",
    "None",
    "-1",
    "1e999",
    "=cmd()",
    "<script>alert(1)</script>",
    "| a | b |",
    "a" * 3000,
    "film " * 300,
    ". " * 120,
    "\U0010ffff",
]
ODD_NUMBERS = [0, 1, 2, -1, -2, 10**9, 4 * 10**18, 2**63, 10**30, -(10**30), 0.5, 1e308]
ODD_VALUES = st.one_of(
    st.sampled_from([*ODD_NUMBERS, None, True, False, "", "x", "0", [], {}, [0], [None], {"a": 1}]),
    st.sampled_from([float("nan"), float("inf"), ["a", 1], [[1]], "１", "0 1", "a" * 300]),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.integers(-2, 4), max_size=4),
)
words = st.lists(
    st.sampled_from([*" ".join(TEXTS).split(), "unheard", "NULL", "film,", "a\tb"]),
    min_size=1,
    max_size=9,
).map(" ".join)
printable = st.text(
    st.characters(exclude_categories=["Cs"]), max_size=30
)  # no halves of pairs: no file holds them
odd_text = st.one_of(words, st.sampled_from(ODD_TEXTS), printable)


def json_lines(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


GOOD = json_lines([{"text": t, "label": k % 2} for k, t in enumerate(TEXTS)])
GOOD_TEXTS = dict(enumerate(TEXTS))


def audit_of(data: str, *flags: str, keep: bool = True) -> tuple[str, ...]:
    place = ("--output-dir", "HERE/out") if keep else ("--json",)
    return ("audit", "--model", "MODEL", "--dataset", data, *QUICK, *place, *flags)


# --- texts ----------------------------------------------------------------------------


@st.composite
def bad_texts(draw: Callable) -> Case:
    """A few odd texts, from a file of any form or from memory."""
    texts = draw(st.lists(odd_text, min_size=1, max_size=4))
    model = draw(st.sampled_from(["bilstm", "bert"]))
    form = draw(st.sampled_from(["csv", "jsonl", "parquet", "memory", "tsv", "json"]))
    known = dict(enumerate(texts))
    say = f"{model} {form} {texts!r:.500}"
    if form == "memory":
        if draw(st.integers(0, 4)) == 0:
            texts = [*texts, draw(st.text(max_size=6)), "half \ud800"]
            known = dict(enumerate(texts))
        return Case("texts", say, model=model, texts=known, rows=texts)
    rows = [{"text": text, "label": k % 2} for k, text in enumerate(texts)]
    content = table_bytes(rows, form)
    keep = draw(st.integers(0, 3)) == 0
    arguments = audit_of(f"HERE/data.{form}", keep=keep)
    return Case("texts", say, arguments, {f"data.{form}": content}, None, model, known)


def table_bytes(rows: list[dict[str, Any]], form: str) -> bytes:
    """A table as the bytes of a file."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    if form in ("csv", "tsv"):
        file = io.StringIO()
        separator = "\t" if form == "tsv" else ","
        writer = csv.writer(file, delimiter=separator, quoting=csv.QUOTE_MINIMAL)
        writer.writerow(names)
        for row in rows:
            writer.writerow([row.get(name) for name in names])
        return file.getvalue().encode("utf-8", "replace")
    if form == "parquet":
        file = io.BytesIO()
        columns = {name: [row.get(name) for row in rows] for name in names}
        try:
            pa.parquet.write_table(pa.table(columns), file)
        except Exception:  # no table holds such a mixture
            return json_lines(rows)
        return file.getvalue()
    return json_lines(rows) if form == "jsonl" else json.dumps(rows).encode()


# --- data sets ------------------------------------------------------------------------


COLUMN_NAMES = """
text sentence text_pair premise hypothesis tokens label labels example_id rationale evidence
ner_tags answers choices image idx
"""
COLUMNS = [*COLUMN_NAMES.split(), "", "weird name"]
data_flags = st.sampled_from(
    [
        (),
        (),
        (),
        (),
        ("--split", "train"),
        ("--split", ""),
        ("--text-column", "text"),
        ("--text-column", "text", "sentence"),
        ("--text-column", "label"),
        ("--text-pair-column", "text"),
        ("--text-pair-column", "label"),
        ("--label-column", "text"),
        ("--label-column", "label", "labels"),
        ("--label-column", "nothing"),
        ("--dataset-config", "x"),
        ("--test-limit", "1"),
        ("--test-limit", "999999999999"),
    ]
)


@st.composite
def bad_data(draw: Callable) -> Case:
    """Odd tables: columns, types, numbers, forms, and files that are none."""
    if draw(st.integers(0, 4)) == 0:
        return draw(torn_files())
    n_rows = draw(st.integers(1, 4))
    extra = draw(st.lists(st.sampled_from(COLUMNS), max_size=3, unique=True))
    names = [*(["text"] if draw(st.integers(0, 8)) else []), "label", *extra]
    columns: dict[str, list] = {}
    for name in dict.fromkeys(names):
        columns[name] = draw(column_of(name, n_rows))
    rows = [{name: columns[name][k] for name in columns} for k in range(n_rows)]
    form = draw(st.sampled_from(["csv", "jsonl", "parquet", "rows", "columns", "frame", "tsv"]))
    model = draw(st.sampled_from(["bilstm", "bilstm", "bert"]))
    say = f"{model} {form} {rows!r:.700}"
    if form in ("rows", "columns", "frame"):
        data: Any = rows if form == "rows" else columns
        if form == "frame":
            data = pd.DataFrame(columns)
        return Case("data", say, rows=data, model=model, texts=_known(columns))
    flags = draw(data_flags)
    where = draw(st.sampled_from([f"data.{form}", f"folder/test.{form}", f"A.{form}"]))
    data_name = "HERE/folder" if where.startswith("folder") else f"HERE/{where}"
    content = table_bytes(rows, form)
    texts = _known(columns) if not flags else None
    arguments = audit_of(data_name, *flags, keep=draw(st.integers(0, 2)) == 0)
    return Case("data", f"{say} {flags}", arguments, {where: content}, None, model, texts)


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
    usual: dict[str, st.SearchStrategy] = {
        "text": odd_text,
        "sentence": odd_text,
        "text_pair": odd_text,
        "premise": odd_text,
        "hypothesis": odd_text,
        "tokens": st.lists(words, max_size=3),
        "label": st.integers(-1, 2),
        "labels": st.integers(-1, 2),
        "example_id": st.integers(-1, 3),
        "rationale": st.lists(st.integers(-1, 4), max_size=4),
        "evidence": st.lists(st.integers(0, 1), min_size=2, max_size=5),
        "ner_tags": st.lists(st.integers(0, 2), max_size=5),
    }
    plain = usual.get(name, ODD_VALUES)
    way = draw(st.integers(0, 3))
    if way < 2:
        return [draw(plain) for _ in range(n_rows)]
    if way == 2:
        return [draw(st.one_of(plain, ODD_VALUES)) for _ in range(n_rows)]
    value = draw(ODD_VALUES)
    return [value] * n_rows


@st.composite
def torn_files(draw: Callable) -> Case:
    """Bytes that are no table, or not all of one."""
    form = draw(st.sampled_from(["csv", "jsonl", "json", "parquet", "tsv", "txt", ""]))
    rows = [{"text": t, "label": k % 2} for k, t in enumerate(TEXTS)]
    whole = table_bytes(rows, form if form not in ("txt", "") else "csv")
    cut = draw(st.integers(0, len(whole)))
    way = draw(st.integers(0, 5))
    spoilt = [
        whole[:cut],
        whole[:cut] + bytes([draw(st.integers(0, 255))]) + whole[cut + 1 :],
        draw(st.binary(max_size=60)),
        b"\xff\xfe" + whole.decode("latin-1").encode("utf-16-le"),
        b"\xef\xbb\xbf" + whole,
        whole[:cut] + b'"' + whole[cut:],
    ][way]
    name = f"data.{form}" if form else "data"
    say = f"torn {name} way {way} at {cut}: {spoilt[:80]!r}"
    arguments = audit_of(f"HERE/{name}", keep=draw(st.booleans()))
    return Case("data", say, arguments, {name: spoilt})


# --- checkpoints ----------------------------------------------------------------------


CONFIG_KEYS = """
sep_token_id eos_token_id bos_token_id unk_token_id pad_token_id max_position_embeddings
vocab_size num_labels id2label label2id hierarchical problem_type architectures model_type dtype
torch_dtype hidden_size num_attention_heads num_hidden_layers auto_map attention encoder
encoder_size embedding_size hidden_act layer_norm_eps type_vocab_size hidden_dropout_prob
quantization_config is_decoder chunk_size_feed_forward tie_word_embeddings pruned_heads
transformers_version attn_implementation output_attentions return_dict use_cache
base_model_tp_plan
"""
TOKENIZER_KEYS = """
model_max_length pad_token unk_token cls_token sep_token model_input_names tokenizer_class
added_tokens_decoder padding_side truncation_side auto_map additional_special_tokens do_lower_case
clean_up_tokenization_spaces
"""
SETTINGS = """
regression multi_label_classification bert gpt2 float16 bfloat16 int8 [PAD] absent BertTokenizer
GPT2TokenizerFast left eager relu uniform additive
"""
odd_setting = st.one_of(
    ODD_VALUES,
    st.sampled_from(
        [
            *SETTINGS.split(),
            10**12,
            {"1": "a", "2": "b"},
            {"0": "a"},
            {"0": "a", "1": "a"},
            {"0": None, "1": 3},
            {"x": "y"},
            ["BertModel"],
            ["BertForMaskedLM"],
            ["BertForTokenClassification"],
            ["X"],
            ["input_ids"],
            {"AutoConfig": "evil.Config", "AutoTokenizer": ["evil.T", None]},
            {"quant_method": "bitsandbytes"},
            {"0": [0]},
        ]
    ),
)


@st.composite
def bad_checkpoints(draw: Callable) -> Case:
    """A model's folder with a value, a file or a tensor that is off."""
    model = draw(st.sampled_from(["bilstm", "bert"]))
    change, say = draw(
        st.one_of(config_change(), config_change(), tokenizer_change(), weights_change())
    )
    arguments = audit_of("HERE/data.jsonl", keep=draw(st.integers(0, 2)) == 0)
    files = {"data.jsonl": GOOD}
    return Case("checkpoints", f"{model} {say}", arguments, files, change, model, GOOD_TEXTS)


@st.composite
def config_change(draw: Callable) -> tuple[Callable, str]:
    changes = draw(
        st.dictionaries(st.sampled_from(CONFIG_KEYS.split()), odd_setting, min_size=1, max_size=2)
    )
    gone = draw(st.lists(st.sampled_from(CONFIG_KEYS.split()), max_size=1))
    if draw(st.integers(0, 3)):
        gone = []

    def change(folder: Path) -> None:
        file = folder / "config.json"
        values = json.loads(file.read_text()) | changes
        file.write_text(json.dumps({k: v for k, v in values.items() if k not in gone}))

    return change, f"config {changes!r:.400} without {gone}"


@st.composite
def tokenizer_change(draw: Callable) -> tuple[Callable, str]:
    if draw(st.booleans()):
        key = draw(st.sampled_from(TOKENIZER_KEYS.split()))
        value = draw(odd_setting)

        def change(folder: Path) -> None:
            file = folder / "tokenizer_config.json"
            file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))

        return change, f"tokenizer_config {key}={value!r:.200}"
    way = draw(st.integers(0, 6))
    share, value = draw(st.floats(0, 1)), draw(odd_setting)

    def spoil(folder: Path) -> None:
        file = folder / "tokenizer.json"
        whole = file.read_text()
        held = json.loads(whole)
        if way == 0:
            file.write_text(whole[: int(share * len(whole))])
            return
        if way == 1:
            held.pop(sorted(held)[int(share * (len(held) - 1))])
        if way == 2:
            held[sorted(held)[int(share * (len(held) - 1))]] = value
        if way == 3:
            held["model"]["vocab"]["film"] = value
        if way == 4:
            held["model"]["vocab"] = dict(list(held["model"]["vocab"].items())[:5])
        if way == 5:
            held["added_tokens"] = held["added_tokens"][: int(share * 3)]
        if way == 6:
            for token in held["added_tokens"]:
                token["id"] = value
        file.write_text(json.dumps(held))

    return spoil, f"tokenizer.json way {way} {share:.3f} {value!r:.200}"


@st.composite
def weights_change(draw: Callable) -> tuple[Callable, str]:
    way = draw(st.integers(0, 9))
    share = draw(st.floats(0, 1))
    byte = draw(st.integers(0, 255))

    def spoil(folder: Path) -> None:
        file = folder / "model.safetensors"
        whole = file.read_bytes()
        at = int(share * len(whole))
        if way < 3:
            cut = [whole[:at], whole[:at] + bytes([byte]) + whole[at + 1 :]]
            cut.append(bytes([byte]) * 8 + whole[8:])
            file.write_bytes(cut[way])
            return
        tensors = load_file(file)
        name = sorted(tensors)[int(share * (len(tensors) - 1))]
        tensor = tensors[name]
        if way == 3:
            tensors[name] = torch.full_like(tensor, float("nan"))
        if way == 4:
            tensors[name] = torch.full_like(tensor, float("inf"))
        if way == 5:
            kinds = [torch.int64, torch.bool, torch.float16, torch.float64]
            tensors[name] = tensor.to(kinds[byte % 4])
        if way == 6:
            tensors[name] = tensor.flatten()[: max(1, tensor.numel() // 2)].clone()
        if way == 7:
            del tensors[name]
        if way == 8:
            tensors[f"{name}.other"] = tensor.clone()
        if way == 9:
            tensors[name] = tensor * 1e30
        save_file(tensors, file, metadata={"format": "pt"})

    return spoil, f"weights way {way} {share:.3f} {byte}"


# --- flags ----------------------------------------------------------------------------


FLAG_WORDS = """
0 1 2 -1 999999999 1000000000000 4000000000000000000 1e9 1e308 1e-300 0.5 nan inf -inf -- - 0x10 １
1_0 ../../x /dev/null ~ $HOME %s {} None true 0.0 0.0+0.1 0.9 1.0+ + positive negative film 1GB
1KB 999999TB permutation correlation permutation.n_permutations=2 permutation.n_permutations=
adversarial.epsilons=.1,x default
"""
ODD_FLAGS = [
    *FLAG_WORDS.split(),
    "9" * 25,
    "",
    " ",
    "\n",
    "a\nb",
    "\t",
    "é" * 40,
    "a" * 400,
    "\x1b[2J",
    "\x00",
]
VERBS = {
    "audit": ("--model", "MODEL", "--dataset", "HERE/data.jsonl", *QUICK),
    "report": ("HERE/data.jsonl",),
    "train": (
        *("--dataset", "HERE/data", "--epochs", "1", "--embedding-size", "4"),
        *("--encoder-size", "2", "--device", "cpu"),
    ),
    "retrain": ("--model", "MODEL", "--dataset", "HERE/data", "--tests", "uniform"),
    "compare": ("MODEL", "MODEL", "--dataset", "HERE/data"),
    "deceive": ("--model", "MODEL", "--dataset", "HERE/data", "--tokens", "film"),
    "card": ("MODEL",),
    "demo": (),
    "study": ("HERE/study.py",),
    "datasets": (),
}
FLAG = ("help", "push_to_hub", "token", "private", "trust_remote_code", "output_dir")
"""What is not drawn: nothing is published, and the place is given."""


def all_flags(verb: str) -> list[Any]:
    """The flags of a command, as argparse holds them."""
    (commands,) = [a for a in build_parser()._actions if getattr(a, "choices", None)]
    return [a for a in commands.choices[verb]._actions if a.option_strings]


FLAGS = {verb: [a for a in all_flags(verb) if a.dest not in FLAG] for verb in VERBS}


@st.composite
def bad_flags(draw: Callable) -> Case:
    """A command that is right, and one to three odd flags behind it."""
    verbs = [*["audit"] * 12, "report", "train", "retrain", "compare", "deceive"]
    verb = draw(st.sampled_from([*verbs, "card", "demo", "study", "datasets"]))
    given: list[str] = []
    actions = draw(
        st.lists(st.sampled_from(FLAGS[verb]), min_size=1, max_size=3)
        if FLAGS[verb]
        else st.just([])
    )
    for action in actions:
        given.append(action.option_strings[0])
        if action.nargs != 0:
            choices = [str(choice) for choice in action.choices or ()]
            values = st.sampled_from([*choices * 4, *ODD_FLAGS])
            n_values = draw(st.integers(1, 2)) if action.nargs == "+" else 1
            given += [draw(values) for _ in range(n_values)]
    if verb in ("train", "retrain", "compare", "deceive", "demo", "study"):
        bad = draw(st.sampled_from(REFUSED))
        given += [bad] if draw(st.booleans()) else []
    has_folder = any(a.dest == "output_dir" for a in all_flags(verb))
    place = ["--output-dir", "HERE/out"] if has_folder else []
    if verb == "demo" or (verb in SLOW and draw(st.integers(0, 4))):
        given.append("--frobnicate")  # a training is dear, its refusal is not
    model = draw(st.sampled_from(["bilstm", "bert"])) if verb == "audit" else "bilstm"
    known = GOOD_TEXTS if verb == "audit" and not MOVES & set(given) else None
    files = {"data.jsonl": GOOD, "study.py": STUDY.encode()}
    files |= {f"data/{s}.jsonl": GOOD for s in ("train", "validation", "test")}
    arguments = (verb, *VERBS[verb], *place, *given)
    change = _keep if verb == "card" else None
    return Case("flags", f"{model} {arguments}", arguments, files, change, model, known)


def _keep(_: Path) -> None:
    """Nothing: what is asked for is a copy."""


REFUSED = ["--frobnicate", "--seed=x", "--epochs=0", "--test-limit=-1"]
SLOW = ("retrain", "compare", "deceive", "study")
MOVES = {"--test-limit", "--dtype", "--split", "--dataset", "--model", "--predicts"}
MOVES |= {"--text-column", "--target", "--no-truncate", "--subfolder", "--segment", "--weights"}


STUDY = """
def study(s):
    tests = {"permutation": {"n_permutations": 2}}
    for cell in s.grid(seed=[0, 1]):
        audited = {"model": "MODELS/bilstm", "dataset": "HERE/data.jsonl"}
        s.add("audit", "audit", cell, **cell, **audited, tests=tests)
    moves = {"statistic": "median_tvd", "threshold": 0.1, "means": "it matters"}
    s.table("Does it matter?", audit={"moves": moves})
"""


KINDS = {
    "texts": bad_texts(),
    "data": bad_data(),
    "checkpoints": bad_checkpoints(),
    "flags": bad_flags(),
}


def placed(case: Case, models: dict[str, Path]) -> Case:
    """A study's models stand outside its folder."""
    if "study.py" not in case.files:
        return case
    root = str(models["bilstm"].parent).encode()
    text = case.files["study.py"].replace(b"MODELS", root)
    return replace(case, files={**case.files, "study.py": text})
