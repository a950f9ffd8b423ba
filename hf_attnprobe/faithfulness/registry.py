"""The faithfulness tests by name.

A file registers its test, an installed package may add one.

    @register_test(readings=READINGS, needs=(Differentiable,))
    def my_test(
        observation, site, options: MyOptions = MyOptions(), *, seed=0
    ) -> MyResult: ...

The name of the function is the name of the test, the annotation of ``options`` its
class of options. Command line, study, metric and report follow from the record. A
package names the module with its test in its entry points, in the group
``hf_attnprobe.tests``.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from operator import methodcaller
from typing import Any, Literal, TypeVar, get_type_hints

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import DEFAULT, Asked, Options, options_by_test
from hf_attnprobe.core.readings import TestReadings
from hf_attnprobe.faithfulness.options import (
    GROUP,
    TESTS,
    NoOptions,
)
from hf_attnprobe.protocol import AttentionModelBase, Observation, Site


PACKAGE = __name__.rpartition(".")[0]
F = TypeVar("F", bound=Callable[..., Any])
When = Literal["always", "many heads", "rationales", "on request"]


@dataclasses.dataclass(frozen=True)
class AuditPreview:
    """What a test's ``check`` sees before an audit starts.

    shortest: the observation of the shortest text.
    sites: the heads that are tested.
    rationales: whether the data says which units people marked, and where they are.
    """

    shortest: Observation
    sites: Sequence[Site]
    rationales: bool


@dataclasses.dataclass(frozen=True)
class FaithfulnessTest:
    """A registered test: its function and its description.

    Attributes:
        name: the function's; also the word on the command line and in the rows.
        function: ``(observation, site, options, *, seed) -> result``, a frozen
            dataclass of tensors [batch], of mappings of those, or of None.
        options: the class of its options.
        readings: a sentence for each field of the result, with places for ``{mean}``,
            ``{median}`` and ``{key}``; of a share a
            :class:`~hf_attnprobe.core.readings.Reading` that says so.
        does: what it does, in a clause for the list of tests that were not run.
        needs: capabilities without which it cannot run; of a tuple in it, one is
            enough.
        default: when it is run of a classifier without being asked for.
        of_answers: the options with which it is run of a language model without being asked
            for; None: it is not.
        sites: where it looks, given the heads that are tested.
        groups: whether it can look at groups of heads, such as a layer, all attention
            or a set, see :attr:`~hf_attnprobe.protocol.Site.is_group`.
        uses_reference: whether it uses the head outputs of a sample of other texts.
        uses_donors: whether it uses the most attended states of such a sample.
        check: raises AttnProbeError where these options cannot be used with model and
            data.
    """

    name: str
    function: Callable[..., Any]
    options: type[Options]
    readings: TestReadings
    does: str = ""
    needs: Sequence[type | tuple[type, ...]] = ()
    default: When = "always"
    of_answers: Options | None = None
    sites: Callable[[Sequence[Site]], Sequence[Site]] = list
    groups: bool = False
    uses_reference: bool = False
    uses_donors: bool = False
    check: Callable[[AuditPreview, Any], None] = lambda preview, options: None

    def usual(self, *, answers: bool) -> Options:
        """The default options.

        Args:
            answers: whether a language model is tested.
        """
        if answers and self.of_answers is not None:
            return self.of_answers
        return self.options()

    def lacks(self, model: AttentionModelBase, site: Site) -> str | None:
        """Why the test cannot run at ``site`` of a model, or None where it can."""
        for need in self.needs:
            alternatives = need if isinstance(need, tuple) else (need,)
            reasons = [model.lacks(capability, site) for capability in alternatives]
            if None not in reasons:
                return "; or ".join(reason for reason in reasons if reason is not None)
        return None


_registered: dict[str, FaithfulnessTest] = {}


def register_test(*, readings: TestReadings, **record: Any) -> Callable[[F], F]:
    """Registers the decorated function as a test.

    Args:
        readings: a sentence for each field of the result, or its ``Reading``.
        record: other attributes of :class:`FaithfulnessTest`.

    Raises:
        AttnProbeError: there is a test of that name.
    """

    def register(function: F) -> F:
        kind = get_type_hints(function)["options"]
        test = FaithfulnessTest(function.__name__, function, kind, readings=readings, **record)
        built_in = test.name in TESTS and function.__module__ != f"{PACKAGE}.{test.name}"
        if built_in or test.name in (*_registered, DEFAULT):
            raise AttnProbeError(
                f"expected a new name for a test, {test.name!r} exists already; rename "
                f"the function {function.__module__}.{test.name}"
            )
        _registered[test.name] = test
        return function

    return register


def tests() -> dict[str, FaithfulnessTest]:
    """All tests by name: built-in ones first, then those of installed packages.

    Raises:
        AttnProbeError: an installed test cannot be loaded.
    """
    _load_all()
    return {name: _registered[name] for name in (*TESTS, *_registered)}


def readings() -> dict[str, TestReadings]:
    """The sentences of all tests, by test and statistic."""
    return {name: test.readings for name, test in tests().items()}


@cache
def _load_all() -> None:
    for name in TESTS:
        importlib.import_module(f"{PACKAGE}.{name}")
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


def asked_tests(asked: Asked | None, *, answers: bool = False) -> dict[str, Options]:
    """The options of the requested tests, by name, in the order given.

    Args:
        asked: as :func:`~hf_attnprobe.core.options.options_by_test` takes it; None is "default".
        answers: whether they run on a language model.

    Returns:
        "default" is among the names where the tests that suit model and data are run too.

    Raises:
        AttnProbeError: what :func:`~hf_attnprobe.core.options.options_by_test` refuses.
    """
    known = tests()
    usual = methodcaller("usual", answers=answers)
    kinds = {name: test.options for name, test in known.items()}
    given = options_by_test(DEFAULT if asked is None else asked, {**kinds, DEFAULT: NoOptions})
    return {
        name: options or (NoOptions() if name == DEFAULT else usual(known[name]))
        for name, options in given.items()
    }
