"""The quick suite: every part of it for every encoder and seed, each result a file, so that any sitting resumes the one before.

WORKDIR/settings.json describes the suite, WORKDIR/quick/ENCODER/PART/SEED.json is a result. A result depends on the weights, the
data, the seed and the protocol alone.
"""

import functools
import io
import json
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from spanjax.bounds import raise_problems
from spanjax.cli import Progress
from spanjax.inference.encode import TextEncoder
from spanjax.inference.fill_mask import Filler
from spanjax.json_files import read_json
from spanjax.pretrained.model import Model
from spanjax.storage.local import write_whole
from spanjax.suite import language, probes, quick_data
from spanjax.suite.quick_data import ProbeData

PROTOCOL = 4
"""Version of the rules by which parts are scored: scores of two versions are not comparable. 1 probed the last layer alone, 2 of
sentences the label alone, 3 of tags the part of speech alone."""
RESTORE = "remove it to compute it again"
PROBES = ("tags", "entities", "relations", "sentences")
SEEDED = (*PROBES,)
"""Parts that depend on the seed: it divides the words."""
TASKS: Mapping[str, tuple[str, ...]] = {"tags": ("tags", "chunks"), "sentences": ("sentences", "order")}
"""Part -> the names of its files, each of which is probed for itself; of other parts their own name."""
DEFAULT_FILES: Mapping[str, tuple[str, ...]] = {
    "tags": ("ner/conll2003/eng.train.gz", "ner/conll2003/eng.valid.gz"),
    "chunks": ("ner/conll2003/eng.train.gz", "ner/conll2003/eng.valid.gz"),
    "entities": ("ner/conll2003/eng.train.gz", "ner/conll2003/eng.valid.gz"),
    "relations": (
        "relation/semeval2010_task8/TRAIN_FILE.TXT.gz",
        "relation/semeval2010_task8/TEST_FILE_FULL.TXT.gz",
    ),
    "sentences": ("glue/SST-2/train.tsv", "glue/SST-2/dev.tsv"),
    "order": ("wiki/validation.jsonl.gz",),
    "similarity": ("glue/STS-B/dev.tsv", "glue/STS-B/test_labelled.tsv"),
    "pairs": ("pairs/*.jsonl",),
    "fills": ("wiki/validation.jsonl.gz",),
}
"""Part, or task of one -> its files in the data folder, patterns of names among them."""
MOST = {
    "tags": 12_000,
    "chunks": 12_000,
    "entities": 10_000,
    "relations": 8000,
    "sentences": 12_000,
    "order": 6000,
    "similarity": 3000,
    "pairs": 200,
    "fills": 1000,
}
"""Part -> most texts that are read; of pairs, for each phenomenon."""


class Opened(NamedTuple):
    """An encoder in use."""

    model: Model
    encoder: TextEncoder
    folder: pathlib.Path | None
    """Vectors of unfinished parts; None keeps none."""


def files_of(folder: pathlib.Path, named: Mapping[str, Sequence[str]]) -> dict[str, list[pathlib.Path]]:
    """Returns the files of every part that has some: the named ones, else those of DEFAULT_FILES; all may have * and ?.

    ValueError lists named ones that do not exist.
    """
    found, problems = dict[str, list[pathlib.Path]](), list[str]()
    for part, own in DEFAULT_FILES.items():
        for name in filter(None, named.get(part, own)):
            files = sorted(folder.glob(name)) if any(sign in name for sign in "*?") else [folder / name]
            files = [file for file in files if file.is_file()]
            if not files and part in named:
                problems.append(f"--files {part}={name}: no such file in {folder}")
            found.setdefault(part, []).extend(files)
    raise_problems(problems)
    return {part: files for part, files in found.items() if files}


