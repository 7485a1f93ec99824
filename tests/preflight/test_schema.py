"""Which keys a prime-rl knows, read from its source: shapes of source that its history has had, and odd ones."""

from __future__ import annotations

import json
import os
import random
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from supervisor.config.toml_positions import key_positions
from supervisor.preflight import keys
from supervisor.preflight.pydantic_source import read, schema_of
from supervisor.preflight.schema import Field, Schema, walk
from supervisor.preflight.subject import ConfigText, Subject
from supervisor.primerl.configs import Settings, merge_configs
from tests.primerl.eras import ERAS

LAUNCHER = "from prime_rl.configs.rl import RLConfig\ndef main():\n    rl(cli(RLConfig))\n"


def _schema(classes: str, **others: str) -> Schema:
    files = {"entrypoints/rl.py": LAUNCHER, "configs/rl.py": classes}
    files |= {f"{name.replace('__', '/')}.py": text for name, text in others.items()}
    found = schema_of(lambda name: files.get(name, ""), "rl")
    assert found is not None
    return found


def _field(annotation: str, before: str = "") -> Field:
    text = f"from pydantic_config import BaseConfig\n{before}\nclass RLConfig(BaseConfig):\n    x: {annotation}\n"
    found = _schema(text).get("x")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("annotation", "kinds"),
    [
        ("int = 3", "int"),
        ("float = 1e-5", "float"),
        ("bool = False", "bool"),
        ("str", "str"),
        ("Path = Path('outputs')", "str"),
        ("int | None = None", "int none"),
        ("Optional[float] = None", "float none"),
        ("Union[int, str] = 1", "int str"),
        ("list[str] = []", "list"),
        ("dict[str, int] = {}", "table"),
        ("dict[str, Any] | str | None = None", "none str table"),
        ("Any = None", "any"),
        ('"int | None" = None', "int none"),
        ("Annotated[int, Field(ge=1)] = 3", "int"),
        ("Annotated[int | None, Field(ge=1)] = None", "int none"),
        ("Annotated[int, BeforeValidator(f)] = 3", "any int"),
        ('Literal["a", "b"] = "a"', "str"),
        ('int | Literal["auto"] = "auto"', "int str"),
        ("somewhere.Else = 3", "any"),
        ("list[int][0] = 3", "any"),
    ],
)
def test_what_an_annotation_takes(annotation: str, kinds: str) -> None:
    assert _field(annotation).kinds == frozenset(kinds.split())


@pytest.mark.parametrize(
    ("annotation", "required", "default"),
    [
        ("int", True, None),
        ("int | None", True, None),
        ("int = 3", False, 3),
        ("float = -1.5", False, -1.5),
        ("int | None = None", False, None),
        ("int = Field(50, ge=1)", False, 50),
        ("int = Field(default=50)", False, 50),
        ("int = Field(..., ge=1)", True, None),
        ("int = Field(ge=1)", True, None),
        ("list[int] = Field(default_factory=list)", False, None),
        ("Annotated[int, Field(ge=1)] = 7", False, 7),
        ("Annotated[int, Field(default=7)]", False, 7),
        ("Annotated[int, Field(ge=1)]", True, None),
        ("Path = Path('outputs')", False, "outputs"),
    ],
)
def test_defaults_and_what_is_wanted(annotation: str, required: bool, default: object) -> None:
    field = _field(annotation)
    assert (field.required, field.default) == (required, default)


@pytest.mark.parametrize(
    ("annotation", "bounds"),
    [
        ("int = Field(50, ge=1)", {"ge": 1}),
        ("float = Field(0.5, gt=0, le=1.5)", {"gt": 0, "le": 1.5}),
        ("Annotated[int, Field(ge=-1)] = 7", {"ge": -1}),
        ("Annotated[int | None, Field(ge=1)] = None", {"ge": 1}),
        ("Annotated[int, Field(ge=1)] | None = None", {"ge": 1}),
        ("Annotated[int, Field(ge=1)] | float = 1", {}),  # what one refuses, the other takes
        ("Annotated[int, Field(ge=1)] | Annotated[float, Field(ge=1, le=2)] = 1", {"ge": 1}),
        ("Annotated[int, Field(ge=1)] | Any = 1", {}),
        ("list[Annotated[int, Field(ge=1)]] = []", {}),
        ("int = Field(50, ge=LEAST)", {}),
        ("int = 3", {}),
    ],
)
def test_how_small_or_large_a_number_may_be(annotation: str, bounds: dict[str, float]) -> None:
    assert dict(_field(annotation).bounds) == bounds


