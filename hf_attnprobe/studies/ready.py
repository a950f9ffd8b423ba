"""The studies of the package: tables of papers, and questions of our own.

Each is a function that a study of your own can be copied from.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.studies.steps import Steps


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


def jain_wallace(s: Steps) -> None:
    """Attention is not Explanation: Jain & Wallace 2019"""
    s.paper = "jain-wallace"
    encoders = ["bilstm", "mlp"] if s.quick else ["bilstm", "mlp", "cnn"]
    attentions = ["additive"] if s.quick else ["additive", "dot_product"]
    short = {"test_limit": 500} if s.quick else {}
    for cell in s.grid(dataset=["sst"], encoder=encoders, attention=attentions):
        data = cell["dataset"]
        settings: dict[str, Any] = {}
        if s.is_pairs(data):
            settings["query_encoder"] = (
                True  # questions and hypotheses are attention's query
            )
        settings |= OF_AUTHORS.get(data, {})
        if s.quick:
            settings["epochs"] = 3
        base = s.add("train", "base", cell, **cell, **settings)
        s.add("audit", "audit", cell, model=base, tests=EXACT, **short)
        s.add("audit", "search", cell, model=base, tests=SEARCHED, **short)
    s.table("Agreement over all texts", audit=WELL)
    s.table(
        "What attention and leave-one-out rank first (share of k tokens that both do)",
        audit=TOPS,
    )


def wiegreffe_pinter(s: Steps) -> None:
    """Attention is not not Explanation: Wiegreffe & Pinter 2019"""
    s.paper = "wiegreffe-pinter"
    short = {"epochs": 3} if s.quick else {}
    seeds = {"n_seeds": 2 if s.quick else 8}
    adversary: dict[str, Any] = {
        "lambdas": [0.00025, 0.0005, 0.001, 0.002, 0.004]
    }
    if s.quick:
        adversary = {"lambdas": [0.001, 0.002], "epochs": 8}
    tests = {
        "uniform": {},
        "seeds": seeds,
        "adversary": adversary,
        "diagnostic_mlp": {},
    }
    for cell in s.grid(dataset=["sst"]):
        base = s.add(
            "train",
            "base",
            cell,
            **cell,
            encoder="bilstm",
            attention="additive",
            **short,
        )
        s.add("retrain", "retrained", cell, model=base, tests=tests)


ONE_ERASED = {
    "accuracy": "accuracy",
    "neither flips": "neither_flips",
    "only the largest flips": "only_top_flips",
    "only another flips": "only_random_flips",
    "ΔJS": "delta_js",
}


def serrano_smith(s: Steps) -> None:
    """Is Attention Interpretable? Serrano & Smith 2019"""
    s.paper = "serrano-smith"
    encoders = ["bigru", "none"] if s.quick else ["bigru", "cnn", "none"]
    trained = {"epochs": 2, "train_limit": 2000} if s.quick else {}
    short = {"test_limit": 500} if s.quick else {}
    tests = {"erasure": {"each_random": True, "bottom_up": True}}
    # HAN, the paper's main models, and FLAN
    for cell in s.grid(
        dataset=["imdb10"], hierarchical=[True, False], encoder=encoders
    ):
        base = s.add(
            "train", "base", cell, **cell, procedure="serrano-smith", **trained
        )
        s.add("audit", "audit", cell, model=base, tests=tests, **short)
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


def mohankumar(s: Steps) -> None:
    """Towards Transparent and Explainable Attention Models: Mohankumar et al. 2020"""
    s.paper = "mohankumar"
    trained = {"epochs": 3} if s.quick else {}
    short = {"test_limit": 500} if s.quick else {}
    tests = ["correlation", "permutation", "erasure", "conicity"]
    audited = {"tests": tests, **short}
    for cell in s.grid(dataset=["sst"]):
        for weight in s.grid(conicity_weight=[0, 0.5]):
            # With weight 0 the plain model; a BiLSTM of 2 × 128, where the paper's LSTM has one
            # direction of 256.
            at = cell | weight
            diverse = s.add(
                "train", "diversity", at, **at, encoder="bilstm", **trained
            )
            s.add("audit", "diversity_audit", at, model=diverse, **audited)
        lstm = {"encoder": "orthogonal_lstm", "encoder_size": 256}
        orthogonal = s.add(
            "train", "orthogonal", cell, **cell, **lstm, **trained
        )
        s.add("audit", "orthogonal_audit", cell, model=orthogonal, **audited)
    s.table(
        "Diversity LSTM, by the weight of the penalty", diversity_audit=DIVERSE
    )
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


def tutek_snajder(s: Steps) -> None:
    """Staying True to Your Word: Tutek & Šnajder 2020

    The paper's weights of the penalties are not published.
    """
    s.paper = "tutek-snajder"
    attentions = ["additive"] if s.quick else ["additive", "dot_product"]
    trained = {"epochs": 3} if s.quick else {}
    adversary: dict[str, Any] = {
        "lambdas": [0.0005, 0.001, 0.002],
        "epochs": 20,
    }
    if s.quick:
        adversary = {"lambdas": [0.001], "epochs": 4}
    tests = ["fragility", "single_token", "adversarial", "conicity"]
    short = {"test_limit": 500} if s.quick else {}
    for cell in s.grid(dataset=["sst"], attention=attentions):
        for name, own in REGULARISED.items():
            at = cell | {"model": name}
            model = s.add("train", "base", at, **cell, **WIDE, **own, **trained)
            s.add("audit", "audit", at, model=model, tests=tests, **short)
            trains = {"adversary": adversary}
            s.add("retrain", "adversaries", at, model=model, tests=trains)
    s.table("What else does regularising change?", audit=CHANGED)


# --- questions of our own ------------------------------------------------------------------------

WORTH = {
    "threshold": 0.02,
    "means": "attention is worth .02 of F1 in these trainings",
}


def trained_shortly(s: Steps) -> dict[str, Any]:
    """Settings of small trainings, which questions of our own compare."""
    if s.quick:
        return {"attention": "additive", "train_limit": 1500, "epochs": 2}
    return {"attention": "additive", "train_limit": 4000, "epochs": 5}


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


def encoders(s: Steps) -> None:
    """What does the encoder do to attention?"""
    data = ["sst"] if s.quick else ["sst", "imdb"]
    kinds = (
        ["mlp", "bilstm"]
        if s.quick
        else ["none", "mlp", "cnn", "bilstm", "bigru"]
    )
    n_tested = 200 if s.quick else 500
    tests = ["correlation", "permutation", "adversarial", "erasure"]
    for cell in s.grid(dataset=data, encoder=kinds):
        base = s.add("train", "base", cell, **cell, **trained_shortly(s))
        audited = {"model": base, "test_limit": n_tested}
        s.add("audit", "audit", cell, **audited, tests=tests)
    s.table("Attention by encoder", audit=BY_ENCODER)


ROOM = {
    "mean top probability": "probability",
    "share of the largest JSD there is (ε .01)": "epsilon_max_jsd@0.01/largest_jsd",
    "largest JSD there is": "largest_jsd",
}


def room(s: Steps) -> None:
    """How do model size and text length change the room an adversary has?"""
    data = ["sst"] if s.quick else ["sst", "imdb"]
    sizes = [8, 64] if s.quick else [8, 32, 128]
    n_tested = 500 if s.quick else 2000
    exact = {"adversarial": {"method": "exact"}}
    for cell in s.grid(dataset=data, encoder_size=sizes):
        base = s.add(
            "train",
            "base",
            cell,
            **cell,
            encoder="bilstm",
            **trained_shortly(s),
        )
        audited = {"model": base, "test_limit": n_tested}
        s.add("audit", "audit", cell, **audited, tests=exact)
    s.table("By size", audit={"accuracy": "accuracy", **ROOM})
    s.table("By size and length", [10, 20, 40, 80, 160], audit=ROOM)


WORTHS = {
    "F1 with attention": {"score": "uniform/base/f1"},
    "F1 with uniform attention": {"score": "uniform/uniform/f1"},
    "F1 lost without attention": {
        "score": "uniform/uniform/f1",
        "difference": True,
        **WORTH,
    },
}


def which_tasks(s: Steps) -> None:
    """Which tasks need attention?"""
    data = ["sst"] if s.quick else ["sst", "imdb", "agnews"]
    kinds = ["bilstm", "mlp"] if s.quick else ["bilstm", "cnn", "mlp"]
    trained = trained_shortly(s)
    for cell in s.grid(dataset=data, encoder=kinds):
        base = s.add("train", "base", cell, **cell, **trained)
        retrained = {"model": base, "train_limit": trained["train_limit"]}
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


def transfer(s: Steps) -> None:
    """Can weights be transferred between models?"""
    data = ["sst"] if s.quick else ["sst", "agnews"]
    guides = ["mlp", "bilstm"] if s.quick else ["mlp", "cnn", "bilstm"]
    guided = ["mlp"] if s.quick else ["mlp", "bilstm"]
    trained = trained_shortly(s)
    unguided = {**trained, "attention": "uniform"}
    for cell in s.grid(dataset=data, guide=guides, guided=guided):
        at = {"dataset": cell["dataset"]}
        of_guide, of_guided = (
            at | {"guide": cell["guide"]},
            at | {"guided": cell["guided"]},
        )
        guide = s.add(
            "train", "guide", of_guide, **at, encoder=cell["guide"], **trained
        )
        own = s.add(
            "train", "own", of_guided, **at, encoder=cell["guided"], **trained
        )
        uniform = s.add(
            "train",
            "uniform",
            of_guided,
            **at,
            encoder=cell["guided"],
            **unguided,
        )
        models = {"model": own, "guide": guide, "uniform": uniform}
        n_texts = trained["train_limit"]
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
