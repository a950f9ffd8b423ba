"""Selects an audit's tests and the sites at which they run.

The name "default" stands for all tests that suit the model and the data. It can be combined with
other tests, as in ``["default", Permutation(n_permutations=10)]``.

Some models lack a capability that a test needs. If this test was requested by name, an error is
raised before anything runs. Otherwise the test is left out, and the report gives the reason.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from hf_attnprobe.audits.options import AuditOptions
from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import DEFAULT_TESTS, Options
from hf_attnprobe.faithfulness.options import Screen, TargetOptions
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
"""Value for ``--heads`` that selects all heads."""
SHARED_KEY_SETS = "shared"
"""Value for ``--head-sets`` that selects all sets of heads with shared keys.

Several heads share the same keys in language models with grouped-query attention.
"""


@dataclass(frozen=True)
class AuditSelection:
    """Selected tests, and the sites at which they run.

    Attributes:
        sites: Heads that the options select.
        heads: Heads that are tested one by one; equal to ``sites``, or empty.
        groups: Head groups that are tested together.
        has_rationales: Whether the data has human rationales that the audit can use.
        tests: Options for the tests that run, by test name.
        requested_options: Options for the tests that were requested by name.
        left_out: Reasons for tests that do not run, by test name.
    """

    sites: list[Site]
    heads: list[Site]
    groups: list[Site]
    has_rationales: bool
    tests: Mapping[str, Options]
    requested_options: Mapping[str, Options]
    left_out: Mapping[str, str]


def select_tests_and_sites(
    adapter: AttentionModelBase,
    requested: Mapping[str, Options],
    has_rationales: bool,
    options: AuditOptions,
    *,
    leaves_out_unsupported: bool = False,
) -> AuditSelection:
    """Select the tests and sites that the options, the model and the data allow.

    For a language model, only the mean over all heads is tested, unless the options name heads,
    layers or head sets.

    Args:
        adapter: The audited model.
        requested: Options for the requested tests by name, as returned by
            :func:`~hf_attnprobe.faithfulness.registry.resolve_faithfulness_tests`. The name "default" stands for
            all suitable tests.
        has_rationales: Whether the data has human rationales that the audit can use.
        options: Audit options.
        leaves_out_unsupported: Whether requested tests that the model does not support are left out,
            instead of raising an error.

    Returns:
        The selection.

    Raises:
        AttnProbeError: If the model lacks a selected head, or a capability that a requested test
            needs.
    """
    has_answers = adapter.lacks(AnswersFromPassage) is None
    sites = select_sites(adapter, options.layers, options.heads, options.query)
    if options.head_sets is not None:
        adapter.head_sets = parse_head_sets(adapter, options.head_sets)
    groups = list_groups(adapter, sites, includes_layers=options.groups)
    requested_by_name = {name: test for name, test in requested.items() if name != DEFAULT_TESTS}
    if options.screen is not None:
        requested_by_name.setdefault("screen", Screen())
    candidates = requested_by_name
    if DEFAULT_TESTS in requested:
        candidates = add_suitable_tests(
            requested_by_name, len(sites), has_rationales, answers=has_answers
        )
    sorts_heads = options.time is not None and options.single_heads and not has_answers
    if sorts_heads and len(sites) > 1:
        # With a time limit, the heads with the largest estimated effects are tested first.
        candidates = {**candidates}
        candidates.setdefault("screen", Screen())
    candidates = {
        name: _set_target(test_options, options.target) for name, test_options in candidates.items()
    }
    required_tests = () if leaves_out_unsupported else requested_by_name
    tests, left_out = select_tests(candidates, required_tests, adapter, sites)
    tests_single_heads = options.single_heads
    names_heads = (options.heads, options.layers, options.screen) != (None, None, None)
    if has_answers and not names_heads and groups:
        tests_single_heads = False
        groups = [group for group in groups if group.layer in (ALL, HEAD_SET)]
    if not tests_single_heads:
        tests, left_out = select_group_tests(tests, left_out, groups)
    return AuditSelection(
        sites=sites,
        heads=sites if tests_single_heads else [],
        groups=groups,
        has_rationales=has_rationales,
        tests=tests,
        requested_options=requested_by_name,
        left_out=left_out,
    )


def restrict_to_model(selection: AuditSelection, test_names: Collection[str]) -> AuditSelection:
    """Restrict a selection to some tests of the model's attention as a whole.

    Args:
        selection: The selection.
        test_names: Names of the tests that remain, if they were selected.

    Returns:
        The selection without single heads and layers, if the model has several heads.
    """
    groups = [group for group in selection.groups if group.layer == group.head == ALL]
    tests = {name: test for name, test in selection.tests.items() if name in test_names}
    left_out = {name: reason for name, reason in selection.left_out.items() if name in test_names}
    return replace(
        selection,
        heads=[] if groups else selection.heads,
        groups=groups,
        tests=tests,
        left_out=left_out,
    )


def _set_target(test_options: Options, target: str | int | None) -> Options:
    """Set the class to explain in a test's options, unless they already name a class."""
    if isinstance(test_options, TargetOptions) and test_options.target is None:
        return replace(test_options, target=target)
    return test_options


