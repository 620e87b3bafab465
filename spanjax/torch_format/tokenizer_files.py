"""Writes the tokenizer of a Hugging Face model folder so that AutoTokenizer gives our ids, and reads it back.

[CLS] and [SEP] surround the text as in the model's family (Devlin et al., 2018; Liu et al., 2019). Two things differ from
`Vocabulary.encode`: special tokens in a text count as such ("The [MASK] sat"), and the text is not cleaned first.
"""

import json
import pathlib
from typing import Any

import tokenizers
from tokenizers import processors

from spanjax.data.vocab.base import SETTINGS_FILE, SPECIAL_PIECES
from spanjax.data.vocab.byte_bpe import blank_tokens
from spanjax.data.vocab.loading import (
    FAIRSEQ_FILE,
    LAYOUT,
    TOKENIZER_CONFIG,
    ByteBpeVocabulary,
    MetaspaceVocabulary,
    SentencePieceVocabulary,
    Vocabulary,
    WordPieceVocabulary,
    load_vocabulary,
)
from spanjax.data.vocab.sentencepiece import LAYOUTS, WORD_MARK
from spanjax.data.vocab.tokenizer_json import TOKENIZER_FILE, JsonVocabulary
from spanjax.data.vocab.wordpiece import MAX_WORD_CHARACTERS, WORDPIECE_FILE
from spanjax.json_files import parse_json
from spanjax.torch_format import sentencepiece_json
from spanjax.torch_format.families import FAMILIES, LIKE_ROBERTA

CONFIG_FILE, NAMES_FILE = TOKENIZER_CONFIG, "special_tokens_map.json"
SPIECE_FILE, VOCAB_JSON, MERGES_FILE = "spiece.model", "vocab.json", "merges.txt"
FILES = (WORDPIECE_FILE, TOKENIZER_FILE, CONFIG_FILE, NAMES_FILE, SPIECE_FILE, FAIRSEQ_FILE, VOCAB_JSON, MERGES_FILE)
"""Names of all files that `tokenizer_files` may return."""
_FIRST_BLANK = {"type": "Metaspace", "replacement": " ", "prepend_scheme": "first", "split": False}
_BYTES = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def tokenizer_files(vocabulary: Vocabulary, family: str, max_length: int, tuned_types: int = 0) -> dict[str, bytes]:
    """Returns the tokenizer files of a model folder, by name, for a config.json with the model_type `family`.

    AutoTokenizer then gives [CLS] A [SEP] with the ids of `vocabulary.encode` for A, and for a pair [CLS] A [SEP] B [SEP]
    with types 0 and 1; for RoBERTa, XLM-R and CamemBERT <s> A </s></s> B </s>, all of type 0. `max_length` is the most tokens
    of a sequence.
    A model that was fine-tuned here saw pairs in the form of its vocabulary (`Vocabulary.separators`), whatever its family:
    `tuned_types` is its number of token types.
    A SentencePiece model that tokenizers cannot represent (a word model, say) gets no tokenizer.json, and AutoTokenizer
    raises: `tokenizer_notes` reports this and everything else a user must know.
    ValueError if the family is unknown or the name of a special token is also text.
    """
    if family not in FAMILIES:
        raise ValueError(f"no tokenizer files for the family {family!r}: expected one of {', '.join(FAMILIES)}")
    names = [vocabulary.pieces[number] for number in vocabulary.specials]
    pad, unk, cls, sep, mask = names
    roles = {"pad_token": pad, "unk_token": unk, "cls_token": cls, "sep_token": sep, "mask_token": mask}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    if family in LIKE_ROBERTA:
        roles |= {"bos_token": cls, "eos_token": sep}
        if tuned_types < 2:
            inputs.remove("token_type_ids")
    if family in ("modernbert", "distilbert"):
        inputs.remove("token_type_ids")
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": max_length}
    config |= {"model_input_names": inputs}
    if isinstance(vocabulary, WordPieceVocabulary):
        tokenizer, files, kind = _wordpiece(vocabulary)
        kind |= (
            {"tokenizer_class": "BertTokenizer"} if family not in LIKE_ROBERTA else {}
        )  # the class knows BERT's pairs only
    elif isinstance(vocabulary, ByteBpeVocabulary):
        tokenizer, files, kind = _byte_bpe(vocabulary)
    elif isinstance(vocabulary, MetaspaceVocabulary):
        tokenizer, files, kind = _metaspace(vocabulary)
    else:
        assert isinstance(vocabulary, SentencePieceVocabulary)
        tokenizer, files, kind = _sentencepiece(vocabulary, family)
    config |= kind | roles
    files[CONFIG_FILE] = _json(config)
    if tokenizer is not None:
        separators = vocabulary.separators if tuned_types else 2 if family in LIKE_ROBERTA else 1
        second = int(tuned_types > 1 or (not tuned_types and family not in LIKE_ROBERTA))
        _add_specials(tokenizer, vocabulary, separators, second, lstrip=_blank_goes_with_mask(vocabulary))
        files |= {TOKENIZER_FILE: tokenizer.to_str(pretty=True).encode(), NAMES_FILE: _json(roles)}
    return files


