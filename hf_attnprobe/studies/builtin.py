"""The studies of the package: tables of papers, and questions of our own.

Each is a function that a study of your own can be copied from.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.studies.steps import Steps


class Length(NamedTuple):
    """What the full study and the quick one differ in.

    Attributes:
        grid: the lists of its cells.
        trained, audited: arguments of its trainings, and of its audits.
        retrained: the tests that train models, with their options.
    """

    grid: Mapping[str, Sequence[Any]]
    trained: Mapping[str, Any] = {}
    audited: Mapping[str, Any] = {}
    retrained: Mapping[str, Mapping[str, Any]] = {}


ON_FEW = {"test_limit": 500}


# --- tables of papers ----------------------------------------------------------------------------

BABI = {
    "embedding_size": 50,
    "encoder_size": 32,
    "batch_size": 50,
    "epochs": 100,
}
OF_AUTHORS: dict[str, dict[str, Any]] = {
    "babi1": BABI,
    "babi2": BABI,
    "babi3": BABI,
    "cnn": {"batch_size": 90, "answers_in_text": True},
    "snli": {"batch_size": 128},
}
"""Settings of the code of Jain & Wallace 2019, by data set."""
AGREES = {
    "threshold": 0.3,
    "means": "rank agreement reaches .3 (untrained weights may too, where states carry no context)",
}
MATTERS = {"threshold": 0.1, "means": "which token gets which weight matters"}


WELL = {
    "accuracy": "accuracy",
    "τ with gradients": {"statistic": "attention_gradient_tau", **AGREES},
    "τ with leave-one-out": {
        "statistic": "attention_leave_one_out_tau",
        **AGREES,
    },
    "τ of gradients with leave-one-out": "gradient_leave_one_out_tau",
}
TOPS = {
    "k = 1": "attention_leave_one_out_top_overlap@1",
    "k = 1, random orders": "top_overlap_by_chance@1",
    "k = 3": "attention_leave_one_out_top_overlap@3",
    "k = 3, random orders": "top_overlap_by_chance@3",
    "k = 5": "attention_leave_one_out_top_overlap@5",
    "k = 5, random orders": "top_overlap_by_chance@5",
    "k = 5, gradients with leave-one-out": "gradient_leave_one_out_top_overlap@5",
}
EXACT = {
    "correlation": {"tops": [1, 3, 5]},
    "permutation": {},
    "adversarial": {},
}
SEARCHED = {"adversarial": {"method": "search"}}
"""The paper's, beside the exact answer."""
JAIN_WALLACE = Length(
    {
        "dataset": ["sst"],
        "encoder": ["bilstm", "mlp", "cnn"],
        "attention": ["additive", "dot_product"],
    }
)
QUICK_JAIN_WALLACE = Length(
    {
        "dataset": ["sst"],
        "encoder": ["bilstm", "mlp"],
        "attention": ["additive"],
    },
    trained={"epochs": 3},
    audited=ON_FEW,
)


def jain_wallace(s: Steps) -> None:
    """Attention is not Explanation: Jain & Wallace 2019"""
    s.paper = "jain-wallace"
    how = QUICK_JAIN_WALLACE if s.quick else JAIN_WALLACE
    for cell in s.grid(**how.grid):
        data = cell["dataset"]
        settings = {**OF_AUTHORS.get(data, {}), **how.trained}
        if s.is_pairs(data):
            # Questions and hypotheses are attention's query.
            settings["query_encoder"] = True
        base = s.add("train", "base", cell, **cell, **settings)
        audited = {"model": base, **how.audited}
        s.add("audit", "audit", cell, **audited, tests=EXACT)
        s.add("audit", "search", cell, **audited, tests=SEARCHED)
    s.table("Agreement over all texts", audit=WELL)
    s.table(
        "What attention and leave-one-out rank first (share of k tokens that both do)",
        audit=TOPS,
    )


BY_RETRAINING: dict[str, dict[str, Any]] = {
    "uniform": {},
    "seeds": {"n_seeds": 8},
    "adversary": {"lambdas": [0.00025, 0.0005, 0.001, 0.002, 0.004]},
    "diagnostic_mlp": {},
}
WIEGREFFE_PINTER = Length({"dataset": ["sst"]}, retrained=BY_RETRAINING)
QUICK_WIEGREFFE_PINTER = Length(
    {"dataset": ["sst"]},
    trained={"epochs": 3},
    retrained={
        **BY_RETRAINING,
        "seeds": {"n_seeds": 2},
        "adversary": {"lambdas": [0.001, 0.002], "epochs": 8},
    },
)
THEIR_BASE = {"encoder": "bilstm", "attention": "additive"}