class QuickSuite:
    """Data of the suite, read when a part first needs them, and the computation of its parts."""

    def __init__(self, files: Mapping[str, Sequence[pathlib.Path]], seeds: Sequence[int], share: float = 1.0):
        """`share` reduces the texts of every part."""
        self.files, self.seeds, self.share = files, seeds, share
        # each is read or computed once, for all encoders
        self.read = functools.cache(self._read)
        self.divided = functools.cache(lambda part, seed: probes.divided(self.read(part), seed))
        self.overlap = functools.cache(self._overlap)

    @property
    def parts(self) -> list[str]:
        """Parts that have files, in their order."""
        inner = {task for tasks in TASKS.values() for task in tasks} - TASKS.keys()
        return [part for part in DEFAULT_FILES if part not in inner and self.tasks_of(part)]

    def tasks_of(self, part: str) -> list[str]:
        """Returns the names of a part's files that there are."""
        return [task for task in TASKS.get(part, (part,)) if self.files.get(task)]

    def seeds_of(self, part: str, random: bool) -> list[int]:
        """Returns the seeds of a part: one where the seed changes nothing."""
        return list(self.seeds) if random or part in SEEDED else [self.seeds[0]]

    def _read(self, part: str) -> Any:
        reader: Callable[..., Any] = {
            "tags": quick_data.tags,
            "chunks": functools.partial(quick_data.tags, column=2),
            "entities": quick_data.entities,
            "relations": quick_data.relations,
            "sentences": quick_data.sentences,
            "order": quick_data.orders,
            "similarity": quick_data.similarity,
            "pairs": quick_data.minimal_pairs,
            "fills": quick_data.passages,
        }[part]
        return reader(self.files[part], max(1, round(MOST[part] * self.share)))

    def _overlap(self) -> np.ndarray:
        return probes.overlap(self.read("similarity"))

    def results(self, opened: Opened, part: str, seeds: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yields the result of a part for every seed; the vectors are computed once."""
        if part in PROBES:
            yield from self._probed(opened, part, seeds)
        elif part == "similarity":
            yield seeds[0], self._similar(opened)
        else:
            yield seeds[0], self._filled(opened, part)

    def _vectors(self, opened: Opened, task: str) -> np.ndarray:
        """Returns the vectors of a task's items in every probed layer, from the file of an earlier sitting if it is whole."""
        data, file = self.read(task), opened.folder and opened.folder / f"{task}.npy"
        if file and file.is_file():
            try:
                found = np.load(file, allow_pickle=False)
                if found.ndim == 3 and found.shape[1] == len(data.items):
                    return found
            except (ValueError, OSError, EOFError):
                pass  # a damaged file is computed again
        vectors = probes.item_vectors(opened.encoder, data)
        if file is None:
            return vectors
        content = io.BytesIO()
        np.save(content, vectors)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content.getvalue())
        return vectors

    def _probed(self, opened: Opened, part: str, seeds: Sequence[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        tasks, layers = self.tasks_of(part), probes.probed_layers(opened.model.encoder.layers)
        vectors: dict[str, np.ndarray] = {}
        for task in tasks:
            same = [known for known in vectors if self.read(known).reads_as(self.read(task))]
            vectors[task] = vectors[same[0]] if same else self._vectors(opened, task)
        for seed in seeds:
            figures, items, right, before = dict[str, Any](), list[int](), "", 0
            for task in tasks:
                labels = [item.label for item in self.read(task).items]
                report, found, common = self._probe(task, seed, vectors[task])
                gold = np.array(labels)[report]
                own = found.predicted == gold
                figures[task] = {
                    "score": 100 * float(own.mean()),
                    "baseline": 100 * float((gold == common).mean()),
                    "layer": None if found.layer is None else layers[found.layer],
                    "penalty": None if found.penalty == math.inf else found.penalty,
                    "first": before,
                }
                # the items of all tasks have one numbering
                items += (report + before).tolist()
                right += "".join("01"[int(each)] for each in own)
                before += len(labels)
            # a task with more items counts no more
            means = {key: language.mean([each[key] for each in figures.values()]) for key in ("score", "baseline")}
            yield seed, {**means, "tasks": figures, "items": items, "right": right}

    def _probe(self, task: str, seed: int, vectors: np.ndarray) -> tuple[np.ndarray, probes.Probed, str]:
        """Returns the reported items of a task, the probe's answers, and the most frequent label of training."""
        data: ProbeData = self.read(task)
        labels, parts = [item.label for item in data.items], self.divided(task, seed)
        # thinning can leave nothing of a small file
        empty = [name for name, numbers in parts.items() if len(numbers) < 2]
        if empty:
            raise ValueError(
                f"{task}: {len(data.items):,} items leave none to {' and '.join(empty)}: name larger files"
            )
        names, counts = np.unique(np.array(labels)[parts["train"]], return_counts=True)
        return parts["report"], probes.probe(vectors, labels, parts), str(names[counts.argmax()])

    def _similar(self, opened: Opened) -> dict[str, Any]:
        pairs = self.read("similarity")
        cosine_P, gold_P = probes.cosines(opened.encoder, pairs), np.array(pairs.scores)
        partial = probes.partial_spearman(gold_P, cosine_P, self.overlap())
        plain = probes.partial_spearman(gold_P, cosine_P, np.zeros((len(gold_P), 0)))
        values = [round(float(each), 7) for each in cosine_P]
        return {"score": partial, "baseline": 0.0, "spearman": plain, "values": values}

    def _filled(self, opened: Opened, part: str) -> dict[str, Any]:
        model = opened.model
        filler = Filler(model) if model.vocabulary and model.objective().fill_heads else None
        if filler is None or not language.can_fill(filler):
            return {"score": None, "baseline": None}
        if part == "pairs":
            found = language.right_pairs(filler, self.read(part))
            means = {name: 100 * language.mean(values) for name, values in found.items()}
            values = [value for each in found.values() for value in each]
            return {"score": 100 * language.mean(values), "baseline": 50.0, "phenomena": means, "values": values}
        # the score is of words by the token head: spans and the boundary head are in the details
        fills, figures = language.fills(filler, self.read(part)), dict[str, dict[str, float]]()
        for key in sorted({(each.head, each.kind, each.band) for each in fills}):
            some = [each for each in fills if (each.head, each.kind, each.band) == key]
            figures["/".join(key)] = {
                "right": 100 * language.mean([each.right for each in some]),
                "nats": language.mean([each.nats for each in some]),
                "fills": len(some),
            }
        words = [each for each in fills if each.kind == "word" and each.head == filler.score_names[0]]
        return {
            "score": 100 * language.mean([each.right for each in words]),
            "baseline": 0.0,
            "nats": language.mean([each.nats for each in words]),
            "figures": figures,
            "values": [each.right for each in words],
        }


def missing_seeds(folder: pathlib.Path, part: str, seeds: Sequence[int]) -> list[int]:
    """Returns the seeds of a part without a readable result in an encoder's folder."""
    return [seed for seed in seeds if not (folder / part / f"{seed}.json").is_file()]


def run_quick(
    suite: QuickSuite,
    encoders: Mapping[str, Callable[[int], Model]],
    random: set[str],
    folder: pathlib.Path,
    progress: Progress,
) -> None:
    """Computes every missing result. `encoders` opens each by its name, for a seed; those in `random` depend on it."""
    for name, open_model in encoders.items():
        rounds = [[seed] for seed in suite.seeds] if name in random else [list(suite.seeds)]
        for seeds in rounds:
            work = [
                (
                    part,
                    missing_seeds(folder / name, part, [s for s in suite.seeds_of(part, name in random) if s in seeds]),
                )
                for part in suite.parts
            ]
            if not any(missing for _, missing in work):
                continue
            progress.text = f"{name}, loading"
            vectors = folder / name / "vectors" / str(seeds[0])
            model = open_model(seeds[0])
            opened = Opened(model, TextEncoder(model), vectors)
            for part, missing in work:
                progress.text = f"{name}, {part}"
                for seed, result in suite.results(opened, part, missing) if missing else ():
                    file = folder / name / part / f"{seed}.json"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    write_whole(file, json.dumps(result) + "\n")
                    progress.done += 1
                # vectors of finished parts would fill the disk
                for task in suite.tasks_of(part):
                    (vectors / f"{task}.npy").unlink(missing_ok=True)


def read_results(
    folder: pathlib.Path, encoders: Sequence[str], parts: Sequence[str]
) -> dict[str, dict[str, dict[int, Any]]]:
    """Reads encoder -> part -> seed -> result; JsonError for a damaged one."""
    return {
        name: {
            part: {
                int(file.stem): read_json(file, dict, RESTORE)
                for file in sorted((folder / name / part).glob("*.json"), key=lambda file: int(file.stem))
            }
            for part in parts
        }
        for name in encoders
    }