_Parts = tuple[tokenizers.Tokenizer | None, dict[str, bytes], dict[str, Any]]  # with files and settings of its kind


def _wordpiece(vocabulary: WordPieceVocabulary) -> _Parts:
    ids = {piece: number for number, piece in enumerate(vocabulary.pieces)}
    unk = vocabulary.pieces[vocabulary.specials.unk]
    model = tokenizers.models.WordPiece(vocab=ids, unk_token=unk, max_input_chars_per_word=MAX_WORD_CHARACTERS)
    tokenizer = tokenizers.Tokenizer(model)
    lower = vocabulary.lower_case
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=lower)  # pyright: ignore
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()  # pyright: ignore
    tokenizer.decoder = tokenizers.decoders.WordPiece()  # pyright: ignore[reportAttributeAccessIssue]
    # transformers lower-cases by default, whatever tokenizer.json says
    kind = {"do_lower_case": lower, "tokenize_chinese_chars": True, "strip_accents": None}
    files = {WORDPIECE_FILE: vocabulary.files()[WORDPIECE_FILE]}
    return tokenizer, files, kind | {"clean_up_tokenization_spaces": True}


def _sentencepiece(vocabulary: SentencePieceVocabulary, family: str) -> _Parts:
    whole = sentencepiece_json.unrepresentable(vocabulary) is None
    tokenizer = sentencepiece_json.sentencepiece_tokenizer(vocabulary) if whole else None
    kind: dict[str, Any] = {"clean_up_tokenization_spaces": False}
    if vocabulary.layout or family in LAYOUTS:  # such a model_type alone would mean its layout
        kind[LAYOUT] = vocabulary.layout
    return tokenizer, {FAIRSEQ_FILE if vocabulary.layout else SPIECE_FILE: vocabulary.model}, kind


