"""Metric for the library evaluate that measures whether attention explains predictions."""

# evaluate parses imports line by line, so each import must be on one line.
import math
from collections.abc import Mapping, Sequence
from typing import Any

import datasets
import evaluate
import torch
from transformers import PreTrainedTokenizerBase

import hf_attnprobe
from hf_attnprobe.core.options import TestSelection, build_options, collect_fields
from hf_attnprobe.core.serialization import convert_to_plain
from hf_attnprobe.statistics.rows import PREDICTION_TEST


SINGLE_LABEL = datasets.Value("float64")
"""``datasets`` feature for a single label per text: a class index, or a number for regression."""
LABEL_LIST = datasets.List(datasets.Value("int64"))
"""``datasets`` feature for several labels per text: a list of label indices."""
LABEL_NAME = datasets.Value("string")
"""``datasets`` feature for the name of a single label per text."""
LABEL_NAME_LIST = datasets.List(datasets.Value("string"))
"""``datasets`` feature for several labels per text: a list of label names."""
LABEL_FEATURES = (SINGLE_LABEL, LABEL_LIST, LABEL_NAME, LABEL_NAME_LIST)
"""``datasets`` features for all types of labels that the metric accepts."""
UNKNOWN_CLASS = -1
"""Class index that stands for an unknown label, as in the library ``datasets``."""
SINGLE_TEXT = datasets.Value("string")
"""``datasets`` feature for a single text as input."""
TEXT_PAIR = {"text": datasets.Value("string"), "text_pair": datasets.Value("string")}
"""``datasets`` feature for a pair of texts as input."""
PROMPT = {
    "context": datasets.Value("string"),
    "question": datasets.Value("string"),
}
"""``datasets`` feature for a prompt as input: a passage and a question about it."""
ANSWERED_PROMPT = {**PROMPT, "answer": datasets.Value("string")}
"""``datasets`` feature for a prompt with its answer as input."""
VECTOR_BAG = {"features": datasets.List(datasets.List(datasets.Value("float64")))}
"""``datasets`` feature for a bag of instances as input, with one vector per instance."""
ITEM_BAG = {"items": datasets.List(datasets.Value("int64"))}
"""``datasets`` feature for a bag of instances as input, with one integer per instance."""
IMAGE = {"image": datasets.Image()}
"""``datasets`` feature for an image as input, which the model's image processor reads."""
BAGS_AND_IMAGES = (VECTOR_BAG, ITEM_BAG, IMAGE)
"""``datasets`` features for bags and images, whose contents are checked when the audit reads them."""
INPUT_FEATURES = (SINGLE_TEXT, TEXT_PAIR, PROMPT, ANSWERED_PROMPT, *BAGS_AND_IMAGES)
"""``datasets`` features for all types of inputs that the metric accepts."""

_DESCRIPTION = """
Runs faithfulness tests on the attention of a text classifier: rank correlation with
gradients and leave-one-out, shuffled attention, and adversarial attention (Jain &
Wallace 2019), which is exact for models with a linear read-out. For a language model it measures
which sentence of a passage an answer depends on, and whether attention finds it.
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
    predictions (list of str, or of dict): the texts to audit. Pairs of texts are dicts with
        "text" and "text_pair", as in pipelines and in the text-classification evaluator of
        evaluate. For a language model they are dicts with "context" and "question". Either
        all or none of them also have the "answer" to explain; without it, the model generates an
        answer. Bags of instances are dicts with "features", one vector per instance, or with
        "items", one integer per instance. Images are dicts with "image", and the argument
        tokenizer is the model's image processor.
    references (list of int or of str, optional): the labels, as class indices or as class names.
        For regression they are numbers; for a multi-label model they are lists of label indices or
        of label names. None stands for an unknown label.
    model_id (str): folder or Hub id of the model; or
    model, tokenizer: a loaded model with its tokenizer.
    unit (str, optional): name of one instance of a bag, such as "patch".
    tests (list of str, or dict, optional): names of tests, or their options by name, such as
        {"permutation": {"n_permutations": 10}}. The default is all tests that suit the model. If the
        test scale, erasure, exchange or uniform_attention is missing (for a language model: sources,
        permutation or knockout), "answer" is "cannot say".
    output_dir (str, optional): folder for the rows and the report.
    progress (bool): whether to display a progress bar; False by default.
    summary (bool): whether to leave out the values of single texts; False by default.
    Further keyword arguments are options of the audit, such as seed=1 or layers=[0]. With
    model_id, options for loading the model are also accepted, such as revision="v1".
    "attnprobe audit --help-all" lists them and the options of the tests.
Returns:
    dict: "faithfulness" is the position of attention on the scale between a random order of the
    tokens, 0, and the best order, 1 (None if it was not measured, or on fewer than ten different
    texts), and "faithfulness_ci95" its interval. "answer" states whether attention explains the
    predictions (yes, partly, no or cannot say), and "n" is the number of different texts on which
    the answer is based. "findings" are the answers to the questions of the report, as dicts with rule, group,
    answer, sentence, value, ci95, n and yardsticks. For every statistic, "mean_<test>_<statistic>" is
    its mean over texts, and "<test>_<statistic>" the list of its values in the order of the
    texts, with NaN for a text without a value. For a model with several heads, these names end
    in "_layer<l>_head<h>", with negative numbers for groups of heads. A text that occurs several
    times counts once in every answer and mean. In this case, "n_texts" is the number of texts and
    "n_different_texts" the number of different texts.
"""