def wiegreffe_pinter(s: Steps) -> None:
    """Attention is not not Explanation: Wiegreffe & Pinter 2019"""
    s.paper = "wiegreffe-pinter"
    how = QUICK_WIEGREFFE_PINTER if s.quick else WIEGREFFE_PINTER
    for cell in s.grid(**how.grid):
        base = s.add("train", "base", cell, **cell, **THEIR_BASE, **how.trained)
        s.add("retrain", "retrained", cell, model=base, tests=how.retrained)


ONE_ERASED = {
    "accuracy": "accuracy",
    "neither flips": "neither_flips",
    "only the largest flips": "only_top_flips",
    "only another flips": "only_random_flips",
    "ΔJS": "delta_js",
}


ERASED = {"erasure": {"each_random": True, "bottom_up": True}}
SERRANO_SMITH = Length(
    {
        "dataset": ["imdb10"],
        "hierarchical": [True, False],
        "encoder": ["bigru", "cnn", "none"],
    }
)
"""HAN, the paper's main models, and FLAN."""
QUICK_SERRANO_SMITH = Length(
    {**SERRANO_SMITH.grid, "encoder": ["bigru", "none"]},
    trained={"epochs": 2, "train_limit": 2000},
    audited=ON_FEW,
)


def serrano_smith(s: Steps) -> None:
    """Is Attention Interpretable? Serrano & Smith 2019"""
    s.paper = "serrano-smith"
    how = QUICK_SERRANO_SMITH if s.quick else SERRANO_SMITH
    trained = {"procedure": "serrano-smith", **how.trained}
    for cell in s.grid(**how.grid):
        base = s.add("train", "base", cell, **cell, **trained)
        s.add("audit", "audit", cell, model=base, tests=ERASED, **how.audited)
    s.table("One weight erased", audit=ONE_ERASED)


DIVERSE = {
    "accuracy": "accuracy",
    "conicity of absolute cosines": "absolute_conicity",
    "conicity": "conicity",
    "Δŷ shuffled": {"statistic": "median_tvd", **MATTERS},
    "share of tokens erased, attention": "fraction_to_flip@attention",
    "share of tokens erased, random": "fraction_to_flip@random",
    "never flips, attention": "never_flips@attention",
    "never flips, random": "never_flips@random",
    "τ with gradients": "attention_gradient_tau",
}


MOHANKUMAR = Length(
    {"dataset": ["sst"]},
    audited={"tests": ["correlation", "permutation", "erasure", "conicity"]},
)
QUICK_MOHANKUMAR = Length(
    MOHANKUMAR.grid,
    trained={"epochs": 3},
    audited={**MOHANKUMAR.audited, **ON_FEW},
)
ORTHOGONAL = {"encoder": "orthogonal_lstm", "encoder_size": 256}


def mohankumar(s: Steps) -> None:
    """Towards Transparent and Explainable Attention Models: Mohankumar et al. 2020"""
    s.paper = "mohankumar"
    how = QUICK_MOHANKUMAR if s.quick else MOHANKUMAR
    for cell in s.grid(**how.grid):
        for weight in s.grid(conicity_weight=[0, 0.5]):
            # With weight 0 the plain model; a BiLSTM of 2 × 128, where the paper's LSTM has one
            # direction of 256.
            at = cell | weight
            diverse = s.add("train", "diversity", at, **at, encoder="bilstm", **how.trained)
            s.add("audit", "diversity_audit", at, model=diverse, **how.audited)
        orthogonal = s.add("train", "orthogonal", cell, **cell, **ORTHOGONAL, **how.trained)
        s.add("audit", "orthogonal_audit", cell, model=orthogonal, **how.audited)
    s.table("Diversity LSTM, by the weight of the penalty", diversity_audit=DIVERSE)
    s.table("Orthogonal LSTM", orthogonal_audit=DIVERSE)


REGULARISED: dict[str, dict[str, Any]] = {
    "base": {},
    "concat": {"residual_connection": "concat"},
    "residual": {"residual_connection": "residual"},
    "tying": {"tying": 0.1},
    "mlm": {"mlm_weight": 0.5, "mlm_rate": 0.15},
}
WIDE = {"encoder": "bilstm", "embedding_size": 300, "encoder_size": 150}
"""States as wide as word vectors, as residual and tying need them."""
CHANGED = {
    "mean top probability": "probability",
    "exact ε-max JSD (.01) / largest JSD": "epsilon_max_jsd@0.01/largest_jsd",
    "largest JSD": "largest_jsd",
    "conicity": "conicity",
    "range over single tokens": "probability_range",
}