@pytest.mark.parametrize(
    ("annotation", "elements"),
    [
        ("list[int] = []", "int"),
        ("list[str] | None = None", "str"),
        ("str | list[str] = ''", "str"),
        ("list[int] | list[str] = []", "int str"),
        ("list[int | None] = []", "int none"),
        ("tuple[int, ...] = ()", "int"),
        ("tuple[int, str] = (1, '')", ""),
        ("list = []", ""),
        ("list[int] | list = []", ""),
        ("list[Any] = []", ""),
        ("list[Other] = []", ""),
    ],
)
def test_what_a_list_holds(annotation: str, elements: str) -> None:
    assert _field(annotation).elements == frozenset(elements.split())


def test_choices_are_those_of_a_literal_also_by_another_name() -> None:
    assert _field('Literal["a", "b"] | None = None').choices == ("a", "b")
    assert _field("Attn = 'sdpa'", 'Attn: TypeAlias = Literal["sdpa", "fa2"]').choices == ("sdpa", "fa2")
    assert _field("Kind = 'a'", 'Kind = Literal["a"]').choices == ("a",)
    assert _field('str | Literal["a"] = "a"').choices == ()  # any text will do


def test_classes_of_other_modules_and_what_they_inherit() -> None:
    schema = _schema(
        "from prime_rl.configs.trainer import TrainerConfig as T\nfrom prime_rl.utils.config import BaseConfig\n"
        "class RLConfig(BaseConfig):\n    trainer: T\n    max_steps: int | None = None\n",
        configs__trainer="from prime_rl.configs import shared\nclass TrainerConfig(shared.Common):\n    lr: float\n",
        configs__shared="from prime_rl.utils.config import BaseConfig\nclass Common(BaseConfig):\n    seq_len: int\n",
        utils__config="from pydantic_config import BaseConfig as BaseConfig\n",
    )
    assert sorted(walk(schema.top)) == ["max_steps", "trainer", "trainer.lr", "trainer.seq_len"]
    trainer = schema.get("trainer")
    assert trainer is not None
    assert (trainer.required, trainer.open, trainer.ignores) == (True, False, False)


def test_a_list_of_tables_has_their_keys_and_indices_are_left_out_of_paths() -> None:
    before = "class EnvConfig(BaseConfig):\n    id: str\n    args: dict = {}\n"
    text = (
        f"from pydantic_config import BaseConfig\n{before}class RLConfig(BaseConfig):\n    env: list[EnvConfig] = []\n"
    )
    schema = _schema(text)
    env = schema.get("env")
    assert env is not None
    assert env.kinds == {"list"}
    assert schema.get("env.0.id") == schema.get("env.id") == Field(frozenset({"str"}), required=True)
    assert schema.get("env.args").open  # type: ignore[union-attr]
    assert schema.get("env.unknown") is None


@pytest.mark.parametrize(
    ("base", "config", "opened", "ignores"),
    [
        ("BaseModel", "", False, True),
        ("BaseModel", 'model_config = ConfigDict(extra="forbid")', False, False),
        ("BaseModel", 'model_config = {"extra": "allow"}', True, False),
        ("BaseSettings", "", False, False),
        ("BaseConfig", "", False, False),
        ("BaseConfig", 'model_config = ConfigDict(extra="allow")', True, False),
        ("BaseConfig", "model_config = ConfigDict(alias_generator=f)", True, False),
        ("BaseConfig", "model_config = make()", True, False),
        ("Foreign", "", True, False),
    ],
)
def test_what_becomes_of_an_unknown_key_is_what_pydantic_does(
    base: str, config: str, opened: bool, ignores: bool
) -> None:
    field = _field(
        "Inner = Inner()",
        "from pydantic import BaseModel, ConfigDict\n"
        "from pydantic_settings import BaseSettings\nfrom far import Foreign\n"
        f"class Inner({base}):\n    {config or 'pass'}\n    a: int = 1\n",
    )
    assert (field.open, field.ignores) == (opened, ignores)


def test_both_names_of_a_field_with_aliases_are_known() -> None:
    text = (
        "from pydantic_config import BaseConfig\nclass RLConfig(BaseConfig):\n"
        '    group_size: int = Field(1, validation_alias=AliasChoices("group_size", "rollouts_per_example"))\n'
    )
    assert sorted(walk(_schema(text).top)) == ["group_size", "rollouts_per_example"]


