"""Committed checkpoints of a run in a bucket: which steps are whole, of which files they consist, who may add one.

Layout of a run at BUCKET/RUN:

    run.json, metrics.jsonl, summary.json, tensorboard/...   as in a folder; replaced whole, never needed to resume
    run.lock              the lease of the active run (`lease.py`)
    commits/HEAD          JSON {"fencing": 3, "steps": {"20": {"commit": "20-3", "loss": 1.5}}, "damaged": ["10-1"], ...}
    commits/20-3.json     JSON {"step": 20, "fencing": 3, "files": {"state/_METADATA": [bytes, "crc32:HEX"], ...}}
    checkpoints/20-3/...  the files, a checkpoint as in a folder; evaluation.json, if any, is not in the list

A checkpoint exists when HEAD names it; every other object below checkpoints/ is a leftover. HEAD changes only by conditional
writes, and a run that takes over writes its higher fencing number into it first. So of two runs that both believe to be the
active one, only the later can commit, and no name holds the files of both.
"""

import dataclasses
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from spanjax.json_files import parse_json
from spanjax.storage.objects import ABSENT, ConditionFailedError, MissingObjectError, Place, StorageError, Store

HEAD, FOLDER, CHECKPOINTS = "HEAD", "commits", "checkpoints"


class FencedError(StorageError):
    """Another run has taken over the work directory; the message names it if it is known."""


class Committed(NamedTuple):
    """One committed checkpoint."""

    commit: str
    """Name of its folder below checkpoints/ and of its file below commits/: STEP-FENCING."""
    loss: float | None
    """Evaluation value at the time of the commit, lower is better; None if unknown."""


