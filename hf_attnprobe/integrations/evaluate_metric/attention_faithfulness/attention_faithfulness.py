"""Does a model's attention explain its predictions? An evaluate metric."""

# One import per line: evaluate reads them line by line.
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate
import torch
from transformers import PreTrainedTokenizerBase

import hf_attnprobe
from hf_attnprobe.core.options import Asked, from_names, names_of
from hf_attnprobe.core.serialization import plain
from hf_attnprobe.statistics.rows import PREDICTION


NUMBER = datasets.Value("float64")  # of integers too: they are classes where all are
SEVERAL = datasets.List(datasets.Value("int64"))
SINGLE = datasets.Value("string")
PAIR = {"text": datasets.Value("string"), "text_pair": datasets.Value("string")}
ASKED = {
    "context": datasets.Value("string"),
    "question": datasets.Value("string"),
}
GIVEN = {**ASKED, "answer": datasets.Value("string")}
TEXTS = (SINGLE, PAIR, ASKED, GIVEN)

_DESCRIPTION = """
Runs faithfulness tests on the attention of a text classifier: rank correlation with
gradients and leaving out, shuffled attention, and adversarial attention (Jain &
Wallace 2019), exact where the model's read-out is linear. Of a language model it asks which
sentence of a passage an answer rests on, and whether attention finds it.
"""

_CITATION = """
@inproceedings{jain-wallace-2019-attention,
  title = {Attention is not Explanation},
  author = {Jain, Sarthak and Wallace, Byron C.},
  booktitle = {Proceedings of NAACL-HLT},
  year = {2019},
}
"""

