"""The studies of the package: tables of papers, and questions of our own."""

from hf_attnprobe.studies.steps import Steps


BABI = {"embedding_size": 50, "encoder_size": 32, "batch_size": 50, "epochs": 100}
OF_AUTHORS = {
    **dict.fromkeys(("babi1", "babi2", "babi3"), BABI),
    "cnn": {"batch_size": 90, "answers_in_text": True},
    "snli": {"batch_size": 128},
}
"""Settings of the code of Jain & Wallace 2019, by data set."""
AGREES = {"threshold": 0.3, "means": "rank agreement reaches .3"}


def jain_wallace(s: Steps) -> None:
    """Attention is not Explanation: Jain & Wallace 2019"""
    encoders, attentions = ["bilstm", "mlp", "cnn"], ["additive", "dot_product"]
    if s.quick:
        encoders, attentions = encoders[:2], attentions[:1]
    short = {"test_limit": 500} if s.quick else {}
    for cell in s.grid(dataset=["sst"], encoder=encoders, attention=attentions):
        data = cell["dataset"]
        own = {"epochs": 3} if s.quick else OF_AUTHORS.get(data, {})
        base = s.add("train", "base", cell, **cell, **own)
        audited = {"model": base, "dataset": data, **short}
        tests = {"correlation": {"tops": [1, 3, 5]}, "permutation": {}, "adversarial": {}}
        s.add("audit", "audit", cell, **audited, tests=tests)
        s.add("audit", "search", cell, **audited, tests={"adversarial": {"method": "search"}})
    tau = "attention_{}_tau".format
    s.table(
        "Agreement over all texts",
        audit={
            "accuracy": "accuracy",
            "τ with gradients": {"statistic": tau("gradient"), **AGREES},
            "τ with leave-one-out": {"statistic": tau("leave_one_out"), **AGREES},
            "τ of gradients with leave-one-out": "gradient_leave_one_out_tau",
        },
    )


def wiegreffe_pinter(s: Steps) -> None:
    """Attention is not not Explanation: Wiegreffe & Pinter 2019"""
    seeds, lambdas = {"n_seeds": 8}, {"lambdas": [0.00025, 0.0005, 0.001, 0.002, 0.004]}
    short = {"epochs": 3} if s.quick else {}
    if s.quick:
        seeds, lambdas = {"n_seeds": 2}, {"lambdas": [0.001, 0.002], "epochs": 8}
    tests = {"uniform": {}, "seeds": seeds, "adversary": lambdas, "diagnostic_mlp": {}}
    for cell in s.grid(dataset=["sst"]):
        base = s.add("train", "base", cell, **cell, encoder="bilstm", attention="additive", **short)
        s.add("retrain", "retrained", cell, model=base, **cell, tests=tests)


def serrano_smith(s: Steps) -> None:
    """Is Attention Interpretable? Serrano & Smith 2019"""
    encoders = ["bigru", "none"] if s.quick else ["bigru", "cnn", "none"]
    short = {"epochs": 2, "train_limit": 2000} if s.quick else {}
    tests = {"erasure": {"each_random": True, "bottom_up": True}}
    for cell in s.grid(dataset=["imdb10"], hierarchical=[True, False], encoder=encoders):
        base = s.add("train", "base", cell, **cell, procedure="serrano-smith", **short)
        few = {"test_limit": 500} if s.quick else {}
        data = cell["dataset"]
        s.add("audit", "audit", cell, model=base, dataset=data, tests=tests, **few)
    s.table(
        "One weight erased",
        audit={
            "accuracy": "accuracy",
            "neither flips": "neither_flips",
            "only the largest flips": "only_top_flips",
            "only another flips": "only_random_flips",
            "ΔJS": "delta_js",
        },
    )


def room(s: Steps) -> None:
    """How do model size and text length change the room an adversary has?"""
    sizes = [8, 64] if s.quick else [8, 32, 128]
    data = ["sst"] if s.quick else ["sst", "imdb"]
    trained = {"train_limit": 1500, "epochs": 2} if s.quick else {"train_limit": 4000, "epochs": 5}
    exact = {"tests": {"adversarial": {"method": "exact"}}}
    n_tested = 500 if s.quick else 2000
    for cell in s.grid(dataset=data, encoder_size=sizes):
        base = s.add("train", "base", cell, **cell, encoder="bilstm", **trained)
        s.add(
            "audit",
            "audit",
            cell,
            model=base,
            dataset=cell["dataset"],
            test_limit=n_tested,
            **exact,
        )
    columns = {
        "mean top probability": "probability",
        "share of the largest JSD there is (ε .01)": "epsilon_max_jsd@0.01/largest_jsd",
        "largest JSD there is": "largest_jsd",
    }
    s.table("By size", audit={"accuracy": "accuracy", **columns})
    s.table("By size and length", [10, 20, 40, 80, 160], audit=columns)


READY = {
    f.__name__.replace("_", "-"): f for f in (jain_wallace, wiegreffe_pinter, serrano_smith, room)
}
"""By name; five more of the package are as long."""
