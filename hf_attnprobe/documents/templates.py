"""Templates in the folders of this package, filled in by jinja2."""

from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from hf_attnprobe.documents.blocks import Block, kind_of


def templates_of(
    folder: str,
    filters: Mapping[str, Any],
    *,
    autoescape: bool = False,
    **options: Any,
) -> Environment:
    """Returns the templates of a folder, where a name that is not known is an error.

    Args:
        folder: of the package.
        filters: what templates call behind a bar.
        autoescape: whether texts are escaped for HTML; else the filters escape what they print.
        options: further ones of jinja2.
    """
    made = Environment(  # nosec B701: HTML is escaped, what else is printed goes through filters
        loader=PackageLoader("hf_attnprobe", folder),
        autoescape=autoescape,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        **options,
    )
    made.filters |= filters
    return made


def printed(templates: Environment, file: str, parts: Iterable[Block], room: int) -> list[str]:
    """Returns blocks as the macros of a template print them, without empty lines around.

    Args:
        file: of the template, which has a macro for every kind of block.
        room: what the macros take beside a block.
    """
    macros: Any = templates.get_template(file).module
    said = [getattr(macros, kind_of(part))(part, room) for part in parts if part]
    return [text for one in said if (text := one.strip("\n"))]
