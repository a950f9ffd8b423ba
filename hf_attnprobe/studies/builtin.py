"""The built-in studies: some compute the tables of a paper, others answer new questions.

Each study is a function that adds steps, such as trainings and audits, to a plan. The first line of
its docstring is the title of the report. To write your own study, copy a function into a file and
change it.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.studies.steps import Steps


class StudySettings(NamedTuple):
    """Settings of a study that differ between its full and its quick version.

    Attributes:
        grid: Lists of values by name. Every combination of values is a grid cell.
        train_arguments: Arguments for all trainings.
        audit_arguments: Arguments for all audits.
        retraining_tests: Retraining tests with their options.
    """

    grid: Mapping[str, Sequence[Any]]
    train_arguments: Mapping[str, Any] = {}
    audit_arguments: Mapping[str, Any] = {}
    retraining_tests: Mapping[str, Mapping[str, Any]] = {}


FEW_TEXTS = {"test_limit": 500}
"""Audit arguments that limit quick studies to 500 test texts."""


# --- Tables of papers ----------------------------------------------------------------------------

BABI_SETTINGS = {
    "embedding_size": 50,
    "encoder_size": 32,
    "batch_size": 50,
    "epochs": 100,
}
"""Training settings for the bAbI tasks, from the released code of Jain & Wallace 2019."""
AUTHORS_SETTINGS: dict[str, dict[str, Any]] = {
    "babi1": BABI_SETTINGS,
    "babi2": BABI_SETTINGS,
    "babi3": BABI_SETTINGS,
    "cnn": {"batch_size": 90, "answers_in_text": True},
    "snli": {"batch_size": 128},
}
"""Maps data set names to training settings from the released code of Jain & Wallace 2019."""
AGREEMENT_STATEMENT = {
    "threshold": 0.3,
    "means": "rank agreement is at least .3, which is also possible for untrained weights if the "
    "states contain no context",
}
"""Options of table columns that show a Kendall τ.

The statement ``means`` is true for a table row if its τ is above the threshold.
"""
SHUFFLING_STATEMENT = {
    "threshold": 0.1,
    "means": "the assignment of weights to tokens affects the output",
}
"""Options of table columns that show the output change after shuffling the attention weights.

The statement ``means`` is true for a table row if its output change is above the threshold. Output
changes are total variation distances, from 0 to 1.
"""


AGREEMENT_COLUMNS = {
    "accuracy": "accuracy",
    "τ with gradients": {"statistic": "attention_gradient_tau", **AGREEMENT_STATEMENT},
    "τ with leave-one-out": {
        "statistic": "attention_leave_one_out_tau",
        **AGREEMENT_STATEMENT,
    },
    "τ of gradients with leave-one-out": "gradient_leave_one_out_tau",
}
"""Maps column titles to statistics, for the table "Agreement over all texts".

τ is the rank agreement of attention, gradients and leave-one-out (Kendall τ).
"""
TOP_OVERLAP_COLUMNS = {
    "k = 1": "attention_leave_one_out_top_overlap@1",
    "k = 1, random orders": "top_overlap_by_chance@1",
    "k = 3": "attention_leave_one_out_top_overlap@3",
    "k = 3, random orders": "top_overlap_by_chance@3",
    "k = 5": "attention_leave_one_out_top_overlap@5",
    "k = 5, random orders": "top_overlap_by_chance@5",
    "k = 5, gradients with leave-one-out": "gradient_leave_one_out_top_overlap@5",
}
"""Maps column titles to statistics, for the table about the top k tokens.

Each statistic is the share of the top k tokens that two rankings have in common.
"""
JAIN_WALLACE_TESTS = {
    "correlation": {"tops": [1, 3, 5]},
    "permutation": {},
    "adversarial": {},
}
"""Maps audit tests in the study ``jain-wallace`` to their options."""
SEARCH_ADVERSARIAL_TEST = {"adversarial": {"method": "search"}}
"""Selects the audit test ``adversarial`` and sets its option ``method`` to ``search``.

