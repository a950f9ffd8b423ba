"""Record the reports of small models in every output format, or compare them with an earlier record.

    python -m tests.record_reports FOLDER                   # before a change
    python -m tests.record_reports NEW --since FOLDER       # after it
    python -m tests.record_reports NEW --since FOLDER --only deception card --allow-additions

FOLDER/REPORT/FORMAT.txt contains what a reader sees: for a page, the text without tags, scripts and
pictures (the words in pictures are a format of their own); for JSON, one line per value. Two things
are compared: how often every number occurs, and the answer to every question. Wording may therefore
change, and ``diff -r FOLDER NEW`` shows how.
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

# Imported before the package, because it disables network access.
from tests import record_numbers


# isort: split

import torch

import hf_attnprobe as attnprobe
from hf_attnprobe.cli import main as attnprobe_command


ANSWERS = ("cannot say", "mostly yes", "mostly no", "yes", "no", "partly")
"""All answers; longer ones come first, because they contain shorter ones."""

FORMAT_NAMES = {".md": "markdown", ".html": "page", ".json": "json", ".csv": "csv"}
"""Name of the format for each file ending."""

IGNORED_KEYS = ("provenance", "versions", "arguments", "seconds")
"""JSON keys whose values depend on the machine or on settings."""

MAX_PRINTED_DIFFERENCES = 40
"""Maximum number of printed differences of each type."""


# --- numbers and answers in a text ----------------------------------------------------

NUMBER = re.compile(
    r"(?<![\w.])[-−+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:e[-−+]?\d+)?%?(?![\w])"
)
ANSWER = re.compile(rf"([^.:?!|\n]{{2,90}}[?:])[\s|*]*({'|'.join(ANSWERS)})\b", re.IGNORECASE)


def count_numbers(text: str) -> Counter[str]:
    """Count how often each number occurs; 0.30 and .3 are equal, 30% is another number."""
    return Counter(_normalize_number(match.group()) for match in NUMBER.finditer(text))


def _normalize_number(number: str) -> str:
    """Return a number in a unique notation."""
    digits = number.replace(",", "").replace("−", "-").rstrip("%")
    return f"{round(float(digits), 12) + 0.0:.9g}" + "%" * number.endswith("%")


def find_answers(text: str) -> set[tuple[str, str]]:
    """Find pairs of a question and its answer, after a question mark or colon or in a table."""
    answers = {
        (_normalize_words(question), answer.lower()) for question, answer in ANSWER.findall(text)
    }
    for line in text.splitlines():
        name, *cells = [_normalize_words(cell) for cell in line.strip().strip("|").split("|")]
        answers |= {(name, cell.lower()) for cell in cells if cell.lower() in ANSWERS}
    return answers


def _normalize_words(text: str) -> str:
    """Return a text without markup and repeated spaces."""
    return " ".join(text.split()).strip("-*#`' ")


class PageText(HTMLParser):
    """Visible text of a page: ``text`` outside pictures, ``picture_text`` inside SVG."""

    LINE_TAGS = re.compile("p|h[1-6]|li|d[dt]|tr|table|section|article|div|figcaption|title")
    HIDDEN_TAGS = ("script", "style", "template")

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open_tags: list[str] = []
        self.text, self.picture_text = io.StringIO(), io.StringIO()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag in ("svg", *self.HIDDEN_TAGS):
            self.open_tags.append(tag)
        self._write_separator(tag)

    def handle_endtag(self, tag: str) -> None:
        self._write_separator(tag)
        if self.open_tags and tag == self.open_tags[-1]:
            self.open_tags.pop()

    def handle_data(self, data: str) -> None:
        if not self.open_tags:
            self.text.write(re.sub(r"\s+", " ", data))
        elif "svg" in self.open_tags and self.open_tags[-1] not in self.HIDDEN_TAGS:
            self.picture_text.write(data)

    def _write_separator(self, tag: str) -> None:
        if self.open_tags:
            self.picture_text.write("\n")
        elif tag in ("td", "th"):
            self.text.write(" | ")
        elif self.LINE_TAGS.fullmatch(tag):
            self.text.write("\n")


def _strip_lines(text: str) -> str:
    """Return a text without blank lines and without spaces at both ends of lines."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip()) + "\n"


