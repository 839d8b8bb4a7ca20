from __future__ import annotations

import tomllib
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dragoman.base.config import (
    Range,
    Setting,
    as_table,
    build,
    describe,
    differences,
    dropped_settings,
    dump,
    merge,
    override,
    read_toml,
    setting,
)
from dragoman.base.errors import ConfigError
from tests.clock import takes_at_most

Probability = Annotated[float, Range(0, 1, exclusive_maximum=True)]


@dataclass(frozen=True)
class Recurrent:
    kind: ClassVar[str] = "recurrent"
    width: Annotated[int, Range(1)] = 256
    cell: Literal["lstm", "gru"] = "lstm"


@dataclass(frozen=True)
class Relative:
    kind: ClassVar[str] = "relative"
    distance: Annotated[int, Range(1)] = 16


@dataclass(frozen=True)
class Absent:
    kind: ClassVar[str] = "none"


@dataclass(frozen=True)
class Transformer:
    kind: ClassVar[str] = "transformer"
    width: Annotated[int, Range(1)] = 512
    heads: int = 8
    positions: Relative | Absent = field(default_factory=Relative)

    def problems(self) -> Iterator[str]:
        if self.width % self.heads:
            yield f"heads: found {self.heads}, expected a divisor of width {self.width}"


@dataclass(frozen=True)
class Model:
    encoder: Recurrent | Transformer = Transformer(width=64)
    decoder: Recurrent | Transformer | None = None
    dropout: Probability = 0.1
    memory: Relative = Relative()


@dataclass(frozen=True)
class Parallel:
    source: str
    target: str
    weight: Annotated[float, Range(0, exclusive_minimum=True)] = 1.0


@dataclass(frozen=True)
class Data:
    train: str | tuple[str, ...] | Parallel
    valid: str | None = None
    test: str | None = "test.tsv"
    lower: bool = False


@dataclass(frozen=True)
class Train:
    steps: Annotated[int, Range(1)] = setting(1000, help="Updates of the weights.")
    optimizer: Literal["adamw", "sgd", "none"] = setting("adamw", help="")
    rate: float = 1e-3
    betas: tuple[float, ...] = (0.9, 0.98)
    clip: Annotated[float, Range(0, 100)] | None = 1.0
    patience: int | Literal["auto"] | None = None
    tags: tuple[str, ...] | tuple[int, ...] = ()

    def problems(self) -> Iterator[str]:
        if self.optimizer == "sgd" and len(self.betas) > 1:
            yield "sgd has one momentum"


@dataclass(frozen=True)
class Config:
    data: Data
    model: Model = Model()
    train: Train = Train()
    name: str = "run"
    seed: int = 0


DATA = {"train": "a.tsv"}


