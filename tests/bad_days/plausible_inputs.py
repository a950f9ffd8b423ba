"""Inputs that get past the parser: flags with values that people give, tables, scores, folders of other verbs, wrong types.

Each is a :class:`~bad_inputs.Case` and must keep what every case keeps.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from bad_inputs import GOOD, TEXTS, Case, json_lines, odd_text, table_bytes
from hypothesis import strategies as st

import hf_attnprobe
import speakers
import zoo
from hf_attnprobe import Answers, Data, SpikeOptions
from hf_attnprobe.auditing.options import AuditOptions
from hf_attnprobe.cli import main
from hf_attnprobe.options import item_of


ASKED = [
    {
        "context": "Ann lives in Rome. Bob lives in Oslo.",
        "question": "Where is Bob?",
        "answer": "Oslo",
    },
    {"context": "One. Two is more.", "question": "What is more?", "answer": "Two"},
]
QUICK = {
    "bert": ("--tests", "permutation", "--set", "permutation.n_permutations=2"),
    "llama": ("--tests", "sources", "--units", "sentence"),
}
QUICK["bilstm"] = QUICK["bert"]
DATA = {"bert": "HERE/data.jsonl", "bilstm": "HERE/data.jsonl", "llama": "HERE/asked.jsonl"}
FILES = {"data.jsonl": GOOD, "asked.jsonl": json_lines(ASKED)}
DONE = ("audit", "other", "shares", "judge", "spike", "survive")
"""Folders that verbs have finished, which a case may find in its own; see :func:`finished`."""


def add_speaker(models: dict[str, Path], folder: Path) -> dict[str, Path]:
    """The models of :func:`~bad_inputs.make_models` and a language model."""
    tokenizer = speakers.tokenizer(chat=False)
    return models | {"llama": zoo.saved(folder / "llama", speakers.llama(tokenizer), tokenizer)}


@cache
def finished(models: Path) -> Path:
    """A folder with one of each verb's, beside the models."""
    root = models / "done"
    root.mkdir()
    for name, content in FILES.items():
        (root / name).write_bytes(content)
    scores = [{"id": k, "score": [float(len(w)) for w in t.split()]} for k, t in enumerate(TEXTS)]
    (root / "scores.jsonl").write_bytes(json_lines(scores))
    few = ("--dataset", str(root / "data.jsonl"), *QUICK["bert"], "--shown-texts", "0")
    bert, bilstm = str(models / "bert"), str(models / "bilstm")
    commands = {
        "audit": ("audit", "--model", bert, *few),
        "other": ("audit", "--model", bilstm, *few),
        "shares": ("audit", "--model", bert, *few, "--share", "0/2"),
        "judge": (
            *("judge", "--model", bilstm, "--dataset", str(root / "data.jsonl")),
            *("--scores", str(root / "scores.jsonl"), "--tests", "input_erasure"),
        ),
        "survive": ("survive", "--model", bert, "--versions", "int8", *few),
        "spike": ("spike", bert, "--dataset", str(root / "data.jsonl"), "--doses", "0.5"),
    }
    for name, command in commands.items():
        assert main([*command, "--output-dir", str(root / name)]) == 0, name
    return root


def with_finished(*names: str) -> Callable[[Path, Path], None]:
    """What puts finished folders into that of a case."""

    def prepare(models: Path, folder: Path) -> None:
        for name in names:
            shutil.copytree(finished(models) / name, folder / name)

    return prepare


# --- flags ------------------------------------------------------------------------------


