"""Vocabularies behind one interface: ids, special ids and where words begin. No TensorFlow.

WordPiece as in BERT (Devlin et al., 2018), SentencePiece unigram models (Kudo, 2018). Special pieces exist only as ids:
the text "[MASK]" is encoded as the ordinary characters that it is.
"""

import abc
import collections
import functools
import hashlib
import io
import itertools
import json
import pathlib
import random
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, final

import numpy as np
import sentencepiece
import tokenizers

SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORD_MARK = "\u2581"  # how SentencePiece writes the space before a word
_TRAINING_SENTENCES = 200_000  # of a larger text, a random sample of as many sentences trains the vocabulary
_KNOWN_PARTS = 1_000_000  # remembered encodings of WordPiece
_SETTINGS, _WORDPIECE, _MODEL = "vocabulary.json", "vocab.txt", "sentencepiece.model"


class Specials(NamedTuple):
    """Ids of the five pieces that are never text."""

    pad: int
    unk: int
    cls: int
    sep: int
    mask: int


class Vocabulary(abc.ABC):
    """Maps text to ids and back; `pieces[i]` is the piece of id i, `word_starts[i]` says whether it begins a word."""

    kind: str
    casing: str
    pieces: tuple[str, ...]
    specials: Specials

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self.pieces)

    @functools.cached_property
    def word_starts(self) -> np.ndarray:
        """bool[V]: True where an id begins a word, and for every special."""
        starts_V = np.array([self._begins_word(piece) for piece in self.pieces], dtype=bool)
        starts_V[list(self.specials)] = True
        starts_V.setflags(write=False)
        return starts_V

    @functools.cached_property
    def fingerprint(self) -> str:
        """Hex digest of kind, casing and pieces: equal when and only when the ids mean the same."""
        content = json.dumps([self.kind, self.casing, self.pieces], ensure_ascii=True, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    @abc.abstractmethod
    def _begins_word(self, piece: str) -> bool: ...

    @abc.abstractmethod
    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """int32 ids of every text, no specials added. The texts should have gone through `corpus.clean`."""

    @abc.abstractmethod
    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """Readable text of ids; specials appear by their names."""

    @abc.abstractmethod
    def files(self) -> dict[str, bytes]:
        """Everything that `vocabulary_from_files` needs to build it again, by file name."""


@final
class WordPieceVocabulary(Vocabulary):
    """BERT's vocab.txt: one piece a line, "##" before pieces that continue a word."""

    kind = "wordpiece"

    def __init__(self, pieces: Sequence[str], lower_case: bool | None = None, name: str = _WORDPIECE):
        """`lower_case` None guesses it: lower-casing if no piece but those in brackets has an uppercase letter."""
        self.pieces = tuple(pieces)
        _check_wordpiece(self.pieces, name)
        ids = {piece: number for number, piece in enumerate(self.pieces)}
        self.specials = Specials(*(ids[piece] for piece in SPECIAL_PIECES))
        self.lower_case = _looks_uncased(self.pieces) if lower_case is None else lower_case
        self.casing = "lower" if self.lower_case else "cased"
        model = tokenizers.models.WordPiece(vocab=ids, unk_token="[UNK]", max_input_chars_per_word=100)
        self._known: dict[str, tuple[int, ...]] = {}
        self._tokenizer = tokenizers.Tokenizer(model)
        self._tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=self.lower_case)  # pyright: ignore
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore

    def _begins_word(self, piece: str) -> bool:
        return not piece.startswith("##")

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Vocabulary.encode`. Blanks separate parts that are encoded on their own: each distinct one only once."""
        parts = [text.split(" ") for text in texts]
        if len(self._known) > _KNOWN_PARTS:
            self._known.clear()
        new = [part for part in set(itertools.chain.from_iterable(parts)) if part not in self._known]
        found = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        self._known.update(zip(new, (tuple(encoding.ids) for encoding in found), strict=True))
        known = self._known.__getitem__
        return [np.fromiter(itertools.chain.from_iterable(map(known, each)), np.int32) for each in parts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """See `Vocabulary.decode`."""
        words: list[str] = []
        for number in np.asarray(ids).tolist():
            piece = self.pieces[number]
            if piece.startswith("##") and words:
                words[-1] += piece[2:]
            else:
                words.append(piece)
        return " ".join(words)

    def files(self) -> dict[str, bytes]:
        """See `Vocabulary.files`."""
        settings = {"kind": self.kind, "lower_case": self.lower_case}
        return {_SETTINGS: json.dumps(settings).encode(), _WORDPIECE: ("\n".join(self.pieces) + "\n").encode()}


@final
class SentencePieceVocabulary(Vocabulary):
    """A SentencePiece model. Specials that it lacks get the ids after its own, so the model file stays as it is."""

    kind = "sentencepiece"
    casing = "model"  # the model's own normalisation decides

    def __init__(self, model: bytes, name: str = _MODEL):
        self.model = model
        try:
            self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        except RuntimeError as error:
            raise ValueError(
                f"{name}: not a SentencePiece model ({error}); give the .model file that spm_train wrote"
            ) from None
        own = self.processor.get_piece_size()
        pieces = [self.processor.id_to_piece(number) for number in range(own)]
        found = {"[UNK]": self.processor.unk_id(), "[PAD]": self.processor.pad_id()}
        for piece in SPECIAL_PIECES:
            number = self.processor.piece_to_id(piece)
            # A piece that literal text can produce (user-defined, say) is no special: the special gets an id.
            if found.get(piece, -1) < 0 and pieces[number] == piece and self.processor.is_control(number):
                found[piece] = number
            if found.get(piece, -1) < 0:
                found[piece] = len(pieces)
                pieces.append(piece)
        self.pieces = tuple(pieces)
        self.model_size = own
        self.specials = Specials(*(found[piece] for piece in SPECIAL_PIECES))

    def _begins_word(self, piece: str) -> bool:
        return piece.startswith(WORD_MARK)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """See `Vocabulary.encode`."""
        return [np.array(ids, dtype=np.int32) for ids in self.processor.encode(list(texts), num_threads=1)]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """See `Vocabulary.decode`."""
        parts: list[str] = []
        run: list[int] = []
        for number in [*np.asarray(ids).tolist(), None]:
            if number is not None and number not in self.specials:
                run.append(number)
                continue
            if run:
                parts.append(self.processor.decode(run))
                run = []
            if number is not None:
                parts.append(self.pieces[number])
        return " ".join(parts)

    def files(self) -> dict[str, bytes]:
        """See `Vocabulary.files`."""
        return {_SETTINGS: json.dumps({"kind": self.kind}).encode(), _MODEL: self.model}


def _looks_uncased(pieces: Sequence[str]) -> bool:
    text = (piece for piece in pieces if not (piece.startswith("[") and piece.endswith("]")))
    return not any(character.isupper() for piece in text for character in piece)


def _check_wordpiece(pieces: Sequence[str], name: str) -> None:
    problems = []
    if not pieces:
        raise ValueError(f"{name}: the vocabulary is empty; expected one piece a line, as in BERT's vocab.txt")
    if missing := [piece for piece in SPECIAL_PIECES if piece not in pieces]:
        problems.append(f"no line for {', '.join(missing)}; append the missing pieces at the end of the file")
    if repeated := [piece for piece, count in collections.Counter(pieces).items() if count > 1]:
        shown = ", ".join(map(repr, repeated[:5])) + (", ..." if len(repeated) > 5 else "")
        problems.append(f"{len(repeated)} piece(s) on more than one line ({shown}); every piece must have one id")
    if problems:
        raise ValueError(
            f"{name}: not a usable WordPiece vocabulary:\n" + "\n".join(f"  - {each}" for each in problems)
        )


def _wordpiece_lines(content: bytes, name: str) -> list[str]:
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ValueError(
            f"{name}:{line}: not UTF-8 ({error.reason}); expected a vocab.txt with one piece a line"
        ) from None
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def vocabulary_from_files(files: Mapping[str, bytes]) -> Vocabulary:
    """The vocabulary whose `files()` these are."""
    if _SETTINGS not in files:
        raise ValueError(
            f"no {_SETTINGS} among {sorted(files)}; expected the files that a vocabulary's files() returned"
        )
    settings = json.loads(files[_SETTINGS])
    needed = {"wordpiece": _WORDPIECE, "sentencepiece": _MODEL}.get(settings.get("kind"))
    if needed is None or needed not in files:
        raise ValueError(
            f"{_SETTINGS} says {settings}, and the files are {sorted(files)}: expected {_WORDPIECE} or {_MODEL}"
        )
    if needed == _MODEL:
        return SentencePieceVocabulary(files[_MODEL])
    return WordPieceVocabulary(_wordpiece_lines(files[_WORDPIECE], _WORDPIECE), settings["lower_case"])


def save_vocabulary(vocabulary: Vocabulary, folder: str | pathlib.Path) -> None:
    """Writes the vocabulary's files into `folder` (made if need be); `load_vocabulary(folder)` reads them."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for name, content in vocabulary.files().items():
        (pathlib.Path(folder) / name).write_bytes(content)


def load_vocabulary(path: str | pathlib.Path, lower_case: bool | None = None) -> Vocabulary:
    """Reads a vocab.txt (WordPiece), a *.model (SentencePiece) or a folder written by `save_vocabulary`.

    `lower_case` is for WordPiece only; None guesses it. ValueError if the file is missing or unusable.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        if not (path / _SETTINGS).is_file():
            raise ValueError(f"{path}: a folder without {_SETTINGS}; give a vocab.txt, a .model file or a saved one")
        vocabulary = vocabulary_from_files({item.name: item.read_bytes() for item in path.iterdir() if item.is_file()})
        if isinstance(vocabulary, WordPieceVocabulary) and lower_case not in (None, vocabulary.lower_case):
            vocabulary = WordPieceVocabulary(vocabulary.pieces, lower_case, str(path))
    elif not path.is_file():
        raise ValueError(f"{path}: no such file; expected a vocab.txt, a .model file or a saved vocabulary")
    elif path.suffix == ".model":
        vocabulary = SentencePieceVocabulary(path.read_bytes(), str(path))
    else:
        vocabulary = WordPieceVocabulary(_wordpiece_lines(path.read_bytes(), str(path)), lower_case, str(path))
    if lower_case is not None and isinstance(vocabulary, SentencePieceVocabulary):
        raise ValueError(f"{path}: a SentencePiece model has its own casing; leave the casing option out")
    return vocabulary


def train_sentencepiece(texts: Iterable[str], size: int, seed: int = 0) -> bytes:
    """A SentencePiece unigram model of `size` pieces trained on `texts` (sentences); the same bytes for the same input.

    The five special pieces are among its ids as control symbols, which no text is ever encoded to.
    """
    draw, sample = random.Random(seed), []
    for number, text in enumerate(texts):
        if len(sample) < _TRAINING_SENTENCES:
            sample.append(text)
        elif (place := draw.randrange(number + 1)) < _TRAINING_SENTENCES:
            sample[place] = text
    if not sample:
        raise ValueError("no text to train a vocabulary from; expected at least one sentence")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
            sentence_iterator=iter(sample), model_writer=model, model_type="unigram", vocab_size=size, num_threads=1,
            pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, pad_piece="[PAD]", unk_piece="[UNK]",
            control_symbols=["[CLS]", "[SEP]", "[MASK]"], max_sentence_length=65536, minloglevel=2,
        )  # fmt: skip
    except RuntimeError as error:
        reason = str(error).rpartition("] ")[2] or str(error)
        raise ValueError(
            f"cannot train a vocabulary of {size} pieces from {len(sample):,} sentences: {reason}"
        ) from None
    return model.getvalue()