VALIDATOR = """from pydantic_config import BaseConfig
class Train(BaseConfig):
    sampling: int = 1
class RLConfig(BaseConfig):
    train: Train = Train()
    other: Train = Train()
    max_steps: int = 1
    @model_validator(mode="{mode}")
    @classmethod
    def change(cls, data):
        "of sampling, and of stranger too"
        {body}
        return data
"""


def test_a_validator_that_only_fills_in_does_not_make_unknown_keys_welcome() -> None:
    schema = _schema(VALIDATOR.format(mode="before", body="data.setdefault('train', {})['sampling'] = 3"))
    assert not schema.open
    assert schema.get("sampling") is None


def test_a_key_that_a_validator_moves_is_known_with_the_kind_that_it_has_there() -> None:
    schema = _schema(VALIDATOR.format(mode="before", body="data['train']['sampling'] = data.pop('sampling')"))
    assert schema.get("sampling") == Field(frozenset({"int"}), default=1)
    assert not schema.open
    assert schema.get("train").open  # type: ignore[union-attr]  # more may have been moved there
    assert not schema.get("other").open  # type: ignore[union-attr]


def test_a_validator_that_asks_code_from_elsewhere_may_take_any_key() -> None:
    text = VALIDATOR.format(mode="before", body="data = elsewhere.resolve(data)")
    assert _schema("import elsewhere\n" + text).open


def test_a_validator_that_runs_after_changes_no_key() -> None:
    assert not _schema(VALIDATOR.format(mode="after", body="data.pop('sampling')")).open


def test_tables_of_a_union_are_taken_together() -> None:
    before = (
        "class A(BaseConfig):\n    type: Literal['a'] = 'a'\n    x: int = 1\n"
        "class B(BaseConfig):\n    type: Literal['b'] = 'b'\n    y: int\n"
        "AB: TypeAlias = Annotated[A | B, Field(discriminator='type')]\n"
    )
    field = _field("AB | None = None", before)
    assert sorted(field.below) == ["type", "x", "y"]
    assert field.below["type"].choices == ("a", "b")
    assert not field.below["y"].required
    assert sorted(field.of({"type": "b"}).below) == ["type", "y"]
    for unsaid in ({}, {"type": "c"}, {"type": 3}):
        assert field.of(unsaid) is field


def test_a_union_with_a_table_that_has_no_type_is_not_told_apart() -> None:
    before = "class A(BaseConfig):\n    type: Literal['a'] = 'a'\nclass B(BaseConfig):\n    y: int = 1\n"
    assert _field("A | B", before).variants == {}


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"rl.py": ""},
        {"rl.py": "def ("},
        {"rl.py": "cli(Nothing)"},
        {"rl.py": "class RLConfig(RLConfig):\n    pass\ncli(RLConfig)"},
        {"rl.py": "X = X\nclass RLConfig(BaseModel):\n    pass\ncli(RLConfig)"},
        {"rl.py": "\x00"},
    ],
)
def test_source_that_is_not_understood_gives_no_schema(files: Mapping[str, str]) -> None:
    assert schema_of(lambda name: files.get(name, ""), "rl") is None


def test_classes_that_hold_themselves_end() -> None:
    text = "from pydantic_config import BaseConfig\nclass RLConfig(BaseConfig):\n    x: 'RLConfig | None' = None\n"
    assert _schema(text).get("x").open  # type: ignore[union-attr]


def test_the_files_of_an_installation_are_found_in_all_its_roots(tmp_path: Path) -> None:
    first, second = tmp_path / "src" / "prime_rl", tmp_path / "packages" / "prime_rl"
    (first / "entrypoints").mkdir(parents=True)
    (second / "configs").mkdir(parents=True)
    (first / "entrypoints" / "rl.py").write_text(LAUNCHER)
    (second / "configs" / "rl.py").write_text(
        "from pydantic_config import BaseConfig\nclass RLConfig(BaseConfig):\n    max_steps: int = 1\n"
    )
    schema = read([first, second], "rl")
    assert schema is not None
    assert schema.exact
    assert list(walk(schema.top)) == ["max_steps"]
    assert schema.get("max-steps") == schema.get("max_steps")
    assert schema.places("max_steps") == ["max_steps"]
    assert read([first, second], "sft") is None
    assert read([], "rl") is None