LIKELY: dict[str, list[str]] = {
    "head_sets": ["0.0+0.1", "0.0", "shared", "0.0+9.9", "0"],
    "target": ["positive", "NEGATIVE", "0", "1", "2", "film", "-1"],
    "time": ["1s", "2s", "1", "0.5s", "1x"],
    "thresholds": ["faithfulness=.4,.7", "effect=.1", "removal=.1", "effect=.7,.4", "love=.1"],
    "memory_budget": ["100MB", "2GB", "1KB", "1", "2 GB", "-1GB"],
    "share": ["0/2", "1/2", "0/1", "2/2", "1", "a/b"],
    "split": ["test", "train", "validation", "dev"],
    "limits": ["HERE/spike", "HERE/audit", "HERE/nothing", "HERE/data.jsonl"],
    "dataset_config": ["default", "large"],
    "revision": ["main", "v1.0", "HEAD~1"],
    "subfolder": [".", "sub", "../x"],
    "gguf_file": ["model.gguf"],
    "template": ["{context} {question}", "{question}\n{context}\nAnswer:", "{context}", "Say:"],
    "spiked_heads": ["0.0", "0.1", "1.0", "9.9", "0.0+0.1"],
    "doses": ["0.5", "1", "0.1 0.5", "0", "2 1"],
    "heads": ["0", "1", "all", "7", "-1"],
    "layers": ["0", "1", "-1", "0 0"],
}
COLUMNS = ["text", "label", "sentence", "context", "question", "answer", "nothing", "example_id"]
NUMBERS = ["0", "1", "2", "3", "5", "17", "100", "-1", "0.5", "0.05", "1.5", "1e-3"]
UNDRAWN = {"dataset", "token", "trust_remote_code", "allow_pickle", "train_limit"}
VERBS: dict[str, tuple[type, ...]] = {
    "audit": (AuditOptions, Data),
    "judge": (AuditOptions, Data),
    "survive": (AuditOptions, Data),
    "spike": (SpikeOptions, Data),
}


def likely(field: dataclasses.Field, hint: Any) -> st.SearchStrategy[list[str]]:
    """A flag with a value that somebody may give it."""
    item, several = item_of(hint)
    name = field.name.replace("_", "-")
    if item is bool:
        return st.just([f"--no-{name}" if field.default else f"--{name}"])
    values = LIKELY.get(field.name)
    if values is None and field.name.endswith("_column"):
        values = COLUMNS
    if values is None and get_origin(item) is Literal:
        values = [*get_args(item)]
    value = st.sampled_from(values or NUMBERS)
    many = st.lists(value, min_size=1, max_size=2 if several else 1)
    return many.map(
        lambda words: (
            [f"--{name}", *" ".join(words).split(" ")] if several else [f"--{name}", words[0]]
        )
    )


@st.composite
def likely_flags(draw: Callable, kinds: tuple[type, ...]) -> list[str]:
    fields = [
        (field, get_type_hints(kind)[field.name])
        for kind in kinds
        for field in dataclasses.fields(kind)
        if field.name not in UNDRAWN
    ]
    chosen = draw(st.lists(st.sampled_from(fields), min_size=1, max_size=3))
    return [word for field, hint in chosen for word in draw(likely(field, hint))]


@st.composite
def flags(draw: Callable) -> Case:
    """A command that is right, and a few flags with values of every day."""
    verb = draw(st.sampled_from([*["audit"] * 5, "judge", "survive", "spike"]))
    model = draw(st.sampled_from(["bert", "bilstm", "llama"]))
    own = (Answers,) if model == "llama" and verb != "judge" else ()
    given = draw(likely_flags((*VERBS[verb][:1], *(own or (Data,)))))
    command = command_of(verb, model)
    files = FILES | {"scores.jsonl": scores_of(model)}
    say = f"{model} {verb} {given}"
    return Case(
        "flags", say, (*command, *given), files, model=model, prepare=with_finished("spike")
    )


def command_of(verb: str, model: str) -> tuple[str, ...]:
    """A verb on a few texts that is right as it is."""
    place = ("--dataset", DATA[model], "--output-dir", "HERE/out")
    if verb == "spike":
        units = QUICK[model][2:] if model == "llama" else ()
        return ("spike", "MODEL", *place, *units, "--doses", "0.5")
    quick = QUICK[model] if verb != "judge" else ()
    besides = {"judge": ("--scores", "HERE/scores.jsonl"), "survive": ("--versions", "int8")}
    return (verb, "--model", "MODEL", *place, *quick, *besides.get(verb, ()), "--shown-texts", "1")


