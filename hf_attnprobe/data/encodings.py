"""Find the character encoding of a data file, and explain why a file cannot be decoded.

Files are read as UTF-8, unless they start with the byte order mark of another Unicode encoding.
Other encodings, such as latin-1, cannot be recognised with certainty, so the user must name them.
"""

import codecs
import logging
from pathlib import Path

from hf_attnprobe.core.errors import AttnProbeError


logger = logging.getLogger(__name__)

DEFAULT_ENCODING = "utf-8-sig"
"""Encoding of files without a byte order mark: UTF-8, with or without a mark of its own."""
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: DEFAULT_ENCODING,
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Maps the bytes with which a file can start to the encoding that they announce.

UTF-32 is checked before UTF-16, since its mark starts with the mark of UTF-16.
"""
N_INSPECTED_BYTES = 4096
"""Number of bytes at the start of a file in which zero bytes are counted."""
MIN_ZERO_SHARE = 0.1
"""Minimum share of zero bytes in a file that is probably UTF-16 or not a text file at all."""
MIN_ZERO_RATIO = 10
"""Minimum ratio of zero bytes at even and odd positions, or the reverse, in a file that is UTF-16."""
CHUNK_SIZE = 1 << 20
"""Number of bytes that are decoded at once."""
ENCODING_ADVICE = (
    "If the file was written on Windows or by Excel, pass --encoding cp1252; for ISO 8859-1, pass "
    "--encoding latin-1. Alternatively, save the file as UTF-8."
)
"""Last sentences of the error message about a file that is not encoded as UTF-8."""


def find_encoding(path: Path, requested: str | None = None) -> str:
    """Find the encoding of a text file, and check that the whole file can be decoded.

    Args:
        path: the file.
        requested: encoding that the user named; None to use the byte order mark, or else UTF-8.

    Returns:
        The name of a Python codec, which also skips a byte order mark.

    Raises:
        AttnProbeError: if the encoding is unknown or contradicts the byte order mark, or if the
            file cannot be decoded.
    """
    with path.open("rb") as file:
        first_bytes = file.read(N_INSPECTED_BYTES)
    marked = next(
        (name for mark, name in BYTE_ORDER_MARKS.items() if first_bytes.startswith(mark)), None
    )
    if requested is None:
        if marked is None:
            _check_no_zero_bytes(path, first_bytes)
        encoding = marked or DEFAULT_ENCODING
    else:
        encoding = _choose_codec(path, requested, marked)
    _check_decodable(path, encoding, is_requested=requested is not None)
    return encoding


def check_encoding_name(encoding: str) -> str:
    """Return the name of an encoding as Python spells it.

    Raises:
        AttnProbeError: if Python does not know the encoding, or it does not encode text.

    >>> check_encoding_name("UTF8"), check_encoding_name("Latin-1")
    ('utf-8', 'iso8859-1')
    """
    try:
        # Codecs such as "hex" convert bytes to bytes, so they raise a LookupError here.
        "".encode(encoding)
        return codecs.lookup(encoding).name
    except (LookupError, UnicodeError, ValueError):
        raise AttnProbeError(
            f"--encoding {encoding!r} is not an encoding that Python knows. Pass for example utf-8, "
            "utf-16, latin-1 or cp1252."
        ) from None


def _choose_codec(path: Path, requested: str, marked: str | None) -> str:
    """Return the requested codec, or the variant of it that skips the file's byte order mark."""
    codec = check_encoding_name(requested)
    if codec == "utf-8":
        codec = DEFAULT_ENCODING
    if marked is None or codec == marked:
        return codec
    # For example, utf-16-le would keep the mark as the first character of the file.
    if codec.startswith(marked):
        return marked
    raise AttnProbeError(
        f"{path} starts with the byte order mark of {marked.removesuffix('-sig').upper()}, so it is "
        f"not encoded as {requested}. Omit --encoding."
    )


def _check_no_zero_bytes(path: Path, first_bytes: bytes) -> None:
    """Raise AttnProbeError if a file has so many zero bytes that it cannot be UTF-8 text."""
    if first_bytes.count(0) <= MIN_ZERO_SHARE * len(first_bytes):
        return
    # Most characters of UTF-16 have a zero byte: the second one if the low byte comes first. A few
    # characters, such as emoji, have it in the other position.
    n_even, n_odd = first_bytes[::2].count(0), first_bytes[1::2].count(0)
    if MIN_ZERO_RATIO * min(n_even, n_odd) <= max(n_even, n_odd):
        encoding = "utf-16-le" if n_odd > n_even else "utf-16-be"
        raise AttnProbeError(
            f"{path} seems to be encoded as UTF-16 without a byte order mark. Pass --encoding "
            f"{encoding}, or save the file as UTF-8."
        )
    raise AttnProbeError(
        f"{path} is not a text file, since it contains zero bytes. Check the ending of its name, and "
        "unpack or convert the file."
    )


def _check_decodable(path: Path, encoding: str, *, is_requested: bool) -> None:
    """Raise AttnProbeError with the first wrong byte and its line if a file cannot be decoded."""
    decoder = codecs.getincrementaldecoder(encoding)()
    is_utf8 = encoding == DEFAULT_ENCODING
    utf8_decoder = None if is_utf8 else codecs.getincrementaldecoder("utf-8")()
    n_lines, has_other_bytes = 1, False
    with path.open("rb") as file:
        while True:
            chunk = file.read(CHUNK_SIZE)
            try:
                text = decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                line = n_lines + _decode_start(error, encoding).count("\n")
                wrong_byte = error.object[error.start]
                name = "UTF-8" if is_utf8 else encoding
                advice = (
                    "Pass another value for --encoding, or save the file as UTF-8."
                    if is_requested or not is_utf8
                    else ENCODING_ADVICE
                )
                raise AttnProbeError(
                    f"{path} is not encoded as {name}: line {line} contains the byte "
                    f"0x{wrong_byte:02x}, which is not valid there. {advice}"
                ) from error
            n_lines += text.count("\n")
            if utf8_decoder is not None:
                has_other_bytes = has_other_bytes or not chunk.isascii()
                try:
                    utf8_decoder.decode(chunk, final=not chunk)
                except UnicodeDecodeError:
                    utf8_decoder = None
            if not chunk:
                break
    if utf8_decoder is not None and has_other_bytes:
        logger.warning(
            "%s is valid UTF-8, but it is read as %s because of --encoding. Omit --encoding if "
            "letters with accents are wrong.",
            path,
            encoding,
        )


def _decode_start(error: UnicodeDecodeError, encoding: str) -> str:
    """Return the text before the byte that a decoder rejected."""
    return error.object[: error.start].decode(encoding, errors="replace")
