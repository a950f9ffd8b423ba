"""Exchange of words for attention classifiers, which computes each distinct word only once.

An exchange replaces the words of a text, and the number of words stays the same. Many edited copies
of the same text are computed together:

- Encoders without context: the state of each distinct new word is computed once.
- CNN: the products of each distinct word with the convolution kernels are computed once. A state is
  a sum of such products.
- BiLSTM: the products of each distinct word with the gate weights are computed once. Each direction
  starts at its first new word, from the state that the whole text had before this word.

The results are the same as if each edited copy were encoded on its own.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hf_attnprobe.adapters.classifier.leave_one_out import (
    MAX_COPIES_PER_STEP,
    ClassifierState,
    LstmTrace,
    Readout,
    advance_step,
    gather_positions,
)


class EditedCopies(NamedTuple):
    """Copies of texts in which some words are replaced.

    Attributes:
        text: Index of each copy's text, int `[copies]`.
        is_new: Whether a position has a new word, bool `[copies, keys]`.
        token_ids: Token ids of the edited copies, int `[copies, keys]`.
        attention_mask: Mask of the whole texts, `[batch, keys]`.
    """

    text: Tensor
    is_new: Tensor
    token_ids: Tensor
    attention_mask: Tensor

    def select(self, rows: slice) -> "EditedCopies":
        """Return some of the copies.

        Args:
            rows: Indices of these copies.
        """
        return EditedCopies(
            self.text[rows], self.is_new[rows], self.token_ids[rows], self.attention_mask
        )


def compute_exchanged_outputs(
    encoder_type: str,
    encoder: nn.Module,
    embedding: Tensor,
    readout: Readout,
    state: ClassifierState,
    content: Tensor,
    copies: EditedCopies,
) -> Tensor:
    """Compute the classifier outputs for edited copies of texts, without the bias.

    Args:
        encoder_type: Encoder type, a key in `EXCHANGE_METHODS`.
        encoder: The encoder module, of this type.
        embedding: Word vectors for the whole vocabulary, `[words, embedding]`.
        readout: Joint read-out for the encoder states.
        state: Results from a forward pass over the whole texts, without a gradient graph.
        content: Mask for the tokens that receive attention, bool `[batch, keys]`.
        copies: The edited copies.

    Returns:
        Outputs `[copies, outputs]`.
    """
    compute_scores = EXCHANGE_METHODS[encoder_type]
    all_outputs = []
    for start in range(0, len(copies.text), MAX_COPIES_PER_STEP):
        some_copies = copies.select(slice(start, start + MAX_COPIES_PER_STEP))
        scores, outputs = compute_scores(encoder, embedding, readout, state, some_copies)
        is_content = content[some_copies.text]
        lowest_score = torch.finfo(scores.dtype).min
        weights = scores.masked_fill(~is_content, lowest_score).softmax(-1) * is_content
        all_outputs.append((weights.unsqueeze(-1) * outputs).sum(1))
    return torch.cat(all_outputs)


def _exchange_without_context(
    encoder: nn.Module,
    embedding: Tensor,
    readout: Readout,
    state: ClassifierState,
    copies: EditedCopies,
) -> tuple[Tensor, Tensor]:
    """Return scores and outputs for an encoder whose states do not depend on other tokens."""
    scores, outputs = (values[copies.text] for values in readout.read(state.states))
    words, word_index = copies.token_ids[copies.is_new].unique(return_inverse=True)
    # The words are encoded as texts with a single word each.
    mask = torch.ones_like(words)[:, None]
    word_scores, word_outputs = readout.read(encoder(embedding[words][:, None], mask)[:, 0])
    scores[copies.is_new] = word_scores[word_index]
    outputs[copies.is_new] = word_outputs[word_index]
    return scores, outputs


def _exchange_in_cnn(
    encoder: nn.Module,
    embedding: Tensor,
    readout: Readout,
    state: ClassifierState,
    copies: EditedCopies,
) -> tuple[Tensor, Tensor]:
    """Compute scores and outputs for a CNN.

    A convolution is the sum Σ_d K_d x_{t+d} over kernel positions d. The products K_d x are
    computed once for each distinct word x.
    """
    words, word_index = copies.token_ids.unique(return_inverse=True)
    # Padding has the vector 0, which follows the vectors of all words.
    vectors = F.pad(embedding[words], (0, 0, 0, 1))
    is_token = copies.attention_mask[copies.text].bool()
    word_index = word_index.masked_fill(~is_token, len(words))
    n_keys = word_index.shape[1]
    channels = []
    for convolution in encoder.get_submodule("convolutions").children():
        weight = convolution.get_parameter("weight")
        # [kernel positions, words, filters]
        products = torch.einsum("we,fed->dwf", vectors, weight)
        half_width = len(products) // 2
        padded_index = F.pad(word_index, (half_width, half_width), value=len(words))
        total = convolution.get_parameter("bias").expand(*word_index.shape, -1).clone()
        for d, product in enumerate(products):
            total += product[padded_index[:, d : d + n_keys]]
        channels.append(total)
    return readout.read(torch.cat(channels, dim=-1).relu_())


def _exchange_in_bilstm(
    encoder: nn.Module,
    embedding: Tensor,
    readout: Readout,
    state: ClassifierState,
    copies: EditedCopies,
) -> tuple[Tensor, Tensor]:
    """Compute scores and outputs for a BiLSTM by resuming each direction at its first new word."""
    # The joint linear map is a sum of one term per half of a state.
    projected = readout.bias
    for trace, weight in zip(state.traces, readout.weight.chunk(2, dim=1), strict=True):
        projected = projected + _resume_with_new_words(trace, embedding, weight, copies)
    return readout.finish(projected)


def _resume_with_new_words(
    trace: LstmTrace, embedding: Tensor, weight: Tensor, copies: EditedCopies
) -> Tensor:
    """Resume one LSTM direction at the first new word of each copy.

    Args:
        trace: The direction's trace of the whole texts.
        embedding: Word vectors for the whole vocabulary, `[words, embedding]`.
        weight: Read-out weights for this direction, `[projection + outputs, size]`.
        copies: The edited copies.

    Returns:
        Contribution of this direction's states to the read-out,
        `[copies, keys, projection + outputs]`.
    """
    # The factor 2 compensates for halved hidden states.
    weight = 2 * weight.t().contiguous()
    is_new = copies.is_new.gather(1, trace.position[copies.text])
    # Copies are ordered by the step at which they start.
    start, order = is_new.int().argmax(1).sort()
    text, is_new = copies.text[order], is_new[order]
    position = trace.position[text]
    new_ids = copies.token_ids[order].gather(1, position)
    words, word_index = new_ids[is_new].unique(return_inverse=True)
    word_inputs = F.linear(embedding[words], trace.input_weight, trace.bias)
    input_index = torch.zeros_like(new_ids)
    input_index[is_new] = word_index

    # The states before the first new word are those of the whole text.
    projected = (trace.hidden[1:] @ weight).transpose(0, 1)[text]
    hidden, cell = trace.hidden[start, text], trace.cell[start, text]
    n_steps = is_new.shape[1]
    steps = torch.arange(n_steps, device=start.device)
    n_running = torch.searchsorted(start.contiguous(), steps, right=True).tolist()
    rows_by_step = [is_new[:, step].nonzero()[:, 0] for step in range(n_steps)]
    for t in range(int(start[0]), n_steps):
        running = slice(0, n_running[t])
        gates = trace.inputs[t][text[running]]
        new_rows = rows_by_step[t]
        gates[new_rows] = word_inputs[input_index[new_rows, t]]
        gates.addmm_(hidden[running], trace.recurrent)
        advance_step(gates, cell[running], hidden[running])
        projected[running, t] = hidden[running] @ weight
    unordered = torch.empty_like(projected)
    unordered[order] = gather_positions(projected, trace.step[text])
    return unordered


ExchangeMethod = Callable[
    [nn.Module, Tensor, Readout, ClassifierState, EditedCopies], tuple[Tensor, Tensor]
]
"""Type of a function that encodes edited copies of texts.

It receives the encoder, the word vectors, the read-out, the state of the whole texts and the edited
copies. It returns attention scores `[copies, keys]` and outputs `[copies, keys, outputs]`.
"""

EXCHANGE_METHODS: dict[str, ExchangeMethod] = {
    "bilstm": _exchange_in_bilstm,
    "cnn": _exchange_in_cnn,
    "mlp": _exchange_without_context,
    "none": _exchange_without_context,
}
"""Maps each encoder type to the function that encodes texts with new words."""