_KWARGS_DESCRIPTION = """
Args:
    predictions (list of str, or of dict): the texts to audit; of pairs dicts with
        "text" and "text_pair", as pipelines and evaluate's text-classification
        evaluator take them; of a language model dicts with "context" and "question", all or
        none with the "answer" that is explained (else what the model says).
    references (list of int, optional): their labels; of a regression numbers, of several
        labels at once lists of the numbers of those that hold.
    model_id (str): folder or Hub id of the model; or
    model, tokenizer: a loaded model with its tokenizer.
    tests (list of str, or dict, optional): names of tests, or their options by name, as
        {"permutation": {"n_permutations": 10}}; by default those that suit the model.
    output_dir (str, optional): where rows and report go.
    progress (bool): whether to show a bar, no by default.
    summary (bool): whether the values of single texts are left out, no by default.
    Further keyword arguments are options of the audit by name, such as seed=1 or
    layers=[0], and beside model_id what loading it needs, such as revision="v1";
    "attnprobe audit --help-all" lists them and those of the tests.
Returns:
    dict: "faithfulness", where attention stands between a random order of the tokens, 0, and
    the best one, 1 (None where it was not asked), and "faithfulness_ci95", its interval;
    "answer", whether attention explains the predictions (yes, partly, no or cannot say), and
    "findings", the questions behind it, each a dict with rule,
    group, answer, sentence, value, ci95, n and yardsticks. And floats: for every
    statistic its mean over texts ("mean_<test>_<statistic>") and the list of its
    values ("<test>_<statistic>"), in the order of the texts; NaN where a text has no
    value. For a model with several heads the names end in "_layer<l>_head<h>",
    negative numbers for groups of heads.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AttentionFaithfulness(evaluate.Metric):
    """Faithfulness tests over texts, with the model as a keyword argument."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=[_features(text, label) for label in (NUMBER, SEVERAL) for text in TEXTS],
            reference_urls=["https://arxiv.org/abs/1902.10186"],
        )

    def _infer_feature_from_batch(self, batch: Mapping[str, Any]) -> datasets.Features:
        """By the first text and label; evaluate itself fails where there is none."""
        if len(batch["predictions"]) == 0:
            return self.features[0]
        text = _kind_of(batch["predictions"][0])
        is_list = isinstance(batch["references"][0], list | tuple)
        return _features(text, SEVERAL if is_list else NUMBER)

    def compute(
        self,
        *,
        predictions: Sequence[str | Mapping[str, str]] | None = None,
        references: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        """Runs the tests; the module's description has the arguments."""
        return super().compute(**_with_references(predictions, references), **kwargs)

    def add(
        self,
        *,
        prediction: str | Mapping[str, str] | None = None,
        reference: float | Sequence[int] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds one text for a later ``compute``. Its label may be left out."""
        super().add(
            prediction=prediction,
            reference=-1 if reference is None else reference,
            **kwargs,
        )

    def add_batch(
        self,
        *,
        predictions: Sequence[str | Mapping[str, str]] | None = None,
        references: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds texts for a later ``compute``. Labels may be left out."""
        super().add_batch(**_with_references(predictions, references), **kwargs)

    def _compute(
        self,
        predictions: Sequence[str | Mapping[str, str]],
        references: Sequence[Any],
        model_id: str | None = None,
        model: torch.nn.Module | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        tests: Asked | None = None,
        output_dir: str | None = None,
        progress: bool = False,
        summary: bool = False,
        **options: Any,
    ) -> dict[str, Any]:
        if (model_id is None) == (model is None):
            raise hf_attnprobe.AttnProbeError("expected exactly one of model_id and model")
        subject: Any = model
        if model_id is not None:
            of_model = options.keys() & names_of([hf_attnprobe.SavedModel])
            place = {name: options.pop(name) for name in of_model}
            subject = hf_attnprobe.SavedModel(model_id, **place)
        texts = [
            {"example_id": k, **_texts(text), "label": label}
            for k, (text, label) in enumerate(zip(predictions, references, strict=True))
        ]
        report = hf_attnprobe.audit(
            subject,
            texts,
            tests,
            options=from_names(options, hf_attnprobe.AuditOptions, of=" of an audit"),
            output_dir=output_dir,
            tokenizer=tokenizer,
            progress=progress,
        )
        score = report.score
        answers = {
            "faithfulness": plain(score.value),
            "faithfulness_ci95": plain(score.ci95),
            "answer": str(report.answer),
            "findings": plain(report.findings),
        }
        numbers = _as_floats(report, len(texts))
        if summary:
            numbers = {k: v for k, v in numbers.items() if k.startswith("mean_")}
        return answers | numbers


def _texts(prediction: str | Mapping[str, str]) -> Mapping[str, str]:
    """The text, or both of a pair, by column."""
    return {"text": prediction} if isinstance(prediction, str) else prediction


def _features(text: Any, label: Any) -> datasets.Features:
    """Both columns, with a text or a pair of them as the prediction."""
    return datasets.Features({"predictions": text, "references": label})


def _kind_of(text: Any) -> Any:
    """The feature of a text by its keys; a dict with others is a pair that lacks some."""
    if not isinstance(text, Mapping):
        return SINGLE
    named = {frozenset(kind): kind for kind in (PAIR, ASKED, GIVEN)}
    return named.get(frozenset(text), PAIR)


def _check_texts(predictions: Any) -> None:
    """Texts of one kind; evaluate itself says so in several lines."""
    dicts = [text for text in predictions if isinstance(text, Mapping)]
    kind = _kind_of(dicts[0]) if dicts else SINGLE
    for row, text in enumerate(predictions):
        got, is_of_kind = f"is {text!r:.60}", isinstance(text, str)
        if dicts and isinstance(text, Mapping):
            got = f"has {', '.join(map(str, text))}"
            is_of_kind = {*text} == {*kind}
            is_of_kind &= all(isinstance(part, str) for part in text.values())
        if not is_of_kind:
            raise hf_attnprobe.AttnProbeError(
                "expected as predictions texts, or dicts with a text and a text_pair, or with a "
                "context and a question, all or none with an answer, all of one kind, row "
                f"{row} {got}; mend or drop it"
            )


def _with_references(
    predictions: Sequence[Any] | None, references: Sequence[Any] | None
) -> dict[str, Any]:
    """Both columns, -1 standing for a label that is not known."""
    if isinstance(predictions, str):
        raise hf_attnprobe.AttnProbeError(
            "expected a list of texts as predictions, got one string; put it in a list"
        )
    if predictions is not None:
        _check_texts(predictions)
    if predictions is not None and references is None:
        references = [-1] * len(predictions)
    return {"predictions": predictions, "references": references}


def _as_floats(report: hf_attnprobe.Report, n_texts: int) -> dict[str, Any]:
    """Means and per-text lists by name."""
    wide = report.rows.select(lambda test, *_: test != PREDICTION).wide()
    wide = wide.reindex(range(n_texts)).astype(float)
    several = len(report.rows.sites) > 1
    numbers: dict[str, Any] = {}
    for (test, statistic, layer, head), values in wide.items():
        name = f"{test}_{statistic}"
        if several:
            name += f"_layer{layer}_head{head}"
        numbers[f"mean_{name}"] = float(values.mean())
        numbers[name] = values.tolist()
    return numbers