The test looks for different attention with the same output. This method is the gradient search of
Jain & Wallace 2019.
"""
JAIN_WALLACE = StudySettings(
    grid={
        "dataset": ["sst"],
        "encoder": ["bilstm", "mlp", "cnn"],
        "attention": ["additive", "dot_product"],
    }
)
"""Full version of the study ``jain-wallace``. It runs for all combinations in the grid."""
QUICK_JAIN_WALLACE = StudySettings(
    grid={
        "dataset": ["sst"],
        "encoder": ["bilstm", "mlp"],
        "attention": ["additive"],
    },
    train_arguments={"epochs": 3},
    audit_arguments=FEW_TEXTS,
)
"""Quick version of the study ``jain-wallace``, with less training than the full version."""


def jain_wallace(steps: Steps) -> None:
    """Attention is not Explanation (Jain & Wallace 2019).

    Add the steps and tables of this paper to a plan: for every data set, encoder and type of
    attention, train a model and audit it twice.
    """
    steps.paper = "jain-wallace"
    settings = QUICK_JAIN_WALLACE if steps.quick else JAIN_WALLACE
    for cell in steps.grid(**settings.grid):
        data = cell["dataset"]
        train_arguments = {**AUTHORS_SETTINGS.get(data, {}), **settings.train_arguments}
        if steps.has_pairs(data):
            # The second text (a question or a hypothesis) is the query of the attention.
            train_arguments["query_encoder"] = True
        base = steps.add("train", "base", cell, **cell, **train_arguments)
        audit_arguments = {"model": base, **settings.audit_arguments}
        steps.add("audit", "audit", cell, **audit_arguments, tests=JAIN_WALLACE_TESTS)
        steps.add("audit", "search", cell, **audit_arguments, tests=SEARCH_ADVERSARIAL_TEST)
    steps.add_table("Agreement over all texts", audit=AGREEMENT_COLUMNS)
    steps.add_table(
        "Share of the top k tokens that two rankings have in common",
        audit=TOP_OVERLAP_COLUMNS,
    )


WIEGREFFE_PINTER_TESTS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "seeds": {"n_seeds": 8},
    "adversary": {"lambdas": [0.00025, 0.0005, 0.001, 0.002, 0.004]},
    "diagnostic_mlp": {},
}
"""Maps retraining tests in the study ``wiegreffe-pinter`` to their options."""
WIEGREFFE_PINTER = StudySettings(grid={"dataset": ["sst"]}, retraining_tests=WIEGREFFE_PINTER_TESTS)
"""Full version of the study ``wiegreffe-pinter``. It runs for all combinations in the grid."""
QUICK_WIEGREFFE_PINTER = StudySettings(
    grid={"dataset": ["sst"]},
    train_arguments={"epochs": 3},
    retraining_tests={
        **WIEGREFFE_PINTER_TESTS,
        "seeds": {"n_seeds": 2},
        "adversary": {"lambdas": [0.001, 0.002], "epochs": 8},
    },
)
"""Quick version of the study ``wiegreffe-pinter``, with less training than the full version."""
WIEGREFFE_PINTER_ARCHITECTURE = {"encoder": "bilstm", "attention": "additive"}
"""Architecture of the base models in the study ``wiegreffe-pinter``."""


def wiegreffe_pinter(steps: Steps) -> None:
    """Attention is not not Explanation (Wiegreffe & Pinter 2019).

    Add the steps of this paper to a plan: for every data set, train a model and then retrain it
    with other attention.
    """
    steps.paper = "wiegreffe-pinter"
    settings = QUICK_WIEGREFFE_PINTER if steps.quick else WIEGREFFE_PINTER
    for cell in steps.grid(**settings.grid):
        base = steps.add(
            "train",
            "base",
            cell,
            **cell,
            **WIEGREFFE_PINTER_ARCHITECTURE,
            **settings.train_arguments,
        )
        steps.add("retrain", "retrained", cell, model=base, tests=settings.retraining_tests)


SINGLE_ERASURE_COLUMNS = {
    "accuracy": "accuracy",
    "neither flips": "neither_flips",
    "only the largest flips": "only_top_flips",
    "only another flips": "only_random_flips",
    "ΔJS": "delta_js",
}
"""Maps column titles to statistics, for the table "One weight erased"."""


ERASURE_TESTS = {"erasure": {"each_random": True, "bottom_up": True}}
"""Maps audit tests in the study ``serrano-smith`` to their options."""
SERRANO_SMITH = StudySettings(
    grid={
        "dataset": ["imdb10"],
        "hierarchical": [True, False],
        "encoder": ["bigru", "cnn", "none"],
    }
)
"""Full version of the study ``serrano-smith``. It runs for all combinations in the grid."""
QUICK_SERRANO_SMITH = StudySettings(
    grid={**SERRANO_SMITH.grid, "encoder": ["bigru", "none"]},
    train_arguments={"epochs": 2, "train_limit": 2000},
    audit_arguments=FEW_TEXTS,
)
"""Quick version of the study ``serrano-smith``, with less training than the full version."""


def serrano_smith(steps: Steps) -> None:
    """Is Attention Interpretable? (Serrano & Smith 2019).

    Add the steps and tables of this paper to a plan: for every data set, architecture and encoder,
    train a model and audit it.
    """
    steps.paper = "serrano-smith"
    settings = QUICK_SERRANO_SMITH if steps.quick else SERRANO_SMITH
    train_arguments = {"procedure": "serrano-smith", **settings.train_arguments}
    for cell in steps.grid(**settings.grid):
        base = steps.add("train", "base", cell, **cell, **train_arguments)
        steps.add(
            "audit", "audit", cell, model=base, tests=ERASURE_TESTS, **settings.audit_arguments
        )
    steps.add_table("One weight erased", audit=SINGLE_ERASURE_COLUMNS)


DIVERSITY_COLUMNS = {
    "accuracy": "accuracy",
    "conicity of absolute cosines": "absolute_conicity",
    "conicity": "conicity",
    "Δŷ shuffled": {"statistic": "median_tvd", **SHUFFLING_STATEMENT},
    "share of tokens erased, attention": "fraction_to_flip@attention",
    "share of tokens erased, random": "fraction_to_flip@random",
    "never flips, attention": "never_flips@attention",
    "never flips, random": "never_flips@random",
    "τ with gradients": "attention_gradient_tau",
}
"""Maps column titles to statistics, for both tables in the study ``mohankumar``."""


MOHANKUMAR = StudySettings(
    grid={"dataset": ["sst"]},
    audit_arguments={"tests": ["correlation", "permutation", "erasure", "conicity"]},
)
"""Full version of the study ``mohankumar``. It runs for all combinations in the grid."""
QUICK_MOHANKUMAR = StudySettings(
    grid=MOHANKUMAR.grid,
    train_arguments={"epochs": 3},
    audit_arguments={**MOHANKUMAR.audit_arguments, **FEW_TEXTS},
)
"""Quick version of the study ``mohankumar``, with less training than the full version."""
ORTHOGONAL_LSTM_ARCHITECTURE = {"encoder": "orthogonal_lstm", "encoder_size": 256}
"""Architecture of the orthogonal LSTM in the study ``mohankumar``."""


def mohankumar(steps: Steps) -> None:
    """Towards Transparent and Explainable Attention Models (Mohankumar et al. 2020).

    The line above is the title of the report. The study trains and audits three models: the
    diversity LSTM with its penalty, the same model without the penalty, and the orthogonal LSTM.
    """
    steps.paper = "mohankumar"
    settings = QUICK_MOHANKUMAR if steps.quick else MOHANKUMAR
    for cell in steps.grid(**settings.grid):
        for weight in steps.grid(conicity_weight=[0, 0.5]):
            # Weight 0 is the model without penalty. The BiLSTM has two directions of 128 units,
            # while the paper's LSTM has one direction of 256.
            model_cell = cell | weight
            diversity_model = steps.add(
                "train",
                "diversity",
                model_cell,
                **model_cell,
                encoder="bilstm",
                **settings.train_arguments,
            )
            steps.add(
                "audit",
                "diversity_audit",
                model_cell,
                model=diversity_model,
                **settings.audit_arguments,
            )
        orthogonal_model = steps.add(
            "train",
            "orthogonal",
            cell,
            **cell,
            **ORTHOGONAL_LSTM_ARCHITECTURE,
            **settings.train_arguments,
        )
        steps.add(
            "audit", "orthogonal_audit", cell, model=orthogonal_model, **settings.audit_arguments
        )
    steps.add_table(
        "Diversity LSTM, by the weight of the penalty", diversity_audit=DIVERSITY_COLUMNS
    )
    steps.add_table("Orthogonal LSTM", orthogonal_audit=DIVERSITY_COLUMNS)


REGULARISERS: dict[str, dict[str, Any]] = {
    "base": {},
    "concat": {"residual_connection": "concat"},
    "residual": {"residual_connection": "residual"},
    "tying": {"tying": 0.1},
    "mlm": {"mlm_weight": 0.5, "mlm_rate": 0.15},
}
"""Maps regularised models, by their names in Tutek & Šnajder 2020, to architecture settings."""
TUTEK_SNAJDER_ARCHITECTURE = {"encoder": "bilstm", "embedding_size": 300, "encoder_size": 150}
"""Architecture of all models in the study ``tutek-snajder``.

