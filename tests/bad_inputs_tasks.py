"""Wrong inputs of what uses fine-tuned models and runs: `spanjax.evaluate`, `spanjax.predict`, `spanjax.report`."""

import functools
import json
from collections.abc import Callable
from typing import Any

from tests.bad_inputs import Case, World

evaluate = functools.partial(Case, "evaluate")
qa = functools.partial(Case, "predict qa")
classify = functools.partial(Case, "predict classify")
relation = functools.partial(Case, "predict relation")
ner = functools.partial(Case, "predict ner")
coref = functools.partial(Case, "predict coref")
train = functools.partial(Case, "train")
report = functools.partial(Case, "report")

GOOD = '{"sentence": "the old clock", "label": "no"}\n'
JSON = r"(?<=not JSON \().*?(?=\): correct)"


def on(content: str, *more: str) -> Callable[[World], list[Any]]:
    """Evaluating the model of sentences on a file of this content."""
    return lambda world: [world.tuned, "--data", world.write("dev.jsonl", content), *more]


def asked(*words: str) -> Callable[[World], list[Any]]:
    """Asking the model of sentences."""
    return lambda world: [world.tuned, *words]


def of_file(name: str, content: str, *more: str) -> Callable[[World], list[Any]]:
    """Asking the model of sentences with a file of this content."""
    return lambda world: [world.tuned, "--file", world.write(name, content), *more]


def settings(content: str) -> Callable[[World], list[Any]]:
    """Reporting a run whose run.json has this content."""
    return lambda world: [world.write("run/run.json", content).parent, "--output", world.here / "report.html"]


def reported(*more: str) -> Callable[[World], list[Any]]:
    """Reporting a good run."""
    return lambda world: [world.tuned, *more]


def sentences(content: str, *more: str) -> Callable[[World], list[Any]]:
    """Training a classifier of sentences on a file of this content."""

    def made(world: World) -> list[Any]:
        return ["--config=configs/finetune/glue.py", f"--init-from={world.run}", f"--train={world.write('dev.jsonl', content)}",
                "--objective.length=32", "--batch-size=4", f"--workdir={world.here / 'work'}", *more]  # fmt: skip

    return made


def vectors(content: str, *more: str) -> Callable[[World], list[Any]]:
    """Contrastive training on a file of this content."""

    def made(world: World) -> list[Any]:
        return ["--config=contrastive", f"--init-from={world.run}", f"--train={world.write('pairs.jsonl', content)}",
                "--objective.length=32", "--batch-size=4", f"--workdir={world.here / 'work'}", *more]  # fmt: skip

    return made


def documents(content: str, name: str = "documents.conll", *more: str) -> Callable[[World], list[Any]]:
    """Training coreference on a file of this content."""

    def made(world: World) -> list[Any]:
        file = world.write(name, content)
        return ["--config=configs/finetune/coref.py", f"--init-from={world.run}", f"--train={file}",
                "--objective.length=64", "--batch-size=4", f"--workdir={world.here / 'work'}", *more]  # fmt: skip

    return made


