"""Vocabularies behind one interface: ids, special ids and where words begin. No TensorFlow.

WordPiece as in BERT (Devlin et al., 2018), SentencePiece models (Kudo and Richardson, 2018), also those of a tokenizer.json,
byte-level BPE as in GPT-2 and RoBERTa (Liu et al., 2019). Special pieces exist only as ids: the text "[MASK]" is encoded as the
characters that it is.
"""

import pathlib
from collections.abc import Mapping
from typing import Any

from spanjax.data.vocab.base import MOST_PIECES, SETTINGS_FILE, Vocabulary
from spanjax.data.vocab.byte_bpe import ByteBpeVocabulary, byte_bpe_json
from spanjax.data.vocab.metaspace import MetaspaceVocabulary, is_sentencepiece
from spanjax.data.vocab.sentencepiece import LAYOUTS, SENTENCEPIECE_FILE, SentencePieceVocabulary
from spanjax.data.vocab.tokenizer_json import TOKENIZER_FILE, read_tokenizer_json, wordpiece_from_json
from spanjax.data.vocab.wordpiece import WORDPIECE_FILE, WordPieceVocabulary, cased_pieces, wordpiece_lines
from spanjax.json_files import JsonError, parse_json

MODEL_FILES = {"wordpiece": WORDPIECE_FILE, "sentencepiece": SENTENCEPIECE_FILE, "byte-bpe": TOKENIZER_FILE}
MODEL_FILES |= {MetaspaceVocabulary.kind: TOKENIZER_FILE}
EXPECTED = (
    "expected a vocab.txt (WordPiece), a .model file (SentencePiece), a tokenizer.json, a vocab.json with its merges.txt "
    "(byte-level BPE), or a folder with one of them"
)
TOKENIZER_CONFIG, FAIRSEQ_FILE = "tokenizer_config.json", "sentencepiece.bpe.model"
LAYOUT = "sentencepiece_layout"
"""Entry of a written tokenizer_config.json: the layout of its .model file."""
_CLASSES = {
    "xlm-roberta": "XLMRobertaTokenizer",
    "camembert": "CamembertTokenizer",
    "deberta-v2": "DebertaV2Tokenizer",
}
_GENERIC = ("PreTrainedTokenizer", "TokenizersBackend")
_VOCAB_JSON, _MERGES = "vocab.json", "merges.txt"
_MOST_UNUSED = 0.01  # of the rows of weights; a vocabulary that lacks more belongs to others
_MOST_CASED = 0.01  # of the pieces of a vocabulary that is used lower-cased


def vocabulary_from_files(files: Mapping[str, bytes]) -> Vocabulary:
    """The vocabulary whose `files()` these are."""
    if SETTINGS_FILE not in files:
        raise ValueError(
            f"no {SETTINGS_FILE} among {sorted(files)}; expected the files that a vocabulary's files() returned"
        )
    settings = parse_json(files[SETTINGS_FILE], dict)
    kind = settings.get("kind")
    needed = MODEL_FILES.get(str(kind))
    of_pieces = kind in ("sentencepiece", "byte-bpe", "metaspace") or isinstance(settings.get("lower_case"), bool)
    if needed is None or needed not in files or not of_pieces:
        raise ValueError(
            f"{SETTINGS_FILE} says {settings}, and the files are {sorted(files)}: expected one of the kinds "
            f"{', '.join(MODEL_FILES)} with its file ({', '.join(dict.fromkeys(MODEL_FILES.values()))}), "
            "of wordpiece with lower_case true or false"
        )
    # a damaged file must not ask for memory without bounds
    size = settings.get("size", 0)
    if not isinstance(size, int) or not 0 <= size <= MOST_PIECES:
        raise ValueError(f"{SETTINGS_FILE}: size is {size!r}: expected the number of ids, up to {MOST_PIECES:,}")
    if kind == "sentencepiece":
        if (layout := settings.get("layout", "")) not in ("", *LAYOUTS):
            raise ValueError(f"{SETTINGS_FILE}: layout is {layout!r}: expected one of {', '.join(LAYOUTS)}, or none")
        return SentencePieceVocabulary(files[needed], layout=layout, size=size)
    if kind == "byte-bpe":
        return ByteBpeVocabulary(files[needed])
    if kind == "metaspace":
        return MetaspaceVocabulary(files[needed], size=size)
    return WordPieceVocabulary(wordpiece_lines(files[needed], needed), settings["lower_case"])


