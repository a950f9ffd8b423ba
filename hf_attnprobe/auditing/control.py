"""Controls: the numbers of attention that names nothing, as yardsticks.

reassigned: the model itself, the weights of every text given to other tokens of it at
            random (:class:`~hf_attnprobe.attention_model.Reassignable`). It asks whether
            *this* attention names what matters better than equally sharp attention
            elsewhere would, in a model that follows that attention. It knows the function
            alone: attention, states and read-out, not the weights that make them, so one
            function has one answer however it is parametrised.
randomised: the entries of every weight tensor are shuffled, so that their sizes stay
            (Adebayo et al. 2018, "Sanity Checks for Saliency Maps", Section 3). In
            attention classifiers the query is then scaled until the mean largest weight
            is the model's own: gradients and leave-one-out have the attention weight
            as a factor, so peaked attention agrees with them whatever it learned.
untrained:  a model of the same configuration, freshly initialised.

foreign:    the same question and answer over another text's passage, for language models:
            what attention and deletion agree on there does not come from what the passage
            says of the answer.
conflict:   the same passage with another text's answer wherever it has the text's own.

Randomised and untrained ask what the architecture gives without training. They depend on which
weights there are to shuffle, and their draws differ from one another by more than texts
do, so they are drawn several times and the interval covers texts and draws.

From the top down: with a number of layers, only these last blocks and what stands above
them lose their training (the paper's cascading randomisation, one step per audit).
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_attnprobe.attention_model import (
    AnswersFromPassage,
    AttentionModelBase,
    Batch,
    Reassignable,
)
from hf_attnprobe.auditing.options import AuditOptions, Control
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.statistics.samples import random_order
from hf_attnprobe.statistics.wording import OVER_OTHER_PASSAGES


STREAM = 1 << 41  # added to the seed: other shuffles than those of the tests
DRAWS = 5
"""Of a control, where one is cheap: of a model with a single head."""


def kind_of(control: Control, adapter: AttentionModelBase) -> Control:
    """The kind of control; by default another passage, or reassigned attention, if the model
    supports it.
    """
    if control != "auto":
        return control
    if not adapter.lacks(AnswersFromPassage):
        return "foreign"
    return "none" if adapter.lacks(Reassignable) else "reassigned"


def n_draws(options: AuditOptions, adapter: AttentionModelBase) -> int:
    """Number of draws of the control."""
    if options.control_draws is not None:
        return options.control_draws
    is_cheap = len(adapter.sites()) == 1 and options.time is None
    return DRAWS if is_cheap else 1


def reassigned(
    adapter: AttentionModelBase, options: AuditOptions
) -> tuple[AttentionModelBase, ...]:
    """All draws of the model with its attention moved to other tokens.

    Raises:
        AttnProbeError: the model cannot reassign its attention.
    """
    model = adapter.require(Reassignable)
    return tuple(
        model.reassigned(options.seed + STREAM + draw) for draw in range(n_draws(options, adapter))
    )


# --- language models over other passages ------------------------------------------------------

OF_PASSAGES = ("foreign", "conflict")


def over_other_passages(
    adapter: AttentionModelBase, options: AuditOptions
) -> tuple[AttentionModelBase, ...]:
    """All draws of a language model that reads other passages, to be given by :func:`give_texts`.

    Raises:
        AttnProbeError: a model that does not answer from a passage.
    """
    adapter.require(AnswersFromPassage)
    draws = [copy.copy(adapter) for _ in range(n_draws(options, adapter))]
    for draw in draws:
        draw.other_texts = {}
    return tuple(draws)


def give_texts(
    draws: Sequence[AttentionModelBase],
    texts: Sequence[Text],
    tokenizer: PreTrainedTokenizerBase,
    options: AuditOptions,
) -> str:
    """Gives every draw its texts; describes the control in words, "none" where there are none."""
    for number, draw in enumerate(draws):
        seed = options.seed + STREAM + number
        if options.control == "conflict":
            draw.other_texts = conflicting(texts, tokenizer, seed)
        else:
            draw.other_texts = foreign(texts, seed)
        if not draw.other_texts:
            if options.control == "auto":
                return "none"
            raise AttnProbeError(
                f"expected texts with other passages and answers for --control {options.control}, "
                f"these {len(texts)} have none; leave --control out"
            )
    if options.control == "conflict":
        return "another text's answer in the passage in place of its own"
    return OVER_OTHER_PASSAGES


def foreign(texts: Sequence[Text], seed: int) -> dict[int, Text]:
    """Every text with the passage of another one, by id; none where all have the same.

    The passage is that of the next text in a random order that has another one, and with
    which the prompt is no longer than the longest of these texts.
    """
    longest = max(text.n_tokens for text in texts)
    found = {}
    for text, others in _in_random_order(texts, seed):
        own = text.inputs["input_ids"][_passage(text)]
        swapped = [
            _with_passage(text, other)
            for other in others
            if other.inputs["input_ids"][_passage(other)] != own
        ]
        fitting = [other for other in swapped if other.n_tokens <= longest]
        if swapped:
            found[text.example_id] = (fitting or sorted(swapped, key=lambda t: t.n_tokens))[0]
    return found if len(found) == len(texts) else {}


def conflicting(
    texts: Sequence[Text], tokenizer: PreTrainedTokenizerBase, seed: int
) -> dict[int, Text]:
    """Every text with another one's answer wherever its passage has its own, by id.

    A text whose passage does not have its answer word for word stays as it is. None where
    no passage has one, or all answers are the same.
    """

    def answer_of(text: Text) -> str:
        said = zip(text.inputs["input_ids"], text.inputs["labelled"], strict=True)
        return str(tokenizer.decode([token for token, is_said in said if is_said])).strip()

    found = {}
    for text, others in _in_random_order(texts, seed):
        own = answer_of(text)
        answers = (answer for answer in map(answer_of, others) if answer not in ("", own))
        other = next(answers, None)
        if other is not None and own:
            found[text.example_id] = _exchanged(text, own, other, tokenizer)
    whole = {text.example_id: text for text in texts}
    changed = [k for k, text in found.items() if text.inputs != whole[k].inputs]
    return {**whole, **found} if changed else {}


def _in_random_order(texts: Sequence[Text], seed: int) -> Iterator[tuple[Text, list[Text]]]:
    """Every text with all others, from the one behind it in a random order on."""
    by_id = {text.example_id: text for text in texts}
    order = random_order(by_id, seed)
    for place, example_id in enumerate(order):
        behind = [*order[place + 1 :], *order[:place]]
        yield by_id[example_id], [by_id[other] for other in behind]


def _passage(text: Text) -> slice:
    """From the first token of a unit to the last one."""
    places = [place for place, unit in enumerate(text.inputs["unit_ids"]) if unit >= 0]
    return slice(places[0], places[-1] + 1)


def _with_passage(text: Text, other: Text) -> Text:
    """A text with another one's passage between its own prompt, question and answer."""
    own, theirs = _passage(text), _passage(other)
    inputs = {
        name: [*values[: own.start], *other.inputs[name][theirs], *values[own.stop :]]
        for name, values in text.inputs.items()
    }
    return replace(text, inputs=inputs, rationale=None)


