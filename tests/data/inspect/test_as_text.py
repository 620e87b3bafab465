"""Rows in words: pieces spelled one by one, spans with offsets and boundaries, tags, right-to-left text."""

from typing import Any

import numpy as np

from spanjax.data.inspect.as_text import block_tokens, fragments, masked_text, piece_name, right_to_left, spelled
from spanjax.data.shards.packing import tag_flags
from spanjax.data.vocab.loading import ByteBpeVocabulary, SentencePieceVocabulary, Vocabulary, WordPieceVocabulary
from spanjax.data.vocab.training import train_byte_bpe, train_sentencepiece

TEXTS = ["Old sailors' clocks, 3 of them!", "naïve café", "修理旧钟。", "الساعة القديمة", "🙂 done", "a"]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "an", "american", "foot", "##ball", "game", "was", "played"]
WORDS = WordPieceVocabulary(PIECES)


def vocabularies() -> dict[str, Vocabulary]:
    """One of each kind; the SentencePiece one has bytes for what it does not know."""
    letters = sorted({letter for text in TEXTS[:2] for letter in text if letter.isascii() and letter != " "})
    pieces = [*PIECES, *letters, *(f"##{letter}" for letter in letters)]
    return {
        "wordpiece": WordPieceVocabulary(pieces),
        "sentencepiece": SentencePieceVocabulary(train_sentencepiece(TEXTS[:2] * 9, 285, 0, byte_fallback=True)),
        "byte-bpe": ByteBpeVocabulary(train_byte_bpe(TEXTS * 3, 300)),
    }


def batch(**changes: Any) -> Any:
    """[CLS] an american foot ##ball game was played [SEP], with "american football" masked, then padding."""

    def slots(*values: float) -> np.ndarray:
        return np.array([[*values, *[0] * (8 - len(values))]])

    return {
        "tokens_BL": np.array([[2, 5, 4, 4, 4, 9, 10, 11, 3, 0]], np.int32),
        "segments_BL": np.array([[1] * 9 + [0]], np.int32),
        "slot_position_BK": slots(2, 3, 4),
        "slot_target_BK": slots(6, 7, 8),
        "slot_weight_BK": slots(1, 1, 1),
        "slot_left_BK": slots(1, 1, 1),
        "slot_right_BK": slots(5, 5, 5),
        "slot_offset_BK": slots(0, 1, 2),
        "slot_boundary_weight_BK": slots(1, 1, 1),
    } | changes


def words(found: Any, flags_L: np.ndarray | None = None, layers: tuple[int, ...] = ()) -> str:
    return "".join(part.text for part in fragments(block_tokens(found, 0, 1, WORDS, flags_L, layers)))


def test_pieces_spelled_one_by_one_are_the_text() -> None:
    for kind, vocabulary in vocabularies().items():
        draw = np.random.default_rng(0)
        for ids in [*vocabulary.encode(TEXTS), *(draw.integers(5, vocabulary.size, 40) for _ in range(20))]:
            parts = spelled(ids.tolist(), vocabulary)
            assert len(parts) == len(ids) and "".join(parts) == vocabulary.decode(ids), kind


def test_a_character_comes_with_the_piece_that_completes_it() -> None:
    vocabulary = vocabularies()["byte-bpe"]
    ids = next(ids for ids in vocabulary.encode(["a 🙂 b"]))
    parts = spelled(ids.tolist(), vocabulary)
    assert "\ufffd" not in "".join(parts) and "".join(parts) == "a 🙂 b" and parts.count("") > 0


def test_pieces_are_named_for_reading() -> None:
    pieces = vocabularies()["sentencepiece"]
    assert piece_name(pieces.pieces.index("<0xE5>"), pieces) == "<0xE5>"
    assert piece_name(8, WORDS) == "##ball"
    vocabulary = ByteBpeVocabulary(train_byte_bpe(["é"] * 9, 263))
    named = {vocabulary.pieces[number]: piece_name(number, vocabulary) for number in range(vocabulary.size)}
    assert named["ĠÃ©"] == "Ġé" and named["Ã"] == "\ufffd" and named["<mask>"] == "<mask>" and named["c"] == "c"


def test_spans_have_offsets_and_boundaries() -> None:
    assert words(batch()) == "|an| «american football → [MASK]₀ [MASK]₁ [MASK]₂» |game| was played"
    assert masked_text(batch(), 0, WORDS) == "|an| «american football → [MASK] [MASK] [MASK]» |game| was played"


def test_tokens_without_boundaries_have_no_offset() -> None:
    far = batch(slot_boundary_weight_BK=np.array([[1, 1, 0, 0, 0, 0, 0, 0]]))
    assert words(far) == "|an| «american football → [MASK]₀ [MASK]₁ [MASK]» |game| was played"
    none = batch(slot_boundary_weight_BK=np.zeros((1, 8)))
    assert words(none) == "an «american football → [MASK] [MASK] [MASK]» game was played"