def with_unused_ids(vocabulary: Vocabulary, size: int) -> Vocabulary:
    """Returns the vocabulary with unused ids up to `size`, the rows of some weights, if it lacks few of them; else unchanged."""
    lacks_few = 0 < size - vocabulary.size <= _MOST_UNUSED * size
    if isinstance(vocabulary, SentencePieceVocabulary) and lacks_few:
        return SentencePieceVocabulary(vocabulary.model, layout=vocabulary.layout, size=size)
    if isinstance(vocabulary, MetaspaceVocabulary) and lacks_few:
        return MetaspaceVocabulary(vocabulary.tokenizer_json, size=size)
    return vocabulary


def save_vocabulary(vocabulary: Vocabulary, folder: str | pathlib.Path) -> None:
    """Writes the vocabulary's files into `folder` (made if need be); `load_vocabulary(folder)` reads them."""
    pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
    for name, content in vocabulary.files().items():
        (pathlib.Path(folder) / name).write_bytes(content)


def load_vocabulary(path: str | pathlib.Path, lower_case: bool | None = None) -> Vocabulary:
    """Reads a vocab.txt, a *.model, a tokenizer.json, a vocab.json next to its merges.txt, or a folder with one of them.

    The files of `save_vocabulary` take precedence, then tokenizer.json. `lower_case` is for WordPiece only; None takes
    the value of the folder or tokenizer.json and guesses it for a vocab.txt. ValueError if the file is missing or unusable.
    """
    path = pathlib.Path(path)
    if path.is_dir():
        vocabulary = _from_folder(path, lower_case)
    elif not path.is_file():
        raise ValueError(f"{path}: no such file; {EXPECTED}")
    else:
        vocabulary = _from_file(path, lower_case)
    if not isinstance(vocabulary, WordPieceVocabulary):
        if lower_case is not None:
            raise ValueError(
                f"{path}: a {vocabulary.kind} vocabulary has its own casing, stored in its file; leave the casing option out"
            )
        return vocabulary
    if lower_case not in (None, vocabulary.lower_case):
        vocabulary = WordPieceVocabulary(vocabulary.pieces, lower_case, str(path))
    if lower_case:
        _check_casing(vocabulary, str(path))
    return vocabulary


def _from_folder(folder: pathlib.Path, lower_case: bool | None) -> Vocabulary:
    names = {item.name for item in folder.iterdir() if item.is_file()}
    if SETTINGS_FILE in names:
        known = names & {SETTINGS_FILE, *MODEL_FILES.values()}
        try:
            return vocabulary_from_files({name: (folder / name).read_bytes() for name in known})
        except (KeyError, AttributeError, JsonError) as error:
            reason = error if isinstance(error, JsonError) else repr(error)
            raise ValueError(f"{folder / SETTINGS_FILE}: damaged ({reason}); save the vocabulary again") from None
    models = sorted(name for name in names if name.endswith(".model"))
    copy = len(models) == 1 and _layout_beside(folder / models[0])[0] is not None
    if TOKENIZER_FILE in names and not copy:  # next to a .model file whose ids are known it is the copy of the two
        return _from_file(folder / TOKENIZER_FILE, lower_case)
    if {_VOCAB_JSON, _MERGES} <= names:
        return _from_file(folder / _VOCAB_JSON, lower_case)
    if WORDPIECE_FILE in names:
        return _from_file(folder / WORDPIECE_FILE, lower_case)
    if len(models) == 1:
        return _from_file(folder / models[0], lower_case)
    raise ValueError(
        f"{folder}: a folder without {SETTINGS_FILE}, tokenizer.json, vocab.json with merges.txt, vocab.txt or a single "
        f".model file; it holds {', '.join(sorted(names)[:8]) or 'no files'}"
    )


