"""Text of others is made harmless for terminals and Markdown and stays readable."""

from spanjax.cli import markdown_line, visible, visible_name


def test_controls_become_escapes_and_words_stay() -> None:
    assert visible("a\x1b[31mb\x07\x00\x9b\u202ec\ud800") == r"a\x1b[31mb\x07\x00\x9b\u202ec\ud800"
    plain = "Zürich 東京 مرحبا क्‍ष 👩‍👩 \u00a0\n\tx"
    assert visible(plain) == plain
    assert visible_name("a\nb\tc") == r"a\nb\tc"


def test_a_line_of_markdown_begins_no_html() -> None:
    assert markdown_line("x\n<b>&\x1b") == r"x\n&lt;b&gt;&amp;\x1b"
