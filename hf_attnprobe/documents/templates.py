"""Loading and rendering of this package's Jinja templates."""

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hf_attnprobe.documents.blocks import Block, get_macro_name


def load_templates(
    folder: str,
    filters: Mapping[str, Any],
    *,
    autoescape: bool = False,
    **options: Any,
) -> Environment:
    """Load all Jinja templates in a folder.

    Rendering a template that contains an undefined name raises an error.

    Args:
        folder: folder within the package, such as "documents".
        filters: functions that the templates call as filters, by name.
        autoescape: escape all texts for HTML. Without it, the filters must escape their output.
        options: further arguments for :class:`jinja2.Environment`.
    """
    # Only HTML needs autoescape; the filters escape text for all other formats.
    environment = Environment(  # nosec B701
        loader=PackageLoader("hf_attnprobe", folder),
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **options,
    )
    environment.filters |= filters
    return environment


def render_blocks(
    templates: Environment, file: str, blocks: Iterable[Block], size: int
) -> list[str]:
    """Render blocks of a document as text, each with the template macro for its type.

    Blank lines around a block are removed.

    Args:
        templates: the loaded templates.
        file: template file with one macro per block type.
        blocks: blocks to render; empty ones are skipped.
        size: second argument for all macros: the line width or the heading level.

    Returns:
        One text per block.
    """
    macros: Any = templates.get_template(file).module
    texts = []
    for block in blocks:
        if block:
            macro = getattr(macros, get_macro_name(block))
            texts.append(macro(block, size).strip("\n"))
    return [text for text in texts if text]
