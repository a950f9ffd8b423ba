"""Which heads and which tests an audit runs.

"default" is a name among the tests: ``["default", Permutation(n_permutations=10)]`` sets one
option and leaves the choice of tests to model and data. What a model lacks is asked before
anything runs: a test that was not asked for is left out, with the reason in the report's
provenance; one that was is refused.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import DEFAULT, Options
from hf_attnprobe.faithfulness.options import TargetOptions, Screen
from hf_attnprobe.faithfulness.registry import FaithfulnessTest, load_tests
from hf_attnprobe.inference.encoding import Text
from hf_attnprobe.protocol import (
    ALL,
    HEAD_SET,
    AnswersFromPassage,
    AttentionModelBase,
    Observation,
    Site,
)
from hf_attnprobe.statistics.rows import Rows


ALL_HEADS = "all"
"""In place of numbers of heads."""
SHARED_KEYS = "shared"
"""In place of a set of heads: every set of heads that share keys."""


@dataclass(frozen=True)
class TestSelection:
    """Which tests run, and where.

    Attributes:
        sites: the heads that the options name.
        heads: those of them that are tested by themselves.
        groups: the groups of heads that are tested besides.
        rationales: whether the data says what people marked, where it can be used.
        tests: the tests that run, with their options.
        asked: options of the tests that were asked for by name.
        left_out: by test, why it does not run.
    """

    sites: list[Site]
    heads: list[Site]
    groups: list[Site]
    rationales: bool
    tests: Mapping[str, Options]
    asked: Mapping[str, Options]
    left_out: Mapping[str, str]


def select_tests_and_sites(
    adapter: AttentionModelBase,
    asked: Mapping[str, Options],
    rationales: bool,
    options: AuditOptions,
) -> TestSelection:
    """What the options, the model and the data allow.

    Of a language model all attention as a whole is tested, unless the options name heads, layers
    or sets of heads.

    Args:
        asked: of :func:`~hf_attnprobe.faithfulness.registry.resolve_tests`.
        rationales: whether the data says what people marked.
    """
    answers = adapter.lacks(AnswersFromPassage) is None
    sites = select_sites(adapter, options.layers, options.heads, options.query)
    if options.head_sets is not None:
        adapter.head_sets = parse_head_sets(adapter, options.head_sets)
    groups = list_groups(adapter, sites, whole=options.groups)
    named = {name: given for name, given in asked.items() if name != DEFAULT}
    if options.screen is not None:
        named.setdefault("screen", Screen())
    wanted = named
    if DEFAULT in asked:
        wanted = add_suitable_tests(named, len(sites), rationales, answers=answers)
    wanted = {name: _set_target(given, options.target) for name, given in wanted.items()}
    chosen, left_out = select_tests(wanted, named, adapter, sites)
    single = options.single_heads
    named_heads = (options.heads, options.layers, options.screen)
    if answers and named_heads == (None, None, None) and groups:
        single, groups = False, [g for g in groups if g.layer in (ALL, HEAD_SET)]
    if not single:
        chosen, left_out = select_group_tests(chosen, left_out, groups)
    return TestSelection(
        sites,
        sites if single else [],
        groups,
        rationales,
        chosen,
        named,
        left_out,
    )


def _set_target(given: Options, target: str | int | None) -> Options:
    """A test's options with the class that the audit explains, where they name none."""
    if isinstance(given, TargetOptions) and given.target is None:
        return replace(given, target=target)
    return given


def select_sites(
    adapter: AttentionModelBase,
    layers: Sequence[int] | None,
    heads: Sequence[int | str] | None,
    query: int | None,
) -> list[Site]:
    """The sites asked for, all of the model's by default, and by :data:`ALL_HEADS`.

    Raises:
        AttnProbeError: no layer or head, or one that the model does not have.
    """
    known = adapter.sites()
    heads = None if ALL_HEADS in (heads or ()) else heads
    _check_indices("layer", layers, {site.layer for site in known})
    _check_indices("head", heads, {site.head for site in known})
    return [
        site._replace(query=query)
        for site in known
        if (layers is None or site.layer in layers) and (heads is None or site.head in heads)
    ]


def _check_indices(name: str, asked: Sequence[int | str] | None, known: set[int]) -> None:
    if asked is None:
        return
    if not asked:
        raise AttnProbeError(f"expected at least one {name}; leave {name}s out for all of them")
    missing = sorted(set(asked) - known)
    if missing:
        raise AttnProbeError(
            f"expected a {name} from 0 to {max(known)}, got {missing[0]}; choose another --{name}s"
        )