Hidden states and word vectors have the same width, because the models ``residual`` and ``tying``
require this. The width is 300, or 150 for each direction of the BiLSTM.
"""
REGULARISATION_COLUMNS = {
    "mean top probability": "probability",
    "exact ε-max JSD (.01) / largest JSD": "epsilon_max_jsd@0.01/largest_jsd",
    "largest JSD": "largest_jsd",
    "conicity": "conicity",
    "range over single tokens": "probability_range",
}
"""Maps column titles to statistics, for the table in the study ``tutek-snajder``.

The paper does not report these statistics. ``a/b`` is the ratio of two statistics.
"""


TUTEK_SNAJDER = StudySettings(
    grid={"dataset": ["sst"], "attention": ["additive", "dot_product"]},
    audit_arguments={"tests": ["fragility", "single_token", "adversarial", "conicity"]},
    retraining_tests={"adversary": {"lambdas": [0.0005, 0.001, 0.002], "epochs": 20}},
)
"""Full version of the study ``tutek-snajder``. It runs for all combinations in the grid."""
QUICK_TUTEK_SNAJDER = StudySettings(
    grid={"dataset": ["sst"], "attention": ["additive"]},
    train_arguments={"epochs": 3},
    audit_arguments={**TUTEK_SNAJDER.audit_arguments, **FEW_TEXTS},
    retraining_tests={"adversary": {"lambdas": [0.001], "epochs": 4}},
)
"""Quick version of the study ``tutek-snajder``, with less training than the full version."""


def tutek_snajder(steps: Steps) -> None:
    """Staying True to Your Word (Tutek & Šnajder 2020).

    Add the steps and tables of this paper to a plan: train a model with every regulariser, audit
    it, and train adversaries, which should give the same predictions with other attention. The
    paper does not publish the weights of the penalties, so they are our choice.
    """
    steps.paper = "tutek-snajder"
    settings = QUICK_TUTEK_SNAJDER if steps.quick else TUTEK_SNAJDER
    for cell in steps.grid(**settings.grid):
        for name, regulariser in REGULARISERS.items():
            model_cell = cell | {"model": name}
            train_arguments = {
                **cell,
                **TUTEK_SNAJDER_ARCHITECTURE,
                **regulariser,
                **settings.train_arguments,
            }
            model = steps.add("train", "base", model_cell, **train_arguments)
            steps.add("audit", "audit", model_cell, model=model, **settings.audit_arguments)
            steps.add(
                "retrain", "adversaries", model_cell, model=model, tests=settings.retraining_tests
            )
    steps.add_table("Which other numbers does regularisation change?", audit=REGULARISATION_COLUMNS)


# --- New questions -------------------------------------------------------------------------------

F1_STATEMENT = {
    "threshold": 0.02,
    "means": "attention increases F1 by at least .02 in these trainings",
}
"""Options of table columns that show the F1 lost without attention.

