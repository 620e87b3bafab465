"""The ids by which a later process resumes the same curve: in the work directory's `tracking.json` and in every checkpoint."""

import json
import pathlib
import threading
from collections.abc import Callable, Mapping

from spanjax.json_files import parse_json
from spanjax.storage.local import write_whole
from spanjax.training.checkpoint_files import stored_meta
from spanjax.training.trackers.base import Tracker

KINDS = ("train", "eval")


class Identity:
    """Ids and newest steps sent, in `tracking.json`, replaced as a whole at every change.

    A new work directory takes the ids from the checkpoint that it resumes from; its step is then the newest step sent.
    """

    def __init__(self, workdir: pathlib.Path, begin: int, say: Callable[[str], None]):
        self.path, self.say, self.lock = workdir / "tracking.json", say, threading.Lock()
        self.ids: dict[str, dict[str, str]] = {}
        self.sent: dict[str, dict[str, int]] = {}
        self.failed = False
        self._read(workdir, begin)

    def _read(self, workdir: pathlib.Path, begin: int) -> None:
        try:
            stored = parse_json(self.path.read_bytes(), dict)
            ids = {name: dict(id) for name, id in stored["ids"].items()}
            self.sent = {
                name: {kind: int(step) for kind, step in sent.items()} for name, sent in stored["sent"].items()
            }
            self.ids = ids
            return
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            self.say(f"{self.path} cannot be read ({error}): ids are taken from the checkpoint")
        if begin:
            self.ids = {name: dict(id) for name, id in stored_meta(workdir, begin).get("tracking", {}).items()}
            self.sent = {name: dict.fromkeys(KINDS, begin) for name in self.ids}

    def of(self, tracker: Tracker) -> dict[str, str]:
        """Returns the ids of one tracker, new ones if it has none."""
        self.ids[tracker.service] = {**tracker.new_ids(), **self.ids.get(tracker.service, {})}
        return self.ids[tracker.service]

    def set_id(self, name: str, id: str) -> None:
        """Stores the id that the service assigned."""
        if self.ids[name]["id"] != id:
            self.ids[name]["id"] = id
            self.write()

    def set_sent(self, name: str, sent: Mapping[str, int]) -> None:
        """Stores the newest steps whose records were sent."""
        with self.lock:
            self.sent[name] = dict(sent)
        self.write()

    def write(self) -> None:
        """Replaces the file. A write failure is reported once and otherwise ignored: the checkpoints hold the ids too."""
        with self.lock:
            try:
                write_whole(self.path, json.dumps({"ids": self.ids, "sent": self.sent}, indent=2) + "\n")
            except OSError as error:
                if not self.failed:
                    self.say(f"{self.path} could not be written: {error}")
                self.failed = True