def select_sites(
    adapter: AttentionModelBase,
    layers: Sequence[int] | None,
    heads: Sequence[int | str] | None,
    query: int | None,
) -> list[Site]:
    """Select single heads by layer and head index.

    Args:
        adapter: The audited model.
        layers: Layer indices from 0; None for all layers.
        heads: Head indices within each layer; None, or a list that contains :data:`ALL_HEADS`, for
            all heads.
        query: Query position to test at every site; None for all positions.

    Returns:
        The selected heads in model order.

    Raises:
        AttnProbeError: If a list is empty, or if the model does not have a layer or head.
    """
    model_sites = adapter.sites()
    heads = None if ALL_HEADS in (heads or ()) else heads
    _check_indices("layer", layers, {site.layer for site in model_sites})
    _check_indices("head", heads, {site.head for site in model_sites})
    return [
        site._replace(query=query)
        for site in model_sites
        if (layers is None or site.layer in layers) and (heads is None or site.head in heads)
    ]


def _check_indices(
    name: str, requested_indices: Sequence[int | str] | None, model_indices: set[int]
) -> None:
    """Raise AttnProbeError if a list of layers or heads is empty or has an index out of range."""
    if requested_indices is None:
        return
    if not requested_indices:
        raise AttnProbeError(
            f"--{name}s needs at least one {name}, got none. Leave out this option to test all "
            f"{name}s."
        )
    missing_indices = sorted(set(requested_indices) - model_indices)
    if missing_indices:
        raise AttnProbeError(
            f"expected --{name}s from 0 to {max(model_indices)} for this model, got "
            f"{missing_indices[0]}"
        )


def parse_head_sets(adapter: AttentionModelBase, names: Sequence[str]) -> list[list[Site]]:
    """Parse the names of head sets, such as "5.0+5.3".

    Args:
        adapter: The audited model.
        names: Sets such as "5.0+5.3" (heads 0 and 3 of layer 5). The name "shared" stands for all
            sets of heads that use the same keys, as in grouped-query attention.

    Returns:
        The heads in every set.

    Raises:
        AttnProbeError: If a name is invalid, if a set contains a head twice, or if the model lacks a
            head or has only one.
    """
    if len(adapter.sites()) == 1:
        raise AttnProbeError(
            "--head-sets needs a model with several heads, but this model has only one. Remove "
            "--head-sets."
        )
    head_sets: list[list[Site]] = []
    for name in names:
        if name != SHARED_KEY_SETS:
            head_sets.append(_parse_head_set(adapter, name))
            continue
        if not adapter.shared_heads:
            raise AttnProbeError(
                "--head-sets 'shared' selects heads that use the same keys (grouped-query "
                "attention), but in this model every head has its own keys. Remove 'shared'."
            )
        head_sets += [list(members) for members in adapter.shared_heads]
    return head_sets


def _parse_head_set(adapter: AttentionModelBase, name: str) -> list[Site]:
    """Parse the name of one head set, such as "5.0+5.3" for the heads 0 and 3 in layer 5."""
    site_by_name = {f"{site.layer}.{site.head}": site for site in adapter.sites()}
    heads = name.split("+")
    is_repeated = len(set(heads)) < len(heads)
    if is_repeated or not set(heads) <= site_by_name.keys():
        first, *_, last = site_by_name
        raise AttnProbeError(
            f"expected a set of different heads in --head-sets, such as {first}+{last}, got {name!r}. "
            f"This model has the heads {first} to {last}."
        )
    return sorted(site_by_name[head] for head in heads)


def list_head_set_names(adapter: AttentionModelBase) -> list[str]:
    """Return the names of the model's head sets, such as "5.0+5.3"."""
    return [
        "+".join(f"{layer}.{head}" for layer, head, _ in sorted(members))
        for members in adapter.head_sets
    ]


