"""All that is said of small models, in every form, kept as texts; or compared with what was kept.

    python -m tests.record_reports FOLDER                   # at the commit before
    python -m tests.record_reports NEW --since FOLDER       # at the commit after
    python -m tests.record_reports NEW --since FOLDER --only deception card --may-say-more

FOLDER/VERB/FORM.txt is what a reader sees: of a page the text without tags, scripts and pictures
(the words in pictures are a form of their own), of JSON a line per value. From these texts alone come
the two things that are compared: how often every number stands there, and the answer to every
question. So the code of a form may be written anew, and `diff -r FOLDER NEW` shows the words.
"""

import argparse
import contextlib
import io
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from tests import record_numbers  # before the package: it says that there is no network


# isort: split

import torch

import hf_attnprobe as attnprobe
from hf_attnprobe.cli import main as attnprobe_command


ANSWERS = ("cannot say", "mostly yes", "mostly no", "yes", "no", "partly")
FORMS = {".md": "markdown", ".html": "page", ".json": "json", ".csv": "csv"}
NO_FINDING = ("provenance", "versions", "arguments", "seconds")
MOST = 40
"""Lines that are printed of one kind of difference."""


# --- from a form to its numbers and answers -------------------------------------------

NUMBER = re.compile(
    r"(?<![\w.])[-−+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:e[-−+]?\d+)?%?(?![\w])"
)
ANSWER = re.compile(rf"([^.:?!|\n]{{2,90}}[?:])[\s|*]*({'|'.join(ANSWERS)})\b", re.IGNORECASE)


def numbers_in(text: str) -> Counter[str]:
    """How often each number stands in a text; 0.30 and .3 are one, 30% is another."""
    return Counter(_canonical(found.group()) for found in NUMBER.finditer(text))


def _canonical(number: str) -> str:
    bare = number.replace(",", "").replace("−", "-").rstrip("%")
    return f"{round(float(bare), 12) + 0.0:.9g}" + "%" * number.endswith("%")


def answers_in(text: str) -> set[tuple[str, str]]:
    """(question, answer), wherever an answer follows a question or a colon, or fills a cell."""
    found = {(_plain(asked), answer.lower()) for asked, answer in ANSWER.findall(text)}
    for line in text.splitlines():
        first, *cells = [_plain(cell) for cell in line.strip().strip("|").split("|")]
        found |= {(first, cell.lower()) for cell in cells if cell.lower() in ANSWERS}
    return found


def _plain(words: str) -> str:
    return " ".join(words.split()).strip("-*#`' ")


class Visible(HTMLParser):
    """The text of a page: ``shown`` outside pictures, ``in_pictures`` inside SVG."""

    OWN_LINE = re.compile("p|h[1-6]|li|d[dt]|tr|table|section|article|div|figcaption|title")
    UNSEEN = ("script", "style", "template")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.inside: list[str] = []
        self.shown, self.in_pictures = io.StringIO(), io.StringIO()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in ("svg", *self.UNSEEN):
            self.inside.append(tag)
        self._separate(tag)

    def handle_endtag(self, tag: str) -> None:
        self._separate(tag)
        if self.inside and tag == self.inside[-1]:
            self.inside.pop()

    def handle_data(self, data: str) -> None:
        if not self.inside:
            self.shown.write(re.sub(r"\s+", " ", data))
        elif "svg" in self.inside and self.inside[-1] not in self.UNSEEN:
            self.in_pictures.write(data)

    def _separate(self, tag: str) -> None:
        if self.inside:
            self.in_pictures.write("\n")
        elif tag in ("td", "th"):
            self.shown.write(" | ")
        elif self.OWN_LINE.fullmatch(tag):
            self.shown.write("\n")