def errors(table: dict[str, Any], cls: type[Any] = Config, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        build(cls, table, **options)
    return str(caught.value).split("\n")


def with_data(**tables: Any) -> dict[str, Any]:
    return {"data": DATA, **tables}


# build: what is accepted


def test_an_empty_table_gives_the_defaults() -> None:
    assert build(Config, {"data": DATA}) == Config(Data("a.tsv"))
    assert build(Train, {}) == Train()


def test_a_whole_file_is_read() -> None:
    table = tomllib.loads("""
        name = "naïve"
        [data]
        train = ["a.tsv", "b.tsv"]
        lower = true
        [model]
        dropout = 0
        [model.encoder]
        kind = "recurrent"
        cell = "gru"
        [model.decoder]
        kind = "transformer"
        [model.decoder.positions]
        kind = "none"
        [train]
        clip = "none"
        patience = "auto"
        betas = [1, 0.5]
    """)
    config = build(Config, table)
    assert config == Config(
        Data(("a.tsv", "b.tsv"), lower=True),
        Model(Recurrent(cell="gru"), Transformer(positions=Absent()), dropout=0.0),
        Train(clip=None, patience="auto", betas=(1.0, 0.5)),
        name="naïve",
    )
    assert type(config.model.dropout) is float
    assert type(config.train.betas[0]) is float
    assert type(config.data.train) is tuple
    with pytest.raises(FrozenInstanceError):
        config.seed = 3  # type: ignore[misc]


def test_a_table_goes_to_the_dataclass_of_a_mixed_union() -> None:
    assert build(Data, {"train": {"source": "a.de", "target": "a.en"}}).train == Parallel("a.de", "a.en")
    assert errors({"train": {"source": "a.de", "targte": "a.en"}}, Data, place="data") == [
        "data.train.targte: no such setting. Did you mean 'data.train.target'?",
        "data.train.target: missing; expected text",
    ]


def test_lists_of_either_type_are_told_apart_by_their_items() -> None:
    assert build(Train, {"tags": ["a", "b"]}).tags == ("a", "b")
    assert build(Train, {"tags": [1, 2]}).tags == (1, 2)
    assert errors({"tags": [1, 2, "b"]}, Train) == ['tags[2]: found "b" (text), expected a whole number']


def test_a_list_of_text_may_be_typed_with_commas() -> None:
    @dataclass(frozen=True)
    class Columns:
        columns: tuple[str, ...] = ()
        numbers: tuple[float, ...] = ()
        rows: tuple[tuple[int, ...], ...] = ()

    assert build(Columns, override({}, ["columns=en, de"])).columns == ("en", "de")
    assert build(Columns, override({}, ["columns=1,2"])).columns == ("1", "2")
    assert build(Columns, override({}, ["columns=en"])).columns == ("en",)
    assert build(Columns, override({}, ['columns=["en, or de"]'])).columns == ("en, or de",)
    assert build(Columns, override({}, ["numbers=1, 2.5"])).numbers == (1.0, 2.5)
    assert build(Columns, override({}, ["rows=1,2;3,4"])).rows == ((1, 2), (3, 4))
    with pytest.raises(ConfigError, match=r'numbers\[1\]: found "b" \(text\), expected a number'):
        build(Columns, override({}, ["numbers=1,b"]))
    for wrong in ("columns=3", "numbers=3"):
        with pytest.raises(ConfigError, match="expected a list of"):
            build(Columns, override({}, [wrong]))


def test_a_table_of_the_kind_of_the_default_changes_what_it_says_only() -> None:
    assert build(Model, {"encoder": {"heads": 4}}).encoder == Transformer(width=64, heads=4)
    assert build(Model, {"encoder": {"kind": "transformer", "heads": 4}}).encoder == Transformer(width=64, heads=4)
    assert build(Model, {"encoder": {"positions": {"distance": 3}}}).encoder == Transformer(64, positions=Relative(3))
    assert build(Model, {"encoder": "transformer"}).encoder == Model().encoder
    # Another kind, or one where there is nothing without a table, starts from its class.
    assert build(Model, {"encoder": {"kind": "recurrent"}}).encoder == Recurrent()
    assert build(Model, {"decoder": {"kind": "transformer"}}).decoder == Transformer()


def test_the_bare_name_of_a_kind_stands_for_its_defaults() -> None:
    assert build(Model, {"decoder": "recurrent"}) == build(Model, {"decoder": {"kind": "recurrent"}})
    assert build(Model, {"encoder": {"kind": "transformer", "positions": None}}).encoder.positions == Absent()  # type: ignore[union-attr]
    given = override({"model": {"decoder": "recurrent"}}, ["model.decoder.width=7"])
    assert given == {"model": {"decoder": {"kind": "recurrent", "width": 7}}}
    assert override({"file": "a/b.tsv"}, ["file.source=a"]) == {"file": {"source": "a"}}


def test_a_single_class_may_state_its_kind_but_not_another() -> None:
    assert build(Model, {"memory": {"kind": "relative", "distance": 2}}).memory == Relative(2)
    assert build(Relative, {"kind": "relative"}) == Relative()
    assert errors({"memory": {"kind": "absolute"}}, Model) == ['memory.kind: found "absolute", expected "relative"']
    assert errors({"kind": "relativ"}, Relative) == [
        'kind: found "relativ", expected "relative". Did you mean \'relative\'?'
    ]


def test_none_is_accepted_as_python_none_and_as_text_where_the_type_has_it() -> None:
    assert build(Train, {"clip": None}).clip is None
    assert build(Train, {"clip": "none"}).clip is None
    assert build(Data, {**DATA, "test": "none"}).test is None
    assert build(Train, {"optimizer": None}).optimizer == "none"
    assert build(Transformer, {"positions": {"kind": None}}).positions == Absent()
    assert errors({"steps": None}, Train) == ["steps: found none, expected a whole number"]
    assert errors({"name": None, "data": DATA}) == ["name: found none, expected text"]


# build: every mistake


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"train": {"stesp": 3}}, "train.stesp: no such setting. Did you mean 'train.steps'?"),
        ({"trian": {"steps": 3}}, "trian: no such setting. Did you mean 'train'?"),
        (
            {"data": {**DATA, "zzz": 1}},
            "data.zzz: no such setting. Expected one of: lower, test, train, valid.",
        ),
        ({"a b": 1}, '"a b": no such setting. Expected one of: data, model, name, seed, train.'),
        (
            {"train": {"steps": "many"}},
            'train.steps: found "many" (text), expected a whole number',
        ),
        ({"seed": "many"}, 'seed: found "many" (text), expected a whole number'),
        ({"seed": 1.0}, "seed: found 1.0 (a number), expected a whole number"),
        ({"seed": True}, "seed: found true, expected a whole number"),
        ({"seed": [1]}, "seed: found a list, expected a whole number"),
        ({"seed": 2**63}, "seed: found 9223372036854775808, expected one that TOML can hold"),
        ({"seed": 16**9999}, "seed: found a whole number beyond 64 bits, expected one that TOML can hold"),
        ({"name": 3}, "name: found 3 (a whole number), expected text"),
        ({"name": {}}, "name: found a table, expected text"),
        ({"name": "\udc80"}, 'name: found "\\udc80", expected text that UTF-8 can hold'),
        (tomllib.loads("name = 2024-05-01"), 'name: found "2024-05-01" (date), expected text'),
        ({"train": 3}, "train: found 3 (a whole number), expected a table"),
        ({"train": {"steps": 0}}, "train.steps: found 0, expected at least 1"),
        ({"train": {"rate": False}}, "train.rate: found false, expected a number"),
        ({"train": {"rate": float("nan")}}, "train.rate: found nan, expected a finite number"),
        ({"train": {"rate": float("-inf")}}, "train.rate: found -inf, expected a finite number"),
        (
            {"train": {"rate": 10**400}},
            "train.rate: found a whole number beyond 64 bits, expected a finite number",
        ),
        ({"train": {"clip": 100.5}}, "train.clip: found 100.5, expected at least 0 and at most 100"),
        (
            {"train": {"clip": "x"}},
            'train.clip: found "x" (text), expected a number or none',
        ),
        ({"train": {"betas": 0.9}}, "train.betas: found 0.9 (a number), expected a list of numbers"),
        ({"train": {"betas": [0.9, "x"]}}, 'train.betas[1]: found "x" (text), expected a number'),
        (
            {"train": {"optimizer": "adam"}},
            "train.optimizer: found \"adam\", expected one of adamw, sgd, none. Did you mean 'adamw'?",
        ),
        ({"train": {"optimizer": "???"}}, 'train.optimizer: found "???", expected one of adamw, sgd, none'),
        (
            {"train": {"optimizer": 1}},
            "train.optimizer: found 1 (a whole number), expected one of adamw, sgd, none",
        ),
        (
            {"train": {"patience": "atuo"}},
            'train.patience: found "atuo", expected a whole number, "auto" or none. Did you mean \'auto\'?',
        ),
        (
            {"train": {"patience": 1.5}},
            'train.patience: found 1.5 (a number), expected a whole number, "auto" or none',
        ),
        ({"model": {"dropout": 1}}, "model.dropout: found 1, expected at least 0 and below 1"),
        ({"model": {"dropout": -0.1}}, "model.dropout: found -0.1, expected at least 0 and below 1"),
        (
            {"model": {"encoder": {"kind": "transfomer"}}},
            'model.encoder.kind: found "transfomer", expected one of recurrent, transformer. '
            "Did you mean 'transformer'?",
        ),
        (
            {"model": {"encoder": {"kind": ["x"]}}},
            "model.encoder.kind: found a list, expected one of recurrent, transformer",
        ),
        (
            {"model": {"decoder": {"width": 3}}},
            "model.decoder.kind: missing; expected one of recurrent, transformer",
        ),
        (
            {"model": {"decoder": "lstm"}},
            'model.decoder.kind: found "lstm", expected one of recurrent, transformer',
        ),
        (
            {"model": {"encoder": {"kind": "recurrent", "heads": 3}}},
            "model.encoder.heads: no such setting for kind recurrent, only for transformer",
        ),
        (
            {"model": {"encoder": {"positions": {"kind": "relative", "distance": 0}}}},
            "model.encoder.positions.distance: found 0, expected at least 1",
        ),
        ({"data": {}}, "data.train: missing; expected text, a list of text or a table"),
        (
            {"data": {"train": {"source": "a", "target": "b", "weight": 0}}},
            "data.train.weight: found 0, expected above 0",
        ),
        (
            {"data": {"train": 3}},
            "data.train: found 3 (a whole number), expected text, a list of text or a table",
        ),
        ({"data": {"train": ["a", 3]}}, "data.train[1]: found 3 (a whole number), expected text"),
    ],
)
def test_one_mistake_is_one_line(table: dict[str, Any], message: str) -> None:
    assert errors({**with_data(), **table}) == [message]


