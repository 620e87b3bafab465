"""Trains vocabularies on text: WordPiece, SentencePiece unigram and byte-level BPE; the same for the same text.

A larger text is sampled: a random part of its sentences is used. The five special pieces always have the ids 0 to 4.
"""

import collections
import io
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sentencepiece
import tokenizers

from spanjax.data.vocab.base import SPECIAL_PIECES

SENTENCES = 200_000  # size of the random sample of sentences that trains the vocabulary
_ROBERTA_ORDER = ("<s>", "<pad>", "</s>", "<unk>")  # ids 0 to 3, as in RoBERTa; <mask> follows


def sample_sentences(texts: Iterable[str], seed: int = 0, most: int = SENTENCES) -> list[str]:
    """At most `most` of the texts, each with the same chance, in one pass; ValueError where there are none."""
    draw, sample = random.Random(seed), []
    for number, text in enumerate(texts):
        if len(sample) < most:
            sample.append(text)
        elif (place := draw.randrange(number + 1)) < most:
            sample[place] = text
    if not sample:
        raise ValueError("no text to train a vocabulary from; expected at least one sentence")
    return sample


def unrepeated_parts(sentences: Sequence[str], seed: int, most: int = 1000, long: int = 200) -> list[str]:
    """The sentences in parts of about `most` characters, in random order, parts of over `long` characters only once.

    sentencepiece 0.2.2 looks for repeated substrings of its input in time that grows with the square of their length: a page
    that occurs twice would keep it busy for hours.
    """
    parts: list[str] = []
    for sentence in sentences:
        while len(sentence) > most:
            cut = sentence.rfind(" ", long, most) + 1 or most
            parts.append(sentence[:cut])
            sentence = sentence[cut:]
        parts.append(sentence)
    seen: set[str] = set()
    kept = [part for part in parts if len(part) <= long or not (part in seen or seen.add(part))]
    random.Random(seed).shuffle(kept)
    return kept


def train_sentencepiece(
    texts: Iterable[str],
    size: int,
    seed: int = 0,
    *,
    character_coverage: float = 0.9995,
    byte_fallback: bool = False,
    split_by_whitespace: bool = True,
    most: int = SENTENCES,
) -> bytes:
    """A SentencePiece unigram model of `size` pieces trained on `texts` (sentences); the same bytes for the same input.

    The five special pieces are among its ids as control symbols, which no text is ever encoded to. The rarest characters
    that `character_coverage` excludes become unknown, or bytes with `byte_fallback`. Without `split_by_whitespace`
    pieces may hold blanks, which makes them several words.
    """
    sample = sample_sentences(texts, seed, most)
    changed: dict[str, Any] = {"character_coverage": character_coverage} if character_coverage != 0.9995 else {}
    changed |= {"byte_fallback": True} if byte_fallback else {}  # without defaults, which the model would store
    changed |= {} if split_by_whitespace else {"split_by_whitespace": False}
    parts, model = unrepeated_parts(sample, seed), io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
            sentence_iterator=iter(parts), model_writer=model, model_type="unigram", vocab_size=size, num_threads=1,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece="[PAD]", unk_piece="[UNK]",
            control_symbols=["[CLS]", "[SEP]", "[MASK]"], max_sentence_length=65536, minloglevel=2, **changed,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2] or str(error)
        raise ValueError(
            f"cannot train a vocabulary of {size} pieces from {len(sample):,} sentences: {reason} Ask for fewer pieces, or give"
            " more text"
        ) from None
    return model.getvalue()