def _flatten_json(data: Any, path: str = "") -> Iterator[str]:
    """Yield a line with path and value for each value of nested data."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key not in IGNORED_KEYS:
                yield from _flatten_json(value, f"{path}/{key}")
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from _flatten_json(value, f"{path}/{record_numbers.name_record(value, index)}")
    else:
        yield f"{path} | {data}"


def extract_visible_text(ending: str, text: str) -> dict[str, str]:
    """Return what a reader sees of a file with this ending, by name of the format."""
    if ending == ".html":
        page = PageText(text)
        texts = {"page": page.text, "pictures": page.picture_text}
        return {name: _strip_lines(stream.getvalue()) for name, stream in texts.items()}
    if ending == ".json":
        return {"json": "\n".join(_flatten_json(json.loads(text))) + "\n"}
    return {FORMAT_NAMES[ending]: text}


# --- the recorded reports -------------------------------------------------------------


@dataclass(frozen=True)
class RecordedReport:
    """A report to record.

    Attributes:
        name: name of its folder in the record.
        result: the result, or the printed text.
        folders: folders from which ``render_report`` renders the report.
        files: further files to record.
    """

    name: str
    result: Any
    folders: tuple[Path, ...] = ()
    files: tuple[Path, ...] = ()


def render_formats(report: RecordedReport) -> dict[str, str]:
    """Return a report in all its formats, by name of the format."""
    texts = {"terminal": str(report.result)}
    texts |= {file.name: file.read_text(encoding="utf-8") for file in report.files}
    if hasattr(report.result, "to_text"):
        texts["terminal-verbose"] = report.result.to_text(verbose=True)
    for ending in FORMAT_NAMES if report.folders else ():
        # Not every report has all formats.
        with contextlib.suppress(attnprobe.AttnProbeError):
            file = Path(f"form{ending}")
            attnprobe.render_report(list(report.folders), file)
            texts |= extract_visible_text(ending, file.read_text(encoding="utf-8"))
            file.unlink()
    return texts


def _generate_texts(n: int = 800) -> Any:
    """Return generated texts whose deciding words are known."""
    return attnprobe.make_rationale_dataset(n, seed=1)


def _train_classifier(name: str = "trained", encoder: str = "bilstm", seed: int = 0) -> Path:
    """Train a classifier unless this was done already, and return its folder."""
    if not Path(name).exists():
        data, sizes = _generate_texts(), {"embedding_size": 16, "encoder_size": 16}
        config = attnprobe.AttentionClassifierConfig(encoder=encoder, **sizes)
        options = attnprobe.TrainingOptions(epochs=12, learning_rate=1e-2, batch_size=16, seed=seed)
        attnprobe.train_classifier(
            config,
            data["train"],
            data["validation"],
            test=data["test"],
            output_dir=name,
            options=options,
            progress=False,
        )
    return Path(name)


def _audit_model(model: Path) -> Path:
    """Audit a model unless this was done already, and return the folder of the audit."""
    folder = Path(f"{model}-audit")
    if not folder.exists():
        attnprobe.audit(model, _generate_texts()["test"], output_dir=folder, progress=False)
    return folder


def record_audits() -> Iterator[RecordedReport]:
    """Yield the demonstration as its command prints it, and several audits."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        attnprobe_command(["demo", "--n-examples=300", "--epochs=2", "--output-dir=demo"])
    yield RecordedReport("demo", printed.getvalue(), (Path("demo/audit"),))
    record_numbers.record_bert(Path())
    record_numbers.record_hierarchical(Path())
    audited = [Path(name) for name in ("bert-audit", "bert-screened", "hierarchical")]
    for folder in (*audited, _audit_model(_train_classifier())):
        yield RecordedReport(folder.name, attnprobe.read_audit(folder), (folder,))


def record_comparison() -> Iterator[RecordedReport]:
    """Yield a comparison of two audits."""
    models = [_train_classifier(), _train_classifier("trained-mlp", "mlp")]
    folders = [_audit_model(model) for model in models]
    yield RecordedReport("audits-compared", attnprobe.compare_audits(folders), tuple(folders))


def record_retrainings() -> Iterator[RecordedReport]:
    """Yield a retraining of a tiny model, and one of a classifier that has learned more."""
    record_numbers.record_retraining(Path())
    yield RecordedReport("retraining", attnprobe.read_retraining("retrained"), (Path("retrained"),))
    adversary = {"lambdas": [0.05, 0.001], "epochs": 4}
    tests = {"default": {}, "seeds": {"n_seeds": 2}, "adversary": adversary}
    result = attnprobe.retrain(
        _train_classifier(), _generate_texts(), tests, output_dir="retrained-more", progress=False
    )
    yield RecordedReport("retraining-more", result, (Path("retrained-more"),))


def record_study() -> Iterator[RecordedReport]:
    """Yield a study of a tiny model."""
    record_numbers.record_study(Path())
    options = attnprobe.StudyOptions(dataset="reviews=reviews")
    result = attnprobe.study(
        record_numbers.tiny, output_dir="study", options=options, progress=False
    )
    yield RecordedReport("study", result, (Path("study"),))


def record_deception() -> Iterator[RecordedReport]:
    """Yield a retraining that hides some cues from attention."""
    cues = ["dull", "poor", "clumsy", "stale", "wonderful", "moving", "clever", "fresh"]
    tests = {"deception": {"words": cues, "epochs": 3}}
    result = attnprobe.retrain(
        _train_classifier(), _generate_texts(), tests, output_dir="deceived", progress=False
    )
    yield RecordedReport("deception", result, (Path("deceived"),))


def record_card() -> Iterator[RecordedReport]:
    """Yield the model card of an audited classifier."""
    result = attnprobe.write_card(_train_classifier(), [_audit_model(_train_classifier())])
    yield RecordedReport("card", result, files=(Path("trained/README.md"),))