def _from_file(path: pathlib.Path, lower_case: bool | None) -> Vocabulary:
    content, name = path.read_bytes(), str(path)
    if path.name == SETTINGS_FILE:
        return _from_folder(path.parent, lower_case)
    if path.name == _MERGES:
        raise ValueError(f"{path}: only the merges of a byte-level BPE; give its vocab.json or the folder of the two")
    if path.suffix == ".model":
        layout, found = _layout_beside(path)
        if layout is None:
            classes = ", ".join(_CLASSES[each] for each in LAYOUTS)
            raise ValueError(
                f"{path}: its ids depend on the model that it belongs to: expected a {TOKENIZER_CONFIG} beside it with the"
                f" tokenizer_class {classes}, or a config.json with the model_type {', '.join(LAYOUTS)}; found {found}"
            )
        return SentencePieceVocabulary(content, name, layout)
    if path.suffix == ".json":
        return _from_json(path, content, lower_case)
    if path.suffix in ("", ".txt"):
        return WordPieceVocabulary(wordpiece_lines(content, name), lower_case, name)
    hint = " (a .vocab file is SentencePiece's list for reading: give the .model file)" * (path.suffix == ".vocab")
    raise ValueError(f"{path}: files that end in {path.suffix} are no vocabulary known here{hint}; {EXPECTED}")


def _layout_beside(model: pathlib.Path) -> tuple[str | None, str]:
    """Returns the order of ids of a .model file, see LAYOUTS, by the tokenizer_config.json and config.json beside it; None for a
    fairseq model whose kind they do not name. Also returns the class of the tokenizer that they name.

    ValueError for a damaged file, and for settings of DeBERTa-v2's that change the text.
    """
    found: list[dict[str, Any]] = []
    for name in (TOKENIZER_CONFIG, "config.json"):
        file = model.with_name(name)
        try:
            found.append(parse_json(file.read_bytes(), dict) if file.is_file() else {})
        except ValueError as error:
            raise ValueError(f"{file}: no JSON object ({error}); repair the file or remove it") from None
    tokenizer, model_type = found[0], str(found[1].get("model_type", ""))
    kind = str(tokenizer.get("tokenizer_class") or "").removesuffix("Fast")
    if (layout := tokenizer.get(LAYOUT)) in ("", *LAYOUTS):
        return layout, kind
    if kind in ("", *_GENERIC):  # this says nothing, so the model does
        kind = _CLASSES.get(model_type, "")
    changed = [name for name in ("do_lower_case", "split_by_punct") if tokenizer.get(name)]
    if kind == _CLASSES["deberta-v2"] and changed:
        raise ValueError(
            f"{model.with_name(TOKENIZER_CONFIG)}: {changed[0]} is true: expected false, as in DeBERTa-v2 and v3; the ids of"
            " other settings cannot be kept"
        )
    layout = next((name for name in LAYOUTS if _CLASSES[name] == kind), "")
    # models of fairseq's other families (mBART, say) have this file name, too, and orders of their own
    return None if model.name == FAIRSEQ_FILE and not layout else layout, kind or "neither"


def _from_json(path: pathlib.Path, content: bytes, lower_case: bool | None) -> Vocabulary:
    name, merges = str(path), path.with_name(_MERGES)
    if path.name == _VOCAB_JSON:
        if not merges.is_file():
            raise ValueError(f"{path}: needs the {_MERGES} of the same tokenizer beside it; {EXPECTED}")
        return ByteBpeVocabulary(byte_bpe_json(content, merges.read_bytes(), name), name)
    settings = read_tokenizer_json(content, name)
    kind = settings["model"].get("type") or ("BPE" if "merges" in settings["model"] else "WordPiece")
    if kind == "WordPiece":
        return wordpiece_from_json(settings, lower_case, name)
    if is_sentencepiece(settings):
        return MetaspaceVocabulary(content, name)
    if kind == "BPE":
        return ByteBpeVocabulary(content, name)
    raise ValueError(f"{path}: a tokenizer.json with a {kind} model, whose ids cannot be kept exactly; {EXPECTED}")


def _check_casing(vocabulary: WordPieceVocabulary, name: str) -> None:
    """Raises ValueError for many cased pieces in a vocabulary to be used lower-cased: the sign of a wrong option."""
    cased = cased_pieces(vocabulary.pieces)
    if len(cased) > _MOST_CASED * vocabulary.size:
        raise ValueError(
            f"{name}: {len(cased):,} of {vocabulary.size:,} pieces are cased ({cased[0]!r}, say), which lower-cased text "
            "never reaches: leave the lower-casing out, or take an uncased vocabulary"
        )
