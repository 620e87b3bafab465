"""A report as text of a terminal."""

from collections.abc import Sequence

from spanjax.pages.document import Block, Heading, Table, Text, plain


def terminal_text(blocks: Sequence[Block]) -> str:
    """Returns headings, paragraphs and tables as plain text with aligned columns."""
    lines = list[str]()
    for block in blocks:
        if isinstance(block, Heading):
            lines += [block.text, ""]
        elif isinstance(block, Text):
            lines += [plain(block.words), ""]
        elif isinstance(block, Table):
            rows = [[plain(cell) for cell in row] for row in (block.head, *block.rows)]
            widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
            texts = ("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
            lines += [block.caption, *texts, ""]
    return "\n".join(lines)
