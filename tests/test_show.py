"""Masked examples in words: spans, boundaries and truth are the batch's."""

import numpy as np

from spanjax.data.vocab import WordPieceVocabulary
from spanjax.show import filled_text, masked_text, original_tokens, sparkline

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "an", "american", "foot", "##ball", "game", "was", "played"]
VOCABULARY = WordPieceVocabulary(PIECES)


def batch() -> dict:
    """[CLS] an american foot ##ball game was played [SEP], with "american football" masked, then padding."""
    tokens = np.array([[2, 5, 4, 4, 4, 9, 10, 11, 3, 0]], np.int32)
    slots = np.zeros((1, 8), np.int32)
    weights = np.array([[1, 1, 1, 0, 0, 0, 0, 0]], np.float32)

    def filled(*values: int) -> np.ndarray:
        array = slots.copy()
        array[0, : len(values)] = values
        return array

    return {
        "tokens_BL": tokens,
        "segments_BL": np.array([[1] * 9 + [0]], np.int32),
        "slot_position_BK": filled(2, 3, 4),
        "slot_target_BK": filled(6, 7, 8),
        "slot_weight_BK": weights,
        "slot_left_BK": filled(1, 1, 1),
        "slot_right_BK": filled(5, 5, 5),
        "slot_offset_BK": filled(0, 1, 2),
        "slot_boundary_weight_BK": weights,
    }


def test_masked_text_marks_the_span_and_its_boundaries() -> None:
    text = masked_text(batch(), 0, VOCABULARY)  # pyright: ignore[reportArgumentType]
    assert text == "|an| «american football → [MASK] [MASK] [MASK]» |game| was played"


def test_original_tokens_undo_the_masking() -> None:
    assert original_tokens(batch(), 0).tolist() == [2, 5, 6, 7, 8, 9, 10, 11, 3, 0]  # pyright: ignore


def test_filled_text_shows_truth_and_guesses() -> None:
    guesses = {"mlm": np.array([[6, 7, 8, 0, 0, 0, 0, 0]]), "sbo": np.array([[9, 10, 11, 0, 0, 0, 0, 0]])}
    lines = filled_text(batch(), 0, guesses, VOCABULARY)  # pyright: ignore[reportArgumentType]
    assert lines == [
        "masked   … an [MASK] [MASK] [MASK] game was played …",
        "truth    american football",
        "by mlm   american football",
        "by sbo   game was played",
    ]


def test_row_without_a_masked_token_has_nothing_to_fill() -> None:
    empty = {**batch(), "slot_weight_BK": np.zeros((1, 8), np.float32)}
    assert filled_text(empty, 0, {}, VOCABULARY) == []  # pyright: ignore[reportArgumentType]


def test_span_that_the_model_could_see_is_not_shown_as_filled_in() -> None:
    kept = batch()
    kept["tokens_BL"] = np.array([[2, 5, 6, 7, 8, 9, 10, 11, 3, 0]], np.int32)
    assert filled_text(kept, 0, {}, VOCABULARY) == []  # pyright: ignore[reportArgumentType]


def test_sparkline() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.0]) == "▁"
