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

This page lists the models of Transformers {version} that can be audited. Each `…ForSequenceClassification`,
`…ForImageClassification` and causal language model was built with a small configuration and random weights, and then
tested. To test them again, run `python -m tests.architectures_table`, which writes this page.

A result for random weights shows that the package supports an architecture. It does not show whether the attention of a
trained checkpoint explains its predictions.

## The results

- *works*: all checks below have passed.
- *refused*: an audit stops with the error message in the column "reason".
- *not buildable here*: the model could not be built, for example because a library is missing.
- *wrong*: a check has failed.

## The checks of classifiers

- `audit()` with the default tests writes a report.
- The probabilities are those of a plain call of the model.
- If the attention is replaced by itself, nothing changes. If it is replaced by other attention, the prediction changes.
  This is tested in every layer.
- A replay, which starts at the edited layer, gives the same result as a complete forward pass with the same edit.
- Predictions and attention are the same with and without padding.
- Leave-one-out gives the same result as the shortened text. For images, it gives the same result as the model without
  the token of the patch.
- Exchanging a patch gives the same result as an image with the new pixels.

All comparisons are made in float32 with a tolerance of 5·10⁻⁵. The column "attention" shows whether the attention was also
compared with `output_attentions` of the eager model.

All image classes with the result *works* support leaving patches out, exchanging patches, zeroed attention weights and
images of another size than the one in the configuration, see [images](units.md#images). Models whose attention covers
windows or merged patches, such as Swin, and models without softmax attention are refused before the audit starts.

## The checks of language models

The audit of a language model is compared with full passes of the eager model, in which the same edits were made by hand.
The tolerance is 10⁻⁵. The following edits are compared:

- attention to three units of a passage is replaced by itself, which must not change anything;
- attention is replaced in the lowest layer, in the highest layer, and in all layers;
- attention to a unit is blocked in all layers, in three variants;
- each unit is deleted, with and without its gap.

The column "rows" shows the tokens that are computed again after an edit. Usually, these are the tokens after the passage,
and the keys and values of earlier tokens are reused. Hybrid models, and models that cannot reuse keys and values, compute
all tokens again. In hybrid models, only the layers with softmax attention are tested.

## Numbers of architectures
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
