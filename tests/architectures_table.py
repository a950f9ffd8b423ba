"""Every text and image classifier and language model of the installed Transformers: works, or says why not.

    python -m tests.architectures_table [MODEL_TYPE …]

The script runs the checks in ``tests/helpers/architecture_checks.py`` on a tiny random model of every class,
each in a process of its own, and writes docs/architectures.md from tests/architectures.json. If model types are
given, only these are checked again.
"""

import json
import multiprocessing
import sys
from collections import Counter
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import torch
import transformers

from hf_attnprobe.core import formatting as markdown
from tests.helpers import architecture_checks, manual_passes
from tests.helpers.transformer_families import image_classifiers, language_models, text_classifiers


HERE = Path(__file__).parent
PAGE, RESULTS = HERE.parent / "docs" / "architectures.md", HERE / "architectures.json"
LIMIT = 900  # seconds for one class: one that hangs is wrong
KINDS = ("works", "refused", "not buildable here", "wrong")

HEAD = """# Architectures

Which classifiers of Transformers can be audited. Every `…ForSequenceClassification` and `…ForImageClassification` of Transformers {version} is
built with tiny random weights and run; `python -m tests.architectures_table` writes this page, so that nothing in it is from memory.

*Works* means: `audit()` with the default tests ends in a report; the probabilities are those of a plain call of the model; attention put back
unchanged changes nothing, two other attentions in every layer change the prediction, and each replay equals a whole pass with the same edit;
a text is predicted alike, and attends alike, with and without padding; leave-one-out is the shorter text; all within 5·10⁻⁵ in float32. *Attention*
says whether what is read was also held against `output_attentions` of the eager model. *Refused* is one line, which is given. Tiny random
weights show that the mechanism fits a family, not what a trained checkpoint of it would say.

Of images no token can be left out, so that `correlation`, `input_erasure` and `explanations` are left out of a default audit.

Of *language models* every causal one is built so. There *works* means: attention to three units of a passage, put back unchanged, changes
nothing at all; two other attentions in the lowest layer, in the highest and in all, a unit knocked out in all layers in three ways, each unit deleted
with and without its gap, and the probabilities of the answer equal full passes of the eager model with edits written by hand, within 10⁻⁵. *Rows*
are those that an edit runs again: behind the passage, on the keys and values of what comes before; all of them in hybrids and in models
that do not go on from keys and values. Of hybrids only the layers with softmax attention are tested.
"""


def run(names: Mapping[str, str]) -> dict[str, list]:
    """What became of each class."""
    found = {}
    for name, model_type in names.items():
        found[name] = _run_one(name, model_type)
        print(name, *found[name][:2], flush=True)
    return found


def _run_one(name: str, model_type: str) -> list:
    """In a process of its own, so that a crash and a hang are of this class alone."""
    fork = multiprocessing.get_context("fork")  # what is imported need not be again
    read, write = fork.Pipe(duplex=False)
    child = fork.Process(target=_send, args=(write, name, model_type))
    child.start()
    write.close()
    try:
        if read.poll(LIMIT):
            return read.recv()
        return ["wrong", f"no end in {LIMIT} s", "", ""]
    except EOFError:
        child.join()
        return ["wrong", f"ended with exit code {child.exitcode}", "", ""]
    finally:
        child.kill()
        child.join()


def outcome(name: str, model_type: str) -> list[str]:
    """Result, reason, layers × heads, and what was compared or which rows run."""
    if name in language_models():
        return manual_passes.examine_class(name, model_type)
    return list(architecture_checks.examine_class(name, model_type)[1:5])


def _send(connection: Connection, name: str, model_type: str) -> None:
    try:
        found = outcome(name, model_type)
    except Exception as error:
        found = ["wrong", f"{type(error).__name__}: {error}", "", ""]
    connection.send(found)


def page(version: str, results: Mapping[str, list]) -> str:
    """The page: counts, then a table of texts and one of images."""
    lines = HEAD.format(version=version).splitlines()
    kinds = {
        "Texts": text_classifiers(),
        "Images": image_classifiers(),
        "Language models": language_models(),
    }
    counted = []
    for title, names in kinds.items():
        counts = Counter(results[name][0] for name in names if name in results)
        shown = [counts[kind] for kind in KINDS]
        counted.append([title, len(names), *shown])
    lines += ["", *markdown.format_table(["", "classes", *KINDS], counted)]
    for title, names in kinds.items():
        rows = [
            [name, result, layers, compared, said]
            for name in names
            if name in results
            for result, said, layers, compared in [results[name]]
        ]
        fourth = "rows" if title == "Language models" else "attention"
        head = ["class", "result", "layers × heads", fourth, "reason"]
        lines += ["", f"## {title}", "", *markdown.format_table(head, rows)]
    return "\n".join(lines) + "\n"


def stored() -> tuple[str, dict[str, list]]:
    """The version of Transformers, and what became of each class."""
    held = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return held.get("transformers", ""), held.get("results", {})


def main(model_types: list[str]) -> None:
    torch.set_num_threads(1)  # threads do not survive a fork
    known = {**text_classifiers(), **image_classifiers(), **language_models()}
    version, results = stored()
    if not model_types or version != transformers.__version__:
        model_types, results = [*known.values()], {}
    results |= run({n: kind for n, kind in known.items() if kind in model_types})
    held = {"transformers": transformers.__version__, "results": results}
    RESULTS.write_text(json.dumps(held, indent=1, ensure_ascii=False) + "\n")
    PAGE.write_text(page(transformers.__version__, results))


if __name__ == "__main__":
    main(sys.argv[1:])