@evaluate.utils.file_utils.add_start_docstrings(_DESCRIPTION, _KWARGS_DESCRIPTION)
class AttentionFaithfulness(evaluate.Metric):
    """Metric that tests attention on texts; the model is a keyword argument of ``compute``."""

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_KWARGS_DESCRIPTION,
            features=[
                _build_features(text, label) for label in LABEL_FEATURES for text in INPUT_FEATURES
            ],
            reference_urls=["https://arxiv.org/abs/1902.10186"],
        )

    def _infer_feature_from_batch(self, batch: Mapping[str, Any]) -> datasets.Features:
        """Infer the ``datasets`` features from the first text and its label.

        This overrides a method that raises an error for an empty batch.

        Args:
            batch: Predictions and references.
        """
        if len(batch["predictions"]) == 0:
            return self.features[0]
        text_feature = _get_text_feature(batch["predictions"][0])
        return _build_features(text_feature, _get_label_feature(batch["references"]))

    def compute(
        self,
        *,
        predictions: Sequence[str | Mapping[str, str]] | None = None,
        references: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> dict[str, Any] | None:
        """Run faithfulness tests on texts.

        Args:
            predictions: Texts to audit.
            references: Their labels; may be left out.
            kwargs: The model and audit options, see ``inputs_description``.

        Returns:
            Results by name, see ``inputs_description``.
        """
        return super().compute(**_add_missing_references(predictions, references), **kwargs)

    def add(
        self,
        *,
        prediction: str | Mapping[str, str] | None = None,
        reference: float | str | Sequence[int] | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add one text for a later ``compute``.

        Args:
            prediction: The text.
            reference: Its label; may be left out.
            kwargs: Further arguments of evaluate.
        """
        predictions = [] if prediction is None else [prediction]
        self.add_batch(predictions=predictions, references=[reference], **kwargs)

    def add_batch(
        self,
        *,
        predictions: Sequence[str | Mapping[str, str]] | None = None,
        references: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add texts for a later ``compute``.

        Args:
            predictions: The texts.
            references: Their labels; may be left out.
            kwargs: Further arguments of evaluate.
        """
        batch = _add_missing_references(predictions, references)
        if self.writer is not None and batch["references"]:
            batch["references"] = _match_earlier_labels(
                batch["references"], self.selected_feature_format["references"]
            )
        super().add_batch(**batch, **kwargs)

    def _compute(  # noqa: PLR0913
        self,
        predictions: Sequence[str | Mapping[str, str]],
        references: Sequence[Any],
        model_id: str | None = None,
        model: torch.nn.Module | None = None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        tests: TestSelection | None = None,
        output_dir: str | None = None,
        progress: bool = False,
        summary: bool = False,
        unit: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        if (model_id is None) == (model is None):
            raise hf_attnprobe.AttnProbeError(
                "expected either model_id or model, got both or neither"
            )
        subject: Any = model
        if model_id is not None:
            loading_names = options.keys() & collect_fields([hf_attnprobe.SavedModel])
            loading_options = {name: options.pop(name) for name in loading_names}
            subject = hf_attnprobe.SavedModel(model_id, **loading_options)
        texts = [
            {"example_id": example_id, **_get_text_columns(text), "label": label}
            for example_id, (text, label) in enumerate(zip(predictions, references, strict=True))
        ]
        report = hf_attnprobe.audit(
            subject,
            texts if unit is None else hf_attnprobe.Data(texts, unit=unit),
            tests,
            options=build_options(options, hf_attnprobe.AuditOptions, suffix=" of an audit"),
            output_dir=output_dir,
            tokenizer=tokenizer,
            progress=progress,
        )
        score = report.score
        answers = {
            "faithfulness": convert_to_plain(score.value),
            "faithfulness_ci95": convert_to_plain(score.ci95),
            "answer": str(report.answer),
            "n": report.n_answered,
            "findings": convert_to_plain(report.findings),
        }
        if report.n_distinct < report.n:
            answers |= {"n_texts": report.n, "n_different_texts": report.n_distinct}
        numbers = _collect_statistics(report, len(texts))
        if summary:
            numbers = {name: value for name, value in numbers.items() if name.startswith("mean_")}
        return answers | numbers


def _get_text_columns(prediction: str | Mapping[str, str]) -> Mapping[str, str]:
    """Convert a metric input to data set columns; a plain text becomes the column "text"."""
    return {"text": prediction} if isinstance(prediction, str) else prediction


def _build_features(text_feature: Any, label_feature: Any) -> datasets.Features:
    """Combine the ``datasets`` features of an input and of its label."""
    return datasets.Features({"predictions": text_feature, "references": label_feature})


def _get_text_feature(text: Any) -> Any:
    """Return the ``datasets`` type of an input: a text, a pair of texts, a prompt, a bag or an image.

    The keys of a dict determine the type. A dict with unknown keys is treated as a pair of texts;
    other functions report the wrong keys.
    """
    if not isinstance(text, Mapping):
        return SINGLE_TEXT
    feature_by_keys = {
        frozenset(feature): feature
        for feature in (TEXT_PAIR, PROMPT, ANSWERED_PROMPT, *BAGS_AND_IMAGES)
    }
    return feature_by_keys.get(frozenset(text), TEXT_PAIR)


def _check_texts(predictions: Any) -> None:
    """Raise an error unless all predictions are texts, or dicts with the same valid keys."""
    dicts = [text for text in predictions if isinstance(text, Mapping)]
    expected_feature = _get_text_feature(dicts[0]) if dicts else SINGLE_TEXT
    for row, text in enumerate(predictions):
        if dicts and isinstance(text, Mapping):
            description = f"is a dict with the keys {list(text)}"
            has_expected_keys = set(text) == set(expected_feature)
            has_texts = all(isinstance(part, str) for part in text.values())
            is_valid = has_expected_keys and (has_texts or expected_feature in BAGS_AND_IMAGES)
        else:
            description = f"is {text!r:.60}"
            is_valid = isinstance(text, str)
        if not is_valid:
            raise hf_attnprobe.AttnProbeError(
                f"predictions[{row}] {description}. Each prediction must be a text, or a dict with "
                "the keys 'text' and 'text_pair', or with 'context', 'question' and optionally "
                "'answer', or with 'features', 'items' or 'image'. All predictions must have the same keys."
            )


def _add_missing_references(
    predictions: Sequence[Any] | None, references: Sequence[Any] | None
) -> dict[str, Any]:
    """Check the texts, and mark all labels as unknown if no labels are passed.

    The library evaluate calls the texts "predictions" and their labels "references".

    Args:
        predictions: Texts to audit.
        references: Their labels, or None.

    Returns:
        The arguments ``predictions`` and ``references`` by name.
    """
    if isinstance(predictions, str):
        raise hf_attnprobe.AttnProbeError(
            "predictions must be a list of texts, got a single string"
        )
    if isinstance(references, str):
        raise hf_attnprobe.AttnProbeError(
            "references must be a list of labels, got a single string"
        )
    if predictions is not None:
        _check_texts(predictions)
    if predictions is not None and references is None:
        references = [None] * len(predictions)
    if references is not None:
        references = _convert_references(references)
    return {"predictions": predictions, "references": references}


def _get_label_feature(references: Sequence[Any]) -> Any:
    """Return the ``datasets`` type of the labels: a number, a name, or a list of numbers or names."""
    known = [label for label in references if label is not None]
    items = [item for label in known if isinstance(label, list | tuple) for item in label]
    if any(isinstance(label, list | tuple) for label in known):
        return LABEL_NAME_LIST if any(isinstance(item, str) for item in items) else LABEL_LIST
    return LABEL_NAME if any(isinstance(label, str) for label in known) else SINGLE_LABEL


def _convert_references(references: Sequence[Any]) -> list[Any]:
    """Convert labels to plain Python values of one type, with a mark for unknown labels.

    Args:
        references: Labels as numbers, names, or lists of one of them; None for an unknown label.

    Returns:
        The labels, with a mark for unknown ones.

    Raises:
        AttnProbeError: The labels have different types.
    """
    labels = [label.tolist() if hasattr(label, "tolist") else label for label in references]
    feature = _get_label_feature(labels)
    converted = _mark_unknown_labels(labels, feature)
    expected_types = {
        str(SINGLE_LABEL): (int | float, "a number"),
        str(LABEL_NAME): (str, "the name of a label"),
        str(LABEL_LIST): (list | tuple, "a list of label numbers"),
        str(LABEL_NAME_LIST): (list | tuple, "a list of label names"),
    }
    expected_type, description = expected_types[str(feature)]
    item_type = str if feature == LABEL_NAME_LIST else int
    for row, label in enumerate(converted):
        is_valid = label is None or isinstance(label, expected_type)
        if is_valid and isinstance(label, list | tuple):
            is_valid = all(isinstance(item, item_type) for item in label)
        if not is_valid:
            raise hf_attnprobe.AttnProbeError(
                f"references[{row}] is {label!r:.60}, but other labels show that it should be "
                f"{description}. All references must have the same type: numbers, names, or lists of "
                "one of them."
            )
    return converted


def _match_earlier_labels(references: list[Any], feature: Any) -> list[Any]:
    """Convert unknown labels to the type of earlier batches, or raise an error for other types.

    Args:
        references: Labels of the new batch.
        feature: ``datasets`` feature of the labels of earlier batches.

    Returns:
        The labels, with the mark for unknown labels that suits their type.

    Raises:
        AttnProbeError: The labels have another type than those of earlier batches.
    """
    known_labels = [label for label in references if not _is_unknown(label)]
    has_only_empty_lists = all(label == [] for label in known_labels)
    if not has_only_empty_lists and _get_label_feature(references) != feature:
        raise hf_attnprobe.AttnProbeError(
            f"the labels of this batch, such as {known_labels[0]!r:.60}, have another type than the "
            "labels that were added before. Use numbers, names, or lists of one of them for all texts, "
            "and begin with a text whose label is known."
        )
    return _mark_unknown_labels(references, feature)


def _mark_unknown_labels(labels: Sequence[Any], feature: Any) -> list[Any]:
    """Replace unknown labels by the mark that suits the type of the labels.

    The mark is NaN among numbers, the empty name among names, and None among lists. It is not −1 among
    numbers, because −1 can be the label of a regression model.
    """
    if feature == SINGLE_LABEL:
        return [math.nan if label is None or label == "" else label for label in labels]
    mark = "" if feature == LABEL_NAME else None
    return [mark if _is_unknown(label) else label for label in labels]


def _is_unknown(label: Any) -> bool:
    """Check whether a label is missing: None, NaN, an empty name, or the class index −1."""
    return label in (None, "", UNKNOWN_CLASS) or (isinstance(label, float) and math.isnan(label))


def _collect_statistics(report: hf_attnprobe.Report, n_texts: int) -> dict[str, Any]:
    """Collect every statistic in a report: its mean over the texts, and its list of values.

    Args:
        report: The report.
        n_texts: Number of texts; the lists have this length, with NaN for a missing value.

    Returns:
        Means under ``mean_TEST_STATISTIC`` and lists under ``TEST_STATISTIC``. If the model has
        several heads, the names also end in the layer and the head. The lists contain all texts. In
        the means, a text that occurs several times counts once.
    """

    def is_measured(test: str, *_: object) -> bool:
        return test != PREDICTION_TEST

    all_ids = range(n_texts)
    wide_frame = report.rows.select(is_measured).build_wide_frame().reindex(all_ids).astype(float)
    distinct_rows = report.distinct_rows.select(is_measured)
    distinct_frame = distinct_rows.build_wide_frame().reindex(all_ids).astype(float)
    has_several_sites = len(report.rows.sites) > 1
    numbers: dict[str, Any] = {}
    for column, values in wide_frame.items():
        test, statistic, layer, head = column
        name = f"{test}_{statistic}"
        if has_several_sites:
            name += f"_layer{layer}_head{head}"
        numbers[f"mean_{name}"] = float(distinct_frame[column].mean())
        numbers[name] = values.tolist()
    return numbers
