"""The faithfulness tests by name.

A file registers its test, an installed package may add one.

    @register_test(readings=READINGS, needs=(Differentiable,))
    def my_test(
        observation, site, options: MyOptions = MyOptions(), *, seed=0
    ) -> MyResult: ...

The name of the function is the name of the test, the annotation of ``options`` its
class of options. Command line, study file, metric and report follow from the record. A
package names the module with its test in its entry points, in the group
``hf_attnprobe.tests``.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar, get_type_hints

from hf_attnprobe.attention_model import AttentionModelBase, Observation, Site
from hf_attnprobe.errors import AttnProbeError
from hf_attnprobe.options import Options, from_flat, names_of, option
from hf_attnprobe.readings import TestReadings


GROUP = "hf_attnprobe.tests"
DEFAULT = "default"
"""Stands for the tests that suit model and data, among the names of tests."""

F = TypeVar("F", bound=Callable[..., Any])
When = Literal["always", "many heads", "rationales", "on request"]


@dataclasses.dataclass(frozen=True)
class NoOptions(Options):
    """Of a test without options."""


@dataclasses.dataclass(frozen=True)
class ExplainsClass(Options):
    """Of a test that explains the probability of a class.

    With a target the decision is for it or not for it. It flips where that changes, and
    its probability is that of the side the text is on: of the target, or of all others.
    """

    target: str | int | None = option(
        None,
        "class, by name or number: explained is why a text is decided for it or not "
        "(default: the predicted one)",
        metavar="CLASS",
    )


@dataclasses.dataclass(frozen=True)
class AuditPreview:
    """What the ``check`` of a test may look at before an audit starts.

    shortest: the observation of the shortest text.
    sites: the heads that are tested.
    rationales: whether the data says which units people marked, and where they are.
    """

    shortest: Observation
    sites: Sequence[Site]
    rationales: bool


def check_target(preview: AuditPreview, options: ExplainsClass) -> None:
    """Raises AttnProbeError where the model has no such class."""
    preview.shortest.explaining(options.target)


@dataclasses.dataclass(frozen=True)
class FaithfulnessTest:
    """A registered test: its function and what others need to know of it.

    Attributes:
        name: the function's; also the word on the command line and in the rows.
        function: ``(observation, site, options, *, seed) -> result``, a frozen
            dataclass of tensors [batch], of mappings of those, or of None.
        options: the class of its options.
        readings: a sentence for each field of the result, with places for ``{mean}``,
            ``{median}`` and ``{key}``; of a share a
            :class:`~hf_attnprobe.readings.Reading` that says so.
        head_titles: titles of the layer × head tables of models with several heads.
        layer_titles: short titles of statistics of whole layers, reported at head −1.
        estimates: statistics of this test that estimate a statistic of another one.
        needs: capabilities without which it cannot run; of a tuple in it, one is
            enough.
        default: when it is run without being asked for.
        sites: where it looks, given the heads that are tested.
        groups: whether it can look at groups of heads, such as a layer, all attention
            or a set, see :attr:`~hf_attnprobe.attention_model.Site.is_group`.
        copies_at_once: edited copies of a batch that it replays at once, given its
            options.
        gradient_copies_at_once: copies that it takes gradients of at once.
        uses_reference: whether it uses the head outputs of a sample of other texts.
        check: raises AttnProbeError where these options cannot be used with model and
            data.
        in_haste: options in place of the default ones where an audit has little time;
            None: the default ones.
    """

    name: str
    function: Callable[..., Any]
    options: type[Options]
    readings: TestReadings
    head_titles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    layer_titles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    estimates: Mapping[str, str] = dataclasses.field(default_factory=dict)
    needs: Sequence[type | tuple[type, ...]] = ()
    default: When = "always"
    sites: Callable[[Sequence[Site]], Sequence[Site]] = list
    groups: bool = False
    copies_at_once: Callable[[Any], int] = lambda options: 32
    gradient_copies_at_once: Callable[[Any], int] = lambda options: 1
    uses_reference: bool = False
    check: Callable[[AuditPreview, Any], None] = lambda preview, options: None
    in_haste: Options | None = None

    def usual(self, *, in_haste: bool) -> Options:
        """The options where nothing is said of them."""
        if in_haste and self.in_haste is not None:
            return self.in_haste
        return self.options()

    def lacks(self, model: AttentionModelBase, site: Site) -> str | None:
        """Why the test cannot run at ``site`` of a model, or None where it can."""
        for need in self.needs:
            alternatives = need if isinstance(need, tuple) else (need,)
            reasons = [model.lacks(capability, site) for capability in alternatives]
            if None not in reasons:
                return reasons[0]
        return None


_registered: dict[str, FaithfulnessTest] = {}
_reserved: list[type[Options]] = []


def register_test(*, readings: TestReadings, **record: Any) -> Callable[[F], F]:
    """Adds the decorated function to the tests.

    Args:
        readings: a sentence for each field of the result, or its ``Reading``.
        record: other attributes of :class:`FaithfulnessTest`.

    Raises:
        AttnProbeError: there is a test of that name, or an option of that name with
            another meaning.
    """

    def register(function: F) -> F:
        kind = get_type_hints(function)["options"]
        test = FaithfulnessTest(function.__name__, function, kind, readings=readings, **record)
        if test.name in (*_registered, DEFAULT):
            raise AttnProbeError(
                f"expected a new name for a test, {test.name!r} exists already; rename "
                f"the function {function.__module__}.{test.name}"
            )
        known = [*_reserved, *(other.options for other in _registered.values())]
        check_same_meaning(kind, known)
        _registered[test.name] = test
        return function

    return register


def reserve_options(kind: type[Options]) -> type[Options]:
    """A class decorator: the verb that runs tests has these options itself."""
    check_same_meaning(kind, [test.options for test in _registered.values()])
    _reserved.append(kind)
    return kind


def check_same_meaning(kind: type[Options], others: Sequence[type[Options]]) -> None:
    """Raises AttnProbeError where an option has another meaning in another class."""
    known = names_of(others)
    for field in dataclasses.fields(kind):
        same = known.get(field.name, field)
        if _meaning(same) != _meaning(field):
            raise AttnProbeError(
                f"expected a new name for the option {field.name!r} of {kind.__name__}, "
                "another test or the audit has one of that name; rename it"
            )


def _meaning(field: dataclasses.Field) -> tuple[Any, Any, Mapping[str, Any]]:
    return field.type, field.default, field.metadata


def tests() -> dict[str, FaithfulnessTest]:
    """All tests by name: the built-in ones, then those of installed packages.

    Raises:
        AttnProbeError: an installed test cannot be loaded.
    """
    _load_installed()
    return dict(_registered)


def readings() -> dict[str, TestReadings]:
    """The sentences of all tests, by test and statistic."""
    return {name: test.readings for name, test in tests().items()}


@cache
def _load_installed() -> None:
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        _load(entry)


def _load(entry: EntryPoint) -> None:
    package = entry.dist.name if entry.dist is not None else entry.module
    try:
        entry.load()
    except Exception as error:  # whatever another package's import raises
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise AttnProbeError(
            f"cannot load the test {entry.name!r} of the package {package!r}: {reason}; "
            "update or uninstall that package"
        ) from error


def options_of_tests(
    asked: Sequence[str | Options] | str | Options | None, *, in_haste: bool = False
) -> tuple[dict[str, Options], bool]:
    """The tests that were asked for.

    Args:
        asked: names of tests or their options; "default" stands for the tests that suit
            model and data, and so does None.
        in_haste: whether tests given by name alone run as in haste.

    Returns:
        The options of the tests asked for by name, in order, and whether those that
        suit the model are to be run besides.

    Raises:
        AttnProbeError: an unknown test, no test, or two options for one test.
    """
    if asked is None:
        return {}, True
    if isinstance(asked, str | Options):
        asked = [asked]
    known = tests()
    names = {test.options: name for name, test in known.items()}
    del names[NoOptions]  # it tells no test
    chosen: dict[str, Options | None] = {}
    unknown = []
    for item in asked:
        given = item if isinstance(item, Options) else None
        name = str(item) if given is None else names.get(type(given), str(given))
        if name not in known and name != DEFAULT:
            unknown.append(name)
        if given is not None and chosen.get(name) not in (None, given):
            raise AttnProbeError(f"expected options of {name} once, got them twice")
        chosen[name] = given or chosen.get(name)
    if unknown:
        raise AttnProbeError(
            f"unknown test {', '.join(sorted(unknown))}; the known ones are "
            f"{', '.join(known)}, or {DEFAULT} for those that suit the model"
        )
    if not asked:
        raise AttnProbeError(
            f"expected at least one test of {', '.join(known)}; leave it out for those "
            "that suit the model"
        )
    by_default = DEFAULT in chosen
    chosen.pop(DEFAULT, None)
    options = {
        name: given or known[name].usual(in_haste=in_haste) for name, given in chosen.items()
    }
    return options, by_default


def parse_tests(names: Sequence[str] | str | None, flat: Mapping[str, Any]) -> list[str | Options]:
    """Tests with options that are given by name, as command line, study and metric do.

    Args:
        names: tests; None for those that suit the model.
        flat: values of options by name, those that were said. Those of tests that are
            not run are left alone.

    Returns:
        Names and options, as ``audit(model, dataset, tests)`` takes them.
    """
    names = [names] if isinstance(names, str) else names
    chosen: list[str | Options] = [DEFAULT] if names is None else list(names)
    for name, test in tests().items():
        by_default = DEFAULT in chosen and test.default != "on request"
        if name not in chosen and not by_default:
            continue
        if names_of([test.options]).keys() & flat.keys():
            chosen.append(from_flat(flat, test.options))
    return chosen