def _byte_bpe(vocabulary: ByteBpeVocabulary) -> _Parts:
    """Adapts the vocabulary's own tokenizer.json: only the first word gets a blank, not text after a special inside a word."""
    names = [vocabulary.pieces[number] for number in vocabulary.specials]
    if unnamed := [name for name in names if name.endswith("#") and name[:-1] in SPECIAL_PIECES]:
        raise ValueError(
            f"the special pieces {', '.join(unnamed)} are called so because merges make text of the plain names, which a "
            "Hugging Face tokenizer cannot tell apart: expected specials that no text spells; train the vocabulary without "
            "them in the text, or rename these pieces of text in its tokenizer.json"
        )
    settings = parse_json(vocabulary.tokenizer_json)
    ids = {piece: number for number, piece in enumerate(vocabulary.pieces)}
    model = settings["model"] | {"type": "BPE", "vocab": ids, "unk_token": vocabulary.pieces[vocabulary.specials.unk]}
    before = settings["pre_tokenizer"]
    steps = before["pretokenizers"] if before["type"] == "Sequence" else [before]
    steps = [step for step in steps if step != _FIRST_BLANK]  # of a file that was written here
    if steps[0]["type"] == "ByteLevel":
        steps = [steps[0] | {"add_prefix_space": False}, *steps[1:]]
    without_blank = {"type": "Sequence", "decoders": [_BYTES, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    changed = {
        "model": model,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_FIRST_BLANK, *steps]},
        "decoder": without_blank,
    }
    changed |= {"added_tokens": blank_tokens(settings), "post_processor": None, "truncation": None, "padding": None}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0"} | settings | changed))
    pairs = (merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"])
    merges = "\n".join(["#version: 0.2", *pairs]) + "\n"
    files = {VOCAB_JSON: _json(ids), MERGES_FILE: merges.encode()}
    return tokenizer, files, {"add_prefix_space": True, "clean_up_tokenization_spaces": False}


def _metaspace(vocabulary: MetaspaceVocabulary) -> _Parts:
    """The vocabulary's own tokenizer.json; one without a word mark before the first word gets it, as `encode` puts it there."""
    settings = parse_json(vocabulary.tokenizer_json)
    changed: dict[str, Any] = {"post_processor": None, "truncation": None, "padding": None}
    if vocabulary.prefix:
        first = {"type": "Metaspace", "replacement": WORD_MARK, "prepend_scheme": "first", "split": False}
        without_blank = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
        own = {name: [settings[name]] if settings.get(name) else [] for name in ("pre_tokenizer", "decoder")}
        changed["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [first, *own["pre_tokenizer"]]}
        changed["decoder"] = {"type": "Sequence", "decoders": [*own["decoder"], without_blank]}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps({"version": "1.0"} | settings | changed))
    return tokenizer, {}, {"clean_up_tokenization_spaces": False}


def _blank_goes_with_mask(vocabulary: Vocabulary) -> bool:
    """True if the mask replaces a token together with the blank before it, as RoBERTa's <mask> does."""
    if isinstance(vocabulary, SentencePieceVocabulary):
        return not sentencepiece_json.read_model(vocabulary).normalizer_spec.remove_extra_whitespaces
    if not isinstance(vocabulary, JsonVocabulary):
        return False
    mask = vocabulary.pieces[vocabulary.specials.mask]
    added = parse_json(vocabulary.tokenizer_json).get("added_tokens") or []
    own = [token for token in added if token["content"] == mask]
    named = isinstance(vocabulary, ByteBpeVocabulary) and mask == "<mask>"
    return named or not own or bool(own[0].get("lstrip"))


def _add_specials(
    tokenizer: tokenizers.Tokenizer, vocabulary: Vocabulary, separators: int, second: int, lstrip: bool
) -> None:
    """Marks the special tokens of the vocabulary, in the order of their ids, and puts them around texts and pairs, with this
    number of `separators` between the two; `second` is the token type of the second text."""
    specials, pieces = vocabulary.specials, vocabulary.pieces
    tokens = [
        tokenizers.AddedToken(pieces[number], lstrip=lstrip and number == specials.mask, normalized=False, special=True)
        for number in sorted(specials)
    ]
    tokenizer.add_special_tokens(tokens)
    wrong = [pieces[number] for number in specials if tokenizer.token_to_id(pieces[number]) != number]
    assert not wrong and tokenizer.get_vocab_size() == vocabulary.size - vocabulary.unused, wrong
    cls, sep = pieces[specials.cls], pieces[specials.sep]
    around: Any = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {' '.join([sep] * separators)} $B:{second} {sep}:{second}",
        special_tokens=[(cls, specials.cls), (sep, specials.sep)],
    )
    if isinstance(vocabulary, ByteBpeVocabulary):  # offsets without the blank
        around = processors.Sequence([processors.ByteLevel(add_prefix_space=True, trim_offsets=True), around])
    tokenizer.post_processor = around