def scores_of(model: str) -> bytes:
    n_units = [2, 2] if model == "llama" else [len(text.split()) for text in TEXTS]
    return json_lines([{"id": k, "score": [0.5] * n} for k, n in enumerate(n_units)])


# --- tables of a language model, and scores -----------------------------------------------


CELLS = st.one_of(
    odd_text,
    st.sampled_from(["1984", "0.50", "True", "2020-01-31", "null", "12:30", "1e5", "Infinity"]),
    st.sampled_from([None, 1984, 2.5, True, [], ["a", "b"], ["a", 1], {"text": ["a"]}, {}]),
)


@st.composite
def asked(draw: Callable) -> Case:
    """Passages and questions with odd cells, in every form."""
    n = draw(st.integers(1, 3))
    names = [
        "context",
        "question",
        *draw(
            st.lists(
                st.sampled_from(["answer", "other", "prompt", "messages", "example_id", "label"]),
                max_size=2,
                unique=True,
            )
        ),
    ]
    rows = [{**ASKED[k % 2]} for k in range(n)]
    rows = [{name: row.get(name, draw(CELLS)) for name in names} for row in rows]
    for _ in range(draw(st.integers(0, 2))):
        rows[draw(st.integers(0, n - 1))][draw(st.sampled_from(names))] = draw(CELLS)
    form = draw(st.sampled_from(["csv", "tsv", "jsonl", "json", "parquet"]))
    content = table_bytes(rows, form)
    given = draw(likely_flags((Answers,))) if draw(st.booleans()) else []
    arguments = (
        "audit",
        "--model",
        "MODEL",
        "--dataset",
        f"HERE/asked.{form}",
        *QUICK["llama"],
        *given,
    )
    arguments += ("--output-dir", "HERE/out") if draw(st.booleans()) else ("--json",)
    return Case(
        "asked",
        f"{form} {rows!r:.600} {given}",
        arguments,
        {f"asked.{form}": content},
        model="llama",
    )


FORMS = [
    "null",
    "[]",
    "{}",
    "[null]",
    "1",
    '"a"',
    "[1, 2]",
    "nan",
    '{"id": 0}',
    "",
    " ",
    "\n\n",
    "[[]]",
    '{"id": 0, "score": [1, 2]}\nnull',
    '[{"id": 0, "score": 1}',
    "\ufeffnull",
    "true",
    '{"text": null}',
]


@st.composite
def scores(draw: Callable) -> Case:
    """Scores for the units of texts that nearly fit."""
    model = draw(st.sampled_from(["bilstm", "bilstm", "llama"]))
    number = st.one_of(
        st.floats(-2, 2),
        st.integers(-2, 2),
        st.sampled_from([None, "a", "0.5", True, float("nan"), [1], 10**30]),
    )
    rows: list[dict[str, Any]] = []
    lists = draw(st.booleans())
    extra = draw(
        st.sampled_from([(), (), ("unit",), ("start", "end"), ("token",), ("start",), ("text",)])
    )
    for k, text in enumerate(TEXTS if model == "bilstm" else ASKED):
        n = (
            2
            if model == "llama"
            else len(str(text).split()) + draw(st.sampled_from([0] * 12 + [1, -1]))
        )
        values = [draw(number) if draw(st.integers(0, 39)) == 39 else 0.25 * j for j in range(n)]
        key = k if draw(st.integers(0, 14)) < 14 else draw(st.sampled_from(["a", 7, 0.5, None, -1]))
        own: dict[str, list[Any]] = {"score": values}
        for name in extra:
            own[name] = [
                draw(st.one_of(st.integers(0, 20), CELLS)) if draw(st.integers(0, 29)) == 29 else j
                for j in range(n)
            ]
        if lists:
            rows.append({"id": key, **own})
        else:
            rows += [{"id": key, **{name: own[name][j] for name in own}} for j in range(n)]
    form = draw(st.sampled_from(["jsonl", "parquet", "csv", "json", "tsv"]))
    content = table_bytes(rows, form)
    if draw(st.integers(0, 4)) == 0:
        form, content = (
            draw(st.sampled_from(["json", "jsonl"])),
            draw(st.sampled_from(FORMS)).encode(),
        )
    command = (
        "judge",
        "--model",
        "MODEL",
        "--dataset",
        DATA[model],
        "--scores",
        f"HERE/scores.{form}",
    )
    command += ("--tests", "sources" if model == "llama" else "input_erasure", "--shown-texts", "0")
    command += ("--output-dir", "HERE/out") if draw(st.booleans()) else ("--json",)
    files = FILES | {f"scores.{form}": content}
    return Case("scores", f"{form} {content[:500]!r}", command, files, model=model)