def list_groups(
    adapter: AttentionModelBase, sites: Sequence[Site], *, includes_layers: bool = True
) -> list[Site]:
    """List the head groups that are tested in addition to single heads.

    Args:
        adapter: The audited model.
        sites: The selected heads.
        includes_layers: Whether to include whole layers and the group of all heads.

    Returns:
        The group of all heads, if every head is selected; then each layer whose heads are all
        selected, if it has several heads and the model has several layers; then the model's head
        sets. Empty for a model with a single head.
    """
    model_sites, query = adapter.sites(), sites[0].query
    if len(model_sites) == 1:
        return []
    selected_heads = {site[:2] for site in sites}
    heads_by_layer: dict[int, list[Site]] = {}
    for site in model_sites:
        heads_by_layer.setdefault(site.layer, []).append(site)
    complete_layers = [
        layer
        for layer, heads in heads_by_layer.items()
        if all(site[:2] in selected_heads for site in heads)
    ]
    groups: list[Site] = []
    if includes_layers and len(complete_layers) == len(heads_by_layer):
        groups.append(Site(ALL, ALL, query))
    if includes_layers and len(heads_by_layer) > 1:
        groups += [
            Site(layer, ALL, query) for layer in complete_layers if len(heads_by_layer[layer]) > 1
        ]
    return groups + [Site(HEAD_SET, index, query) for index in range(len(adapter.head_sets))]


def check_query(shortest_text: Observation, query: int) -> None:
    """Check that the shortest text is long enough for the selected query position.

    Args:
        shortest_text: The model's attention on the shortest text.
        query: The query position, from 0.

    Raises:
        AttnProbeError: If the text has no token at the position.
    """
    n_queries = min(attention.shape[2] for attention in shortest_text.attention)
    if not 0 <= query < n_queries:
        raise AttnProbeError(
            f"expected --query from 0 to {n_queries - 1} (the last position in the shortest text), "
            f"got {query}"
        )


def runs_by_default(
    test: FaithfulnessTest, n_sites: int, has_rationales: bool, answers: bool
) -> bool:
    """Return whether a test runs by default, even if it was not requested by name.

    Args:
        test: The test.
        n_sites: Number of selected heads.
        has_rationales: Whether the data has human rationales.
        answers: Whether the model answers from a passage.

    Returns:
        True if the test suits the model and the data.
    """
    if answers:
        return test.answer_options is not None
    if test.default == "many heads":
        return n_sites > 1
    if test.default == "rationales":
        return has_rationales
    return test.default == "always"


def add_suitable_tests(
    requested: Mapping[str, Options],
    n_sites: int,
    has_rationales: bool,
    *,
    answers: bool,
) -> dict[str, Options]:
    """Add the default tests to the requested tests, in registry order.

    Args:
        requested: Options for the tests that were requested by name.
        n_sites: Number of selected heads.
        has_rationales: Whether the data has human rationales.
        answers: Whether the model answers from a passage.

    Returns:
        Options by test name.
    """
    return {
        name: requested.get(name, test.get_default_options(is_language_model=answers))
        for name, test in load_tests().items()
        if name in requested or runs_by_default(test, n_sites, has_rationales, answers)
    }


def select_tests(
    candidates: Mapping[str, Options],
    requested: Collection[str],
    adapter: AttentionModelBase,
    sites: Sequence[Site],
) -> tuple[dict[str, Options], dict[str, str]]:
    """Select the tests that the model supports at one or more of the selected heads.

    Args:
        candidates: Options for tests by name.
        requested: Test names that were requested.
        adapter: The audited model.
        sites: The selected heads.

    Returns:
        Options by test name for the tests that run, and reasons by test name for the tests that
        cannot run at some or all heads.

    Raises:
        AttnProbeError: If the model does not support a requested test, or any test.
    """
    tests, reasons = {}, {}
    for name, options in candidates.items():
        site_reasons = [load_tests()[name].lacks(adapter, site) for site in sites]
        missing_capabilities = [reason for reason in site_reasons if reason is not None]
        if missing_capabilities:
            n_missing = len(missing_capabilities)
            reasons[name] = f"{missing_capabilities[0]} ({n_missing} of {len(sites)} heads)"
        if len(missing_capabilities) < len(sites):
            tests[name] = options
        elif name in requested:
            raise AttnProbeError(
                f"the test {name!r} cannot run: {missing_capabilities[0]}. Remove it from --tests."
            )
    if not tests:
        raise AttnProbeError(f"no test can run on this model: {'; '.join(reasons.values())}")
    return tests, reasons


def select_group_tests(
    tests: Mapping[str, Options],
    left_out: Mapping[str, str],
    groups: Sequence[Site],
) -> tuple[dict[str, Options], dict[str, str]]:
    """Select the tests that can run on head groups.

    Args:
        tests: Options for the tests by name.
        left_out: Reasons for tests that do not run, by test name.
        groups: The head groups.

    Returns:
        Options by test name for the tests that run, and reasons by test name for all other tests.

    Raises:
        AttnProbeError: If there are no groups, or if no test can run on them.
    """
    if not groups:
        raise AttnProbeError(
            "--no-single-heads leaves nothing to test, because this audit has no groups of heads. "
            "Remove this option."
        )
    group_tests = {name: options for name, options in tests.items() if load_tests()[name].groups}
    if not group_tests:
        raise AttnProbeError(
            f"none of these tests can run on groups of heads: {', '.join(tests)}. Choose another test, "
            "or test single heads with --heads all and without --no-single-heads."
        )
    all_left_out = {**left_out}
    for name in tests.keys() - group_tests.keys():
        all_left_out[name] = "it tests single heads, which were not requested"
    return group_tests, all_left_out