def _json(content: Any) -> bytes:
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def tokenizer_notes(vocabulary: Vocabulary) -> list[str]:
    """Sentences for the model card on the tokenizer of a written folder."""
    notes = [
        "The tokenizer does not clean text. The model was trained on text without control characters, zero-width characters "
        "(but for joiners between letters that need them), private-use characters and blanks other than the plain one."
    ]
    if isinstance(vocabulary, WordPieceVocabulary):
        done = "lower-cases text and strips accents" if vocabulary.lower_case else "keeps case and accents"
        notes.append(f"The tokenizer {done}.")
    elif isinstance(vocabulary, MetaspaceVocabulary):
        blank = "A blank is put before a text that does not begin with one. " if vocabulary.prefix else ""
        notes.append(f"{blank}The tokenizer normalises text as the tokenizer.json that the weights came with does.")
    elif isinstance(vocabulary, ByteBpeVocabulary):
        normalizer = parse_json(vocabulary.tokenizer_json).get("normalizer")
        done = f"normalises text ({normalizer['type']})" if normalizer else "does not normalise text"
        notes.append(f"A blank is put before a text that does not begin with one. The tokenizer {done}.")
    elif isinstance(vocabulary, SentencePieceVocabulary):
        notes += _sentencepiece_notes(vocabulary)
    names = ", ".join(f"`{vocabulary.pieces[number]}`" for number in sorted(vocabulary.specials))
    return [*notes, f"Where {names} stand in a text, they are the special tokens."]


def _sentencepiece_notes(vocabulary: SentencePieceVocabulary) -> list[str]:
    proto = sentencepiece_json.read_model(vocabulary)
    spec, notes = proto.normalizer_spec, []
    if reason := sentencepiece_json.unrepresentable(vocabulary):
        notes.append(
            f"There is no tokenizer.json, because {reason}: AutoTokenizer cannot be used. Encode text with the library "
            f"sentencepiece and the .model file, and put the special tokens around it."
        )
    own = " and rules of its own for single characters; those for several are not applied" * (
        spec.name == "user_defined"
    )
    done = f"normalises text ({spec.name}{own})" if spec.precompiled_charsmap else "does not normalise text"
    blank = " A blank is put before the first word." if spec.add_dummy_prefix else ""
    notes.append(f"The tokenizer {done}.{blank}")
    if proto.trainer_spec.model_type == proto.trainer_spec.UNIGRAM:
        notes.append(
            "Where two ways to cut a word are equally good, as for `!!!` with the pieces `!!` and `!`, rounding decides, and "
            "transformers may cut it in another way than the sentencepiece library did in training."
        )
    # unused ids have no text, so that a reader need not know their names
    if vocabulary.layout:
        first = ", ".join(f"`{piece}`" for piece in LAYOUTS[vocabulary.layout].first)
        notes.append(f"The ids are those of {vocabulary.layout}: {first}, the pieces of {FAIRSEQ_FILE}, `<mask>`.")
    elif vocabulary.size - vocabulary.unused > vocabulary.model_size:
        own = vocabulary.pieces[vocabulary.model_size : vocabulary.size - vocabulary.unused]
        added = ", ".join(f"`{piece}`" for piece in own)
        notes.append(f"{added} are not in {SPIECE_FILE}; they have the ids after its own.")
    return notes


def vocabulary_of_folder(folder: pathlib.Path) -> Vocabulary | None:
    """Returns the vocabulary of a Hugging Face folder; None if it holds no file of one.

    A folder of `tokenizer_files` gives a vocabulary with the same fingerprint. The casing of WordPiece comes from
    tokenizer_config.json, else tokenizer.json, else a guess. ValueError if the files are not usable.
    """
    names = {item.name for item in folder.iterdir() if item.is_file()}
    known = {SETTINGS_FILE, TOKENIZER_FILE, WORDPIECE_FILE}
    if not (names & known or {VOCAB_JSON, MERGES_FILE} <= names or any(name.endswith(".model") for name in names)):
        return None
    vocabulary = load_vocabulary(folder)
    if CONFIG_FILE not in names or not isinstance(vocabulary, WordPieceVocabulary):
        return vocabulary
    try:
        lower = parse_json((folder / CONFIG_FILE).read_bytes(), dict).get("do_lower_case")
    except ValueError as error:
        raise ValueError(f"{folder / CONFIG_FILE}: no JSON object ({error}); repair the file or remove it") from None
    return load_vocabulary(folder, lower) if isinstance(lower, bool) else vocabulary