The statement ``means`` is true for a table row if its loss is above the threshold.
"""


SHORT_TRAINING = {"attention": "additive", "train_limit": 4000, "epochs": 5}
"""Training arguments of full studies that do not repeat a paper."""
QUICK_TRAINING = {"attention": "additive", "train_limit": 1500, "epochs": 2}
"""Training arguments of quick studies that do not repeat a paper."""


ENCODER_COLUMNS = {
    "accuracy": "accuracy",
    "mean top probability": "probability",
    "τ with leave-one-out": {
        "statistic": "attention_leave_one_out_tau",
        **AGREEMENT_STATEMENT,
    },
    "τ with gradients": {"statistic": "attention_gradient_tau", **AGREEMENT_STATEMENT},
    "τ(gradient, leave-one-out) − τ(attention, leave-one-out)": "leave_one_out_tau_difference",
    "τ(gradient, leave-one-out) − τ(attention, gradient)": "gradient_tau_difference",
    "Δŷ shuffled": {"statistic": "median_tvd", **SHUFFLING_STATEMENT},
    "share of the largest possible JSD (ε .01)": "epsilon_max_jsd@0.01/largest_jsd",
    "share of tokens erased, random": "fraction_to_flip@random",
    "share of tokens erased, attention": "fraction_to_flip@attention",
    "share of tokens erased, smallest set": "minimal_fraction",
    "score between random and smallest set, attention": "way_to_best@attention",
    "never flips, attention": "never_flips@attention",
    "tokens erased too many, attention": "regret@attention",
}
"""Maps column titles to statistics, for the table in the study ``encoders``."""


ENCODER_TESTS = ["correlation", "permutation", "adversarial", "erasure"]
"""Names of the audit tests in the study ``encoders``."""
ENCODERS = StudySettings(
    grid={
        "dataset": ["sst", "imdb"],
        "encoder": ["none", "mlp", "cnn", "bilstm", "bigru"],
    },
    train_arguments=SHORT_TRAINING,
    audit_arguments={"test_limit": 500, "tests": ENCODER_TESTS},
)
"""Full version of the study ``encoders``. It runs for all combinations in the grid."""
QUICK_ENCODERS = StudySettings(
    grid={"dataset": ["sst"], "encoder": ["mlp", "bilstm"]},
    train_arguments=QUICK_TRAINING,
    audit_arguments={"test_limit": 200, "tests": ENCODER_TESTS},
)
"""Quick version of the study ``encoders``, with less training than the full version."""


def encoders(steps: Steps) -> None:
    """How does the encoder affect attention?

    Add the steps and tables of this study to a plan: for every data set and encoder, train a model
    and audit it.
    """
    settings = QUICK_ENCODERS if steps.quick else ENCODERS
    for cell in steps.grid(**settings.grid):
        base = steps.add("train", "base", cell, **cell, **settings.train_arguments)
        steps.add("audit", "audit", cell, model=base, **settings.audit_arguments)
    steps.add_table("Attention by encoder", audit=ENCODER_COLUMNS)


LARGEST_JSD_COLUMNS = {
    "mean top probability": "probability",
    "share of the largest possible JSD (ε .01)": "epsilon_max_jsd@0.01/largest_jsd",
    "largest possible JSD": "largest_jsd",
}
"""Maps column titles to names of statistics, for the tables in the study ``room``.