def test_what_is_missing_is_told_with_its_limits() -> None:
    @dataclass(frozen=True)
    class Files:
        train: str | tuple[str, ...]
        count: Annotated[int | str, Range(1, 5)] | None
        sizes: tuple[Annotated[int, Range(1)], ...]

    assert errors({}, Files, place="data") == [
        "data.train: missing; expected text or a list of text",
        "data.count: missing; expected a whole number, at least 1 and at most 5, text, or none",
        "data.sizes: missing; expected a list, each a whole number, at least 1",
    ]


def test_every_mistake_is_told_at_once_with_its_origin() -> None:
    table = {
        "data": {"train": 3},
        "trian": {},
        "model": {"encoder": {"kind": "recurrent", "width": 0, "cell": "gur"}, "dropout": 2},
        "train": {"steps": "many", "stesp": 3},
    }
    assert errors(table, origin=Path("runs/a.toml")) == [
        "runs/a.toml: trian: no such setting. Did you mean 'train'?",
        "runs/a.toml: data.train: found 3 (a whole number), expected text, a list of text or a table",
        "runs/a.toml: model.encoder.width: found 0, expected at least 1",
        "runs/a.toml: model.encoder.cell: found \"gur\", expected one of lstm, gru. Did you mean 'gru'?",
        "runs/a.toml: model.dropout: found 2, expected at least 0 and below 1",
        "runs/a.toml: train.stesp: no such setting. Did you mean 'train.steps'?",
        'runs/a.toml: train.steps: found "many" (text), expected a whole number',
    ]