def _exchanged(text: Text, own: str, other: str, tokenizer: PreTrainedTokenizerBase) -> Text:
    """A text with words of its passage exchanged; only units with these words are tokenised anew."""
    filled = {"attention_mask": 1, "special_tokens_mask": 0, "labelled": 0, "other_ids": -1}
    inputs: dict[str, list[int]] = {name: [] for name in text.inputs}
    columns = zip(*text.inputs.values(), strict=True)
    tokens = [dict(zip(text.inputs, row, strict=True)) for row in columns]
    for unit, members in groupby(tokens, key=lambda token: token["unit_ids"]):
        some = [*members]
        said = str(tokenizer.decode([token["input_ids"] for token in some]))
        if unit >= 0 and own in said:
            ids = tokenizer(said.replace(own, other), add_special_tokens=False)["input_ids"]
            some = [{**filled, "unit_ids": unit, "input_ids": token} for token in ids]
        for name, values in inputs.items():
            values += [token[name] for token in some]
    return replace(text, inputs=inputs, rationale=None)


# --- models without what they have learned ----------------------------------------------------


def control_of(model: nn.Module, control: Control, *, n_layers: int | None, seed: int) -> nn.Module:
    """A copy of a model without what it has learned.

    Args:
        model: is left as it is.
        control: "untrained"; all others are randomised.
        n_layers: blocks from the top that lose their training; None: the whole model.
        seed: of the shuffles or the initialisation.

    Raises:
        AttnProbeError: a model that cannot be initialised anew, or without so many
            blocks.
    """
    fresh = copy.deepcopy(model)
    parameters = dict(fresh.named_parameters())
    if n_layers is not None:
        parameters = _from_the_top(fresh, n_layers)
    if control == "untrained":
        initial = dict(_initialised(model, seed).named_parameters())
    padding = _padding_rows(fresh)
    with torch.no_grad():
        for place, (name, parameter) in enumerate(parameters.items()):
            if control == "untrained":
                parameter.copy_(initial[name])
            else:
                _shuffle(parameter, seed + place, padding.get(id(parameter)))
    return fresh


