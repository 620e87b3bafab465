"""A small data folder of the quick suite, made in code: words without meaning whose ending never tells their tag."""

import json
import pathlib
import random


def _word(rng: random.Random) -> str:
    return "".join(rng.choice("bdfgklmnprst") + rng.choice("aeiou") for _ in range(rng.randint(2, 3)))


def made_folder(folder: pathlib.Path, size: int = 500, seed: int = 0) -> pathlib.Path:
    """Writes every part in the default layout of the suite, and returns the folder."""
    rng = random.Random(seed)
    nouns, verbs, names = ([_word(rng) for _ in range(size // 2)] for _ in range(3))
    columns, relations, sentences, pairs, documents = [], [], ["sentence\tlabel"], [], []
    similar = ["index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"]
    for number in range(size):
        noun, verb, name = rng.choice(nouns), rng.choice(verbs), rng.choice(names).capitalize()
        place, other = rng.choice(names).capitalize(), rng.choice(nouns)
        columns += ["the DT I-NP O", f"{noun} NN I-NP O", f"{verb} VB I-VP O", "near IN I-PP O"]
        # in either order: an entity's place in the sentence must not tell its type
        called = rng.sample([f"{name} NNP I-NP I-PER", f"{place} NNP I-NP I-LOC"], 2)
        columns += [called[0], "in IN I-PP O", called[1], ""]
        first, second = rng.sample((f"<e1>{noun}</e1>", f"<e2>{other}</e2>"), 2)
        kind = rng.choice(["Cause-Effect(e1,e2)", "Component-Whole(e2,e1)", "Other"])
        relations += [f'{number}\t"The {first} {verb} the {second} ."', kind, "Comment:", ""]
        sentences.append(f"the {noun} {verb} the {other}\t{int(noun < other)}")
        same = rng.random()
        similar.append(
            f"{number}\tn\tn\tn\t0\tn\tn\tthe {noun} {verb}\tthe {noun if same > 0.5 else other} {verb}\t{5 * same:.2f}"
        )
        pairs.append({"sentence_good": f"the {noun} {verb}", "sentence_bad": f"{verb} the {noun}", "UID": "order"})
        words = " ".join(rng.choice(nouns[:20] + verbs[:5]) for _ in range(14))
        documents.append({"text": f"The {words}. The {noun} {verb} the {other}."})
    texts = {
        "ner/conll2003/eng.train.gz": "\n".join(columns),
        "relation/semeval2010_task8/TRAIN_FILE.TXT.gz": "\n".join(relations),
        "glue/SST-2/train.tsv": "\n".join(sentences),
        "glue/STS-B/dev.tsv": "\n".join(similar),
        "pairs/order.jsonl": "\n".join(map(json.dumps, pairs[:8])),
        "wiki/validation.jsonl.gz": "\n".join(map(json.dumps, documents)),
    }
    import gzip

    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = (text + "\n").encode()
        path.write_bytes(gzip.compress(content, mtime=0) if name.endswith(".gz") else content)
    return folder