def train_wordpiece(
    texts: Iterable[str],
    size: int,
    seed: int = 0,
    *,
    lower_case: bool = False,
    character_coverage: float = 1.0,
    min_frequency: int = 2,
    most: int = SENTENCES,
) -> list[str]:
    """The `size` pieces of a WordPiece vocabulary in the order of their ids, with BERT's normalisation and words.

    Characters that `character_coverage` excludes are unknown. A pair of pieces is joined where it occurs `min_frequency`
    times or more. ValueError where the characters alone need more than `size` pieces, or the text yields fewer.
    """
    sample = sample_sentences(texts, seed, most)
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower_case)
    counted: collections.Counter[str] = collections.Counter()
    for text in sample:
        counted.update(normalizer.normalize_str(text))
    letters = _covered(counted, character_coverage)
    words = tokenizers.pre_tokenizers.BertPreTokenizer()
    inside = [
        "##" + letter for letter in letters if len(words.pre_tokenize_str(normalizer.normalize_str(f"a{letter}"))) == 1
    ]
    # The trainer numbers letters as it meets them, in random order. Special pieces keep their order, so letters are
    # passed as such; with their ids fixed, the ids of everything that is joined from them are fixed too.
    fixed = [*SPECIAL_PIECES, *letters, *inside]
    if len(fixed) > size:
        raise ValueError(
            f"cannot train a vocabulary of {size} pieces from {len(sample):,} sentences: {len(letters):,} characters (at the "
            f"start of a word and inside one) and five specials need {len(fixed):,}; ask for more pieces or a lower "
            "character coverage"
        )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = words  # pyright: ignore[reportAttributeAccessIssue]
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=size, min_frequency=min_frequency, special_tokens=fixed, initial_alphabet=letters,
        limit_alphabet=len(letters), show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(iter(sample), trainer)
    ids = tokenizer.get_vocab(with_added_tokens=False)
    _check_full(len(ids), size, len(sample))
    return sorted(ids, key=ids.__getitem__)


def train_byte_bpe(
    texts: Iterable[str], size: int, seed: int = 0, *, min_frequency: int = 2, most: int = SENTENCES
) -> bytes:
    """A byte-level BPE of `size` pieces as a tokenizer.json; all 256 bytes are pieces, so that nothing is unknown.

    The tokenizer puts a blank before every text (`add_prefix_space`), so that its ids of a sentence are those of
    `ByteBpeVocabulary`. ValueError where `size` is below 261 or the text yields fewer pieces.
    """
    sample = sample_sentences(texts, seed, most)
    letters = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    mask = tokenizers.AddedToken(
        "<mask>", lstrip=True, special=True
    )  # for Hugging Face: it stands for the blank as well
    if size < len(letters) + 5:
        raise ValueError(f"cannot train a byte-level vocabulary of {size} pieces: 256 bytes and five specials need 261")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=True)  # pyright: ignore
    tokenizer.decoder = tokenizers.decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, min_frequency=min_frequency, special_tokens=[*_ROBERTA_ORDER, mask], initial_alphabet=letters,
        show_progress=False,
    )  # fmt: skip
    tokenizer.train_from_iterator(iter(sample), trainer)
    _check_full(tokenizer.get_vocab_size(), size, len(sample))
    tokenizer.post_processor = tokenizers.processors.RobertaProcessing(  # pyright: ignore[reportAttributeAccessIssue]
        ("</s>", 2), ("<s>", 0), add_prefix_space=True
    )
    return tokenizer.to_str().encode()


def _covered(counts: Mapping[str, int], coverage: float) -> list[str]:
    """The most frequent visible characters that make up `coverage` of the text, in the order of their codes."""
    visible = [(count, character) for character, count in counts.items() if not character.isspace()]
    left = coverage * sum(count for count, _ in visible)
    kept = []
    for count, character in sorted(visible, key=lambda each: (-each[0], each[1])):
        if left <= 0:
            break
        left -= count
        kept.append(character)
    return sorted(kept)


def _check_full(found: int, size: int, sentences: int) -> None:
    if found < size:
        raise ValueError(
            f"cannot train a vocabulary of {size} pieces from {sentences:,} sentences: the text yields only {found}; ask for "
            f"{found} or fewer, give more text, or lower the least frequency of what is joined"
        )
