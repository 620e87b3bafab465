"""Which mentions of a text mean the same, by a model that was fine-tuned for coreference."""

import dataclasses
import pathlib
import sys

from spanjax.applying import open_model
from spanjax.data.batch import batch_size_problems
from spanjax.data.paths import output_problem
from spanjax.predict.answering import Batch, Folder, command, json_line
from spanjax.predict.coref_page import coref_page
from spanjax.tasks.base import Examples
from spanjax.tasks.coref import Coref
from spanjax.tasks.coref_answers import shown
from spanjax.tasks.coref_files import read_documents
from spanjax.training.compilation_cache import CompilationCache
from spanjax.tuning import read_examples


@dataclasses.dataclass(frozen=True)
class Clusters:
    """Where mentions are looked for."""

    model: Folder
    text: tuple[str, ...]
    """Files: .jsonl with `text`, `sentences` or `words` a line, .json with a list of such; .conll columns; any other is a text,
    one document."""
    language: str = ""
    """Language of texts, a code that spaCy has rules for (en, de, zh); empty: as in the training."""
    output: str = ""
    """Folder for clusters.jsonl, predictions.conll, predictions.jsonl (words) and clusters.html; empty prints the first."""
    batch_size: Batch = 1
    skip_bad: bool = False
    """Leave out documents that cannot be used instead of refusing the file."""
    compilation_cache: CompilationCache = True


@dataclasses.dataclass(frozen=True)
class Texts(Coref):
    """Coreference where a file whose ending is of no known layout is a text."""

    def read(self, path: pathlib.Path) -> Examples:
        """See `Coref.read`."""
        return self.counted(read_documents(path, self.language, others_are_text=True))


def find(options: Clusters) -> None:
    """Clusters of all documents of the files."""
    folder = pathlib.Path(options.output) if options.output else None
    problems = batch_size_problems(options.batch_size)
    if folder and (problem := output_problem(folder)):
        problems.append(f"--output {folder}: {problem}")
    if problems:
        raise ValueError("\n".join(problems))
    settings = {"language": options.language} if options.language else {}
    model = open_model(options.model, options.batch_size, ("Coref",), skip_bad=options.skip_bad, **settings)
    documents, problems = read_examples(Texts(**vars(model.task)), options.text, "--text")
    if problems:
        raise ValueError("\n".join(problems))
    for problem in documents.problems:
        print(f"coref: left out: {problem}", file=sys.stderr)
    answers = model.predict(documents).predictions
    encoding = "utf-8" if folder else sys.stdout.encoding or "utf-8"
    lines = [json_line(shown(*each), encoding) for each in zip(documents, answers, strict=True)]
    if folder is None:
        print("\n".join(lines))
        return
    folder.mkdir(parents=True, exist_ok=True)
    own = [dataclasses.replace(document, clusters=None) for document in documents]
    files = [folder / "clusters.jsonl", folder / "clusters.html", *model.task.write(folder, own, answers)]
    files[0].write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    files[1].write_text(coref_page(documents, [answer.clusters for answer in answers]), encoding="utf-8")
    print("\n".join(f"written: {file}" for file in files))


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    return command(Clusters, __doc__, find, "find clusters", arguments)
