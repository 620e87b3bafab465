"""Text for HTML and SVG."""

import html


def escaped(text: str) -> str:
    """Text for HTML and SVG; characters that neither may hold are replaced."""
    allowed = "".join(
        letter if letter in "\n\t" or (letter >= " " and not "\x7f" <= letter <= "\x9f" and letter < "\ud800")
        or letter > "\udfff" and letter not in "\ufffe\uffff" else "\ufffd"
        for letter in text
    )  # fmt: skip
    return html.escape(allowed)
