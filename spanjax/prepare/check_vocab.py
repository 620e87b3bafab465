"""python -m spanjax.prepare check-vocab --input GLOB [GLOB ...] --vocab FILE: are our ids those of the plain libraries?

Compares, sentence by sentence, the ids that prepare gives with those that Hugging Face tokenizers or sentencepiece give for
the raw text, and prints every kind of difference with a count and an example; then how well the vocabulary fits the text.
Exit codes: 0 all differences are explained, 1 some are not, 2 wrong input, 130 stopped by Ctrl-C.
"""

import collections
import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Annotated

import numpy as np
import tyro

from spanjax.bounds import OrAll, collect, flag_problems, raise_problems
from spanjax.cli import exit_code, parse_options
from spanjax.data.sources.cleaning import Cleaning
from spanjax.data.sources.sentences import sentences
from spanjax.data.vocab.fertility import measure
from spanjax.data.vocab.loading import Vocabulary, load_vocabulary
from spanjax.data.vocab.parity import OTHER, Difference, compare, graph_difference, reference
from spanjax.prepare.options import TextInput
from spanjax.storage.remote_outputs import on_local_files

_EXAMPLE = 30  # characters shown on either side


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckVocabulary(TextInput):
    """Compares our ids with those of the plain libraries on a corpus, and measures how well the vocabulary fits it."""

    vocab: str
    """Vocabulary: a vocab.txt, a .model file, a tokenizer.json, or a folder with one of them."""
    documents: OrAll = 1000
    """Number of documents to check, from the start of the input; 0 takes all."""
    casing: Annotated[bool | None, tyro.conf.arg(name="lower-case")] = None
    """Lower-case WordPiece text: True, False, or None for the vocabulary's own setting."""
    graph: bool = False
    """Compare with the encoding in the TensorFlow graph as well."""


def check_vocabulary(options: CheckVocabulary) -> int:
    """Prints the report and returns the number of sentences with unexplained differences; ValueError on wrong input."""
    problems = flag_problems(options)
    vocabulary = collect(problems, load_vocabulary, options.vocab, options.casing)
    skipped: collections.Counter[str] = collections.Counter()
    texts = collect(problems, _texts, options, skipped)
    if texts == []:
        problems.append(f"--input {' '.join(options.input)}: no documents in it")
    raise_problems(problems, "")
    cleaning = Cleaning(options.normalization)
    cleaned = [sentence for text in texts for sentence in sentences(cleaning(text))]
    print(
        f"{options.vocab}: {vocabulary.kind}, {vocabulary.size:,} pieces, {vocabulary.casing}, {len(texts):,} documents"
    )
    for kind, count in skipped.items():
        print(f"skipped: {count:,} {kind}")
    plain = "sentencepiece" if vocabulary.kind == "sentencepiece" else "Hugging Face tokenizers"
    unexplained = _report(f"{plain} on raw text", compare(reference(vocabulary, options.vocab), texts, cleaning))
    if options.graph:
        unexplained += _report("the TensorFlow graph on clean text", _graph_differences(vocabulary, cleaned))
    figures = measure(vocabulary, cleaned)
    print("\nfit\n  " + "\n  ".join(figures.lines()))
    if figures.unknown:
        print("\nmost frequent unknown text\n" + "\n".join(figures.unknown_lines()))
    return unexplained


def _texts(options: CheckVocabulary, skipped: collections.Counter[str]) -> list[str]:
    # a list, as the comparison and the measurement of the fit each read all texts
    documents = options.source().documents(skipped)
    return [each.text for each in itertools.islice(documents, abs(options.documents) or None)]


def _graph_differences(vocabulary: Vocabulary, cleaned: Sequence[str]) -> Iterable[Difference | None]:
    from spanjax.data.feed.feeds import import_tensorflow

    import_tensorflow()  # quietly, and only if requested
    from spanjax.data.vocab.seqio import encode_in_graph

    found = zip(cleaned, vocabulary.encode(cleaned), encode_in_graph(vocabulary, cleaned), strict=True)
    for text, ours, graph in found:
        yield None if np.array_equal(ours, graph) else graph_difference(vocabulary, text, ours, graph)


def _report(title: str, differences: Iterable[Difference | None]) -> int:
    """Prints the kinds of differences; returns the number of sentences that differ without an explanation."""
    counts: collections.Counter[str] = collections.Counter()
    examples: dict[str, Difference] = {}
    total = same = 0
    for difference in differences:
        total += 1
        same += difference is None
        for kind in difference.kinds if difference else ():
            counts[kind] += 1
            examples.setdefault(kind, difference)  # pyright: ignore[reportArgumentType]
    print(f"\n{title}: {same:,} of {total:,} sentences have the same ids")
    for kind, count in sorted(counts.items(), key=lambda each: (each[0] == OTHER, -each[1], each[0])):
        example = examples[kind]
        print(f"  {count:8,}  {kind}" + (" (unexplained)" if kind == OTHER else ""))
        print(f"{'':12s}text    {_excerpt(kind, example.text)}")
        print(f"{'':12s}ours    {example.ours}\n{'':12s}theirs  {example.theirs}")
    return counts[OTHER]


def _excerpt(kind: str, text: str) -> str:
    """Returns the text around the character that the kind names, escaped if not printable."""
    code = kind.partition("U+")[2].partition(" ")[0]
    place = max(0, text.find(chr(int(code, 16)))) if code else 0
    cut = text[max(0, place - _EXAMPLE) : place + _EXAMPLE] if code else text[: 3 * _EXAMPLE]
    return ascii(cut) if not cut.isprintable() else repr(cut)


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    options = parse_options(
        CheckVocabulary,
        args=arguments,
        prog="python -m spanjax.prepare check-vocab",
        description=__doc__,
        elsewhere=("input",),
        stores=("vocab",),
    )

    def work() -> int:
        unexplained = on_local_files(check_vocabulary, options, ["vocab"])
        if unexplained:
            print(f"\n{unexplained:,} sentences differ without an explanation; please report the example")
        return 1 if unexplained else 0

    return exit_code("check-vocab", work, cannot=f"cannot check {options.vocab}")