def list_sites_by_test(
    names: Sequence[str],
    adapter: AttentionModelBase,
    heads: Sequence[Site],
    groups: Sequence[Site] = (),
) -> dict[str, Sequence[Site]]:
    """List the sites at which each test can run.

    Args:
        names: Test names.
        adapter: The audited model.
        heads: Single heads.
        groups: Head groups, for tests that can run on them.

    Returns:
        The sites by test name.
    """
    sites_by_test: dict[str, Sequence[Site]] = {}
    for name in names:
        test = load_tests()[name]
        possible_heads = [site for site in heads if test.lacks(adapter, site) is None]
        possible_groups = []
        for group in groups if test.groups else ():
            members = [
                Site(layer, head)
                for layer, layer_heads in adapter.get_heads_by_layer(group).items()
                for head in layer_heads
            ]
            if not any(test.lacks(adapter, site) for site in members):
                possible_groups.append(group)
        sites_by_test[name] = [*test.sites(possible_heads), *possible_groups]
    return sites_by_test


# --- The screen: heads with the largest first-order effects --------------------------------------


def assign_half(example_id: int) -> int:
    """Assign a text to one of two halves, by a hash of its id.

    The half depends neither on the order nor on the number of texts. This hash and the hash for
    drawing samples are different, so a sample contains texts from both halves.

    Args:
        example_id: Text id.

    Returns:
        0 or 1.

    >>> [assign_half(example_id) for example_id in range(8)]
    [0, 0, 1, 1, 0, 1, 0, 0]
    """
    return hashlib.sha256(f"half of {example_id}".encode()).digest()[0] % 2


def check_both_halves(example_ids: Iterable[int]) -> None:
    """Check that the texts can be divided into two halves, as the option ``screen`` requires.

    This option selects heads for one half of the texts by their effects on the other half.

    Args:
        example_ids: Ids of the audited texts.

    Raises:
        AttnProbeError: If all texts belong to the same half.
    """
    if len({assign_half(example_id) for example_id in example_ids}) < 2:
        raise AttnProbeError(
            "--screen divides the texts into two halves by id, but all texts are in the same half. "
            "Audit more texts."
        )


def assign_screened_sites(
    texts: Sequence[Text], screen_rows: Rows, sites: Sequence[Site], n_sites: int
) -> list[tuple[list[Text], list[Site]]]:
    """Choose heads for each half of the texts by their effects on the other half.

    If a head is chosen because its effect on some texts is large, this effect is partly due to
    chance. Its effect on the other half of the texts is free from this selection bias.

    Args:
        texts: The audited texts.
        screen_rows: Rows from the test ``screen`` on these texts, which estimates every head's
            effect.
        sites: Single heads.
        n_sites: Number of sites to choose for each half.

    Returns:
        One pair for each half: its texts and the chosen sites.
    """
    halves: tuple[list[Text], list[Text]] = ([], [])
    for text in texts:
        halves[assign_half(text.example_id)].append(text)
    assignments = []
    for half, other_half in (halves, halves[::-1]):
        rows_of_other_half = screen_rows.select_ids([text.example_id for text in other_half])
        assignments.append((half, select_top_sites(rows_of_other_half, sites, n_sites)))
    return assignments


def select_top_sites(screen_rows: Rows, sites: Sequence[Site], n_sites: int) -> list[Site]:
    """Select the heads with the largest estimated effects on the output.

    Args:
        screen_rows: Rows from the test ``screen``, which estimates these effects; see
            :func:`sort_by_screen`.
        sites: Single heads.
        n_sites: Number of sites to select.

    Returns:
        The selected sites, in the order of ``sites``.
    """
    top_sites = sort_by_screen(screen_rows, sites)[:n_sites]
    return [site for site in sites if site in top_sites]


def sort_by_screen(screen_rows: Rows, sites: Sequence[Site]) -> list[Site]:
    """Sort heads by their estimated effect on the output, with the largest effect first.

    The effect is the loss of the prediction if the weights of the head become even, which is also
    the basis of the path share. The test ``screen`` estimates it from gradients.

    Args:
        screen_rows: Rows from the test ``screen``. Sites without rows come last, in model order.
        sites: Single heads.

    Returns:
        The sorted sites.
    """
    effects = screen_rows.build_head_frame("first_order_even").mean().to_dict()

    def get_sort_key(site: Site) -> tuple[float, Site]:
        effect = effects.get((site.layer, site.head), 0.0)
        return -effect, site

    return sorted(sites, key=get_sort_key)