@dataclasses.dataclass(frozen=True)
class Head:
    """Content of commits/HEAD."""

    fencing: int = 0
    steps: Mapping[int, Committed] = dataclasses.field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    """Commits that could not be read; their files stay for a person to look at."""

    def to_json(self, writer: str, number: int) -> bytes:
        """Serialises it. `writer` and `number` make the content unique, as S3 derives versions from contents."""
        steps = {str(step): each._asdict() for step, each in sorted(self.steps.items())}
        content = {"fencing": self.fencing, "steps": steps, "damaged": self.damaged, "writer": writer, "number": number}
        return (json.dumps(content, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Head":
        """Reads it. KeyError, TypeError or ValueError if the content is none."""
        steps = {int(step): Committed(str(each["commit"]), each["loss"]) for step, each in content["steps"].items()}
        return cls(int(content["fencing"]), steps, tuple(content["damaged"]))


class Commits:
    """The commits of one run, for reading, and after `claim` for adding to them."""

    def __init__(self, store: Store, root: Place):
        self.store, self.root = store, root
        self.head = Head()
        self._version, self._writer, self._number = None, "", 0

    @property
    def _place(self) -> Place:
        return self.root / FOLDER / HEAD

    def read(self) -> Head:
        """Returns HEAD, an empty one for a new run; StorageError if it is damaged."""
        try:
            data, self._version = self.store.read(self._place)
        except MissingObjectError:
            self._version, self.head = None, Head()
            return self.head
        try:
            found = parse_json(data, dict)
            self.head, self._number = Head.from_json(found), int(found["number"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StorageError(
                f"{self._place} is no list of checkpoints ({error}): restore an older version of it, or use another --workdir"
            ) from error
        return self.head

    def files(self, commit: str) -> dict[str, tuple[int, str]]:
        """Returns relative name -> (bytes, "crc32:HEX") of a commit; MissingObjectError, ValueError if it is damaged."""
        place = self.root / FOLDER / f"{commit}.json"
        try:
            found = parse_json(self.store.read(place)[0], dict)["files"]
            return {str(name): (int(size), str(checksum)) for name, (size, checksum) in found.items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{place} is no list of files: {error}") from error

    def folder(self, commit: str) -> Place:
        """Folder of a commit's files."""
        return self.root / CHECKPOINTS / commit

    def claim(self, fencing: int, writer: str) -> Head:
        """Writes a fencing number into HEAD, so that nobody with a lower one commits from now on; returns HEAD.

        FencedError if somebody has a higher number.
        """
        while True:
            head = self.read()
            if head.fencing >= fencing:
                raise self._fenced()
            self._writer = writer
            try:
                self._write(dataclasses.replace(head, fencing=fencing))
                return self.head
            except ConditionFailedError:  # the run before has just committed, or a third one came
                continue

    def commit(
        self, step: int, files: Mapping[str, tuple[int, str]], losses: Mapping[int, float], keep: int
    ) -> list[str]:
        """Adds a checkpoint whose files are uploaded, and drops those no longer kept: the newest `keep` and the best stay.

        Returns the commits that were dropped. FencedError if another run has taken over.
        """
        name = self.name(step)
        content = {"step": step, "fencing": self.head.fencing, "files": dict(sorted(files.items()))}
        self.store.write(self.root / FOLDER / f"{name}.json", (json.dumps(content, indent=1) + "\n").encode())
        steps = {**self.head.steps, step: Committed(name, None)}
        known = {at: losses[at] for at in steps if at in losses}
        kept = {*sorted(steps)[-keep:], *([min(known, key=lambda at: (known[at], at))] if known else [])}
        before = self.head.steps
        self._change(steps={at: Committed(steps[at].commit, known.get(at)) for at in steps if at in kept})
        return [each.commit for at, each in before.items() if self.head.steps.get(at, ("",))[0] != each.commit]

    def name(self, step: int) -> str:
        """Name of the commit of a step by this run."""
        return f"{step}-{self.head.fencing}"

    def update_losses(self, losses: Mapping[int, float]) -> None:
        """Stores evaluation values that became known after the commits."""
        steps = {at: Committed(each.commit, losses.get(at, each.loss)) for at, each in self.head.steps.items()}
        if steps != self.head.steps:
            self._change(steps=steps)

    def set_aside(self, steps: Iterable[int]) -> None:
        """Removes damaged checkpoints from the list; their files stay."""
        names = [self.head.steps[step].commit for step in steps if step in self.head.steps]
        kept = {at: each for at, each in self.head.steps.items() if each.commit not in names}
        if names:
            self._change(steps=kept, damaged=(*self.head.damaged, *names))

    def remove_leftovers(self) -> None:
        """Deletes what no entry of HEAD names: dropped checkpoints, failed saves, those of runs that were taken over.

        The commit file of a checkpoint goes first. Those of a higher fencing number stay.
        """
        named = {*self.head.damaged, *(each.commit for each in self.head.steps.values())}

        def leftover(name: str) -> bool:
            step, _, fencing = name.partition("-")
            return name not in named and step.isdigit() and fencing.isdigit() and int(fencing) <= self.head.fencing

        commits, files = self.root / FOLDER, self.root / CHECKPOINTS
        listed = [entry.name for entry in self.store.list(commits)]
        self.store.delete(commits / name for name in listed if leftover(name.removesuffix(".json")))
        listed = [entry.name for entry in self.store.list(files)]
        self.store.delete(files / name for name in listed if leftover(name.partition("/")[0]))

    def _change(self, **changes: Any) -> None:
        try:
            self._write(dataclasses.replace(self.head, **changes))
        except ConditionFailedError as error:
            raise self._fenced() from error

    def _write(self, head: Head) -> None:
        data = head.to_json(self._writer, self._number + 1)
        self._version = self.store.write(self._place, data, only_if=ABSENT if self._version is None else self._version)
        self.head, self._number = head, self._number + 1

    def _fenced(self) -> FencedError:
        return FencedError(
            f"--workdir {self.root} was taken over by another run while this one was paused or cut off: its checkpoints are"
            " kept, this one's after the take-over are not; look which of the two should continue"
        )
