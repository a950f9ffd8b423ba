"""What the words of an audit's page mean, for who has read none of the papers.

Data, no code.
"""

GLOSSARY = {
    "attention": "weights that a model computes over the tokens of a text; they sum to 1",
    "leave-one-out": "a token's importance as the change of the prediction when the text "
    "is read without it",
    "gradient": "a token's importance as how fast the prediction changes with its input",
    "control": "the same tests on this model with its attention weights at other tokens "
    "of each text, or, where that was asked for, with other model weights; what it "
    "reaches too says nothing about where this attention lies",
    "Gini correlation": "how well an order puts the largest values first, every pair of "
    "tokens weighted by how much they differ: 1 is the best order, 0 chance",
    "log-odds": "the logarithm of how much likelier one outcome is than all others; it "
    "still moves where a probability is next to 1",
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
    "comprehensiveness": "what the prediction loses without the tokens that a ranking puts first",
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
