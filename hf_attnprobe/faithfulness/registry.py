"""Registry of the faithfulness tests.

Each test module registers its function, and installed packages can add tests::

    @register_test(readings=READINGS, needs=(Differentiable,))
    def my_test(
        observation, site, options: MyOptions = MyOptions(), *, seed=0
    ) -> MyResult: ...

The function's name becomes the test's name, and the annotation of ``options`` determines the option
class. The command line, studies, the metric and reports read everything else from the record. An
installed package announces its test module as an entry point in the group ``hf_attnprobe.tests``.
"""

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal, TypeVar, get_type_hints

from hf_attnprobe.core.errors import AttnProbeError
from hf_attnprobe.core.options import DEFAULT_TESTS, Options, TestSelection, collect_test_options
from hf_attnprobe.core.readings import TestReadings
from hf_attnprobe.faithfulness.options import (
    ENTRY_POINT_GROUP,
    TEST_NAMES,
    NoOptions,
)
from hf_attnprobe.protocol import AttentionModelBase, Observation, Site


BUILT_IN_TESTS_PACKAGE = __name__.rpartition(".")[0]
"""Import path of the package with the built-in tests: ``hf_attnprobe.faithfulness``."""
F = TypeVar("F", bound=Callable[..., Any])
RunCondition = Literal["always", "many heads", "rationales", "on request"]
"""Condition under which a classifier's default audit runs a test: always, only for models with
several heads, only for data with human rationales, or never."""


@dataclasses.dataclass(frozen=True)
class AuditPreview:
    """Data that a test's ``check`` function can inspect before an audit starts.

    Attributes:
        shortest_text: Observation for a batch that contains only the shortest text.
        sites: Heads that the audit will test.
        rationales: Whether the data marks the units that people chose as the reason for the label.
    """

    shortest_text: Observation
    sites: Sequence[Site]
    rationales: bool


@dataclasses.dataclass(frozen=True)
class FaithfulnessTest:
    """Record of a registered test: its function and how to run and describe it.

    Attributes:
        name: Function name, which is also used on the command line and in stored rows.
        function: Function ``(observation, site, options, *, seed) -> result``. The result is a
            frozen dataclass whose fields are tensors ``[batch]``, mappings to such tensors, or
            None.
        options: Option class.
        readings: Description of each result field, with the placeholders ``{mean}``, ``{median}``
            and ``{key}``. Statistics that are shares are described by a
            :class:`~hf_attnprobe.core.readings.Reading`.
        summary: Clause that describes the test in lists of skipped tests.
        needs: Capabilities that the model must have. An inner tuple lists alternatives, one of
            which is enough.
        default: Condition under which a classifier's default audit runs the test.
        answer_options: Options for a language model's default audit, or None if that audit does not
            run the test.
        sites: Function that maps the audited heads to the sites at which this test runs.
        groups: Whether the test can edit a head group at once, such as a layer or all heads, see
            :attr:`~hf_attnprobe.protocol.Site.is_group`.
        uses_reference: Whether the test needs head outputs on a text sample.
        uses_donors: Whether the test needs the most attended states from a text sample.
        uses_unit_donors: Whether the test needs the units (words) of a text sample.
        check: Function that raises AttnProbeError if the options do not fit the model or the data.
    """

    name: str
    function: Callable[..., Any]
    options: type[Options]
    readings: TestReadings
    summary: str = ""
    needs: Sequence[type | tuple[type, ...]] = ()
    default: RunCondition = "always"
    answer_options: Options | None = None
    sites: Callable[[Sequence[Site]], Sequence[Site]] = list
    groups: bool = False
    uses_reference: bool = False
    uses_donors: bool = False
    uses_unit_donors: bool = False
    check: Callable[[AuditPreview, Any], None] = lambda preview, options: None

    def get_default_options(self, *, is_language_model: bool) -> Options:
        """Return the test's default options, which can differ for language models.

        Args:
            is_language_model: Whether the audited model is a language model.
        """
        if is_language_model and self.answer_options is not None:
            return self.answer_options
        return self.options()

    def lacks(self, model: AttentionModelBase, site: Site) -> str | None:
        """Return the reason why a model cannot run the test at a site, or None if it can.

        Args:
            model: Model to be tested.
            site: Head or head group to be tested.
        """
        for need in self.needs:
            # A tuple contains alternatives: one of these capabilities is enough.
            alternatives = need if isinstance(need, tuple) else (need,)
            reasons = [model.lacks(capability, site) for capability in alternatives]
            if None not in reasons:
                return "; or ".join(reason for reason in reasons if reason is not None)
        return None


