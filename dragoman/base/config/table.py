"""A table of entries by name, open to plug-ins: the one class behind all registries of the package."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar, cast

from dragoman.base import plugins
from dragoman.base.errors import ConfigError

K = TypeVar("K")
E = TypeVar("E")


def imported(make: Callable[..., E], address: str, *others: Any) -> Callable[[], E]:
    """A late entry: `make` of names in a module, written "module:Name,Other", and of others that need no import."""
    module, _, names = address.partition(":")
    return lambda: make(*(getattr(import_module(module), name) for name in names.split(",")), *others)


class Table(Mapping[K, E]):
    """Entries by name, in the order they were added. The first read loads the plug-ins, which may add more.

    An entry of the package may be late: its name is known, and the module that has it is imported when somebody first
    asks for the entry. So a run of one kind never waits for the imports of all others.

    `Annotated[X, TABLE]` as the type of a setting means: the settings (`entry.config`) of any entry of the table. They
    are looked up when a configuration is read, so no module of the package may read a table while it is imported.
    """

    def __init__(
        self,
        noun: str,
        names: Callable[[E], Iterable[K]],
        entries: Iterable[E] = (),
        includes: Table[K, Any] | None = None,
        late: Mapping[K, Callable[[], E]] | None = None,
        configs: Mapping[K, Any] | None = None,
    ) -> None:
        """`noun` is for errors; `names` gives the names of an entry; `includes` is a table whose entries belong too.

        `late` has functions that import an entry and return it, by its name; these come first. `configs` has the
        settings of late entries that can be read before the import.
        """
        self.noun = noun
        self.names = names
        self.includes = includes
        self._late, self._configs = dict(late or {}), dict(configs or {})
        self._entries: dict[K, E] = {}
        self._modules: dict[K, str] = dict.fromkeys(self._late, "dragoman")  # of all names, in order
        for entry in entries:
            self.add(entry)

    def add(self, entry: E, module: str = "dragoman") -> None:
        """Add an entry from a module; a second one of its name is refused, unless that module is imported again."""
        for name in self.names(entry):
            owner = self._owner(name)
            if owner is not None and (owner != module or module == "dragoman"):
                shown = name if isinstance(name, str) else " ".join(map(str, name))  # type: ignore[call-overload]
                raise ConfigError(
                    f"register: found the {self.noun} '{shown}' in {module}, but {owner} has registered one of that "
                    "name; expected another name"
                )
        for name in self.names(entry):
            self._entries[name] = entry
            self._modules[name] = module

    def remove(self, entry: E) -> None:
        for name in self.names(entry):
            del self._entries[name], self._modules[name]

    def module_of(self, name: K) -> str:
        """The module that registered an entry; "dragoman" for those of the package, empty for an unknown name."""
        return self._owner(name) or ""

    def config_of(self, name: K) -> Any:
        """The settings of an entry; None for an unknown name."""
        if name in self._configs:
            return self._configs[name]
        entry: Any = self.get(name)
        return entry and entry.config

    def of(self, settings: Any, /) -> E:
        """The entry that settings choose by their kind."""
        return self[settings.kind]

    def _owner(self, name: K) -> str | None:
        own = self._modules.get(name)
        return self.includes._owner(name) if own is None and self.includes is not None else own

    def __getitem__(self, name: K) -> E:
        if not plugins.loaded:
            plugins.load()
        if self.includes is not None and name in self.includes:
            return cast(E, self.includes[name])
        if name not in self._entries and name in self._late:
            entry = self._late[name]()
            assert name in self.names(entry), f"{name}: found the entry {[*self.names(entry)]} under this name"
            self._entries[name] = entry
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return any(name == own for own in self)

    def __iter__(self) -> Iterator[K]:
        if not plugins.loaded:
            plugins.load()
        if self.includes is not None:
            yield from self.includes
        yield from list(self._modules)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    # A table is a part of type annotations, which are compared and hashed: two tables are never the same.
    __eq__ = object.__eq__
    __hash__ = object.__hash__


class ImportedTable(Table[str, Any]):
    """A table of another module, which is imported when somebody asks for more than the settings known here."""

    def __init__(self, module: str, name: str, configs: Mapping[str, Any]) -> None:
        """`configs` are settings that need not be imported, by their kind."""
        self._place, self._configs = (module, name), dict(configs)

    @property
    def _table(self) -> Table[str, Any]:
        module, name = self._place
        return cast("Table[str, Any]", getattr(import_module(module), name))

    def __getattr__(self, name: str) -> Any:
        """What the base class sets in `__init__`."""
        if name in ("_place", "_configs") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._table, name)

    def add(self, entry: Any, module: str = "dragoman") -> None:
        self._table.add(entry, module)

    def __getitem__(self, name: str) -> Any:
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)