# --- folders of other verbs, and what somebody did to them ---------------------------------


@st.composite
def folders(draw: Callable) -> Case:
    """A command that meets a folder of another verb, or one of its own that somebody edited."""
    name = draw(st.sampled_from(DONE))
    other = draw(st.sampled_from(DONE))
    edit = draw(edits())
    verb = draw(
        st.sampled_from(
            ["report", "report", "audit", "judge", "survive", "spike", "limits", "pair", "card"]
        )
    )
    model = draw(st.sampled_from(["bert", "bilstm"]))
    inside = (
        "/share-0-of-2"
        if name == "shares"
        else "/0-model"
        if name == "survive" and draw(st.booleans())
        else ""
    )
    place = f"HERE/{name}{inside}"
    if verb in ("report", "pair"):
        arguments: tuple[str, ...] = (
            "report",
            place,
            *([f"HERE/{other}"] if verb == "pair" else []),
        )
        output = draw(
            st.sampled_from([None, "x.html", "x.md", "x.json", "x.csv", "x.tex", "x.pdf"])
        )
        arguments += () if output is None else ("--output", f"HERE/{output}")
    elif verb == "limits":
        arguments = (*command_of("audit", model), "--limits", place)
    elif verb == "card":
        arguments = ("card", "MODEL", place)
    else:
        command = command_of(verb, model)
        arguments = tuple(place if word == "HERE/out" else word for word in command)
    files = FILES | {"scores.jsonl": scores_of(model)}

    def prepare(models: Path, folder: Path) -> None:
        with_finished(*{name, other})(models, folder)
        edit[1](folder / name)

    change = (lambda _: None) if verb == "card" else None  # what is asked for is a copy
    return Case(
        "folders",
        f"{model} {arguments} after {edit[0]}",
        arguments,
        files,
        change,
        model,
        prepare=prepare,
    )


@st.composite
def edits(draw: Callable) -> tuple[str, Callable[[Path], None]]:
    """Something that happens to a finished folder."""
    way = draw(st.sampled_from(["nothing"] * 3 + ["torn", "form", "gone", "mark", "value", "text"]))
    share, form = draw(st.floats(0, 1)), draw(st.sampled_from(FORMS))

    def edit(folder: Path) -> None:
        files = sorted(
            f
            for f in folder.rglob("*")
            if f.is_file() and f.suffix in (".json", ".csv", ".parquet")
        )
        file = files[int(share * (len(files) - 1))]
        if way == "torn":
            file.write_bytes(file.read_bytes()[: int(share * file.stat().st_size)])
        if way == "form":
            file.write_text(form)
        if way == "gone":
            file.unlink()
        if way == "mark":
            (
                folder
                / draw_of(share, ["audit.json", "spike.json", "retraining.json", "survival.json"])
            ).write_text(form)
        if way == "value" and file.suffix == ".json":
            held = json.loads(file.read_text())
            if isinstance(held, dict) and held:
                name = sorted(held)[int(share * (len(held) - 1))]
                held[name] = json.loads(form) if form[:1] in "[{1" and way_reads(form) else None
                file.write_text(json.dumps(held))
        if way == "text":
            (folder / "thesis.tex").write_text("mine")

    return f"{way} {share:.2f} {form!r}", edit


