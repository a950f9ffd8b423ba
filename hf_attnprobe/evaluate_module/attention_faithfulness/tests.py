"""Cases of the metric, as evaluate's Spaces keep them; `python tests.py` runs them."""

from typing import Any

import hf_attnprobe


TEXTS = ["the film was wonderful .", "the film was dull ."]


def made() -> dict[str, Any]:
    """A model with random weights, so that nothing is downloaded."""
    tokenizer = hf_attnprobe.build_tokenizer(TEXTS)
    config = hf_attnprobe.AttentionClassifierConfig(
        vocab_size=len(tokenizer), embedding_size=8, encoder_size=4
    )
    model = hf_attnprobe.AttentionClassifierForSequenceClassification(
        config
    ).eval()
    return {"model": model, "tokenizer": tokenizer}


test_cases: list[dict[str, Any]] = [
    {
        "predictions": TEXTS,
        "references": [1, 0],
        "tests": ["permutation"],
        "result": {"n_values": 2, "answer": "cannot say"},
    },
    {
        "predictions": TEXTS[:1],
        "references": [1],
        "tests": ["correlation"],
        "result": {"n_values": 1, "answer": "cannot say"},
    },
]
"""Too few texts for an answer: the metric has to say so."""


def check(metric: Any) -> None:
    """Raises AssertionError where the loaded metric does not give what a case expects."""
    for case in test_cases:
        given = {
            name: value for name, value in case.items() if name != "result"
        }
        found = metric.compute(**given, **made())
        lists = [
            v
            for k, v in found.items()
            if isinstance(v, list) and k != "findings"
        ]
        assert lists and all(
            len(v) == case["result"]["n_values"] for v in lists
        )
        assert found["answer"] == case["result"]["answer"]


if __name__ == "__main__":
    import evaluate

    check(evaluate.load(hf_attnprobe.metric_path()))