CONLL = "#begin document (made); part 000\nmade\t0\t0\tAnna\t{}\nmade\t0\t1\tsat\t{}\n\n#end document\n"
TASK_CASES: tuple[Case, ...] = (
    evaluate("a model that does not exist", ("nothing does not exist", "expected a run directory"),
             lambda world: [world.here / "nothing", "--data", world.write("dev.jsonl", GOOD)]),
    evaluate("a model that is not fine-tuned", ("run is not a fine-tuned model", "configs/finetune"),
             lambda world: [world.run, "--data", world.write("dev.jsonl", GOOD)]),
    evaluate("a task, a size and an output that cannot be",
             ("--task is squad3: expected one of squad1", "--batch-size is 0: expected at least 1",
              "file/out: file is a file, expected a folder"),
             lambda world: [world.tuned, "--data", "dev.jsonl", "--task", "squad3", "--batch-size", "0",
                            "--output", world.write("file", "mine") / "out"]),
    evaluate("a task of another kind", ("tuned was trained for Glue", "expected a model of Questions"),
             on(GOOD, "--task", "squad2")),
    evaluate("coreference with a model of another task", ("tuned was trained for Glue", "expected a model of Coref"),
             on(GOOD, "--task", "coref")),
    evaluate("a threshold for a model without", ("has no setting threshold (1.0)", "leave it out"), on(GOOD, "--threshold", "1")),
    evaluate("files that do not exist", ("none.jsonl: no such file", "neither.tsv: no such file"),
             asked("--data", "none.jsonl", "neither.tsv")),
    evaluate("rows that cannot be read",
             ("dev.jsonl:2: not JSON", "dev.jsonl:3: a JSON list: expected an object", "dev.jsonl:4: an empty sentence",
              "dev.jsonl:5: columns words: expected `sentence`", "leave them out with --skip-bad"),
             on(GOOD + '{"sentence": \n[1]\n{"sentence": " ", "label": "no"}\n{"words": "the clock"}\n'), library=JSON),
    evaluate("half of what are no questions", ("--dev-half is test", "answers no questions, leave it out"),
             on(GOOD, "--dev-half", "test")),
    train("a label that is none of those given", ("dev.jsonl:2: label 'perhaps'", "expected one of no, yes"),
          sentences(GOOD + GOOD.replace('"no"', '"perhaps"'), "--objective.labels", "no", "yes")),
    train("the file of another task of GLUE",
          ("dev.jsonl:1: columns Quality, #1 String, #2 String are those of MRPC, not of CoLA", "--objective.task"),
          sentences('{"Quality": "1", "#1 String": "a", "#2 String": "b"}\n', "--objective.task=CoLA")),
    train("a table with other columns",
          ("dev.jsonl: columns review, stars: expected `sentence`, or", "name yours with --columns text=review label=stars"),
          sentences('{"review": "the old clock", "stars": 1}\n' * 40)),
    train("a table without labels", ("no column of the label among text, stars", "name yours with --columns label=stars"),
          sentences('{"text": "the old clock", "stars": 1}\n' * 40)),
    train("columns that are none", ("dev.jsonl: columns sentence, label: expected text=review (--columns)", "text=sentence"),
          sentences(GOOD * 2, "--columns", "text=review")),
    train("a role that is none", ("--columns txt=review: expected ROLE=COLUMN with a role of text, pair, label, id",),
          sentences(GOOD, "--columns", "txt=review")),
    train("the same problem in many lines", ("dev.jsonl:1: an empty sentence: expected text (and 39 lines like it)",),
          sentences('{"sentence": "", "label": "no"}\n' * 40)),
    train("dev examples without labels", ("--dev: 1 of 2 examples have no label", "give a file whose examples all have one"),
          lambda world: [*sentences(GOOD)(world), "--dev", world.write("more.jsonl", GOOD + '{"sentence": "the clock"}\n')]),
    train("pairs that cannot be used",
          ("pairs.jsonl:1: an empty `positive`: expected text", "pairs.jsonl:2: `anchor` is 3: expected text",
           "pairs.jsonl:3: `negatives` holds 7: expected text, or a list of texts",
           "pairs.jsonl:4: columns words: expected `anchor`",
           "pairs.jsonl:5: score 'high': expected a finite number", "leave them out with --skip-bad"),
          vectors('{"anchor": "a", "positive": ""}\n{"anchor": 3, "positive": "b"}\n'
                  '{"anchor": "a", "positive": "b", "negatives": [7]}\n{"words": "the clock"}\n'
                  '{"anchor": "a", "positive": "b", "score": "high"}\n')),
    train("pairs under other names", ("columns question, reply: expected `anchor` and", "with --columns positive=reply"),
          vectors('{"question": "a", "reply": "b"}\n' * 4)),
    train("scored pairs for training", ("--train: all examples have a score", "give scored pairs to --dev"),
          vectors('{"sentence1": "a", "sentence2": "b", "score": 1}\n' * 4)),
    train("single texts among pairs", ("--train: 4 of 8 examples are single texts", "train on one kind"),
          vectors('{"anchor": "a", "positive": "b"}\n{"text": "a"}\n' * 4)),
    train("single texts without dropout", ("differ by dropout alone, and encoder.dropout is 0", "or give pairs"),
          vectors('{"text": "a"}\n' * 4, "--encoder.dropout=0", "--encoder.attention-dropout=0")),
    train("microbatches of a loss over the whole batch, and temperature 0",
          ("microbatches is 2: Contrastive compares each row", "set microbatches 1", "objective.temperature is 0"),
          vectors('{"anchor": "a", "positive": "b"}\n', "--microbatches=2", "--objective.temperature=0")),
    train("dev pairs without scores", ("no column of the label among anchor, positive", "--columns score=COLUMN"),
          lambda world: [*vectors('{"anchor": "a", "positive": "b"}\n')(world), "--dev",
                         world.write("dev.jsonl", '{"anchor": "a", "positive": "b"}\n' * 2)]),
    evaluate("an example without a label", ("--data: 1 of 2 examples have no label", "give a file whose examples all have one"),
             on(GOOD + '{"sentence": "the clock"}\n')),
    evaluate("numbers that are none", ("--batch-size is 0: expected at least 1", "--threshold is nan: expected a finite number"),
             lambda world: [world.tuned, "--data", "dev.jsonl", "--batch-size=0", "--threshold=nan"]),
    evaluate("an empty file", ("no examples in dev.jsonl",), on("")),
    evaluate("no file", ("--data",), asked()),
    qa("a model of another task", ("tuned was trained for Glue", "expected a model of Questions"),
       asked("--question", "Who?", "--context", "The cat sat.")),
    qa("a question without a passage", ("nothing to answer", "--question with --context"), asked("--question", "Who?")),
    classify("a model that does not exist", ("nothing does not exist", "expected a run directory"),
             lambda world: [world.here / "nothing", "--text", "the clock"]),
    classify("a model that is not fine-tuned", ("run is not a fine-tuned model", "configs/finetune"),
             lambda world: [world.run, "--text", "the clock"]),
    classify("a file that does not exist and a size of nothing",
             ("--file none.jsonl: no such file", "--batch-size is 0: expected at least 1"),
             asked("--file", "none.jsonl", "--batch-size", "0")),
    classify("a row that is not JSON", ("rows.jsonl:2: not JSON", "correct the line", "1 of 2 records could not be answered"),
             of_file("rows.jsonl", GOOD + "{\n"), library=JSON, code=4),
    classify("a row with too few columns", ("rows.tsv:3: 1 columns", "expected the 2 columns sentence, label"),
             of_file("rows.tsv", "sentence\tlabel\none\tno\none\n"), code=4),
    classify("pairs for a model of single sentences",
             ("record 1: two sentences: expected `sentence` alone", "none of 1 records is answered"),
             of_file("rows.tsv", "sentence1\tsentence2\none\ttwo\n")),
    classify("records without a sentence",
             ("record 1: columns words: expected `sentence` alone", "none of 1 records is answered"),
             of_file("rows.jsonl", '{"words": "the clock"}\n')),
    classify("code that cannot be found", ("--code task.py: no such file", "give a Python file, or the name of a module"),
             asked("--text", "the clock", "--code", "task.py")),
    classify("a file without a record", ("no record in the files", "expected one at least"), of_file("rows.jsonl", "\n")),
    classify("a list that is none", ("rows.json: a JSON dict: expected a list of objects",), of_file("rows.json", "{}")),
    classify("fewer second sentences", ("1 --pair for 2 --text", "give one each"),
             asked("--text", "one", "two", "--pair", "three")),
    classify("an output below a file", ("file/out", "file is a file, expected a folder"),
             lambda world: [world.tuned, "--text", "the clock", "--output", world.write("file", "mine") / "out"]),
    classify("an output that is read", ("rows.jsonl is read as --file", "give another name"),
             lambda world: [world.tuned, "--file", world.write("rows.jsonl", GOOD), "--output", world.here / "rows.jsonl"]),
    relation("nothing to look at", ("nothing to look at", "--text or --file"), asked()),
    ner("a model of another task", ("tuned was trained for Glue", "expected a model of Ner"), asked("--text", "the clock")),
    coref("a model of another task", ("tuned was trained for Glue", "expected a model of Coref"),
          lambda world: [world.tuned, "--text", world.write("story.txt", "Anna sat.")]),
    coref("an output below a file and a size of nothing",
          ("file/out", "file is a file, expected a folder", "--batch-size is 0: expected at least 1"),
          lambda world: [world.tuned, "--text", "story.txt", "--output", world.write("file", "mine") / "out",
                         "--batch-size", "0"]),
    train("brackets of coreference that do not close", ("documents.conll:2", "--skip-bad"), documents(CONLL.format("(0", "-"))),
    train("clusters outside of the document", ("documents.jsonl:1", "--skip-bad"),
          documents('{"words": ["Anna", "sat"], "clusters": [[[0, 0], [1, 7]]]}\n', "documents.jsonl")),
    train("documents without clusters", ("no training document has clusters", "give documents with coreference"),
          documents(CONLL.format("-", "-"))),
    train("settings of coreference that cannot be",
          ("objective.max_segments is 0", "objective.model.antecedents is 0", "objective.mention_loss is 0: expected more"),
          documents(CONLL.format("(0)", "(0)"), "documents.conll", "--objective.max-segments=0",
                    "--objective.model.antecedents=0", "--objective.singletons=keep")),
    report("no run", ("no run is given", "--workdir"), lambda world: []),
    report("an empty folder, a file and a folder that does not exist",
           ("empty is no run directory (no run.json)", "notes.txt: a file: expected a run directory", "nothing: no such folder"),
           lambda world: [world.write("empty/.kept", "").parent, world.write("notes.txt", ""), world.here / "nothing"]),
    report("a run.json that is not JSON", ("run.json is not readable JSON", "restore it, or leave this run out"), settings("{"),
           library=r"(?<=JSON \().*?(?=\): restore)"),
    report("a run.json of many brackets", ("run.json is not readable JSON", "more than 100 deep"), settings("[" * 100_000)),
    report("a run.json of another form", ("run.json describes no run", "expected what spanjax.train wrote"),
           settings(json.dumps({"objective": "CoLA"}))),
    report("outputs and numbers that cannot be",
           ("--output and --markdown are both same.html: give two files", "--rows is -1: expected 0 or more",
            "--examples is -2: expected 0 or more"),
           reported("--output", "same.html", "--markdown", "same.html", "--rows", "-1", "--examples", "-2")),
    report("an output that is a folder", ("is a folder: expected the name of a file",),
           lambda world: [world.tuned, "--output", world.write("folder/file", "mine").parent]),
    report("nothing to write", ("--output and --markdown are both empty", "name a file"), reported("--output", "")),
)  # fmt: skip