# ---------------------------------------------------------------- against the real history, opt-in

CLONE = os.environ.get("PRIME_RL_GIT", "")
with_clone = pytest.mark.skipif(not CLONE, reason="PRIME_RL_GIT names no clone of PrimeIntellect-ai/prime-rl")
ROOTS = ("src/prime_rl", "packages/prime-rl-configs/src/prime_rl")

# What prime-rl itself shipped and its own classes of the same commit did not take: (id, key).
STALE = {
    ("ignored-key", "data.fake"),
    ("hyphens", "data.micro-batch-size"),
    ("unknown-key", "orchestrator.buffer.type"),
    ("unknown-key", "orchestrator.buffer.oversampling_factor"),
    ("ignored-key", "trainer.weight_broadcast.adapter_only"),
    ("unknown-key", "inference.model"),
}


def _git(*words: str) -> str:
    found = subprocess.run(["git", "-C", CLONE, *words], capture_output=True, text=True, errors="replace", check=False)
    return found.stdout


def _kind(name: str, data: Mapping[str, object]) -> tuple[str, str]:
    """Which command takes the file, and for which of its tables; "" where none does."""
    if "trainer" in data or "orchestrator" in data:
        return "rl", ""
    if "sft" in name and "data" in data:
        return "sft", ""
    base = Path(name).name
    tables = {"train": "trainer", "orch": "orchestrator", "infer": "inference"}
    return next((("rl", table) for start, table in tables.items() if base.startswith(start)), ("", ""))


@pytest.mark.optin
@with_clone
@pytest.mark.parametrize("commit", ERAS)
def test_what_prime_rl_ships_is_taken_by_its_own_classes(commit: str) -> None:
    names = _git("ls-tree", "-r", "--name-only", commit).splitlines()

    def source(name: str) -> str:
        return next((_git("show", f"{commit}:{root}/{name}") for root in ROOTS if f"{root}/{name}" in names), "")

    schemas = {kind: schema_of(source, kind) for kind in ("rl", "sft")}
    assert None not in schemas.values()
    looked = 0
    for name in names:
        if not name.endswith(".toml") or not name.startswith(("configs/", "examples/", "k8s/")):
            continue
        text = _git("show", f"{commit}:{name}")
        data = tomllib.loads(text)
        kind, table = _kind(name, data)
        if not kind:
            continue
        looked += 1
        file = ConfigText(Path(name), table, text, data, key_positions(text))
        settings = Settings(merge_configs([(table, data)]), name)
        subject = Subject(kind, settings, (file,), schema=schemas[kind])  # type: ignore[arg-type]
        checks = [keys.unknown_keys, keys.wrong_values, *([] if table else [keys.missing_keys])]
        found = [one for check in checks for one in check(subject)]
        wrong = [one for one in found if (one.id, one.where.key) not in STALE]
        assert wrong == [], f"{commit}:{name}"
    assert looked > 20


@pytest.mark.optin
@with_clone
def test_the_biggest_version_is_read_in_half_a_second(tmp_path: Path) -> None:
    import time

    for root in ROOTS:
        archive = subprocess.run(["git", "-C", CLONE, "archive", "559b44772", root], capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", tmp_path], input=archive.stdout, check=True)
    started = time.process_time()
    schema = read([tmp_path / root for root in ROOTS], "rl")
    assert time.process_time() - started < 0.5
    assert schema is not None
    assert len(list(walk(schema.top))) > 400


def test_odd_values_never_raise() -> None:
    before = "class A(BaseConfig):\n    b: int = 1\n    c: list[int] = []\n"
    text = f"{before}class RLConfig(BaseConfig):\n    a: A = A()\n    d: str = ''\n"
    schema = _schema(f"from pydantic_config import BaseConfig\n{text}")
    values: list[object] = [None, 1, 1.5, True, "x", [], [[]], [{}], {}, {"b": {}}, {"c": [{"b": 1}]}, float("nan"), ""]
    chance = random.Random(1)
    for _ in range(200):
        tree = {name: chance.choice(values) for name in ("a", "d", "e-f", "")}
        file = ConfigText(Path("x.toml"), "", "", tree, {})
        subject = Subject("rl", Settings(tree, "x.toml"), (file,), args=("--a.b", "@x", "--e"), schema=schema)
        for check in keys.CHECKS:
            for one in check(subject):
                json.dumps(one.as_json())