def parse_head_sets(adapter: AttentionModelBase, names: Sequence[str]) -> list[list[Site]]:
    """Sets of heads from their names, such as "5.0+5.3"; "shared": all that share keys.

    Raises:
        AttnProbeError: another form, a head twice or one that the model does not have,
            or a model with a single head.
    """
    if len(adapter.sites()) == 1:
        raise AttnProbeError(
            "expected a model with several heads for --head-sets, this one has a single "
            "one; leave --head-sets out"
        )
    sets: list[list[Site]] = []
    for name in names:
        if name == SHARED_KEYS and not adapter.shared_heads:
            raise AttnProbeError(
                "expected heads that share keys for --head-sets shared, this model has none; "
                "leave it out"
            )
        shared = [[*members] for members in adapter.shared_heads]
        sets += shared if name == SHARED_KEYS else [_parse_head_set(adapter, name)]
    return sets


def _parse_head_set(adapter: AttentionModelBase, name: str) -> list[Site]:
    known = {f"{site.layer}.{site.head}": site for site in adapter.sites()}
    heads = name.split("+")
    if len(known.keys() & heads) < len(heads):
        first, *_, last = known
        raise AttnProbeError(
            f"expected heads from {first} to {last}, each once, as layer.head joined by +, got "
            f"{name!r}; change --head-sets"
        )
    return sorted(known[head] for head in heads)


def list_head_set_names(adapter: AttentionModelBase) -> list[str]:
    """The names of a model's sets of heads, in their order."""
    return [
        "+".join(f"{layer}.{head}" for layer, head, _ in sorted(members))
        for members in adapter.head_sets
    ]


def list_groups(
    adapter: AttentionModelBase, sites: Sequence[Site], *, whole: bool = True
) -> list[Site]:
    """The groups of heads that are tested besides single heads.

    Args:
        sites: the heads that are audited.
        whole: whether layers and all attention are among the groups.

    Returns:
        All attention, if every head of the model is audited; each layer whose heads all
        are, where it is not the only one and not a single head; the model's sets of
        heads. None for a model with one head.
    """
    known, query = adapter.sites(), sites[0].query
    if len(known) == 1:
        return []
    audited = {site[:2] for site in sites}
    layers: dict[int, list[Site]] = {}
    for site in known:
        layers.setdefault(site.layer, []).append(site)
    complete = [
        layer for layer, members in layers.items() if all(site[:2] in audited for site in members)
    ]
    groups: list[Site] = []
    if whole and len(complete) == len(layers):
        groups.append(Site(ALL, ALL, query))
    if whole and len(layers) > 1:
        several = [layer for layer in complete if len(layers[layer]) > 1]
        groups += [Site(layer, ALL, query) for layer in several]
    return groups + [Site(HEAD_SET, k, query) for k in range(len(adapter.head_sets))]


def check_query(shortest: Observation, query: int) -> None:
    """Raises AttnProbeError where the shortest text does not have the query."""
    n_queries = min(attention.shape[2] for attention in shortest.attention)
    if not 0 <= query < n_queries:
        raise AttnProbeError(
            f"expected a query from 0 to {n_queries - 1}, which the shortest text has, "
            f"got {query}; choose another --query"
        )


def is_suitable(test: FaithfulnessTest, n_sites: int, rationales: bool, answers: bool) -> bool:
    """Whether a test is run without being asked for, on a model that allows it."""
    if answers:
        return test.answer_options is not None
    if test.default == "many heads":
        return n_sites > 1
    if test.default == "rationales":
        return rationales
    return test.default == "always"


def add_suitable_tests(
    asked: Mapping[str, Options],
    n_sites: int,
    rationales: bool,
    *,
    answers: bool,
) -> dict[str, Options]:
    """The tests asked for and those that suit the model, in the order of all tests.

    Args:
        asked: the tests that were asked for by name, with their options.
        n_sites: heads that are tested.
        rationales: whether the data has human rationales.
        answers: whether the model answers from a passage.
    """
    wanted = {}
    for name, test in load_tests().items():
        if name in asked or is_suitable(test, n_sites, rationales, answers):
            wanted[name] = asked.get(name, test.default_options(answers=answers))
    return wanted


def select_tests(
    wanted: Mapping[str, Options],
    asked: Collection[str],
    adapter: AttentionModelBase,
    sites: Sequence[Site],
) -> tuple[dict[str, Options], dict[str, str]]:
    """The tests to run, and why others are left out.

    Args:
        wanted: tests with their options.
        asked: those that were asked for by name.

    Returns:
        The options of the tests to run, in order, and by test what the model lacks.

    Raises:
        AttnProbeError: the model lacks what a test needs that was asked for.
    """
    chosen, left_out = {}, {}
    for name, options in wanted.items():
        reasons = [load_tests()[name].lacks(adapter, site) for site in sites]
        missing = [reason for reason in reasons if reason is not None]
        if missing:
            left_out[name] = f"{missing[0]} ({len(missing)} of {len(sites)} heads)"
        if len(missing) < len(sites):
            chosen[name] = options
        elif name in asked:
            raise AttnProbeError(f"the test {name} cannot be run: {missing[0]}")
    if not chosen:
        raise AttnProbeError(
            f"expected a model that some test can be run on; {'; '.join(left_out.values())}"
        )
    return chosen, left_out