TUTEK_SNAJDER = Length(
    {"dataset": ["sst"], "attention": ["additive", "dot_product"]},
    audited={"tests": ["fragility", "single_token", "adversarial", "conicity"]},
    retrained={"adversary": {"lambdas": [0.0005, 0.001, 0.002], "epochs": 20}},
)
QUICK_TUTEK_SNAJDER = Length(
    {"dataset": ["sst"], "attention": ["additive"]},
    trained={"epochs": 3},
    audited={**TUTEK_SNAJDER.audited, **ON_FEW},
    retrained={"adversary": {"lambdas": [0.001], "epochs": 4}},
)


def tutek_snajder(s: Steps) -> None:
    """Staying True to Your Word: Tutek & Šnajder 2020

    The paper's weights of the penalties are not published.
    """
    s.paper = "tutek-snajder"
    how = QUICK_TUTEK_SNAJDER if s.quick else TUTEK_SNAJDER
    for cell in s.grid(**how.grid):
        for name, own in REGULARISED.items():
            at = cell | {"model": name}
            trained = {**cell, **WIDE, **own, **how.trained}
            model = s.add("train", "base", at, **trained)
            s.add("audit", "audit", at, model=model, **how.audited)
            s.add("retrain", "adversaries", at, model=model, tests=how.retrained)
    s.table("What else does regularising change?", audit=CHANGED)


# --- questions of our own ------------------------------------------------------------------------

WORTH = {
    "threshold": 0.02,
    "means": "attention is worth .02 of F1 in these trainings",
}


SHORTLY = {"attention": "additive", "train_limit": 4000, "epochs": 5}
VERY_SHORTLY = {"attention": "additive", "train_limit": 1500, "epochs": 2}
"""Trainings that questions of our own compare, and those of a quick study."""


BY_ENCODER = {
    "accuracy": "accuracy",
    "mean top probability": "probability",
    "τ with leave-one-out": {
        "statistic": "attention_leave_one_out_tau",
        **AGREES,
    },
    "τ with gradients": {"statistic": "attention_gradient_tau", **AGREES},
    "τ(gradient, leave-one-out) − τ(attention, leave-one-out)": "leave_one_out_tau_difference",
    "τ(gradient, leave-one-out) − τ(attention, gradient)": "gradient_tau_difference",
    "Δŷ shuffled": {"statistic": "median_tvd", **MATTERS},
    "share of the largest JSD there is (ε .01)": "epsilon_max_jsd@0.01/largest_jsd",
    "share of tokens erased, random": "fraction_to_flip@random",
    "share of tokens erased, attention": "fraction_to_flip@attention",
    "share of tokens erased, smallest set": "minimal_fraction",
    "score between random and smallest set, attention": "way_to_best@attention",
    "never flips, attention": "never_flips@attention",
    "tokens erased too many, attention": "regret@attention",
}


BY_ENCODER_TESTS = ["correlation", "permutation", "adversarial", "erasure"]
ENCODERS = Length(
    {
        "dataset": ["sst", "imdb"],
        "encoder": ["none", "mlp", "cnn", "bilstm", "bigru"],
    },
    trained=SHORTLY,
    audited={"test_limit": 500, "tests": BY_ENCODER_TESTS},
)
QUICK_ENCODERS = Length(
    {"dataset": ["sst"], "encoder": ["mlp", "bilstm"]},
    trained=VERY_SHORTLY,
    audited={"test_limit": 200, "tests": BY_ENCODER_TESTS},
)


def encoders(s: Steps) -> None:
    """What does the encoder do to attention?"""
    how = QUICK_ENCODERS if s.quick else ENCODERS
    for cell in s.grid(**how.grid):
        base = s.add("train", "base", cell, **cell, **how.trained)
        s.add("audit", "audit", cell, model=base, **how.audited)
    s.table("Attention by encoder", audit=BY_ENCODER)


ROOM = {
    "mean top probability": "probability",
    "share of the largest JSD there is (ε .01)": "epsilon_max_jsd@0.01/largest_jsd",
    "largest JSD there is": "largest_jsd",
}