RECORDERS = {
    "audit": record_audits,
    "compare": record_comparison,
    "retrain": record_retrainings,
    "study": record_study,
    "deception": record_deception,
    "card": record_card,
}


def write_record(folder: Path, names: list[str]) -> None:
    """Create reports in a temporary folder and write them in all formats below ``folder``."""
    start, folder = Path.cwd(), folder.resolve()
    with tempfile.TemporaryDirectory() as work:
        os.chdir(work)
        for name in names:
            for report in RECORDERS[name]():
                (folder / report.name).mkdir(parents=True, exist_ok=True)
                for format_name, text in render_formats(report).items():
                    # Paths and durations differ from run to run.
                    text = text.replace(str(Path(work).resolve()), "WORK")
                    text = re.sub(r"\b\d+ seconds", "N seconds", text)
                    file = folder / report.name / f"{format_name}.txt"
                    file.write_text(text, encoding="utf-8")
        os.chdir(start)


# --- comparison with an earlier record --------------------------------------------------


def is_same_number(old: str, new: str) -> bool:
    """Check whether two numbers are equal up to rounding, or one is the other as a percentage."""
    numbers = sorted(map(_parse_number, (old, new)), key=lambda number: number[1])
    (rounded, n_digits), (precise, _) = numbers
    return f"{precise:.{n_digits}f}" == f"{rounded:.{n_digits}f}"


def _parse_number(number: str) -> tuple[float, int]:
    """Return the value of a number, and its digits after the point."""
    n_digits = len(number.rstrip("%").partition("e")[0].partition(".")[2])
    shift = 2 if number.endswith("%") else 0
    return round(float(number.rstrip("%")) / 10**shift, 12), n_digits + shift


def find_changes(old: str, new: str, *, format_name: str) -> dict[str, list[str]]:
    """Return the numbers and answers that differ between two versions of a report."""
    if format_name == "csv":
        # Otherwise adjacent cells would be read as one number with thousands separators.
        old, new = (text.replace(",", " ") for text in (old, new))
    if format_name == "json":
        # The path of a value may contain numbers, too.
        old, new = (re.sub(r"^.* \| (?=[\d-])", "", text, flags=re.M) for text in (old, new))
    old_numbers, new_numbers = count_numbers(old), count_numbers(new)
    missing, added = old_numbers - new_numbers, new_numbers - old_numbers
    reformatted = []
    for number in list(missing):
        match = next((other for other in added if is_same_number(number, other)), None)
        if match is not None:
            reformatted.append(f"{number} as {match}")
            n_matches = min(missing[number], added[match])
            missing -= Counter({number: n_matches})
            added -= Counter({match: n_matches})
    old_answers, new_answers = find_answers(old), find_answers(new)
    return {
        "missing": [f"{number} ×{k} (of {old_numbers[number]})" for number, k in missing.items()],
        "reformatted": reformatted,
        "added": [f"{number} ×{k}" for number, k in added.items()],
        "answers missing": [" ".join(pair) for pair in sorted(old_answers - new_answers)],
        "answers added": [" ".join(pair) for pair in sorted(new_answers - old_answers)],
    }


def compare_records(old_folder: Path, new_folder: Path, *, allow_additions: bool) -> int:
    """Print the differences by report and format, and return the number of differing formats."""
    n_differing = 0
    for name in sorted(path.name for path in new_folder.iterdir() if path.is_dir()):
        files = [file for top in (old_folder, new_folder) for file in (top / name).glob("*")]
        for format_name in sorted({file.stem for file in files}):
            old_file, new_file = (
                top / name / f"{format_name}.txt" for top in (old_folder, new_folder)
            )
            if not old_file.exists():
                print(f"{name}, {format_name}: a new format")
                continue
            old = old_file.read_text()
            new = new_file.read_text() if new_file.exists() else ""
            changes = find_changes(old, new, format_name=format_name)
            if allow_additions:
                changes |= {"added": [], "answers added": []}
            differs = any(changes.values())
            n_differing += differs
            status = "differs" if differs else "equal"
            print(f"{name}, {format_name}: {count_numbers(old).total()} numbers, {status}")
            for change_type, items in changes.items():
                n_omitted = len(items) - MAX_PRINTED_DIFFERENCES
                omission = f" … and {n_omitted} more" if n_omitted > 0 else ""
                if items:
                    print(
                        f"  {change_type}: {'; '.join(items[:MAX_PRINTED_DIFFERENCES])}{omission}"
                    )
    print(f"{n_differing} formats differ")
    return n_differing


def main() -> int:
    """Write a record, and compare it with an earlier one if there is one."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="folder for the new record")
    parser.add_argument("--since", type=Path, metavar="FOLDER", help="folder of an earlier record")
    parser.add_argument("--only", nargs="+", choices=RECORDERS, default=list(RECORDERS))
    parser.add_argument("--allow-additions", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    write_record(arguments.folder, arguments.only)
    if arguments.since is None:
        return 0
    n_differing = compare_records(
        arguments.since, arguments.folder, allow_additions=arguments.allow_additions
    )
    return min(n_differing, 1)


if __name__ == "__main__":
    raise SystemExit(main())
