"""TOML tables that note what is missing, wrong, or left over, and go on."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LANGUAGES = ("tr", "en")

UTF8 = "utf-8-sig"
"""The encoding of a lesson's files: UTF-8, with or without the mark that Windows sets before it."""

Text = Mapping[str, str]
"""A text by language."""


class Table:
    """A TOML table that notes what is missing, wrong, or left over."""

    def __init__(self, entries: Mapping[str, Any], where: str, problems: list[str]) -> None:
        self.entries, self.where, self.problems = dict(entries), where, problems

    def word(self, name: str, default: str | None = None) -> str:
        """Take a string; one without a default is needed."""
        found = self.entries.pop(name, default)
        if isinstance(found, str) and (found or default is not None):
            return found
        what = "is missing" if found in (None, "") else f"must be a string, got {found!r}"
        self.problems.append(f"{self.where}: `{name}` {what}")
        return ""

    def words(self, name: str) -> tuple[str, ...]:
        """Take a list of strings."""
        found = self.entries.pop(name, [])
        if isinstance(found, list) and all(isinstance(x, str) for x in found):
            return tuple(found)
        self.problems.append(f"{self.where}: `{name}` must be a list of strings")
        return ()

    def text(self, name: str, *, needed: bool = True) -> Text:
        """Take a text, one in each language or one for all."""
        found = self.entries.pop(name, None)
        if isinstance(found, str) and found.strip():
            return dict.fromkeys(LANGUAGES, found)
        if found is None and not needed:
            return dict.fromkeys(LANGUAGES, "")
        texts: dict[str, str] = found if isinstance(found, dict) else {}
        for language in LANGUAGES:
            if not (isinstance(texts.get(language), str) and texts[language].strip()):
                self.problems.append(f"{self.where}: `{name}.{language}` is missing or empty")
        for language in sorted(set(texts) - set(LANGUAGES)):
            self.problems.append(f"{self.where}: `{name}.{language}` is in an unknown language")
        return {x: texts[x] if isinstance(texts.get(x), str) else "" for x in LANGUAGES}

    def tables(self, name: str) -> list["Table"]:
        """Take a list of tables."""
        found = self.entries.pop(name, [])
        if not (isinstance(found, list) and all(isinstance(x, dict) for x in found)):
            self.problems.append(f"{self.where}: `{name}` must be written as [[{name}]]")
            return []
        return [
            Table(x, f"{self.where}: {name} {x.get('id', place + 1)}", self.problems)
            for place, x in enumerate(found)
        ]

    def subtables(self, name: str) -> list[tuple[str, "Table"]]:
        """Take tables by name."""
        found = self.entries.pop(name, {})
        if not (isinstance(found, dict) and all(isinstance(x, dict) for x in found.values())):
            self.problems.append(f'{self.where}: `{name}` must be written as [{name}."id"]')
            return []
        return [(x, Table(y, f"{self.where}: {name} {x}", self.problems))
                for x, y in found.items()]  # fmt: skip

    def done(self) -> None:
        """Note what nobody took."""
        for name in self.entries:
            self.problems.append(f"{self.where}: nothing is called `{name}` here")


def read(file: Path, problems: list[str]) -> Table:
    """Return what stands in a TOML file; without the file, nothing."""
    where = f"{file.parent.name}/{file.name}" if file.parent.name == "exercises" else file.name
    entries: dict[str, Any] = {}
    if file.exists():
        try:
            entries = tomllib.loads(file.read_text(UTF8))
        except tomllib.TOMLDecodeError as error:
            problems.append(f"{where}: {error}")
    return Table(entries, where, problems)
