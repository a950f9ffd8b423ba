"""This package in the places where users of Transformers look for it.

What is registered is known as soon as both packages are imported, in either order.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


TASK = "attention-explain"


class AnyHead:
    """What ``pipeline`` loads a model by its name with: the class that was saved."""

    @classmethod
    def from_pretrained(cls, name: str, **options: Any) -> Any:
        """The model, with every weight found and used.

        Args:
            name: a folder or a Hub id.
            options: of ``pipeline``; those that say nothing of where the model is from or
                of its number format change nothing.

        Raises:
            AttnProbeError: see :func:`hf_attnprobe.checkpoints.loading.load_model`.
        """
        from hf_attnprobe.integrations.pipeline import load

        return load(name, **options)


def register_with_transformers() -> None:
    """Makes the Auto classes know attention classifiers, and ``pipeline`` the task.

    The class of the pipeline is named, as Transformers names its own, and imported when
    it is used.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification
    from transformers.pipelines import PIPELINE_REGISTRY

    from hf_attnprobe.attention_classifier import (
        configuration_attention_classifier as configuration,
    )
    from hf_attnprobe.attention_classifier import modeling_attention_classifier as modeling

    kind = configuration.AttentionClassifierConfig
    AutoConfig.register(kind.model_type, kind, exist_ok=True)
    AutoModel.register(kind, modeling.AttentionClassifierModel, exist_ok=True)
    classifier = modeling.AttentionClassifierForSequenceClassification
    AutoModelForSequenceClassification.register(kind, classifier, exist_ok=True)
    PIPELINE_REGISTRY.supported_tasks[TASK] = {
        "impl": "hf_attnprobe.integrations.pipeline.AttentionExplainPipeline",
        "pt": (AnyHead,),
        "type": "text",
    }


def once_transformers_is_imported(act: Callable[[], None]) -> None:
    """Calls ``act`` now if Transformers is imported, otherwise as soon as it is."""
    if "transformers" in sys.modules:
        act()
    else:
        sys.meta_path.insert(0, _AfterTransformers(act))


class _AfterTransformers(MetaPathFinder):
    """Finds Transformers as the other finders do, and acts once it has been executed.

    Its submodules are imported after the package itself, so that all of them find ours
    registered, whichever is imported first.
    """

    def __init__(self, act: Callable[[], None]) -> None:
        self.act = act

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The specification of Transformers; None for every other module.

        Libraries ask for it too where they only want to know whether there is one.
        """
        if name != "transformers":
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(name, path, target) for finder in others)
        spec = next(filter(None, found), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                sys.meta_path.remove(self)
                self.act()

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