def test_a_missing_table_names_the_keys_it_must_have() -> None:
    @dataclass(frozen=True)
    class Outer:
        data: Data
        train: Train
        encoder: Recurrent | Transformer

    assert errors({}, Outer) == [
        "data.train: missing; expected text, a list of text or a table",
        "train: missing; expected a table",
        "encoder.kind: missing; expected one of recurrent, transformer",
    ]


def test_problems_of_a_whole_table_carry_its_place() -> None:
    assert errors(with_data(model={"encoder": {"width": 10}}, train={"optimizer": "sgd"})) == [
        "model.encoder.heads: found 8, expected a divisor of width 10",
        "train: sgd has one momentum",
    ]
    assert errors({"optimizer": "sgd"}, Train) == ["sgd has one momentum"]
    assert errors({"width": 10}, Transformer) == ["heads: found 8, expected a divisor of width 10"]


def test_problems_are_not_asked_of_a_table_with_wrong_fields() -> None:
    assert errors({"optimizer": "sgd", "steps": 0}, Train) == ["steps: found 0, expected at least 1"]


def test_long_text_and_odd_keys_stay_on_one_short_line() -> None:
    (line,) = errors(with_data(seed="x\n" * 1000))
    assert line == 'seed: found "' + "x\\n" * 30 + '"… (text), expected a whole number'
    (line,) = errors({**with_data(), "a.b\nc": 1})
    assert line.startswith('"a.b\\nc": no such setting.')


def test_mistakes_in_our_own_classes_are_asserted() -> None:
    for annotation in (list[int], tuple[int, int], Literal[1], int | Literal["none"] | None, Data | Parallel):

        @dataclass(frozen=True)
        class Wrong:
            field: Any = None

        Wrong.__annotations__["field"] = annotation
        with pytest.raises(AssertionError):
            build(Wrong, {})


@pytest.mark.parametrize(
    ("limits", "inside", "outside", "words"),
    [
        (Range(1, 3), (1, 3), (0, 4), "at least 1 and at most 3"),
        (Range(None, 3), (-9, 3), (4,), "at most 3"),
        (Range(0, 1, exclusive_maximum=True), (0, 0.999), (1, -0.001), "at least 0 and below 1"),
        (Range(0, exclusive_minimum=True), (0.001, 9), (0, -1), "above 0"),
        (Range(), (-9, 9), (), ""),
    ],
)
def test_ranges(limits: Range, inside: tuple[float, ...], outside: tuple[float, ...], words: str) -> None:
    assert all(map(limits.holds, inside))
    assert not any(map(limits.holds, outside))
    assert limits.words == words


# merge and override