def _lines(text: str) -> str:
    """Without blank lines and blanks at the end of lines."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def _values(data: Any, key: str = "") -> Iterator[str]:
    """A line per value of nested data: where it is, and what."""
    if isinstance(data, Mapping):
        for name, inner in data.items():
            if name not in NO_FINDING:
                yield from _values(inner, f"{key}/{name}")
    elif isinstance(data, list):
        for place, inner in enumerate(data):
            yield from _values(inner, f"{key}/{record_numbers.name_of(inner, place)}")
    else:
        yield f"{key} | {data}"


def as_read(ending: str, text: str) -> dict[str, str]:
    """By name of a form, what a reader sees of a file with this ending."""
    if ending == ".html":
        page = Visible(text)
        forms = {"page": page.shown, "pictures": page.in_pictures}
        return {name: _lines(shown.getvalue()) for name, shown in forms.items()}
    if ending == ".json":
        return {"json": "\n".join(_values(json.loads(text))) + "\n"}
    return {FORMS[ending]: text}


# --- what is said ---------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """What one call of a verb gave: its result, the folders to render, the files it wrote."""

    verb: str
    result: Any
    folders: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()


def forms_of(told: Told) -> dict[str, str]:
    """By name, every form that there is of a result."""
    forms = {"terminal": str(told.result)}
    forms |= {file.name: file.read_text(encoding="utf-8") for file in told.files}
    if hasattr(told.result, "to_text"):
        forms["terminal-verbose"] = told.result.to_text(verbose=True)
    for ending in FORMS if told.folders else ():
        with contextlib.suppress(attnprobe.AttnProbeError):  # a form that this verb has not
            file = Path(f"form{ending}")
            attnprobe.render_report(list(told.folders), file)
            forms |= as_read(ending, file.read_text(encoding="utf-8"))
            file.unlink()
    return forms


def _texts(n: int = 800) -> Any:
    return attnprobe.make_rationale_dataset(n, seed=1)


def _trained(name: str = "trained", encoder: str = "bilstm", seed: int = 0) -> Path:
    """A classifier that has learned something; trained once."""
    if not Path(name).exists():
        data, sizes = _texts(), {"embedding_size": 16, "encoder_size": 16}
        config = attnprobe.AttentionClassifierConfig(encoder=encoder, **sizes)
        quickly = {"epochs": 12, "learning_rate": 1e-2, "batch_size": 16}
        options = attnprobe.TrainingOptions(**quickly, seed=seed)
        given = {"test": data["test"], "output_dir": name, "options": options, "progress": False}
        attnprobe.train_classifier(config, data["train"], data["validation"], **given)
    return Path(name)


def _audited(model: Path) -> Path:
    folder = Path(f"{model}-audit")
    if not folder.exists():
        attnprobe.audit(model, _texts()["test"], output_dir=folder, progress=False)
    return folder


def of_audits() -> Iterator[Told]:
    """The demo as its command prints it, and audits of the record of numbers."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        attnprobe_command(["demo", "--n-examples=300", "--epochs=2", "--output-dir=demo"])
    yield Told("demo", printed.getvalue(), (Path("demo/audit"),))
    record_numbers.record_bert(Path())
    record_numbers.record_hierarchical(Path())
    audited = [Path(name) for name in ("bert-audit", "bert-screened", "hierarchical")]
    for folder in (*audited, _audited(_trained())):
        yield Told(folder.name, attnprobe.read_audit(folder), (folder,))


def of_comparison() -> Iterator[Told]:
    """Two audits compared."""
    models = [_trained(), _trained("trained-mlp", "mlp")]
    folders = [_audited(model) for model in models]
    yield Told("audits-compared", attnprobe.compare_audits(folders), tuple(folders))


def of_retraining() -> Iterator[Told]:
    """The retraining of the record of numbers, and one of a model that has learned more."""
    record_numbers.record_retraining(Path())
    yield Told("retraining", attnprobe.read_retraining("retrained"), (Path("retrained"),))
    adversary = {"lambdas": [0.05, 0.001], "epochs": 4}
    tests = {"default": {}, "seeds": {"n_seeds": 2}, "adversary": adversary}
    told = attnprobe.retrain(
        _trained(), _texts(), tests, output_dir="retrained-more", progress=False
    )
    yield Told("retraining-more", told, (Path("retrained-more"),))


def of_study() -> Iterator[Told]:
    """The study of the record of numbers."""
    record_numbers.record_study(Path())
    options = attnprobe.StudyOptions(dataset="reviews=reviews")
    told = attnprobe.study(record_numbers.tiny, output_dir="study", options=options, progress=False)
    yield Told("study", told, (Path("study"),))


def of_deception() -> Iterator[Told]:
    """A model trained to hide what it sees of some cues."""
    cues = ["dull", "poor", "clumsy", "stale", "wonderful", "moving", "clever", "fresh"]
    tests = {"deception": {"words": cues, "epochs": 3}}
    told = attnprobe.retrain(_trained(), _texts(), tests, output_dir="deceived", progress=False)
    yield Told("deception", told, (Path("deceived"),))