``epsilon_max_jsd@0.01`` is the largest change of the attention that changes the output by at most
.01. The change is measured as Jensen-Shannon divergence (JSD). ``a/b`` is the ratio of two
statistics.
"""


SIZE_COLUMNS = {"accuracy": "accuracy", **LARGEST_JSD_COLUMNS}
"""Maps column titles to statistics, for the table "By size" in the study ``room``."""
TEXT_LENGTH_BOUNDS = [10, 20, 40, 80, 160]
"""Bounds between groups of text lengths, in tokens. The first group has fewer than 10 tokens."""
EXACT_ADVERSARIAL_TEST = {"adversarial": {"method": "exact"}}
"""Selects the audit test ``adversarial`` and sets its option ``method`` to ``exact``.

The test looks for different attention with the same output. This method finds the exact maximum.
"""
ROOM = StudySettings(
    grid={"dataset": ["sst", "imdb"], "encoder_size": [8, 32, 128]},
    train_arguments={"encoder": "bilstm", **SHORT_TRAINING},
    audit_arguments={"test_limit": 2000, "tests": EXACT_ADVERSARIAL_TEST},
)
"""Full version of the study ``room``. It runs for all combinations in the grid."""
QUICK_ROOM = StudySettings(
    grid={"dataset": ["sst"], "encoder_size": [8, 64]},
    train_arguments={"encoder": "bilstm", **QUICK_TRAINING},
    audit_arguments={**FEW_TEXTS, "tests": EXACT_ADVERSARIAL_TEST},
)
"""Quick version of the study ``room``, with less training than the full version."""


def room(steps: Steps) -> None:
    """How does the largest possible change of attention depend on model size and text length?

    Add the steps and tables of this study to a plan: for every data set and encoder size, train a
    model and audit it. The audit measures the largest change of the attention that leaves the
    output nearly unchanged.
    """
    settings = QUICK_ROOM if steps.quick else ROOM
    for cell in steps.grid(**settings.grid):
        base = steps.add("train", "base", cell, **cell, **settings.train_arguments)
        steps.add("audit", "audit", cell, model=base, **settings.audit_arguments)
    steps.add_table("By size", audit=SIZE_COLUMNS)
    steps.add_table("By size and length", TEXT_LENGTH_BOUNDS, audit=LARGEST_JSD_COLUMNS)


TASK_COLUMNS = {
    "F1 with attention": {"score": "uniform/base/f1"},
    "F1 with uniform attention": {"score": "uniform/uniform/f1"},
    "F1 lost without attention": {
        "score": "uniform/uniform/f1",
        "difference": True,
        **F1_STATEMENT,
    },
}
"""Maps column titles to scores, for the table in the study ``which-tasks``.

