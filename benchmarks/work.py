"""How much arithmetic each part needs, and how much a core can do: what is left to win.

Floating-point operations of the matrix products (a multiplication and an addition are two) as the library does them;
element-wise work where there is nothing else, with a logarithm or an exponential counted as 10. ``words`` is T, the
length of each text without start and end, which the encoder reads too.
"""

import time

import torch


FRONTIER = 9  # values of ε of the exact answer by default
STEP = 60  # element-wise operations per weight and step of the search: a softmax, two logarithms, ratios, Adam
EDGE = 60  # per edge, end and ε of the exact answer: four logarithms and what joins them


def forward(config, words: int) -> float:
    """Encoder, attention scores and read-out over T + 2 tokens."""
    n, embedding, size, hidden = (
        words + 2,
        config.embedding_size,
        config.encoder_size,
        config.hidden_size,
    )
    encoder = {
        "bilstm": 2 * 4 * size * (embedding + size),
        "cnn": embedding * size / len(config.kernel_sizes) * sum(config.kernel_sizes),
        "mlp": embedding * size,
        "none": 0,
    }[config.encoder]
    return 2 * n * (encoder + readout(config, hidden))


def readout(config, hidden: int) -> int:
    """Multiplications from one state to its score and logit."""
    inner = {
        "additive": config.attention_size or config.hidden_size // 2,
        "dot_product": 1,
        "uniform": 0,
    }
    return hidden * (inner[config.attention] + 1)


def gradient(config, words: int) -> float:
    """Backward to the word vectors: what the encoder's forward costs; for an LSTM its recurrent half is enough."""
    n, embedding, size = words + 2, config.embedding_size, config.encoder_size
    if config.encoder == "bilstm":
        return 2 * n * 2 * 4 * size * size
    return (
        forward(config, words) - 2 * n * readout(config, config.hidden_size) if embedding else 0.0
    )


def leave_one_out(config, words: int) -> float:
    """LSTM: T(T − 1) resumed steps over both directions; convolution: its reach around each of T; else sums."""
    size, sums = config.encoder_size, 4 * words**2
    if config.encoder == "bilstm":
        return sums + words * (words - 1) * 2 * (4 * size * size + readout(config, size))
    if config.encoder == "cnn":
        taps = (
            2
            * (words + 2)
            * config.embedding_size
            * size
            / len(config.kernel_sizes)
            * sum(config.kernel_sizes)
        )
        neighbours = 2 * (max(config.kernel_sizes) // 2)
        return sums + taps + words * neighbours * 2 * readout(config, size)
    return sums


def permutation(config, words: int) -> float:
    """A hundred scalar products."""
    return 100 * 2 * words


def search(config, words: int) -> float:
    """Five starts, 500 steps."""
    return 5 * 500 * words * STEP


def exact(config, words: int, n_epsilons: int = FRONTIER) -> float:
    """Both ends of T(T − 1)/2 edges for every ε."""
    return words * (words - 1) * n_epsilons * EDGE


def tau(config, words: int) -> float:
    """Signs of all pairs for three vectors, and their products with each other."""
    return words**2 * (3 * 3 + 9 * 2)


def whole(config, words: int) -> float:
    """All that an audit does."""
    return sum(
        part(config, words) for part in (forward, gradient, leave_one_out, permutation, exact, tau)
    )


def peak(dtype: torch.dtype, n: int = 1024, seconds: float = 1.0) -> float:
    """The best rate of a square matrix product, operations per second, on the threads that torch has."""
    a, b = torch.rand(n, n, dtype=dtype), torch.rand(n, n, dtype=dtype)
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * n**3 / best
