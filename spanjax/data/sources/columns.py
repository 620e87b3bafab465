"""Columns of a user's tables: which column has which role (`--columns text=review label=stars`), and the message for a table
whose columns are others.
"""

import dataclasses
import difflib
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from spanjax.data.sources.tables import JSON_KINDS, TableRecord, kind_of, read_records

FLAG = "--columns"
MOST_NAMES = 20  # columns in a message
RoleName = str


class Role(NamedTuple):
    """Meaning of a column."""

    name: RoleName
    """Name in `--columns`; a usual name of the column stands for the role too."""
    columns: tuple[str, ...]
    """Usual names, the one that a task reads first."""
    looks: Literal["text", "label", "list", "number", "id"] = "text"
    """Kind of value by which a message finds the likely column when no name is near."""

    @property
    def key(self) -> str:
        """Name of the column in the records that a task reads."""
        return self.columns[0]


@dataclasses.dataclass(frozen=True)
class Columns:
    """Columns of the tables of a task, or of another reader."""

    roles: tuple[Role, ...]
    needed: tuple[tuple[RoleName, ...], ...]
    """Alternatives: the roles of one of them must be in a record."""
    expected: str
    """Expected columns, for messages."""
    named: tuple[str, ...] = ()
    """The user's own, as ROLE=COLUMN."""

    @property
    def mapping(self) -> dict[Role, str]:
        """Roles and columns of `named`, without those that `problems` lists."""
        words = (word.partition("=") for word in self.named)
        return {role: column for name, equals, column in words if equals and column and (role := self._role(name))}

    def problems(self) -> list[str]:
        """Returns a message for each entry of `named` that is no ROLE=COLUMN, or repeats a role."""
        known, found, taken = [role.name for role in self.roles], [], set[str]()
        for word in self.named:
            name, equals, column = word.partition("=")
            role = self._role(name)
            if not equals or not column or role is None:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0)
                example = f"; for example {near[0]}={column or 'COLUMN'}" if near else ""
                found.append(f"{FLAG} {word}: expected ROLE=COLUMN with a role of {', '.join(known)}{example}")
            elif role.name in taken:
                found.append(f"{FLAG} {word}: {role.name} has another column already; name one")
            else:
                taken.add(role.name)
        return found

    def _role(self, name: str) -> Role | None:
        exact = next((role for role in self.roles if role.name == name), None)
        return exact or next((role for role in self.roles if name in role.columns), None)

    def renamed(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record with the named columns under the keys of their roles. Roles whose column is absent stay as they are."""
        own = {role: column for role, column in self.mapping.items() if column in record}
        if not own:
            return dict(record)
        # another usual name of a role that the user named must not win over the user's column
        hidden = {name for role in own for name in role.columns} | {*own.values()}
        rest = {name: value for name, value in record.items() if name not in hidden}
        return {**{role.key: record[column] for role, column in own.items()}, **rest}

    def lacking(self, record: Mapping[str, Any]) -> bool:
        """True if a renamed record has the columns of no alternative of `needed`."""
        has = {role.name for role in self.roles if not record.keys().isdisjoint(role.columns)}
        return not any(has.issuperset(names) for names in self.needed)

    def records(self, path: pathlib.Path, header: Sequence[str] = ()) -> Iterator[TableRecord]:
        """The renamed records of a table, see `read_records`; `header` has the columns of a file without a header."""
        for place, record, problem in self.checked(read_records(path, header), path):
            yield place, None if record is None else self.renamed(record), problem

    def checked(self, records: Iterable[TableRecord], path: pathlib.Path, strict: bool = True) -> Iterator[TableRecord]:
        """Yields the records unchanged. ValueError, one message, if the file lacks a named column or all that are needed.

        JSON objects may differ, so that a file of them is refused at its end, if several lack the columns and none has them; a
        single one is the caller's to describe. Only `strict` refuses a file without a named column, and a file of JSON:
        `predict` has an answer or an error for each of its records.
        """
        alike, good, lacking = kind_of(path) not in JSON_KINDS, False, 0
        first: dict[str, Any] | None = None
        for place, record, problem in records:
            if record is not None and not good:
                own = self.renamed(record)
                absent = [column for column in self.mapping.values() if column not in record] if strict else []
                good = not absent and not self.lacking(own)
                if not good:
                    first, lacking = first or record, lacking + 1
                    if alike:
                        raise ValueError(f"{path}: {self.problem(record)}")
            yield place, record, problem
        if strict and first is not None and not good and lacking > 1:
            raise ValueError(f"{path}: {self.problem(first)}")

    def problem(self, record: Mapping[str, Any]) -> str:
        """Message for a record with the wrong columns: those found, those expected, and the flag with the likely columns."""
        absent = [f"{role.name}={column}" for role, column in self.mapping.items() if column not in record]
        expected = f"expected {', '.join(absent)} ({FLAG})" if absent else f"expected {self.expected}"
        flag = self.suggestion(record)
        return f"columns {listed(record)}: {expected}" + (f"; name yours with {flag}" if flag else "")

    def label_hint(self, record: Mapping[str, Any]) -> str:
        """Message for a record without a label: the columns found and the flag with the likely one."""
        role = next(role for role in self.roles if role.looks == "label")
        flag = self.suggestion(record) or f"{FLAG} {role.name}=COLUMN"
        return f"no column of the label among {listed(record)}: expected `{role.key}`; name yours with {flag}"

    def suggestion(self, record: Mapping[str, Any]) -> str:
        """`--columns ROLE=COLUMN ...` that would make the record one with all needed roles; "" if no columns are left.

        Names decide where one is near; else the values: the longest text is the text, a short value the label.
        """
        own = {role: column for role, column in self.mapping.items() if column in record}
        usual = {
            role: next(name for name in role.columns if name in record)
            for role in self._present(record) - {*self.mapping}
        }
        alternative = max(self.needed, key=lambda names: len({*names} & {role.name for role in (*own, *usual)}))
        likely = {role for role in self.roles if role.looks == "label"}
        wanted = [role for role in self.roles if role.name in alternative or role in likely or role in self.mapping]
        free = [name for name in record if name not in own.values() and name not in usual.values()]
        found = {}
        missing = [role for role in wanted if role not in own and role not in usual]
        # all names first: the text must not take the column that is called like the label
        for choose in (_by_name, _by_value):
            for role in missing:
                if role not in found and (name := choose(role, self.mapping.get(role, ""), free, record)):
                    found[role] = name
                    free.remove(name)
        words = [f"{role.name}={(own | found)[role]}" for role in wanted if role in own or role in found]
        return f"{FLAG} {' '.join(words)}" if found else ""

    def _present(self, record: Mapping[str, Any]) -> set[Role]:
        return {role for role in self.roles if not record.keys().isdisjoint(role.columns)}


def _by_name(role: Role, named: str, free: Sequence[str], record: Mapping[str, Any]) -> str:
    """The free column whose name is nearest to the one that the user gave, or to a usual one."""
    del record
    lower = {name.lower(): name for name in free}
    for wanted in filter(None, (named, role.name, *role.columns)):
        if near := difflib.get_close_matches(wanted.lower(), lower, n=1, cutoff=0.7):
            return lower[near[0]]
    return ""


def _by_value(role: Role, named: str, free: Sequence[str], record: Mapping[str, Any]) -> str:
    """The free column whose value is most like one of the role; "" if none is."""
    del named
    match role.looks:
        case "text":
            texts = [name for name in free if isinstance(record[name], str) and not _is_number(record[name])]
            return max(texts, key=lambda name: len(record[name]), default="")
        case "label":
            short = [name for name in free if isinstance(record[name], str | int | float)]
            return min(reversed(short), key=lambda name: len(str(record[name])), default="")
        case "list":
            return next((name for name in free if isinstance(record[name], list)), "")
        case _:
            return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def listed(record: Iterable[str]) -> str:
    """The columns of a record for a message."""
    names = list(record)
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{', '.join(names[:MOST_NAMES]) or '(none)'}{more}"
