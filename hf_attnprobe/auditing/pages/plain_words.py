"""The questions of an audit in plain words, for who has read none of the papers.

Data, no code.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class PlainQuestion:
    """One rule of ``RULES`` in plain words.

    Attributes:
        done: what is done to the model, and how the number is to be read; has the
            places of :class:`~hf_attnprobe.statistics.wording.Words`.
        scale: what the graded number is, beneath its number line.
        yes: what may be said where the answer is yes.
        no: what may be said where it is no.
    """

    done: str
    scale: str
    yes: str
    no: str


QUESTIONS = {
    "accuracy": PlainQuestion(
        done="What the model says of these texts is compared with their labels, and "
        "with always giving the same answer. Attention of a model that is no better "
        "explains nothing that is worth an explanation.",
        scale="accuracy above that of always saying the same",
        yes="the model is better than always saying the same",
        no="the model is not better than always saying the same",
    ),
    "importance": PlainQuestion(
        done="Each token is left out in turn, and how far {said} then falls says how "
        "much the token matters (leave-one-out). Kendall's τ compares that order of the "
        "tokens with attention's: 1 is the same order, 0 no relation, −1 the reverse. A "
        "control, this model without what it learned, says how much of τ stems from the "
        "architecture alone.",
        scale="τ of attention with leave-one-out",
        yes="tokens with more attention matter more when they are left out, beyond what "
        "the architecture alone gives",
        no="the order of attention is not the order in which tokens matter when they "
        "are left out, beyond what the architecture alone gives",
    ),
    "assignment": PlainQuestion(
        done="The weights of a text are shuffled among its tokens again and again. If it "
        "matters which token has which weight, the output moves ({measured}).",
        scale="how far the median shuffle moves the output",
        yes="the output depends on which token has which weight",
        no="giving the same weights to other tokens hardly changes the output, or no "
        "more than without training",
    ),
    "uniqueness": PlainQuestion(
        done="All other attention that moves the output by at most ε = {within} is "
        "searched for the one that is farthest from the model's. How far two are apart "
        "is their Jensen-Shannon divergence (JSD: 0 is the same attention, .69 = ln 2 "
        "attention to other tokens only). The graded number is the share of the way to "
        "the farthest attention of all that cannot be gone.",
        scale="share of the way that other attention cannot go",
        yes="attention that looks elsewhere gives another output",
        no="attention that looks quite elsewhere gives the same output",
    ),
    "erasure": PlainQuestion(
        done="Attention weights are set to 0 one after the other, the largest first, "
        "until {decision} flips. 0 is as slow as a random order, 1 as fast as the best "
        "order known.",
        scale="way from a random order to the best one",
        yes="the largest weights are what the decision rests on",
        no="the largest weights are hardly more what the decision rests on than random "
        "ones",
    ),
    "removal": PlainQuestion(
        done="The tokens of most attention are taken out of the text itself, and the "
        "loss is compared with taking out as many random ones.",
        scale="what is lost beyond what random tokens cost",
        yes="the prediction loses more without the tokens of most attention than "
        "without random ones",
        no="the prediction loses no more without the tokens of most attention than "
        "without random ones",
    ),
}
"""By the key of the rule; others are shown as the rule has them."""


YARDSTICKS = {
    "importance": {
        "chance": "τ of an unrelated order",
        "gradient": "τ of gradients with leave-one-out",
        "control": "τ of the control's attention",
    },
    "assignment": {
        "nothing": "no move",
        "worst shuffle": "the worst of all shuffles moves the output by",
        "control": "shuffling the control's attention moves it by",
    },
    "uniqueness": {
        "largest_jsd": "JSD of the farthest attention of all",
        "epsilon_max_jsd": "JSD of the farthest that keeps the output",
        "upper_bound": "share of the way that none can exceed",
        "control": "share of the way that the control's can go",
    },
    "erasure": {
        "random": "share of tokens erased in a random order",
        "smallest": "share of tokens in the smallest set",
        "attention": "share of tokens erased in attention's order",
        "never_flips": "share of texts that attention's order never flips",
        "control": "way that the control's attention goes",
    },
    "removal": {
        "random": "lost without random tokens",
        "control": "what the control's attention costs beyond random",
    },
    "accuracy": {
        "majority": "always saying the most frequent answer is right in",
        "top_probability": "mean probability of what is predicted",
        "calibration_error": "calibration error",
        "mean_absolute_error": "mean absolute error",
        "mean_absolute_error_of_mean": "the same of always saying the mean",
    },
}
"""What the yardsticks of a finding are, by rule and name."""


GLOSSARY = {
    "attention": "weights that a model computes over the tokens of a text; they sum to 1",
    "leave-one-out": "a token's importance as the change of the prediction when the text "
    "is read without it",
    "gradient": "a token's importance as how fast the prediction changes with its input",
    "control": "the same tests on this model without what it learned; what it reaches "
    "too says nothing about what was learned",
    "τ": "Kendall's rank correlation (τ-b): 1 where two orders of the tokens are the "
    "same, 0 where they have nothing to do with each other, −1 where one is the reverse",
    "total variation": "how much probability moves from some outcomes to others, 0 to 1",
    "nats": "the unit of JSD: information, by natural logarithms",
    "Δα": "how much larger the largest attention weight of a text is than another one",
    "ΔJS": "how much farther the output moves (JSD) without the largest weight than "
    "without another one",
    "saturated": "said of an output so near to 0 or 1 that small changes do not show",
    "conicity": "how alike the states are that attention chooses from, 1 is all alike; "
    "where they are, it matters little which of them gets the weight",
    "MaSF": "masked soft F score of hidden states: how unlike whole texts are those with "
    "tokens taken out",
    "regret": "how much a ranking loses against the best one tried",
    "JSD": "Jensen-Shannon divergence of two attentions, 0 (the same) to .69 = ln 2 "
    "(no token in common)",
    "ε": "by how much other attention may move the output and still counts as keeping it",
    "adversary": "the attention farthest from the model's that keeps the output within ε",
    "comprehensiveness": "what the prediction loses without the tokens that a ranking "
    "puts first",
    "sufficiency": "what it loses on the tokens that a ranking puts first alone",
    "smallest set": "the fewest weights whose erasure flips the decision",
    "95% interval": "where the mean over all such texts lies, if these were drawn from "
    "them at random; it covers neither another training nor other kinds of texts",
    "simultaneous": "of intervals of many heads: all hold at once with 95%, so the "
    "largest one may be looked for",
    "Holm": "a correction of p-values for how many comparisons were made",
    "zero-ablated": "said of a head whose output is replaced by 0",
    "accuracy": "share of the texts whose label is predicted",
    "calibration error": "how far the stated probabilities are from how often they come "
    "true, 0 is best",
}
"""Terms with what they mean; a page lists those that occur in it."""