def of_card() -> Iterator[Told]:
    """The README of a classifier with its audit."""
    told = attnprobe.write_card(_trained(), [_audited(_trained())])
    yield Told("card", told, files=(Path("trained/README.md"),))


VERBS = {
    "audit": of_audits,
    "compare": of_comparison,
    "retrain": of_retraining,
    "study": of_study,
    "deception": of_deception,
    "card": of_card,
}


def write(folder: Path, verbs: list[str]) -> None:
    """Runs the verbs in a new folder, and keeps what they say in files below ``folder``."""
    home, folder = Path.cwd(), folder.resolve()
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        for verb in verbs:
            for told in VERBS[verb]():
                (folder / told.verb).mkdir(parents=True, exist_ok=True)
                for form, text in forms_of(told).items():
                    text = text.replace(str(Path(work).resolve()), "WORK")
                    text = re.sub(r"\b\d+ seconds", "N seconds", text)
                    (folder / told.verb / f"{form}.txt").write_text(text, encoding="utf-8")
        os.chdir(home)


# --- compared -------------------------------------------------------------------------


def written_otherwise(old: str, new: str) -> bool:
    """Whether one of two numbers is the other with fewer digits, or as a percentage."""
    (few, digits), (many, _) = sorted(map(_scaled, (old, new)), key=lambda scaled: scaled[1])
    return f"{many:.{digits}f}" == f"{few:.{digits}f}"


def _scaled(number: str) -> tuple[float, int]:
    """Its value, and its digits after the point."""
    digits = len(number.rstrip("%").partition("e")[0].partition(".")[2])
    share = 2 if number.endswith("%") else 0
    return round(float(number.rstrip("%")) / 10**share, 12), digits + share


def changes(old: str, new: str, *, form: str) -> dict[str, list[str]]:
    """What one form lacks, has more, or answers otherwise."""
    if form == "csv":  # or cells would be thousands
        old, new = (text.replace(",", " ") for text in (old, new))
    if form == "json":  # a place of a value may hold a number too
        old, new = (re.sub(r"^.* \| (?=[\d-])", "", text, flags=re.M) for text in (old, new))
    before, after = numbers_in(old), numbers_in(new)
    missing, more = before - after, after - before
    otherwise = []
    for number in list(missing):
        match = next((other for other in more if written_otherwise(number, other)), None)
        if match is not None:
            otherwise.append(f"{number} as {match}")
            n = min(missing[number], more[match])
            missing, more = missing - Counter({number: n}), more - Counter({match: n})
    was, now = answers_in(old), answers_in(new)
    return {
        "missing": [f"{n} ×{k} (of {before[n]})" for n, k in missing.items()],
        "otherwise": otherwise,
        "new": [f"{n} ×{k}" for n, k in more.items()],
        "answers missing": [f"{asked} {answer}" for asked, answer in sorted(was - now)],
        "answers new": [f"{asked} {answer}" for asked, answer in sorted(now - was)],
    }


def compare(since: Path, now: Path, *, may_say_more: bool) -> int:
    """Prints what differs by verb and form; how many forms do."""
    differing = 0
    for verb in sorted(path.name for path in now.iterdir() if path.is_dir()):
        for form in sorted({file.stem for top in (since, now) for file in (top / verb).glob("*")}):
            files = [top / verb / f"{form}.txt" for top in (since, now)]
            if not files[0].exists():
                print(f"{verb}, {form}: a new form")
                continue
            old, new = (file.read_text() if file.exists() else "" for file in files)
            found = changes(old, new, form=form)
            if may_say_more:
                found |= {"new": [], "answers new": []}
            differs = any(found.values())
            differing += differs
            same = "differs" if differs else "equal"
            print(f"{verb}, {form}: {numbers_in(old).total()} numbers, {same}")
            for kind, items in found.items():
                left_out = f" … and {len(items) - MOST} more" if len(items) > MOST else ""
                if items:
                    print(f"  {kind}: {'; '.join(items[:MOST])}{left_out}")
    print(f"{differing} forms differ")
    return differing


def main() -> int:
    """Writes what is said now, and says what differs from before."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where what is said now goes")
    parser.add_argument("--since", type=Path, metavar="FOLDER", help="what was said before")
    parser.add_argument("--only", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--may-say-more", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    write(arguments.folder, arguments.only)
    if arguments.since is None:
        return 0
    return min(compare(arguments.since, arguments.folder, may_say_more=arguments.may_say_more), 1)


if __name__ == "__main__":
    raise SystemExit(main())
