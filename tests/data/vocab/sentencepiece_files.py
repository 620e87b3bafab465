"""Small SentencePiece models as the files that XLM-R, CamemBERT, DeBERTa-v2 and mmBERT come with."""

import functools
import io
import json
from collections.abc import Sequence
from typing import Any

import sentencepiece
import tokenizers
from sentencepiece import sentencepiece_model_pb2
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors

from spanjax.data.vocab.sentencepiece import LAYOUTS
from tests.made import made_sentences

SCRIPTS = (
    "The old sailor mended the broken clock; Ünïted naïve café, Ångström's ﬁrst test — isn't it?",
    "老船长在港口修理旧钟。东京 2024年～1月！ ｶﾞｷﾞｸﾞ ﾊﾟ ①② ㎏ ℃ Ｆｕｌｌ ｗｉｄｔｈ",
    "أصلح البحّار العجوز السّاعة القديمة في الميناء؟ فارسی می‌نویسم، اردو لکھائی",
    "עברית: שָׁלוֹם עולם, Ελληνικά και русский язык, українська мова",
    "नमस्ते दुनिया क़लम, বাংলা লেখা, ગુજરાતી લખાણ, ਪੰਜਾਬੀ ਲਿਖਤ, ଓଡ଼ିଆ ଲେଖା",
    "Tiếng Việt ở đây rất tốt; 한국어도 있습니다. ภาษาไทยทำน้ำ ພາສາລາວ",
    "Հայերեն տեքստ, ქართული ტექსტი, አማርኛ ጽሑፍ። ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ ᐃᓄᒃᑎᑐᑦ",
    "தமிழ் எழுத்து, తెలుగు వ్రాత, ಕನ್ನಡ ಬರಹ, മലയാളം എഴുത്ത്, සිංහල",
    "བོད་ཡིག ភាសាខ្មែរ မြန်မာစာ ᠮᠣᠩᠭᠣᠯ ꦗꦮ カタカナ ひらがな ㄅㄆㄇ ꆈꌠ ދިވެހި ܣܘܪܝܝܐ ⵜⴰⵎⴰⵣⵉⵖⵜ",
    "emoji 🙂👍🏽 ❤️ 1️⃣ 🇩🇪 12,345.67 € (½ of 10²) <tags> <0x41> ▁ ## a_b @user #tag 100% -- ...",
)
"""Text of more than 30 scripts, which the small models know in part: the rest is unknown, or bytes."""
TRAINING = [*made_sentences(300), *SCRIPTS[:6] * 3]
KINDS = ("xlm-roberta", "camembert", "deberta-v2", "mmbert")


@functools.cache
def model_file(kind: str, size: int = 290, texts: tuple[str, ...] = ()) -> bytes:
    """The .model file of XLM-R and CamemBERT (<unk>, <s>, </s> first) or of DeBERTa ([PAD], [CLS], [SEP], [UNK] first)."""
    names: dict[str, Any] = {}
    if kind == "deberta-v2":
        names = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
        names |= {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # pyright: ignore[reportAttributeAccessIssue]
        sentence_iterator=iter(texts or TRAINING),
        model_writer=model,
        vocab_size=size,
        character_coverage=0.98,
        minloglevel=2,
        num_threads=1,
        **names,
    )
    return model.getvalue()


def _token(number: int, name: str, special: bool = True, **more: bool) -> dict[str, Any]:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False} | more
    return {"id": number, "content": name, **flags, "special": special}


@functools.cache
def tokenizer_json(kind: str, size: int = 290, texts: tuple[str, ...] = ()) -> bytes:
    """The tokenizer.json of such a model, in the form that transformers gives it."""
    if kind == "mmbert":
        return _bpe_json(texts or TRAINING, size + 400)
    proto: Any = sentencepiece_model_pb2.ModelProto.FromString(  # pyright: ignore[reportAttributeAccessIssue]
        model_file(kind, size, texts)
    )
    own = [(piece.piece, piece.score) for piece in proto.pieces]
    if kind == "deberta-v2":
        vocab, names = own, ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]")
    else:
        layout = LAYOUTS[kind]
        first = [(name, -100.0 if name == "<unk>NOTUSED" else 0.0) for name in layout.first]
        vocab, names = [*first, *own[layout.skipped :], ("<mask>", 0.0)], ("<pad>", "<s>", "</s>", "<unk>", "<mask>")
    ids = {piece: number for number, (piece, _) in enumerate(vocab)} | (
        {"[MASK]": len(vocab)} if len(vocab) == len(own) else {}
    )
    tokenizer = tokenizers.Tokenizer(models.Unigram(vocab, unk_id=ids[names[3]], byte_fallback=False))
    steps: list[Any] = [normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap)]
    metaspace = pre_tokenizers.Metaspace("▁", "always")
    if kind == "deberta-v2":
        steps = [normalizers.Strip(), *steps, normalizers.Replace(Regex(" {2,}"), " ")]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([metaspace])  # pyright: ignore[reportAttributeAccessIssue]
    else:
        before = [pre_tokenizers.WhitespaceSplit(), metaspace]
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(before)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.normalizer = normalizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Metaspace("▁", "always")  # pyright: ignore[reportAttributeAccessIssue]
    around: Any = processors.TemplateProcessing(
        single=f"{names[1]} $A {names[2]}",
        pair=f"{names[1]} $A {names[2]} {names[2]} $B {names[2]}",
        special_tokens=[(name, ids[name]) for name in names[1:3]],
    )
    tokenizer.post_processor = around
    content = json.loads(tokenizer.to_str())
    more = {"[UNK]": {"normalized": True}, "<mask>": {"lstrip": True}}
    added = sorted({*names, *(piece for piece in ids if piece.endswith("NOTUSED"))}, key=ids.__getitem__)
    content["added_tokens"] = [_token(ids[name], name, **more.get(name, {})) for name in added]
    return json.dumps(content).encode()


def _bpe_json(texts: Sequence[str], size: int) -> bytes:
    """A BPE with bytes for unknown characters, blanks replaced by word marks, tokens for runs of blanks: as Gemma's."""
    tokenizer = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("(?<=.)(?=▁)"), "isolated")  # pyright: ignore
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=size, special_tokens=names, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    content = json.loads(tokenizer.to_str())
    content["pre_tokenizer"] = {
        "type": "Split",
        "pattern": {"String": " "},
        "behavior": "MergedWithPrevious",
        "invert": False,
    }
    steps = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    content["decoder"] = {"type": "Sequence", "decoders": steps}
    count = len(content["model"]["vocab"])
    added = [_token(number, name, lstrip=name == "<mask>") for number, name in enumerate(names[:5])]
    added += [_token(count, "<unused0>", special=False), _token(count + 1, "  ", special=False)]
    return json.dumps(content | {"added_tokens": added}).encode()