def test_roles_say_what_the_model_sees() -> None:
    mixed = batch(tokens_BL=np.array([[2, 5, 6, 9, 4, 9, 10, 11, 3, 0]], np.int32))
    parts = list(fragments(block_tokens(mixed, 0, 1, WORDS)))
    assert "".join(part.text for part in parts).startswith("|an| «american football → american₀ game₁ [MASK]₂» |game|")
    roles = {(part.text, part.role) for part in parts}
    assert {("american", "kept"), ("foot", "random"), ("ball", "mask"), (" [MASK]", "mask")} <= roles
    assert {("an", "left"), ("game", "right"), ("played", "text"), ("₁", "offset")} <= roles


def test_special_tokens_are_seen_as_boundaries_and_inside_only() -> None:
    edge = {name: np.array([[1, 2, 0, 0, 0, 0, 0, 0]]) for name in ("slot_position_BK",)}
    edge["slot_target_BK"] = np.array([[5, 6, 0, 0, 0, 0, 0, 0]])
    edge["slot_weight_BK"] = edge["slot_boundary_weight_BK"] = np.array([[1, 1, 0, 0, 0, 0, 0, 0]])
    edge["slot_left_BK"], edge["slot_right_BK"] = np.zeros((1, 8), int), np.full((1, 8), 3)
    tokens = np.array([[2, 4, 4, 7, 3, 9, 10, 11, 3, 0]], np.int32)
    assert words(batch(tokens_BL=tokens, **edge)) == (
        "|[CLS]| «an american → [MASK]₀ [MASK]₁» |foot| [SEP] game was played"
    )


def test_tags_are_bracketed_across_spans_and_layers() -> None:
    flags_L = tag_flags(np.array([0, 1, 2, 0, 0, 0, 0, 0, 0, 0]), 0)
    flags_L = flags_L | tag_flags(np.array([0, 0, 0, 0, 0, 1, 1, 2, 0, 0]), 1)
    assert words(batch(), flags_L, (0, 1)) == (
        "⟨|an| «american⟩ football → [MASK]₀ [MASK]₁ [MASK]₂» ⟦|game|⟧ ⟦was played⟧"
    )
    assert words(batch(), flags_L, (1,)).count("⟨") == 2  # brackets go by the layers that are shown
    inside = [part.text for part in fragments(block_tokens(batch(), 0, 1, WORDS, flags_L, (0,))) if part.tagged]
    assert "".join(inside) == "|an| american"


def test_isolates_hold_a_span_together_and_change_nothing_else() -> None:
    assert right_to_left("قديم") and right_to_left("שלום") and not right_to_left("old 旧")
    parts = "".join(part.text for part in fragments(block_tokens(batch(), 0, 1, WORDS), isolates=True))
    begin, word, end = "\u2066", "\u2068", "\u2069"
    assert f"{begin}«{word}american football{end} → {word}[MASK]{end}₀" in parts and f"»{end} |game|" in parts
    assert parts.count(end) == parts.count(begin) + parts.count(word) == 5
    assert "".join(each for each in parts if each not in begin + word + end) == words(batch())


def test_part_of_a_character_is_told() -> None:
    vocabulary = ByteBpeVocabulary(train_byte_bpe(["plain text"] * 9, 262))
    ids, specials = vocabulary.encode(["🙂"])[0].tolist(), vocabulary.specials
    slots = {
        f"slot_{name}": np.zeros((1, 1), int) for name in ("left_BK", "right_BK", "offset_BK", "boundary_weight_BK")
    }
    found = batch(
        tokens_BL=np.array([[specials.cls, *ids[:-1], specials.mask, specials.sep]], np.int32),
        segments_BL=np.ones((1, len(ids) + 2), np.int32),
        slot_position_BK=np.array([[len(ids)]]),
        slot_target_BK=np.array([[ids[-1]]]),
        slot_weight_BK=np.ones((1, 1)),
        **slots,
    )
    text = "".join(part.text for part in fragments(block_tokens(found, 0, 1, vocabulary)))
    assert len(ids) == 5 and text == "\ufffd«🙂 → <mask>»"


def test_text_without_blanks_stays_without() -> None:
    letters = WordPieceVocabulary([*PIECES[:5], "旧", "##钟", "##。"])
    found = batch(
        tokens_BL=np.array([[2, 5, 4, 7, 3, 0, 0, 0, 0, 0]], np.int32), segments_BL=np.array([[1] * 5 + [0] * 5])
    )
    found |= {"slot_position_BK": np.array([[2]]), "slot_target_BK": np.array([[6]]), "slot_weight_BK": np.ones((1, 1))}
    found |= {"slot_left_BK": np.array([[1]]), "slot_right_BK": np.array([[3]]), "slot_offset_BK": np.array([[0]])}
    found["slot_boundary_weight_BK"] = np.ones((1, 1))
    text = "".join(part.text for part in fragments(block_tokens(found, 0, 1, letters)))
    assert text == "|旧|«钟 → [MASK]₀»|。|"
