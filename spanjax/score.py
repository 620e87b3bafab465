"""python -m spanjax.score TASK --gold FILE --predictions FILE [FILE]: official scores of the predictions of any system.

Scores come with 95 % bootstrap intervals. Two files of predictions are compared on the same examples: differences with their
intervals, a paired permutation test, and McNemar's test where a prediction is right or wrong. TASK and its files:

  squad1, mrqa    gold as for training; predictions a JSON object {id: answer}, or lines {"id", "prediction"}
  squad2          the same; --na-probs a JSON object {id: number}, higher is less answerable, and --threshold
  quoref          the same; an answer is a text or a list of texts
  tacred          gold in TACRED's JSON, or a label a line; predictions a label a line, or lines {"id", "prediction"}
  semeval         gold as released, or `id<TAB>label`; predictions `id<TAB>label`, or lines {"id", "prediction"}
  ner             columns with the tag last, in any scheme; without --gold the last two columns are gold and predicted
  CoLA, SST-2, MRPC, STS-B, QQP, MNLI-m, MNLI-mm, QNLI, RTE, WNLI, AX, SNLI
                  gold as for training; predictions `index<TAB>prediction` with a header, as submitted, or a label a line, or
                  lines {"id", "prediction"}
  coref           key and response: columns with coreference last, two or more, or JSON lines; equal names are compared

Files may be compressed. Exit codes: 0 done, 2 wrong input.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import rich.console
import rich.table
import tyro

from spanjax.bounds import AtLeast0, flag_problems, raise_problems
from spanjax.cli import exit_code, parse_options, visible_name
from spanjax.json_files import parse_json
from spanjax.scoring import coref, entities, glue, quoref, relation, squad, units
from spanjax.scoring.checks import counted
from spanjax.scoring.resampling import Difference, Interval, Units, differences, intervals
from spanjax.scoring.significance import McNemar, mcnemar
from spanjax.storage.remote_outputs import on_local_files

PERMUTATIONS = 10  # permutations of the test for every sample of the bootstrap: a p-value needs more of them


@dataclasses.dataclass(frozen=True)
class Score:
    """Options of the scores."""

    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """squad1, squad2, mrqa, quoref, tacred, semeval, ner, coref, or the name of a task of GLUE."""
    predictions: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE [FILE]")]
    """Predictions of one system, or of two to be compared."""
    gold: Annotated[str, tyro.conf.arg(metavar="FILE")] = ""
    """Examples with their labels."""
    na_probs: Annotated[tuple[str, ...], tyro.conf.arg(metavar="FILE [FILE]")] = ()
    """squad2: null odds, or probabilities that a question has no answer, a file for each of --predictions."""
    threshold: float = 1.0
    """squad2: no answer where the null odds are above this, 1 as in the official script."""
    missing_is_wrong: bool = False
    """Count an example without a prediction as wrong, as the scripts of SQuAD 1.1, MRQA and SemEval do; by default an error."""
    samples: AtLeast0 = 1000
    """Samples of the bootstrap, and a tenth of the permutations; 0 computes the scores alone."""
    seed: AtLeast0 = 0
    """Choice of the samples."""
    columns: Annotated[tuple[str, ...], tyro.conf.arg(metavar="ROLE=COLUMN [...]")] = ()
    """Columns of --gold, as for training: text=review label=stars."""
    json: bool = False
    """Print one JSON object."""


class Scored(NamedTuple):
    """One system."""

    scores: Mapping[str, float]
    """Official scores."""
    units: Units
    names: Sequence[str]
    """Units, in their order."""
    right: Sequence[bool] | None
    """For each unit, where a prediction is right or wrong."""


# --- files ---


def _path(name: str) -> pathlib.Path:
    return pathlib.Path(name)


def _task_examples(task: Any, options: Score) -> list[Any]:
    """Reads the gold file by the reader of a task; ValueError with the problems of its examples."""
    task = dataclasses.replace(task, columns=options.columns)
    raise_problems(task.column_problems())
    found = task.read(_path(options.gold))
    raise_problems(found.problems[:20], f"--gold {options.gold}:")
    unlabelled = [str(getattr(each, "name", number)) for number, each in enumerate(found) if not task.is_labelled(each)]
    raise_problems(counted(unlabelled, "examples have no label", "scores need one for each"), f"--gold {options.gold}:")
    raise_problems([] if found else [f"--gold {options.gold}: no example; expected one at least"])
    return list(found)


def _lines(name: str) -> list[str]:
    from spanjax.data.sources.tables import read_lines

    return [line.rstrip("\r\n") for _, line in read_lines(_path(name))]


def _by_id(name: str) -> dict[str, Any]:
    """Reads predictions by id: one JSON object, or lines {"id", "prediction"}."""
    text = "\n".join(_lines(name))
    try:
        found = parse_json(text, dict)
        if not {"id", "prediction"} <= found.keys():
            return {str(key): value for key, value in found.items()}
    except ValueError:
        pass  # lines, or a fault that their reader names with its line
    records: dict[str, Any] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = parse_json(line, dict)
            identity, prediction = str(record["id"]), record["prediction"]
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{name}:{number}: {line[:60]!r} ({error}): expected a JSON object of ids and predictions in the whole file,"
                ' or a line {"id", "prediction"} for each'
            ) from None
        raise_problems([f"{name}:{number}: id {identity!r} again; expected it once"] if identity in records else [])
        records[identity] = prediction
    return records


def _is_json(lines: Sequence[str]) -> bool:
    return next((line for line in lines if line.strip()), "").lstrip().startswith("{")


def _in_order(name: str, ids: Sequence[str], header: bool, missing_is_wrong: bool = False) -> list[str]:
    """Reads a prediction for every example: a line each in order, `id<TAB>prediction` (`header`: below a header), or JSON.

    A missing one is an error, or "", which is no label.
    """
    lines = [line for line in _lines(name) if line.strip()]
    if _is_json(lines):
        found = {key: str(value) for key, value in _by_id(name).items()}
    elif any("\t" in line for line in lines):
        # ids of a leaderboard's file may come in any order
        rows = [line.split("\t", 1) for line in lines[header:]]
        bare = [line for line, row in zip(lines[header:], rows, strict=True) if len(row) != 2]
        problems = counted(bare, "lines have no tab", "expected an id, a tab and a prediction")
        raise_problems(problems, f"{name}:")
        found = {row[0].strip(): row[1].strip() for row in rows}
    else:
        raise_problems(
            [f"{name} has {len(lines):,} lines for {len(ids):,} examples: expected one prediction a line, in order"]
            if len(lines) != len(ids)
            else []
        )
        return [line.strip() for line in lines]
    missing = [] if missing_is_wrong else [each for each in ids if each not in found]
    raise_problems(counted(missing, "ids have no prediction", "expected one for each example"), f"{name}:")
    known = {*ids}
    foreign = [each for each in found if each not in known]
    raise_problems(counted(foreign, "predicted ids are not in --gold", "expected ids of its examples"), f"{name}:")
    return [found.get(each, "") for each in ids]


# --- tasks ---


def _texts(options: Score, number: int) -> tuple[dict[str, Sequence[str]], dict[str, Any]]:
    """Returns answers and predictions of questions by id."""
    from spanjax.tasks.squad import Questions

    settings = Questions.score_names[options.task]
    examples = _task_examples(Questions(**settings), options)
    gold: dict[str, Sequence[str]] = {each.name: each.answers or () for each in examples}
    return gold, _by_id(options.predictions[number])


def _of_questions(options: Score, number: int) -> Scored:
    gold, predictions = _texts(options, number)
    name = "MRQA" if options.task == "mrqa" else "SQuAD 1.1"
    scores = squad.score_v1(gold, predictions, missing_is_wrong=options.missing_is_wrong, metric=name)
    found = units.questions_v1(gold, predictions)
    return Scored(scores, found, list(gold), [bool(each) for each in found.sums_NS[:, 0]])


def _of_squad2(options: Score, number: int) -> Scored:
    gold, predictions = _texts(options, number)
    if options.missing_is_wrong:
        # a text that no answer can equal: the official script of 2.0 knows no missing prediction
        predictions = {**{key: "\x00missing" for key in gold}, **predictions}
    odds = _by_id(options.na_probs[number]) if options.na_probs else None
    wrong = [key for key, value in (odds or {}).items() if isinstance(value, bool | str) or value is None]
    raise_problems(counted(wrong, "ids have null odds that are no number", "expected one for each id"), "--na-probs:")
    scores = squad.score_v2(gold, predictions, odds, options.threshold)
    found = units.questions_v2(gold, predictions, odds, options.threshold)
    return Scored(scores, found, list(gold), [bool(each) for each in found.sums_NS[:, 0]])


def _of_quoref(options: Score, number: int) -> Scored:
    gold, predictions = _texts(options, number)
    lists = {key: [value] if isinstance(value, str) else value for key, value in predictions.items()}
    if options.missing_is_wrong:
        lists = {**{key: [""] for key in gold}, **lists}
    scores, found = quoref.score(gold, lists), units.span_sets(gold, lists)
    return Scored(scores, found, list(gold), [bool(each) for each in found.sums_NS[:, 0]])


def _relations(options: Score, number: int) -> tuple[list[str], list[str], list[str]]:
    """Returns ids, gold and predicted relations."""
    from spanjax.data.sources.tables import TABLES, kind_of
    from spanjax.tasks.relation import Relation

    path, semeval = _path(options.gold), options.task == "semeval"
    lines = [line for line in _lines(options.gold) if line.strip()] if kind_of(path) not in TABLES else []
    if lines and not any(line.lstrip().startswith(("{", "[")) or "<e1>" in line for line in lines[:1]):
        rows = [line.split("\t", 1) if semeval else [str(place), line] for place, line in enumerate(lines)]
        wrong = [line for line, row in zip(lines, rows, strict=True) if len(row) != 2]
        raise_problems(counted(wrong, "lines have no tab", "expected an id, a tab and a label"), f"{options.gold}:")
        ids, gold = [row[0].strip() for row in rows], [row[1].strip() for row in rows]
    else:
        scheme: Any = options.task
        examples = _task_examples(Relation(scheme=scheme, marking="markers"), options)
        ids, gold = [each.name for each in examples], [str(each.label) for each in examples]
    skipped = options.missing_is_wrong and semeval
    return ids, gold, _in_order(options.predictions[number], ids, header=False, missing_is_wrong=skipped)


def _of_relations(options: Score, number: int) -> Scored:
    ids, gold, predicted = _relations(options, number)
    right = [a == b for a, b in zip(gold, predicted, strict=True)]
    if options.task == "tacred":
        micro = relation.tacred(gold, predicted).micro
        scores = {name: getattr(micro, name) for name in ("precision", "recall", "f1")}
        return Scored(scores, units.tacred(gold, predicted), ids, right)
    given = {name: label for name, label in zip(ids, predicted, strict=True) if label}
    found = relation.semeval(dict(zip(ids, gold, strict=True)), given, may_skip=options.missing_is_wrong)
    scores = {"f1": found.official.macro_f1, "accuracy": found.directed.accuracy}
    scores |= {"precision": found.official.macro_precision, "recall": found.official.macro_recall}
    return Scored(scores, units.semeval(gold, predicted), ids, right)


def _of_tags(options: Score, number: int) -> Scored:
    from spanjax.tasks.ner import Ner

    predictions = dataclasses.replace(options, gold=options.predictions[number])
    # conlleval reads one file whose last two columns are gold and predicted
    gold = _task_examples(Ner(), options) if options.gold else _task_examples(Ner(tag_column=-2), predictions)
    predicted = _task_examples(Ner(), predictions)
    tags = [[each.tags or () for each in side] for side in (gold, predicted)]
    scores = entities.score(*tags)
    figures = {name: getattr(scores.micro, name) for name in ("precision", "recall", "f1")}
    figures |= {"tag_accuracy": scores.tag_accuracy, **{f"f1_{kind}": each.f1 for kind, each in scores.types.items()}}
    return Scored(figures, units.tagged(*tags), [str(place) for place in range(len(tags[0]))], None)


def _of_glue(options: Score, number: int) -> Scored:
    from spanjax.tasks.glue import Glue

    name: Any = options.task
    examples = _task_examples(Glue(task=name), options)
    ids = [each.name for each in examples]
    labels = glue.TASKS[name].labels
    predicted: Any = _in_order(options.predictions[number], ids, header=True)
    gold: Any = [each.label for each in examples]
    if labels:
        found = units.labelled(gold, predicted, glue.TASKS[name].metrics)
        return Scored(
            glue.score(name, gold, predicted), found, ids, [a == b for a, b in zip(gold, predicted, strict=True)]
        )
    try:
        predicted = [float(value) for value in predicted]
    except ValueError as error:
        raise ValueError(f"{options.predictions[number]}: {error}; expected a number for each example") from None
    gold = [float(value) for value in gold]
    return Scored(glue.score(name, gold, predicted), units.numbers(gold, predicted), ids, None)


def _of_clusters(options: Score, number: int) -> Scored:
    key, response = (_documents(name) for name in (options.gold, options.predictions[number]))
    foreign = [name for name in response if name not in key]
    raise_problems(counted(foreign, "documents of the response are not in the key", "expected those of the key alone"))
    missing = [name for name in key if name not in response]
    if not options.missing_is_wrong:
        remedy = "expected all of them, or --missing-is-wrong, which counts their mentions as missing"
        raise_problems(counted(missing, "documents of the key have no response", remedy))
    pairs = [(clusters, response.get(name, ())) for name, clusters in key.items()]
    found = coref.score(pairs)
    scores = coref.percents(pairs) | {
        f"blanc_{part}": getattr(found.blanc, part) for part in ("recall", "precision", "f1")
    }
    return Scored(scores, units.documents(pairs), list(key), None)


def _documents(name: str) -> dict[str, Any]:
    """Returns the clusters of a file by document."""
    from spanjax.data.sources.tables import kind_of
    from spanjax.tasks.coref.conll import read_clusters
    from spanjax.tasks.coref.files import RECORDS, read_documents

    path = _path(name)
    found = read_documents(path) if kind_of(path) in RECORDS else read_clusters(path)
    raise_problems(found.problems[:20])
    documents: dict[str, Any] = {}
    for each in found:
        # written JSON lines have the part in the name
        identity = each.name if kind_of(path) in RECORDS else f"{each.name}_{each.part}"
        again = f"{name}: document {identity} again; expected it once"
        raise_problems([again] if identity in documents else [])
        documents[identity] = each.clusters or ()
    raise_problems([] if documents else [f"{name}: no document; expected #begin document (NAME) and its words"])
    return documents


SCORERS: Mapping[str, Callable[[Score, int], Scored]] = {
    **dict.fromkeys(("squad1", "mrqa"), _of_questions),
    "squad2": _of_squad2,
    "quoref": _of_quoref,
    **dict.fromkeys(("tacred", "semeval"), _of_relations),
    "ner": _of_tags,
    "coref": _of_clusters,
    **dict.fromkeys(glue.TASKS, _of_glue),
}


# --- output ---


class Result(NamedTuple):
    """Everything that is printed."""

    systems: Sequence[Scored]
    intervals: Sequence[Mapping[str, Interval]]
    differences: Mapping[str, Difference]
    right_or_wrong: McNemar | None


def scored(options: Score) -> Result:
    """Scores the systems; ValueError with all problems of the options or of a file."""
    problems = flag_problems(options)
    if options.task not in SCORERS:
        problems.append(f"TASK is {options.task}: expected one of {', '.join(SCORERS)}")
    if len(options.predictions) not in (1, 2):
        problems.append(f"--predictions names {len(options.predictions)} files: expected one, or two to compare")
    if options.na_probs and (options.task != "squad2" or len(options.na_probs) != len(options.predictions)):
        problems.append("--na-probs: expected squad2, and a file for each of --predictions")
    if not options.gold and options.task != "ner":
        problems.append("--gold is missing: name the file of labels")
    raise_problems([f"  - {problem}" for problem in problems])
    systems = [SCORERS[options.task](options, number) for number in range(len(options.predictions))]
    found = [intervals(each.units, options.samples, options.seed) if options.samples else {} for each in systems]
    if len(systems) == 1:
        return Result(systems, found, {}, None)
    one, other = systems
    if one.names != other.names:
        raise ValueError("the two files have predictions for other examples: expected the same ones")
    permutations = PERMUTATIONS * options.samples
    both = differences(one.units, other.units, options.samples, permutations, options.seed) if options.samples else {}
    test = mcnemar(one.right, other.right) if one.right is not None and other.right is not None else None
    return Result(systems, found, both, test)


def result_json(options: Score, result: Result) -> dict[str, Any]:
    """Returns the result as JSON values; NaN is null."""

    def plain(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: plain(each) for name, each in value.items()}
        return None if isinstance(value, float) and math.isnan(value) else value

    systems = [
        {
            "predictions": name,
            "scores": dict(system.scores),
            "intervals": {score: vars(each) for score, each in spread.items()},
        }
        for name, system, spread in zip(options.predictions, result.systems, result.intervals, strict=True)
    ]
    found: dict[str, Any] = {"task": options.task, "examples": result.systems[0].units.count}
    found["systems"] = [plain(system) for system in systems]
    if len(systems) == 2:
        found["differences"] = plain({name: vars(each) for name, each in result.differences.items()})
        found["mcnemar"] = vars(result.right_or_wrong) if result.right_or_wrong else None
    return found


def _print(options: Score, result: Result) -> None:
    console = rich.console.Console(soft_wrap=True, highlight=False)
    unit = "documents" if options.task == "coref" else "sentences" if options.task == "ner" else "examples"
    console.print(f"{options.task}, {result.systems[0].units.count:,} {unit}", markup=False)
    for name, system, spread in zip(options.predictions, result.systems, result.intervals, strict=True):
        table = rich.table.Table("score", "value", "95 % interval", box=None)
        for score, value in system.scores.items():
            each = spread.get(score)
            table.add_row(score, f"{value:.4f}", f"{each.low:.2f} to {each.high:.2f}" if each else "")
        console.print(visible_name(name), markup=False)
        console.print(table)
    if result.differences:
        table = rich.table.Table("first - second", "difference", "95 % interval", "p (permutation)", box=None)
        for score, each in result.differences.items():
            table.add_row(score, f"{each.difference:+.4f}", f"{each.low:+.2f} to {each.high:+.2f}", f"{each.p:.4g}")
        console.print(table)
    if test := result.right_or_wrong:
        only = f"only the first is right {test.only_first:,}, only the second {test.only_second:,}"
        console.print(f"McNemar's test: {only}, p {test.exact_p:.4g} (exact)", markup=False)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    inputs = ("gold", "predictions", "na_probs")
    options = parse_options(Score, args=arguments, prog="python -m spanjax.score", description=__doc__, stores=inputs)

    def show(local: Score) -> None:
        result = scored(local)
        if options.json:
            print(json.dumps(result_json(options, result)))
        else:
            _print(options, result)

    return exit_code(
        "spanjax.score", lambda: on_local_files(show, options, inputs, []), cannot="cannot score these files"
    )


if __name__ == "__main__":
    raise SystemExit(main())
