"""Vocabularies behind one interface: ids, special ids and where words begin. No TensorFlow.

WordPiece as in BERT (Devlin et al., 2018), SentencePiece models (Kudo, 2018), byte-level BPE as in GPT-2 and RoBERTa (Liu et
al., 2019). Special pieces exist only as ids: the text "[MASK]" is encoded as the ordinary characters that it is.
"""

import json
import pathlib
from collections.abc import Mapping

from spanjax.data.base_vocab import SETTINGS_FILE, SPECIAL_PIECES, Specials, Vocabulary
from spanjax.data.sentencepiece_vocab import SENTENCEPIECE_FILE, WORD_MARK, SentencePieceVocabulary
from spanjax.data.train_vocab import train_byte_bpe, train_sentencepiece, train_wordpiece
from spanjax.data.wordpiece_vocab import WORDPIECE_FILE, WordPieceVocabulary, cased_pieces, wordpiece_lines

__all__ = [
    "SPECIAL_PIECES", "WORD_MARK", "SentencePieceVocabulary", "Specials", "Vocabulary", "WordPieceVocabulary",
    "load_vocabulary", "save_vocabulary", "train_byte_bpe", "train_sentencepiece", "train_wordpiece",
    "vocabulary_from_files",
]  # fmt: skip

_SETTINGS, _WORDPIECE, _MODEL = SETTINGS_FILE, WORDPIECE_FILE, SENTENCEPIECE_FILE


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
    return WordPieceVocabulary(wordpiece_lines(files[_WORDPIECE], _WORDPIECE), settings["lower_case"])


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
        vocabulary = WordPieceVocabulary(wordpiece_lines(path.read_bytes(), str(path)), lower_case, str(path))
    if lower_case is not None and isinstance(vocabulary, SentencePieceVocabulary):
        raise ValueError(f"{path}: a SentencePiece model has its own casing; leave the casing option out")
    return vocabulary
