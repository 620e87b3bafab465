"""A checkpoint of a bucket is committed once and by one run; what is dropped, damaged or left over."""

import json

import pytest

from spanjax.storage.commits import Commits, FencedError
from spanjax.storage.objects import Place, StorageError, open_store
from tests.storage.servers import Fault, Faults

pytestmark = pytest.mark.unit


def opened(address: str, fencing: int = 0) -> Commits:
    place = Place.parse(address)
    found = Commits(open_store(place), place)
    if fencing:
        found.claim(fencing, f"writer {fencing}")
    return found


def commit(commits: Commits, step: int, losses: dict[int, float] | None = None, keep: int = 2) -> list[str]:
    name = commits.folder(commits.name(step)) / "file"
    commits.store.write(name, b"content")
    return commits.commit(step, {"file": (7, "crc32:00000000")}, losses or {}, keep)


def test_the_newest_and_the_best_are_listed(memory: str) -> None:
    commits, losses = opened(memory, 1), dict[int, float]()
    for step, loss in ((1, 3.0), (2, 1.0), (3, 2.0), (4, None), (5, 1.0)):
        losses |= {} if loss is None else {step: loss}
        dropped = commit(commits, step, losses)
    assert dropped == ["3-1"]
    found = opened(memory).read()
    assert {step: each.loss for step, each in found.steps.items()} == {2: 1.0, 4: None, 5: 1.0}
    assert opened(memory).files("5-1") == {"file": (7, "crc32:00000000")}


def test_after_a_take_over_the_earlier_run_commits_nothing(address: str) -> None:
    one = opened(address, 1)
    commit(one, 10)
    two = opened(address, 2)
    assert sorted(two.head.steps) == [10]
    with pytest.raises(FencedError, match="taken over by another run"):
        commit(one, 20)
    commit(two, 20)
    with pytest.raises(FencedError):
        one.update_losses({10: 1.0})
    with pytest.raises(FencedError):
        one.set_aside([10])
    found = opened(address)
    assert {step: each.commit for step, each in found.read().steps.items()} == {10: "10-1", 20: "20-2"}
    with pytest.raises(FencedError):  # nor does one that only now begins with an old number
        opened(address, 2)


def test_a_commit_whose_answer_is_lost_is_one(served: str, faults: Faults) -> None:
    commits = opened(served, 1)
    if served.startswith("s3"):
        faults.plan(Fault.LOST, path="commits/HEAD", method="PUT")
    else:  # the upload of the file, of the list of files, then of HEAD
        faults.plan(Fault.LOST, Fault.LOST, Fault.LOST, method="POST")
    commit(commits, 10)
    commit(commits, 20)
    assert sorted(opened(served).read().steps) == [10, 20] and faults.counts[Fault.LOST] in (1, 3)


def test_leftovers_go_and_what_others_write_stays(memory: str) -> None:
    one = opened(memory, 1)
    commit(one, 10)
    one.store.write(one.folder("20-1") / "part", b"a save that failed")
    two = opened(memory, 2)
    two.store.write(two.folder("30-3") / "part", b"of a run that takes over now")
    two.store.write(two.root / "checkpoints" / "notes" / "x", b"of a person")
    for step in (20, 30, 40):
        commit(two, step)
    two.remove_leftovers()
    names = {entry.name for entry in two.store.list(two.root)}
    assert names == {
        "checkpoints/30-2/file", "checkpoints/40-2/file", "checkpoints/30-3/part", "checkpoints/notes/x", "commits/HEAD",
        "commits/30-2.json", "commits/40-2.json",
    }  # fmt: skip


def test_a_damaged_one_leaves_the_list_and_stays_in_the_bucket(memory: str) -> None:
    commits = opened(memory, 1)
    commit(commits, 10)
    commit(commits, 20)
    commits.set_aside([20])
    commits.remove_leftovers()
    assert sorted(opened(memory).read().steps) == [10]
    assert opened(memory).files("20-1")


@pytest.mark.parametrize("content", [b"", b"[1]", b"{}", json.dumps({"fencing": 1, "steps": {"x": 1}}).encode()])
def test_a_damaged_list_is_named(memory: str, content: bytes) -> None:
    commits = opened(memory, 1)
    commits.store.write(commits.root / "commits" / "HEAD", content)
    with pytest.raises(StorageError, match="commits/HEAD is no list of checkpoints"):
        opened(memory).read()