def finish(
    draws: Sequence[AttentionModelBase],
    model: AttentionModelBase,
    batch: Batch,
    options: AuditOptions,
) -> str:
    """Makes the draws' attention as peaked as the model's; describes the control in words.

    Args:
        draws: of the control, at least one.
        batch: texts on which they attend as sharply as the model then.
    """
    if draws[0].reassignment is not None:
        return "its weights at other tokens of each text"
    layers, where = options.control_layers, ""
    if layers is not None:
        blocks = {0: "", 1: "the last layer and "}
        last = blocks.get(layers, f"the last {layers} layers and ")
        where = f" of {last}what stands above"
    if options.control == "untrained":
        return f"model weights{where} freshly initialised"
    sharpened = [sharpen_like(draw, model, batch) for draw in draws]
    like = ", attention as peaked as the model's" if all(sharpened) else ""
    return f"model weights{where} shuffled{like}"


def with_draws(kind: str, draws: int) -> str:
    """Describes a control: its kind and number of draws.

    >>> with_draws("model weights shuffled", 5)
    'model weights shuffled, 5 draws'
    """
    return f"{kind}, {draws} draws" if draws > 1 else f"{kind}, one draw"


@torch.no_grad()
def sharpen_like(control: AttentionModelBase, model: AttentionModelBase, batch: Batch) -> bool:
    """Scales the query of a control until its attention is as peaked as the model's.

    By the mean over the texts of the largest weight, within a factor of 2^±12.

    Returns:
        Whether there is a query to scale: attention classifiers have one.
    """
    queries = _queries(control.model)
    if not queries:
        return False
    wanted, original = _peakedness(model, batch), [query.clone() for query in queries]
    low, high = -12.0, 12.0
    for _ in range(20):
        middle = (low + high) / 2
        for query, first in zip(queries, original, strict=True):
            query.copy_(first * 2**middle)
        if _peakedness(control, batch) < wanted:
            low = middle
        else:
            high = middle
    return True


def _queries(model: nn.Module) -> list[Tensor]:
    """Vectors whose product with a state scores attention."""
    found = [getattr(module, "query", None) for module in model.modules()]
    linear = [query for query in found if isinstance(query, nn.Linear)]
    return [query.weight for query in linear if query.out_features == 1]


def _peakedness(model: AttentionModelBase, batch: Batch) -> float:
    """Mean over texts of the largest weight."""
    observation = model.observe(batch)
    return float(observation.read(model.sites()[0]).amax(-1).mean())


def _padding_rows(model: nn.Module) -> dict[int, int]:
    """The rows of embeddings that stand for padding: models keep them at 0."""
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }


def _shuffle(parameter: nn.Parameter, seed: int, kept_row: int | None) -> None:
    """Shuffles the entries in place, except those of one row."""
    free = torch.ones(parameter.shape, dtype=torch.bool)
    if kept_row is not None:
        free[kept_row] = False
    free = free.to(parameter.device)
    values = parameter[free]
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(values), generator=generator)
    parameter[free] = values[order.to(values.device)]


def _initialised(model: nn.Module, seed: int) -> nn.Module:
    """A model of the same class and configuration, before training."""
    if not isinstance(model, PreTrainedModel):
        raise AttnProbeError(
            "expected a Transformers model for --control untrained, got "
            f"{type(model).__name__}; use --control randomised"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return type(model)(copy.deepcopy(model.config))


def _from_the_top(model: nn.Module, n_layers: int) -> dict[str, nn.Parameter]:
    """Parameters of the last blocks and of everything after them."""
    blocks = _blocks(model)
    if n_layers > len(blocks):
        raise AttnProbeError(
            f"expected at most {len(blocks)} --control-layers, which the model has, got {n_layers}"
        )
    kept = {id(p) for b in blocks[: len(blocks) - n_layers] for p in b.parameters()}
    in_blocks = {id(p) for p in blocks.parameters()}
    places = enumerate(map(id, model.parameters()))
    first = next(place for place, key in places if key in in_blocks)
    for place, key in enumerate(map(id, model.parameters())):
        if key in kept:
            first = place + 1
    return dict(list(model.named_parameters())[first:])


def _blocks(model: nn.Module) -> nn.ModuleList:
    """The longest list of modules: the stack of a Transformer."""
    lists = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    if not lists:
        raise AttnProbeError(
            f"expected a Transformer for --control-layers, {type(model).__name__} has "
            "no list of blocks; leave it out"
        )
    return max(lists, key=len)