def test_merge_is_deep_and_the_later_wins() -> None:
    base = {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": [1]}
    over = {"b": {"c": 5, "d": {"g": 4}}, "f": [2], "h": 6}
    assert merge(base, over) == {"a": 1, "b": {"c": 5, "d": {"e": 3, "g": 4}}, "f": [2], "h": 6}
    assert base == {"a": 1, "b": {"c": 2, "d": {"e": 3}}, "f": [1]}
    assert over == {"b": {"c": 5, "d": {"g": 4}}, "f": [2], "h": 6}


def test_merge_shares_nothing_with_its_arguments() -> None:
    base: dict[str, Any] = {"a": {"b": [1]}}
    over: dict[str, Any] = {"c": {"d": [2]}}
    merged: Any = merge(base, over)
    merged["a"]["b"].append(9)
    merged["c"]["d"].append(9)
    assert (base, over) == ({"a": {"b": [1]}}, {"c": {"d": [2]}})


def test_merge_replaces_a_table_by_a_scalar_and_back() -> None:
    assert merge({"a": {"b": 1}}, {"a": "x"}) == {"a": "x"}
    assert merge({"a": {"b": 1}}, {"a": ["x"]}) == {"a": ["x"]}
    assert merge({"a": [1]}, {"a": {"b": 1}}) == {"a": {"b": 1}}


def test_what_a_new_kind_leaves_out_is_known() -> None:
    encoder = {"kind": "transformer", "heads": 8, "width": 4, "positions": {"kind": "none"}}
    base = {"model": {"encoder": encoder, "x": 1}}
    over = {"model": {"encoder": {"kind": "recurrent", "width": 9}, "x": 2}}
    assert [*dropped_settings(base, over)] == [("model.encoder", ["model.encoder.heads", "model.encoder.positions"])]
    assert [*dropped_settings(base, {"model": {"encoder": {"kind": "transformer", "heads": 2}}})] == []
    lost = [f"model.encoder.{name}" for name in ("heads", "width", "positions")]
    assert [*dropped_settings(base, {"model": {"encoder": "recurrent"}})] == [("model.encoder", lost)]
    assert [*dropped_settings({"data": {"train": {"file": "a.tsv", "tag": "de"}}}, {"data": {"train": "b.tsv"}})] == []
    assert [
        *dropped_settings({"model": {"encoder": {"kind": "recurrent"}}}, {"model": {"encoder": "transformer"}})
    ] == []


def test_merge_drops_what_belonged_to_another_kind() -> None:
    base = {"model": {"encoder": {"kind": "transformer", "heads": 8, "positions": {"kind": "none"}}, "x": 1}}
    assert merge(base, {"model": {"encoder": {"kind": "recurrent", "cell": "gru"}}}) == {
        "model": {"encoder": {"kind": "recurrent", "cell": "gru"}, "x": 1}
    }
    assert merge(base, {"model": {"encoder": {"kind": "transformer", "width": 4}}}) == {
        "model": {
            "encoder": {"kind": "transformer", "heads": 8, "positions": {"kind": "none"}, "width": 4},
            "x": 1,
        }
    }
    assert merge({"e": {"width": 3}}, {"e": {"kind": "recurrent"}}) == {"e": {"width": 3, "kind": "recurrent"}}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-4", 1e-4),
        ("1_000", 1000),
        ("true", True),
        ("True", "True"),
        ("adamw", "adamw"),
        ("a.tsv", "a.tsv"),
        ("a=b", "a=b"),
        ("", ""),
        ('"3"', "3"),
        ("'a \"b\"'", 'a "b"'),
        ('["a", "b"]', ["a", "b"]),
        ("[a, b]", "[a, b]"),
        ('{kind = "x", y = 1}', {"kind": "x", "y": 1}),
        ("none", None),
        ('"none"', "none"),
        ("1#2", "1#2"),
        ('"a#2"', "a#2"),
        ("1, 2", "1, 2"),
        ("1,", "1,"),
        ("1\nx = 2", "1\nx = 2"),
        ("2024-05-01", "2024-05-01"),
        ("07:30:00", "07:30:00"),
        ("übung", "übung"),
        ("9" * 5000, "9" * 5000),
        ("[" * 5000, "[" * 5000),
        ("  3 ", 3),
        (" adamw ", "adamw"),
    ],
)
def test_override_reads_toml_and_else_plain_text(text: str, value: object) -> None:
    result: Any = override({"a": {"b": 7, "c": 8}}, [f"a.b={text}"])
    assert result == {"a": {"b": value, "c": 8}}
    assert type(result["a"]["b"]) is type(value)


def test_override_makes_tables_on_its_way_and_leaves_its_argument_alone() -> None:
    table: dict[str, Any] = {"a": 1}
    assert override(table, ["a.b.c=2", "d=3", "d=4"]) == {"a": {"b": {"c": 2}}, "d": 4}
    assert table == {"a": 1}


def test_override_obeys_the_kind_rule_in_any_order() -> None:
    table = {"encoder": {"kind": "transformer", "heads": 4}, "dropout": 0.5}
    wanted = {"encoder": {"kind": "recurrent", "width": 3}, "dropout": 0.5}
    assert override(table, ["encoder.kind=recurrent", "encoder.width=3"]) == wanted
    assert override(table, ["encoder.width=3", "encoder.kind=recurrent"]) == wanted
    assert build(Model, override(table, ["encoder.kind=recurrent"])).encoder == Recurrent()


def test_override_sets_none() -> None:
    assert build(Train, override({"clip": 5}, ["clip=none"])).clip is None
    assert build(Data, override(DATA, ["test=none"])).test is None


def test_override_names_what_is_no_assignment() -> None:
    with pytest.raises(ConfigError) as caught:
        override({}, ["train.steps", "a=1", "=3", "a..b=3"])
    assert str(caught.value).split("\n") == [
        'found "train.steps", expected place=value',
        'found "=3", expected place=value',
        'found "a..b=3", expected place=value',
    ]