_registered: dict[str, FaithfulnessTest] = {}


def register_test(*, readings: TestReadings, **record: Any) -> Callable[[F], F]:
    """Return a decorator that registers a function as a faithfulness test.

    Args:
        readings: Description of each field in the test's result.
        **record: Further attributes of :class:`FaithfulnessTest`, such as ``needs``.

    Returns:
        Decorator that registers a function and returns it unchanged.

    Raises:
        AttnProbeError: If a test with the same name exists.

    Example::

        @register_test(readings={"largest_weight": "the largest weight is {mean:.2f}"})
        def sharpness(observation, site, options: NoOptions = NoOptions(), *, seed=0):
            return SharpnessResult(observation.read(site).amax(-1))
    """

    def register(function: F) -> F:
        options_class = get_type_hints(function)["options"]
        test = FaithfulnessTest(
            function.__name__, function, options_class, readings=readings, **record
        )
        hides_built_in = (
            test.name in TEST_NAMES
            and function.__module__ != f"{BUILT_IN_TESTS_PACKAGE}.{test.name}"
        )
        if hides_built_in or test.name in (*_registered, DEFAULT_TESTS):
            raise AttnProbeError(
                f"the test name {test.name!r} is already in use. Rename "
                f"the function {function.__module__}.{test.name}."
            )
        _registered[test.name] = test
        return function

    return register


def load_tests() -> dict[str, FaithfulnessTest]:
    """Return all tests by name: the built-in tests, then the tests from installed packages.

    Raises:
        AttnProbeError: If an installed package's test cannot be loaded.

    Example::

        for name, test in load_tests().items():
            print(name, test.summary)
    """
    _load_all_tests()
    # A dictionary keeps the first position of a repeated key, so the built-in tests come first.
    return {name: _registered[name] for name in (*TEST_NAMES, *_registered)}


def load_readings() -> dict[str, TestReadings]:
    """Return the descriptions of all statistics, by test name and statistic name."""
    return {name: test.readings for name, test in load_tests().items()}


@cache
def _load_all_tests() -> None:
    """Import all test modules, so that they register their tests."""
    for name in TEST_NAMES:
        importlib.import_module(f"{BUILT_IN_TESTS_PACKAGE}.{name}")
    for entry_point in sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: entry.name):
        _load_entry_point(entry_point)


def _load_entry_point(entry_point: EntryPoint) -> None:
    """Import an installed package's test module, which registers the test.

    Raises:
        AttnProbeError: If the import fails.
    """
    package = entry_point.dist.name if entry_point.dist is not None else entry_point.module
    try:
        entry_point.load()
    # The import of another package's module can raise anything.
    except Exception as error:
        message_lines = str(error).splitlines()
        reason = message_lines[0] if message_lines else type(error).__name__
        raise AttnProbeError(
            f"cannot load the test {entry_point.name!r} from the package {package!r}: {reason}. "
            "Update or uninstall the package."
        ) from error


def resolve_faithfulness_tests(
    requested: TestSelection | None, *, answers: bool = False
) -> dict[str, Options]:
    """Return the options of all requested tests, in the requested order.

    Args:
        requested: Test names, or a mapping from names to options; see
            :func:`~hf_attnprobe.core.options.collect_test_options`. None means "default".
        answers: Whether the tests will run on a language model.

    Returns:
        Options by test name. The name "default" is not replaced by the names of the default tests,
        because these depend on the model and the data.

    Raises:
        AttnProbeError: If a test or an option is unknown, or if a value is out of range.
    """
    tests = load_tests()
    option_classes = {name: test.options for name, test in tests.items()}
    option_classes[DEFAULT_TESTS] = NoOptions
    requested_options = collect_test_options(
        DEFAULT_TESTS if requested is None else requested, option_classes
    )
    resolved: dict[str, Options] = {}
    for name, options in requested_options.items():
        if options:
            resolved[name] = options
        elif name == DEFAULT_TESTS:
            resolved[name] = NoOptions()
        else:
            resolved[name] = tests[name].get_default_options(is_language_model=answers)
    return resolved
