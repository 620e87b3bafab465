"""Coreference in CoNLL-U files as CorefUD has it: brackets in the field Entity of the last column, heads, dependency trees.

Ten tab-separated columns a word, a blank line after a sentence, `# newdoc id = NAME` before a document. An opening bracket has
fields in the order that `# global.Entity = eid-etype-head-other` names: the entity, and in `head` which of the mention's words is
its head, from 1. Words of multi-word tokens are read, these tokens are not. Empty nodes (8.1), which stand for words that
nobody wrote, are not read either: of a mention with words these remain, a mention without words is skipped.

A document keeps the lines that it was read from, so that clusters can be written into them: `write_conllu`.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator, Sequence

from spanjax.data.sources.tables import kind_of, quoted, read_lines
from spanjax.tasks.base import Examples
from spanjax.tasks.coref.conll import genre_of
from spanjax.tasks.coref.documents import CorefDocument, Mention, head_of, sorted_clusters
from spanjax.tasks.coref.text import bare_name
from spanjax.tasks.coref.writing import GivenClusters, brackets, writable

FIELDS = "eid-etype-head-other"
COLUMNS = 10
OF_ENTITIES = ("Entity=", "Bridge=", "SplitAnte=")  # keys that name entities: udapi fails where they name unknown ones
_NEW = re.compile(r"#\s*newdoc\b(?:\s*id\s*=\s*(.*\S))?\s*")
_GLOBAL = re.compile(r"#\s*global\.Entity\s*=\s*(\S+)\s*")
_BRACKET = re.compile(r"\([^()]+\)?|[^()]+\)")
_PART = re.compile(r"(.*)\[(\d+)/(\d+)\]")
_BLANKS = re.compile(r"[\t\r\n\x85\u2028\u2029]")


@dataclasses.dataclass
class _Reading:
    """A document while its lines are read."""

    name: str
    fields: Sequence[str]
    sentences: list[list[str]] = dataclasses.field(default_factory=lambda: [[]])
    governors: list[int] = dataclasses.field(default_factory=list)
    nodes: list[int] = dataclasses.field(default_factory=list)
    """The word of each node, -1 for an empty one."""
    clusters: dict[str, list[Mention]] = dataclasses.field(default_factory=dict)
    heads: dict[Mention, int] = dataclasses.field(default_factory=dict)
    begun: dict[str, list[tuple[int, int, int]]] = dataclasses.field(default_factory=dict)
    """First node, head and line of the mentions of an entity, or of a part of one, that have not ended."""
    parts: dict[str, list[int]] = dataclasses.field(default_factory=dict)
    """Nodes of the parts of a discontinuous mention that have ended."""
    problems: list[tuple[int, str]] = dataclasses.field(default_factory=list)
    empty: int = 0
    shortened: int = 0
    unfinished: int = 0
    lines: list[str] = dataclasses.field(default_factory=list)

    def take(self, line: int, columns: Sequence[str], start: int) -> None:
        """Takes a word or an empty node of a sentence that begins at word `start`."""
        number, form, governor = columns[0], columns[1], columns[6]
        if "." in number:
            self.nodes.append(-1)
        else:
            self.nodes.append(len(self.governors))
            self.sentences[-1].append(form)
            self.governors.append(start + int(governor) - 1 if governor.isdecimal() and int(governor) else -1)
        entity = next((each for each in columns[9].split("|") if each.startswith("Entity=")), "").partition("=")[2]
        found = _BRACKET.findall(entity)
        if "".join(found) != entity:
            self.problems.append((line, f"Entity={entity}: expected brackets such as (e1-person-1-, e1) or (e1--1-)"))
            return
        for bracket in found:
            self._bracket(bracket, line)

    def _bracket(self, bracket: str, line: int) -> None:
        values = bracket.strip("()").split("-")
        entity = values[0]
        begun = self.begun.setdefault(entity, [])
        if bracket.startswith("("):
            named = dict(zip(self.fields, values, strict=False))
            head = named.get("head", "1")
            begun.append((len(self.nodes) - 1, int(head) if head.isdecimal() else 1, line))
        if bracket.endswith(")"):
            if not begun:
                self.problems.append(
                    (line, f"{bracket} closes a mention that was not begun: expected ({entity} before")
                )
                return
            first, head, _ = begun.pop()
            self._ended(entity, self.nodes[first:], head)

    def _ended(self, entity: str, nodes: list[int], head: int) -> None:
        parted = _PART.fullmatch(entity)
        if parted:
            entity, part, count = parted[1], int(parted[2]), int(parted[3])
            nodes = [*self.parts.pop(entity, []), *nodes]
            if part < count:
                self.parts[entity] = nodes
                return
        words = [word for word in nodes if word >= 0]
        if not words:
            self.empty += 1
            return
        top = nodes[head - 1] if 0 < head <= len(nodes) and nodes[head - 1] >= 0 else words[0]
        # a discontinuous mention is the run of words around its head
        places = enumerate(words)
        runs = [[word for _, word in run] for _, run in itertools.groupby(places, key=lambda each: each[1] - each[0])]
        run = next(run for run in runs if top in run)
        self.shortened += len(runs) > 1
        mention = run[0], run[-1]
        mentions = self.clusters.setdefault(entity, [])
        if mention not in mentions:
            mentions.append(mention)
        self.heads[mention] = top

    def document(self) -> CorefDocument:
        """The document."""
        self.unfinished = len(self.parts)
        for entity in list(self.parts):
            self._ended(entity, self.parts.pop(entity), 1)
        sentences = tuple(tuple(sentence) for sentence in self.sentences if sentence)
        clusters, speakers = sorted_clusters(self.clusters.values()), ("",) * len(self.governors)
        return CorefDocument(
            self.name, 0, sentences, speakers, clusters, genre_of(self.name), heads=self.heads,
            governors=tuple(self.governors), lines=tuple(self.lines),
        )  # fmt: skip


def read_conllu(path: pathlib.Path) -> Examples:
    """Reads the documents of a file; skips one with a bad line as a whole. A file without `# newdoc` is one document.

    A mention of several runs of words becomes the run with its head, so that it has the same head in head match; `notes` counts
    such, those of empty nodes alone, and those of which a part is missing: the others are the mention.
    ValueError where the file cannot be read.
    """
    examples = Examples()
    empty = shortened = unfinished = 0
    for reading in _documents(path):
        unclosed = sorted((line, name) for name, begun in reading.begun.items() for *_, line in begun)
        reading.problems += [
            (line, f"({name} does not close: expected {name}) in its document") for line, name in unclosed
        ]
        examples.problems += [f"{path}:{line}: {problem}" for line, problem in sorted(reading.problems)]
        # the others would have mentions that their bad lines ended or began
        if not reading.problems:
            examples.append(reading.document())
            empty, shortened = empty + reading.empty, shortened + reading.shortened
            unfinished += reading.unfinished
    if empty or shortened:
        examples.notes.append(
            f"{path}: skipped {empty:,} mentions of empty nodes; shortened {shortened:,} with gaps to the words around the head"
        )
    if unfinished:
        examples.notes.append(
            f"{path}: {unfinished:,} mentions lack some of their parts, as [2/2]: read the other parts"
        )
    return examples


def _documents(path: pathlib.Path) -> Iterator[_Reading]:
    reading: _Reading | None = None
    fields: Sequence[str] = FIELDS.split("-")
    start = 0
    waiting: list[str] = []  # comments of a sentence, which may be the first one of the next document
    for number, given in read_lines(path, ends=True):
        line = given.rstrip("\r\n")
        if not line.startswith("#") and reading is not None:
            reading.lines += [*waiting, given]
            waiting = []
        else:
            waiting.append(given)
        if found := _GLOBAL.fullmatch(line):
            fields = found[1].split("-")
            if reading is not None:
                reading.fields = fields
        elif found := _NEW.fullmatch(line):
            if reading is not None and reading.nodes:
                yield reading
            reading = _Reading(found[1] or bare_name(path, kind_of(path)), fields)
        elif line.startswith("#"):
            continue
        elif not line.strip():
            if reading is not None:
                reading.sentences.append([])
        else:
            if reading is None:
                reading = _Reading(bare_name(path, kind_of(path)), fields, lines=waiting)
                waiting = []
            columns = line.split("\t")
            if len(columns) != COLUMNS or not columns[1]:
                reading.problems.append(
                    (number, f"{len(columns)} columns: expected {COLUMNS} of CoNLL-U, not {quoted(line)}")
                )
                continue
            if not reading.sentences[-1]:
                start = len(reading.governors)
            # a multi-word token has no word of its own: the lines of its words follow
            if "-" not in columns[0]:
                reading.take(number, columns, start)
    if reading is not None and (reading.nodes or reading.problems):
        reading.lines += waiting
        yield reading


def write_conllu(
    path: pathlib.Path, documents: Sequence[CorefDocument], clusters_of_each: Sequence[GivenClusters], fewest: int = 1
) -> pathlib.Path:
    """Writes documents with these clusters, for the scorer of CorefUD and for udapi: words, trees where they are known, else a
    flat one, and Entity with the heads that `head_of` finds. A document of a CoNLL-U file keeps all of its lines but for Entity
    and keys that name entities; empty nodes are then no mentions. Mentions that brackets cannot hold are dropped as by
    `writable`, and those that cross the end of a sentence, which CorefUD does not know."""
    entities = itertools.count(1)
    fields = ""
    with open(path, "w", encoding="utf-8", errors="replace", newline="\n") as file:
        for number, (document, given) in enumerate(zip(documents, clusters_of_each, strict=True), start=1):
            sentence = [place for place, words in enumerate(document.sentences) for _ in words]
            inside = ([each for each in cluster if sentence[each[0]] == sentence[each[1]]] for cluster in given)
            clusters = writable(sorted_clusters(inside), fewest)
            names = [f"e{next(entities)}" for _ in clusters]
            own = next((found[1] for line in document.lines if (found := _GLOBAL.fullmatch(line.rstrip("\r\n")))), "")
            # a file has one order of fields, and every document of it may repeat that
            if not own and (not fields or not document.lines and fields != FIELDS):
                fields = FIELDS
                file.write(f"# global.Entity = {FIELDS}\n")
            fields = own or fields
            if document.lines:
                file.writelines(_rewritten(document, clusters, names, fields.split("-")))
                # the last line of a file may lack its end
                if number < len(documents) and document.lines[-1].strip():
                    file.write("\n" * (2 - document.lines[-1].endswith("\n")))
            else:
                file.writelines(f"{line}\n" for line in _lines(document, clusters, names))
    return path


def _rewritten(
    document: CorefDocument, clusters: Sequence[Sequence[Mention]], names: Sequence[str], fields: Sequence[str]
) -> Iterator[str]:
    """The document's own lines, verbatim but for `OF_ENTITIES`. Entity stays where it was, or is the last key."""
    rows = [line.split("\t") for line in document.lines]
    # heads count the nodes of a mention, empty ones too
    nodes = [columns[0] for columns in rows if len(columns) == COLUMNS and "-" not in columns[0]]
    node_of = [place for place, number in enumerate(nodes) if "." not in number]

    def name(own: int, mention: Mention) -> tuple[str, str]:
        head = node_of[head_of(document, mention)] - node_of[mention[0]] + 1
        values = {"eid": names[own], "head": str(head)}
        return "-".join(values.get(field, "") for field in fields), names[own]

    marks = iter(brackets(sorted_clusters(clusters), len(document.speakers), name))
    for line, columns in zip(document.lines, rows, strict=True):
        if line.startswith("#") or len(columns) != COLUMNS or "-" in columns[0]:
            yield line
            continue
        entity = "" if "." in columns[0] else "".join(itertools.chain(*next(marks)))
        misc = columns[-1].rstrip("\r\n")
        keys = misc.split("|")
        if not entity and not any(key.startswith(OF_ENTITIES) for key in keys):
            yield line
            continue
        if entity and not any(key.startswith("Entity=") for key in keys):
            keys.append("Entity=")
        kept = []
        for key in keys:
            if key.startswith("Entity="):
                kept += [f"Entity={entity}"] if entity else []
            elif key != "_" and not key.startswith(OF_ENTITIES):
                kept.append(key)
        yield "\t".join([*columns[:-1], ("|".join(kept) or "_") + columns[-1][len(misc) :]])


def _lines(document: CorefDocument, clusters: Sequence[Sequence[Mention]], names: Sequence[str]) -> Iterator[str]:
    def name(own: int, mention: Mention) -> tuple[str, str]:
        return f"{names[own]}--{head_of(document, mention) - mention[0] + 1}-", names[own]

    marks = brackets(sorted_clusters(clusters), len(document.speakers), name)
    place = 0
    for number, sentence in enumerate(document.sentences, start=1):
        if number == 1:
            yield f"# newdoc id = {document.name}"
        # udapi takes what follows a slash for a zone
        yield f"# sent_id = {document.name.replace('/', '_')}-{number}"
        yield f"# text = {_BLANKS.sub(' ', ' '.join(sentence))}"
        for own, word in enumerate(sentence, start=1):
            governor = document.governors[place] - place + own if document.governors else min(own - 1, 1)
            governor = 0 if document.governors and document.governors[place] < 0 else governor
            entity = "".join(itertools.chain(*marks[place]))
            relation = "dep" if governor else "root"
            columns = [str(own), _BLANKS.sub(" ", word), *"_" * 4, str(governor), relation, "_"]
            yield "\t".join([*columns, f"Entity={entity}" if entity else "_"])
            place += 1
        yield ""