def select_group_tests(
    chosen: Mapping[str, Options],
    left_out: Mapping[str, str],
    groups: Sequence[Site],
) -> tuple[dict[str, Options], dict[str, str]]:
    """The tests that can look at groups of heads, and why the others are left out.

    Raises:
        AttnProbeError: no group of heads, or no test that can look at one.
    """
    if not groups:
        raise AttnProbeError(
            "expected a model with several heads for --no-single-heads, and groups of "
            "them; leave it out"
        )
    kept = {name: o for name, o in chosen.items() if load_tests()[name].groups}
    if not kept:
        raise AttnProbeError(
            f"expected a test that looks at several heads at once, got {', '.join(chosen)}; ask "
            "for another one, or for single heads (--heads all; not with --no-single-heads)"
        )
    reason = "it looks at single heads, which were not asked for"
    others = dict.fromkeys(chosen.keys() - kept.keys(), reason)
    return kept, {**left_out, **others}


def list_sites_by_test(
    names: Sequence[str],
    adapter: AttentionModelBase,
    sites: Sequence[Site],
    groups: Sequence[Site] = (),
) -> dict[str, Sequence[Site]]:
    """Where each test looks: at the sites where the model has what it needs.

    Args:
        sites: heads.
        groups: of heads, for the tests that can look at them.
    """
    where: dict[str, Sequence[Site]] = {}
    for name in names:
        test = load_tests()[name]
        possible = [site for site in sites if test.lacks(adapter, site) is None]
        besides = []
        for group in groups if test.groups else ():
            members = [
                Site(layer, head)
                for layer, heads in adapter.get_heads_by_layer(group).items()
                for head in heads
            ]
            if not any(test.lacks(adapter, site) for site in members):
                besides.append(group)
        where[name] = [*test.sites(possible), *besides]
    return where


def assign_half(example_id: int) -> int:
    """The half that a text belongs to, 0 or 1, by a hash of its id.

    So it depends neither on the order nor on the number of texts. The hash is another
    than the one that draws a sample: a sample has texts of both halves.

    >>> [half_of(example_id) for example_id in range(8)]
    [0, 0, 1, 1, 0, 1, 0, 0]
    """
    return hashlib.sha256(f"half of {example_id}".encode()).digest()[0] % 2


def check_both_halves(example_ids: Iterable[int]) -> None:
    """Raises AttnProbeError where texts cannot be screened by others."""
    if len({assign_half(example_id) for example_id in example_ids}) < 2:
        raise AttnProbeError(
            "a screen chooses the heads of one half of the texts by the other half, and "
            "all of these texts fall into one; take more texts"
        )


def assign_screened_sites(
    texts: Sequence[Text], rows: Rows, sites: Sequence[Site], n: int
) -> list[tuple[list[Text], list[Site]]]:
    """Each half of the texts, with the n sites that the other half puts first.

    A head that was chosen because it is large on some texts is large on these partly by
    chance, and not on others.

    Args:
        rows: of the test ``screen`` on these texts.
    """
    halves: tuple[list[Text], list[Text]] = ([], [])
    for text in texts:
        halves[assign_half(text.example_id)].append(text)
    parts = []
    for half, others in (halves, halves[::-1]):
        of_others = rows.of_texts([text.example_id for text in others])
        parts.append((half, select_top_sites(of_others, sites, n)))
    return parts


def select_top_sites(rows: Rows, sites: Sequence[Site], n: int) -> list[Site]:
    """The n sites with the largest estimated effect of uniform attention.

    Args:
        rows: of the test ``screen``.

    Returns:
        Sites in the model's order.
    """
    chosen = sort_by_screen(rows, sites)[:n]
    return [site for site in sites if site in chosen]


def sort_by_screen(rows: Rows, sites: Sequence[Site]) -> list[Site]:
    """The sites, those with the largest estimated effect of uniform attention first.

    Args:
        rows: of the test ``screen``; without any the sites stay in their order.
    """
    effects = rows.of_heads("first_order_uniform").mean().to_dict()
    return sorted(sites, key=lambda site: (-effects.get(site[:2], 0.0), site))
