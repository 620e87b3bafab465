"""Keys of documents: copies share them, and a share of them is held out."""

from hypothesis import given
from hypothesis import strategies as st

from spanjax.data.sources.documents import KEY_BYTES, content_key, held_out


@given(st.text(), st.text(st.sampled_from(" \n\t\u3000")), st.text(st.sampled_from(" \n\r")))
def test_blanks_around_a_text_do_not_count(text: str, before: str, after: str) -> None:
    assert content_key(before + text + after) == content_key(text) and len(content_key(text)) == KEY_BYTES


def test_keys_are_those_of_every_version_and_differ() -> None:
    assert content_key("a") == bytes.fromhex("27c35e6e9373877f29e562464e46497e")  # what was written must be found again
    texts = [f"{number}" for number in range(10_000)] + [
        "a b",
        "a  b",
        "A",
        "é",
        "e\u0301",
        "",
        "?",
        "\ud800",
        "\ud801",
    ]
    assert len({content_key(text) for text in texts}) == len(texts)


def test_a_share_is_held_out_and_a_larger_share_holds_more() -> None:
    texts = [f"document {number}" for number in range(20_000)]
    small, large = ({text for text in texts if held_out(text, share)} for share in (0.01, 0.05))
    assert small < large and abs(len(small) - 200) < 60 and abs(len(large) - 1_000) < 130  # 4 standard deviations
    assert not any(held_out(text, 0.0) for text in texts) and all(held_out(text, 1.0) for text in texts)
    assert all(held_out(f" {text}\n", 0.05) for text in large)