Scores are named test/model/metric.
"""


WHICH_TASKS = StudySettings(
    grid={
        "dataset": ["sst", "imdb", "agnews"],
        "encoder": ["bilstm", "cnn", "mlp"],
    },
    train_arguments=SHORT_TRAINING,
)
"""Full version of the study ``which-tasks``. It runs for all combinations in the grid."""
QUICK_WHICH_TASKS = StudySettings(
    grid={"dataset": ["sst"], "encoder": ["bilstm", "mlp"]}, train_arguments=QUICK_TRAINING
)
"""Quick version of the study ``which-tasks``, with less training than the full version."""


def which_tasks(steps: Steps) -> None:
    """Which tasks need attention?

    Add the steps and tables of this study to a plan: for every data set and encoder, train a model,
    and then another model with uniform attention.
    """
    settings = QUICK_WHICH_TASKS if steps.quick else WHICH_TASKS
    n_texts = settings.train_arguments["train_limit"]
    for cell in steps.grid(**settings.grid):
        base = steps.add("train", "base", cell, **cell, **settings.train_arguments)
        retrain_arguments = {"model": base, "train_limit": n_texts}
        steps.add("retrain", "retrained", cell, **retrain_arguments, tests=["uniform"])
    steps.add_table("The value of attention", retrained=TASK_COLUMNS)


TRANSFER_COLUMNS = {
    "F1 guided": {"score": "transfer/guided/f1"},
    "F1 with its own attention": {"score": "transfer/own/f1"},
    "F1 with uniform attention": {"score": "transfer/uniform/f1"},
    "F1 lost by being guided": {
        **F1_STATEMENT,
        "score": "transfer/guided/f1",
        "difference": True,
        "means": "its own weights lead to an F1 that is at least .02 higher than with the guide's "
        "in these trainings",
    },
    "F1 lost with uniform attention": {
        **F1_STATEMENT,
        "score": "transfer/uniform/f1",
        "difference": True,
    },
}
"""Maps column titles to scores, for the table in the study ``transfer``.