def draw_of(share: float, names: list[str]) -> str:
    return names[int(share * (len(names) - 1))]


def way_reads(form: str) -> bool:
    try:
        json.loads(form)
    except ValueError:
        return False
    return True


# --- types in Python -------------------------------------------------------------------------


ODD_OBJECTS: list[Any] = [
    None,
    3,
    -1,
    2.5,
    True,
    b"bytes",
    "",
    "a",
    [],
    [None],
    ["a"],
    [[1.0]],
    {},
    {"a": 1},
    (1, 2),
    {"seed": 1},
    object(),
    ValueError,
    len,
    torch.zeros(2),
    torch.nn.Linear(2, 2),
    Path("nowhere"),
    range(3),
    iter([]),
    {1, 2},
]
CALLED = {
    "audit": ("dataset", "tests", "options", "output_dir", "tokenizer"),
    "judge": ("dataset", "scores", "tests", "options", "output_dir", "tokenizer"),
    "survive": ("versions", "dataset", "tests", "options", "output_dir", "tokenizer"),
    "compare_checkpoints": ("models", "dataset", "tests", "options", "output_dir"),
    "spike_in": ("dataset", "output_dir", "options", "tokenizer"),
    "load_examples": ("dataset", "text_column", "label_column", "limit"),
    "read_audit": ("folder",),
    "compare_audits": ("folders",),
    "joined_report": ("folders",),
    "render_report": ("folder", "output"),
    "write_card": ("model", "audits", "options"),
    "changed_answers": ("comparison",),
    "read_rows": ("folder", "test"),
}


@st.composite
def types(draw: Callable) -> Case:
    """A public function on a right model and data with one argument of another type."""
    name = draw(st.sampled_from([*CALLED]))
    argument = draw(st.sampled_from(CALLED[name]))
    k = draw(st.integers(0, len(ODD_OBJECTS) - 1))

    def call(model: Path, folder: Path) -> Any:
        texts = [{"text": t, "label": k % 2} for k, t in enumerate(TEXTS)]
        audit = folder / "audit"
        tests = ["permutation"]
        right: dict[str, Any] = {
            "model": model,
            "models": [model, model],
            "versions": ["int8"],
            "dataset": texts,
            "tests": tests,
            "scores": [[1.0] * len(t.split()) for t in TEXTS],
            "output_dir": folder / "out",
            "folder": audit,
            "folders": [audit, folder / "other"],
            "audits": [audit],
            "split": "test",
            "comparison": None,
            "progress": False,
            "options": None,
        }
        wanted = {
            "judge": ["model", "dataset", "scores"],
            "survive": ["model", "versions", "dataset", "output_dir"],
        }
        wanted |= {
            "compare_checkpoints": ["models", "dataset", "output_dir"],
            "load_examples": ["dataset", "split"],
        }
        wanted |= {"write_card": ["model"]}
        needed = wanted.get(
            name, ["model", "dataset"] if name in ("audit", "spike_in") else CALLED[name][:1]
        )
        given = {n: right[n] for n in needed}
        if name in ("audit", "survive", "compare_checkpoints"):
            given |= {"tests": {"permutation": {"n_permutations": 2}}, "progress": False}
        return getattr(hf_attnprobe, name)(**{**given, argument: ODD_OBJECTS[k]})

    say = f"{name}({argument}={ODD_OBJECTS[k]!r})"
    change = (lambda _: None) if name == "write_card" else None
    return Case(
        "types",
        say,
        model="bilstm",
        call=call,
        change=change,
        prepare=with_finished("audit", "other"),
    )


PLAUSIBLE = {
    "likely flags": flags(),
    "asked": asked(),
    "scores": scores(),
    "folders": folders(),
    "types": types(),
}