OF_SIZES = {"accuracy": "accuracy", **ROOM}
LENGTHS = [10, 20, 40, 80, 160]
"""Tokens at which the texts are divided."""
EXACTLY = {"adversarial": {"method": "exact"}}
WITH_ROOM = Length(
    {"dataset": ["sst", "imdb"], "encoder_size": [8, 32, 128]},
    trained={"encoder": "bilstm", **SHORTLY},
    audited={"test_limit": 2000, "tests": EXACTLY},
)
QUICK_WITH_ROOM = Length(
    {"dataset": ["sst"], "encoder_size": [8, 64]},
    trained={"encoder": "bilstm", **VERY_SHORTLY},
    audited={**ON_FEW, "tests": EXACTLY},
)


def room(s: Steps) -> None:
    """How do model size and text length change the room an adversary has?"""
    how = QUICK_WITH_ROOM if s.quick else WITH_ROOM
    for cell in s.grid(**how.grid):
        base = s.add("train", "base", cell, **cell, **how.trained)
        s.add("audit", "audit", cell, model=base, **how.audited)
    s.table("By size", audit=OF_SIZES)
    s.table("By size and length", LENGTHS, audit=ROOM)


WORTHS = {
    "F1 with attention": {"score": "uniform/base/f1"},
    "F1 with uniform attention": {"score": "uniform/uniform/f1"},
    "F1 lost without attention": {
        "score": "uniform/uniform/f1",
        "difference": True,
        **WORTH,
    },
}


WHICH_TASKS = Length(
    {
        "dataset": ["sst", "imdb", "agnews"],
        "encoder": ["bilstm", "cnn", "mlp"],
    },
    trained=SHORTLY,
)
QUICK_WHICH_TASKS = Length({"dataset": ["sst"], "encoder": ["bilstm", "mlp"]}, trained=VERY_SHORTLY)


def which_tasks(s: Steps) -> None:
    """Which tasks need attention?"""
    how = QUICK_WHICH_TASKS if s.quick else WHICH_TASKS
    n_texts = how.trained["train_limit"]
    for cell in s.grid(**how.grid):
        base = s.add("train", "base", cell, **cell, **how.trained)
        retrained = {"model": base, "train_limit": n_texts}
        s.add("retrain", "retrained", cell, **retrained, tests=["uniform"])
    s.table("What attention is worth", retrained=WORTHS)


GUIDED = {
    "F1 guided": {"score": "transfer/guided/f1"},
    "F1 with attention of its own": {"score": "transfer/own/f1"},
    "F1 with uniform attention": {"score": "transfer/uniform/f1"},
    "F1 lost by being guided": {
        **WORTH,
        "score": "transfer/guided/f1",
        "difference": True,
        "means": "its own weights are worth .02 of F1 more than the guide's in these trainings",
    },
    "F1 lost with uniform attention": {
        **WORTH,
        "score": "transfer/uniform/f1",
        "difference": True,
    },
}


TRANSFER = Length(
    {
        "dataset": ["sst", "agnews"],
        "guide": ["mlp", "cnn", "bilstm"],
        "guided": ["mlp", "bilstm"],
    },
    trained=SHORTLY,
)
QUICK_TRANSFER = Length(
    {"dataset": ["sst"], "guide": ["mlp", "bilstm"], "guided": ["mlp"]},
    trained=VERY_SHORTLY,
)


def transfer(s: Steps) -> None:
    """Can weights be transferred between models?"""
    how = QUICK_TRANSFER if s.quick else TRANSFER
    n_texts = how.trained["train_limit"]
    for cell in s.grid(**how.grid):
        at = {"dataset": cell["dataset"]}
        of_guide = at | {"guide": cell["guide"]}
        of_guided = at | {"guided": cell["guided"]}
        trained = {**at, **how.trained}
        own = trained | {"encoder": cell["guided"]}
        uniform = own | {"attention": "uniform"}
        models = {
            "guide": s.add("train", "guide", of_guide, **trained, encoder=cell["guide"]),
            "model": s.add("train", "own", of_guided, **own),
            "uniform": s.add("train", "uniform", of_guided, **uniform),
        }
        s.add("transfer", "transfer", cell, **models, train_limit=n_texts)
    s.table("Models guided by the attention of others", transfer=GUIDED)


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
READY: dict[str, Callable[[Steps], None]] = {
    function.__name__.replace("_", "-"): function for function in STUDIES
}
"""By name."""


def check_study(study: str | Path) -> None:
    """Raises AttnProbeError where there is neither such a study nor such a Python file."""
    is_file = Path(study).suffix == ".py" and Path(study).is_file()
    if str(study) not in READY and not is_file:
        raise AttnProbeError(
            f"expected a Python file or one of {', '.join(READY)}, got {study}; check the name"
        )