# files


def test_read_toml_reads_unicode_with_or_without_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes('name = "naïve 你好"\r\n'.encode())
    assert read_toml(path) == {"name": "naïve 你好"}
    path.write_bytes('name = "naïve 你好"\n'.encode("utf-8-sig"))
    assert read_toml(str(path)) == {"name": "naïve 你好"}


@pytest.mark.parametrize("key", ["a." * 30_000, "\n[" + "a." * 30_000 + "a]", "x = {" + "'a'." * 30_000 + "a = 1}"])
def test_a_key_of_very_many_parts_is_refused_at_once(tmp_path: Path, key: str) -> None:
    path = tmp_path / "a.toml"
    path.write_text(key, encoding="utf-8")
    with takes_at_most(1), pytest.raises(ConfigError, match=r"a\.toml:[12]: found a key of more than 100 parts"):
        read_toml(path)  # tomllib takes ten seconds


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a = 1\nb = = 2\nc = 3\n", ":2: not valid TOML: Invalid value (at line 2, column 5)"),
        (
            b"a = 1\n\na = 2\n",
            ":3: not valid TOML: Cannot overwrite a value (at line 3, column 6)",
        ),
        (b"a = 1\nb = [1,\n", ":2: not valid TOML: Invalid value (at end of document)"),
        (b"a = 1\nb = '\xff'\n", ":2: found bytes that are not UTF-8, expected text"),
        (b"\xef\xbb\xbf\xff = 1", ":1: found bytes that are not UTF-8, expected text"),
    ],
)
def test_read_toml_names_the_line(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "a.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_toml(path)
    assert str(caught.value) == f"{path}{message}"


def test_read_toml_survives_what_breaks_the_parser(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    for content in ("a = " + "9" * 5000, "a = " + "[" * 5000):
        path.write_text(content)
        with pytest.raises(ConfigError) as caught:
            read_toml(path)
        assert str(caught.value).startswith(f"{path}: not valid TOML: ")
        assert "\n" not in str(caught.value)


def test_read_toml_names_the_nearest_file(tmp_path: Path) -> None:
    (tmp_path / "small.toml").touch()
    with pytest.raises(ConfigError) as caught:
        read_toml(tmp_path / "smal.toml")
    assert str(caught.value) == f"{tmp_path / 'smal.toml'}: no such file. Did you mean 'small.toml'?"
    for path in (tmp_path / "zzz", tmp_path / "no" / "folder.toml"):
        with pytest.raises(ConfigError) as caught:
            read_toml(path)
        assert str(caught.value) == f"{path}: no such file."


def test_read_toml_refuses_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        read_toml(tmp_path)
    assert str(caught.value) == f"{tmp_path}: found a folder, expected a TOML file"
    (tmp_path / "a").touch()
    with pytest.raises(ConfigError) as caught:
        read_toml(tmp_path / "a" / "b.toml")
    assert str(caught.value) == f"{tmp_path / 'a' / 'b.toml'}: cannot be read: Not a directory"


# dump, as_table, differences


def test_dump_writes_tables_under_headers_and_kind_first() -> None:
    config = Config(
        Data(("a\t.tsv",), test=None),
        Model(Transformer(positions=Absent()), Recurrent()),
        Train(rate=1e-6, clip=None, betas=(), patience=3),
        name='say "hi" \\ \x7f 你\n',
    )
    assert (
        dump(config)
        == r"""name = "say \"hi\" \\ \u007f 你\n"
seed = 0

[data]
train = ["a\t.tsv"]
test = "none"
lower = false

[model]
dropout = 0.1

[model.encoder]
kind = "transformer"
width = 512
heads = 8

[model.encoder.positions]
kind = "none"

[model.decoder]
kind = "recurrent"
width = 256
cell = "lstm"

[model.memory]
kind = "relative"
distance = 16

[train]
steps = 1000
optimizer = "adamw"
rate = 1e-06
betas = []
clip = "none"
patience = 3
tags = []
"""
    )
    assert build(Config, tomllib.loads(dump(config))) == config


@dataclass(frozen=True)
class Holder:
    only: Parallel
    required: int | None = setting(help="")
    empty: Absent = Absent()
    many: tuple[Recurrent | Transformer, ...] = ()
    gaps: tuple[int | None, ...] = ()
    größe: bool | int | float | str = 1
    choice: Literal["naïve", 'q"'] | tuple[Literal["a", "b"], ...] | None = ("a",)


@dataclass(frozen=True)
class Empty:
    pass


@dataclass(frozen=True)
class Plain:
    kind: Literal["small", "large"] = "small"
    pair: Parallel = Parallel("a", "b")


@dataclass(frozen=True)
class Shell:
    inner: Plain = Plain()
    empty: Empty | None = None


@dataclass(frozen=True)
class Case:
    shell: Shell = Shell()


def test_dump_gives_a_header_to_an_empty_table_but_none_to_one_of_tables_only() -> None:
    case = Case(Shell(empty=Empty()))
    assert [line for line in dump(case).splitlines() if line.startswith("[")] == [
        "[shell.inner]",
        "[shell.inner.pair]",
        "[shell.empty]",
    ]
    assert build(Case, tomllib.loads(dump(case))) == case
    assert errors({"shell": {"empty": {"x": 1}}}, Case) == ["shell.empty.x: no such setting."]


def test_an_ordinary_field_called_kind_chooses_nothing() -> None:
    assert build(Shell, {"inner": {"kind": "large"}}).inner == Plain("large")
    assert list(as_table(Plain())) == ["kind", "pair"]
    assert errors({"inner": {"kind": "relative"}}, Shell) == [
        'inner.kind: found "relative", expected one of small, large'
    ]


def test_a_required_setting_is_described_as_such_even_within_a_default() -> None:
    rows = {row.place: row.default for row in describe(Plain)}
    assert rows == {
        "kind": '"small"',
        "pair.source": "required",
        "pair.target": "required",
        "pair.weight": "1.0",
    }


def test_dump_writes_tables_in_lists_inline_and_none_where_it_is_no_default() -> None:
    holder = Holder(Parallel("a", "b"), many=(Recurrent(), Transformer()), gaps=(1, None), required=None, choice=None)
    text = dump(holder)
    assert 'required = "none"' in text
    assert 'gaps = [1, "none"]' in text
    assert '"größe" = 1' in text
    assert '[{kind = "recurrent", width = 256, cell = "lstm"}, {kind = "transformer"' in text
    assert build(Holder, tomllib.loads(text)) == holder


@pytest.mark.parametrize(
    ("instance", "message"),
    [
        (Train(rate=float("inf")), "rate: found inf, expected a finite number"),
        (Train(rate=float("nan")), "rate: found nan, expected a finite number"),
        (Train(steps=0), "steps: found 0, expected at least 1"),
        (Data("a\udc80"), 'train: found "a\\udc80", expected text that UTF-8 can hold'),
        (Data("a", valid="none"), 'valid: found "none", which reads back as none'),
        (Transformer(width=10), "heads: found 8, expected a divisor of width 10"),
    ],
)
def test_dump_refuses_what_would_not_read_back(instance: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dump(instance)
    assert str(caught.value) == message


texts = st.text(alphabet=st.characters(codec="utf-8"))
optional_texts = st.none() | texts.filter(lambda text: text != "none")
whole = st.integers(-(2**63), 2**63 - 1)
positive = st.integers(1, 2**63 - 1)
finite = st.floats(allow_nan=False, allow_infinity=False)
positions = st.builds(Relative, positive) | st.just(Absent())
recurrent = st.builds(Recurrent, positive, st.sampled_from(["lstm", "gru"]))
transformer = st.builds(lambda heads, times, where: Transformer(heads * times, heads, where),
                        st.integers(1, 9), st.integers(1, 99), positions)  # fmt: skip
encoders = recurrent | transformer
parallel = st.builds(Parallel, texts, texts, st.floats(0, exclude_min=True, allow_infinity=False))
lists = st.lists(texts).map(tuple)
configs = st.builds(
    Config,
    st.builds(Data, texts | lists | parallel, optional_texts, optional_texts, st.booleans()),
    st.builds(
        Model,
        encoders,
        st.none() | encoders,
        st.floats(0, 1, exclude_max=True),
        st.builds(Relative, positive),
    ),
    st.builds(
        Train,
        positive,
        st.sampled_from(["adamw", "none"]),
        finite,
        st.lists(finite).map(tuple),
        st.none() | st.floats(0, 100),
        st.none() | whole | st.just("auto"),
        lists | st.lists(whole).map(tuple),
    ),
    texts,
    whole,
)
holders = st.builds(
    Holder,
    parallel,
    st.none() | whole,
    st.just(Absent()),
    st.lists(encoders, max_size=3).map(tuple),
    st.lists(st.none() | whole).map(tuple),
    st.booleans() | whole | finite | texts,
    st.sampled_from(["naïve", 'q"', None, (), ("a", "b", "a")]),
)


@given(configs | holders)
def test_what_is_dumped_reads_back_the_same(instance: Config | Holder) -> None:
    read = build(type(instance), tomllib.loads(dump(instance)))
    assert read == instance
    assert repr(read) == repr(instance)  # tells True from 1 and 1 from 1.0


@given(configs)
def test_a_dump_survives_a_file(tmp_path_factory: pytest.TempPathFactory, config: Config) -> None:
    path = tmp_path_factory.getbasetemp() / "dumped.toml"
    path.write_text(dump(config), encoding="utf-8")
    assert build(Config, read_toml(path)) == config


@given(configs)
def test_as_table_is_the_inverse_of_build(config: Config) -> None:
    assert build(Config, as_table(config)) == config


def test_as_table_is_plain() -> None:
    assert as_table(Model(decoder=Recurrent())) == {
        "encoder": {
            "kind": "transformer",
            "width": 64,
            "heads": 8,
            "positions": {"kind": "relative", "distance": 16},
        },
        "decoder": {"kind": "recurrent", "width": 256, "cell": "lstm"},
        "dropout": 0.1,
        "memory": {"kind": "relative", "distance": 16},
    }
    assert as_table(Data(("a",)))["train"] == ["a"]
    assert as_table(Data("a"))["valid"] is None
    assert next(iter(as_table(Recurrent()))) == "kind"


@given(configs, configs)
def test_differences_are_empty_exactly_for_equals(left: Config, right: Config) -> None:
    assert differences(left, left) == []
    assert bool(differences(left, right)) == (left != right)


def test_differences_name_places_and_both_values() -> None:
    left = Config(Data("a"), Model(Transformer(heads=4)), seed=1)
    right = Config(Data(("a", "b"), test=None), Model(Recurrent(), Recurrent()), seed=2)
    assert differences(left, right) == [
        ("data.train", "a", ["a", "b"]),
        ("data.test", "test.tsv", None),
        ("model.encoder.kind", "transformer", "recurrent"),
        ("model.decoder", None, {"kind": "recurrent", "width": 256, "cell": "lstm"}),
        ("seed", 1, 2),
    ]


# describe and setting


def test_describe_lists_every_setting_with_its_default() -> None:
    rows = describe(Config)
    assert Setting("name", "text", '"run"', "") in rows
    assert Setting("data.train", "text, a list of text or a table", "required", "") in rows
    assert Setting("data.train.source", "text", "required", "", "data.train is a table") in rows
    assert Setting("data.valid", "text or none", "none", "") in rows
    assert Setting("train.steps", "a whole number, at least 1", "1000", "Updates of the weights.") in rows
    assert Setting("train.betas", "a list of numbers", "[0.9, 0.98]", "") in rows
    assert Setting("train.optimizer", "one of adamw, sgd, none", '"adamw"', "") in rows
    assert [row for row in rows if row.place.startswith("model.encoder")] == [
        Setting("model.encoder.kind", "one of recurrent, transformer", '"transformer"', ""),
        Setting(
            "model.encoder.width",
            "a whole number, at least 1",
            "256",
            "",
            'model.encoder.kind = "recurrent"',
        ),
        Setting("model.encoder.cell", "one of lstm, gru", '"lstm"', "", 'model.encoder.kind = "recurrent"'),
        Setting(
            "model.encoder.width",
            "a whole number, at least 1",
            "64",
            "",
            'model.encoder.kind = "transformer"',
        ),
        Setting("model.encoder.heads", "a whole number", "8", "", 'model.encoder.kind = "transformer"'),
        Setting(
            "model.encoder.positions.kind",
            "one of relative, none",
            '"relative"',
            "",
            'model.encoder.kind = "transformer"',
        ),
        Setting(
            "model.encoder.positions.distance",
            "a whole number, at least 1",
            "16",
            "",
            'model.encoder.kind = "transformer" and model.encoder.positions.kind = "relative"',
        ),
    ]
    assert [row.place for row in rows if row.place.startswith("model.decoder")][:2] == [
        "model.decoder",
        "model.decoder.kind",
    ]
    assert [row.place for row in rows if row.place.startswith("model.memory")] == ["model.memory.distance"]


def test_describe_takes_a_place() -> None:
    assert [row.place for row in describe(Parallel, "data.train")] == [
        "data.train.source",
        "data.train.target",
        "data.train.weight",
    ]


def test_every_described_default_is_one_that_build_accepts() -> None:
    assignments = [
        f"{row.place}={row.default}"
        for row in describe(Config)
        if row.default != "required" and not row.when and not row.place.startswith("model.decoder")
    ]
    assert len(assignments) > 10
    assert build(Config, override({"data": DATA}, assignments)) == Config(Data("a.tsv"))


def test_setting_keeps_defaults_factories_and_required_fields() -> None:
    @dataclass(frozen=True)
    class Example:
        needed: int = setting(help="Needed.")
        made: tuple[str, ...] = setting(default_factory=lambda: ("a",), help="Made.")

    with pytest.raises(TypeError):
        Example()
    assert Example(needed=3) == Example(3, ("a",))
    assert describe(Example) == [
        Setting("needed", "a whole number", "required", "Needed."),
        Setting("made", "a list of text", '["a"]', "Made."),
    ]