The attention of a guided model is imposed by another model. Scores are named test/model/metric.
"""


TRANSFER = StudySettings(
    grid={
        "dataset": ["sst", "agnews"],
        "guide": ["mlp", "cnn", "bilstm"],
        "guided": ["mlp", "bilstm"],
    },
    train_arguments=SHORT_TRAINING,
)
"""Full version of the study ``transfer``. It runs for all combinations in the grid."""
QUICK_TRANSFER = StudySettings(
    grid={"dataset": ["sst"], "guide": ["mlp", "bilstm"], "guided": ["mlp"]},
    train_arguments=QUICK_TRAINING,
)
"""Quick version of the study ``transfer``, with less training than the full version."""


def transfer(steps: Steps) -> None:
    """Can weights be transferred between models?

    Add the steps and tables of this study to a plan. First, train models whose attention is copied
    later (guides). Then train other models that must use a guide's attention weights. For
    comparison, train the same models with their own attention and with uniform attention.
    """
    settings = QUICK_TRANSFER if steps.quick else TRANSFER
    n_texts = settings.train_arguments["train_limit"]
    for cell in steps.grid(**settings.grid):
        dataset_cell = {"dataset": cell["dataset"]}
        guide_cell = dataset_cell | {"guide": cell["guide"]}
        guided_cell = dataset_cell | {"guided": cell["guided"]}
        train_arguments = {**dataset_cell, **settings.train_arguments}
        own_arguments = train_arguments | {"encoder": cell["guided"]}
        uniform_arguments = own_arguments | {"attention": "uniform"}
        models = {
            "guide": steps.add(
                "train", "guide", guide_cell, **train_arguments, encoder=cell["guide"]
            ),
            "model": steps.add("train", "own", guided_cell, **own_arguments),
            "uniform": steps.add("train", "uniform", guided_cell, **uniform_arguments),
        }
        steps.add("transfer", "transfer", cell, **models, train_limit=n_texts)
    steps.add_table("Models guided by the attention of other models", transfer=TRANSFER_COLUMNS)


STUDIES = (
    encoders,
    jain_wallace,
    mohankumar,
    room,
    serrano_smith,
    transfer,
    tutek_snajder,
    which_tasks,
    wiegreffe_pinter,
)
"""Built-in studies, which are functions that plan steps."""
STUDIES_BY_NAME: dict[str, Callable[[Steps], None]] = {
    function.__name__.replace("_", "-"): function for function in STUDIES
}
"""Maps the names that ``attnprobe study`` accepts to the built-in studies."""


def check_study(study: str | Path) -> None:
    """Check that a study exists, either as a built-in study or as a Python file.

    Args:
        study: Study name, or path of a Python file.

    Raises:
        AttnProbeError: If no built-in study has this name, and there is no such file.
    """
    is_file = Path(study).suffix == ".py" and Path(study).is_file()
    if str(study) not in STUDIES_BY_NAME and not is_file:
        raise AttnProbeError(
            f"expected a Python file or the name of a study ({', '.join(STUDIES_BY_NAME)}), got "
            f"{study}"
        )
