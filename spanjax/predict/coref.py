"""Clusters of mentions that mean the same, by a model that was fine-tuned for coreference."""

import dataclasses
import pathlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import tyro

from spanjax.bounds import AtLeast0, BatchSize, flag_problems, raise_problems
from spanjax.cli import Code
from spanjax.predict.answering import Folder, command, json_line
from spanjax.storage.outputs import files_problem, output_files
from spanjax.training.compilation_cache import CompilationCache

Documents = Annotated[
    BatchSize,
    tyro.conf.arg(help="Documents that go through the model together, fewer of long ones: at most 12,288 positions."),
]


@dataclasses.dataclass(frozen=True)
class Clusters:
    """Options of `coref`."""

    model: Folder
    text: tuple[str, ...]
    """Files, or folders of such with their subfolders: .jsonl with `text`, `sentences` or `words` a line, .json with a list of
    such; .conll columns; .conllu of CorefUD; .tsv of GAP; any other is a text, one document."""
    language: str = ""
    """Language of texts, a code that spaCy has rules for (en, de, zh); empty: as in the training."""
    output: str = ""
    """Folder for clusters.jsonl, predictions.conll, predictions.jsonl (words) and clusters.html; empty prints the first."""
    overwrite: bool = False
    """Write into a folder that holds files, replacing those of the same names."""
    memory: AtLeast0 = 0
    """Read longer documents in windows, each with this number of the newest spans before it, say 2000: memory does not grow
    with the document. 0 resolves every document as a whole, among at most `model.max_spans` spans."""
    window: AtLeast0 = 0
    """Segments of a window; 0: as in the model's settings."""
    batch_size: Documents = 32
    skip_bad: bool = False
    """Skip documents that cannot be used instead of refusing the file."""
    code: Code = ()
    compilation_cache: CompilationCache = True


def _of_texts(task: Any) -> Any:
    """Returns coreference with the settings of `task` that reads files with an unknown ending as plain text."""
    from spanjax.tasks.coref import Coref  # imports jax, which --help does not need
    from spanjax.tasks.coref.files import read_documents

    class Texts(Coref):
        def read(self, path: pathlib.Path) -> Any:
            return self.counted(read_documents(path, self.language, others_are_text=True))

    return Texts(**vars(task))


def files_of(names: Sequence[str]) -> list[str]:
    """Replaces each folder by the files in it and in its subfolders, in the order of their names, without hidden ones.

    ValueError for a folder without files.
    """
    found: list[str] = []
    for name in names:
        folder = pathlib.Path(name)
        if not folder.is_dir():
            found.append(name)
            continue
        inside = sorted(path for path in folder.rglob("*") if path.is_file())
        files = [
            str(path) for path in inside if not any(part.startswith(".") for part in path.relative_to(folder).parts)
        ]
        if not files:
            raise ValueError(f"--text {name}: a folder without files; expected texts or documents in it")
        found += files
    return found


def find(options: Clusters) -> None:
    """Finds the clusters of all documents of the files and writes or prints them."""
    # these import jax, which --help does not need
    from spanjax.experiment.finetune import read_examples
    from spanjax.inference.task_model import open_model
    from spanjax.predict.coref_page import coref_page
    from spanjax.tasks.coref.answers import prediction_json

    folder = pathlib.Path(options.output) if options.output else None
    problems = flag_problems(options)
    if folder and (problem := files_problem(folder, options.overwrite)):
        problems.append(f"--output {folder}: {problem}")
    raise_problems(problems)
    given = {name: getattr(options, name) for name in ("language", "memory", "window")}
    settings = {name: value for name, value in given.items() if value}
    model = open_model(
        options.model, options.batch_size, predict_command="coref", skip_bad=options.skip_bad, **settings
    )
    documents, problems = read_examples(_of_texts(model.task), files_of(options.text), "--text")
    raise_problems(problems)
    for problem in documents.problems:
        print(f"coref: skipped: {problem}", file=sys.stderr)
    task: Any = model.task
    for document in documents:
        most, spans = task.model.max_spans, task.model.spans_per_piece * len(document.words)
        if spans > most and not task.memory:
            words = f"{len(document.words):,} words, of which the model keeps {most:,} spans"
            print(f"coref: {document.name} has {words}: --memory 2000 reads it in windows", file=sys.stderr)
    answers = model.predict(documents).predictions
    # A terminal without UTF-8 gets escapes; the file is always UTF-8.
    encoding = "utf-8" if folder else sys.stdout.encoding or "utf-8"
    lines = [json_line(prediction_json(*each), encoding) for each in zip(documents, answers, strict=True)]
    if folder is None:
        print("\n".join(lines))
        return
    own = [dataclasses.replace(document, clusters=None) for document in documents]
    with output_files(folder) as work:
        (work / "clusters.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        page = coref_page(documents, [answer.clusters for answer in answers])
        (work / "clusters.html").write_text(page, encoding="utf-8")
        names = ["clusters.jsonl", "clusters.html", *(file.name for file in model.task.write(work, own, answers))]
    print("\n".join(f"written: {folder / name}" for name in names))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Clusters, __doc__, find, "find clusters", arguments, texts=())
