"""Text of files that others wrote, made harmless: for HTML and SVG, and for terminals."""

import html
import re

# C0 and C1 controls but tab and newline, separators of lines, marks that turn the direction of text, lone surrogates
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def visible(text: str) -> str:
    """Text for a terminal: control characters become escapes such as \\x1b; newlines and tabs stay."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_name(text: str) -> str:
    """A name for one line of a terminal, newlines and tabs escaped as well."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def escaped(text: str) -> str:
    """Text for HTML and SVG; characters that neither may hold are replaced."""
    allowed = "".join(
        letter if letter in "\n\t" or (letter >= " " and not "\x7f" <= letter <= "\x9f" and letter < "\ud800")
        or letter > "\udfff" and letter not in "\ufffe\uffff" else "\ufffd"
        for letter in text
    )  # fmt: skip
    return html.escape(allowed)


def markdown_line(text: str) -> str:
    """Text within one line of Markdown that begins no HTML."""
    return html.escape(visible_name(text), quote=False)
