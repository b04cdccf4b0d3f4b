"""``rlinf-lab train``, ``resume``, ``evaluate``, ``runs`` and ``compare``: the front door from a shell.

The flags of ``train`` are the fields of the algorithm's configuration, with their docstrings and defaults: they are read when the algorithm is known.
"""

from __future__ import annotations

import dataclasses
import re
import sys
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from rlinf_lab.errors import ConfigError, UnknownNameError
from rlinf_lab.recipes.described import default_of, field_docs, summary

BEFORE = "as the run was begun"
PLAIN = (int, float, bool, str)
SHELL = ("eval_every", "eval_episodes", "eval_seed", "checkpoint_minutes", "keep_checkpoints", "checkpoint_on_sigterm", "loggers")  # options that flags can say


@dataclass(frozen=True)
class Train:
    """Train a policy: ``rlinf-lab train ppo CartPole-v1 --total-timesteps 100000``; its flags: ``rlinf-lab train ppo --help``."""

    algorithm: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ALGORITHM")]
    """clone, dagger, grpo, ppo, rlpd, sac, td3 or td3_bc; for tasks of language grpo, ppo, dapo, dr_grpo, reinforce++ or rloo"""

    env: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="ENV")]
    """an environment's id, such as CartPole-v1, or a task of language, such as reasoning/sorting or problems.jsonl"""


@dataclass(frozen=True)
class Resume:
    """Go on with a run from its folder.

    ``rlinf-lab resume runs/cartpole --total-timesteps 200000``; its flags are those of ``train``.
    """

    folder: Annotated[Path, tyro.conf.Positional]
    """of the run"""


@dataclass(frozen=True)
class Evaluate:
    """Play whole episodes with the policy of a run's folder."""

    folder: Annotated[Path, tyro.conf.Positional]
    """of the run"""

    episodes: int = 50
    """how many"""

    seed: int = 1
    """of the environments, never one of training"""

    best: bool = False
    """the policy of the best evaluation, not the newest"""

    def run(self) -> int:
        from rlinf_lab.experiments import load_policy

        print(load_policy(self.folder, self.best).evaluate(self.episodes, self.seed))
        return 0


@dataclass(frozen=True)
class ListRuns:
    """The runs that are kept here, which of them live and which died."""

    root: Annotated[Path, tyro.conf.Positional] = Path("runs")
    """the folder that they are in"""

    def run(self) -> int:
        from rlinf_lab.experiments import runs

        table = runs(self.root)
        none = f"no runs in {self.root}. Next: rlinf-lab train ppo CartPole-v1"
        print(table.to_string(index=False, na_rep="–", float_format="{:.4g}".format) if len(table) else none)
        return 0


@dataclass(frozen=True)
class Compare:
    """Put runs beside one another: what they came to, and how their settings differ."""

    folders: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH [PATH ...]", help_behavior_hint="(required)")]
    """of the runs"""

    metric: str | None = None
    """what is compared; by default the return"""

    to: Path | None = None
    """also write the curves as .html or .png"""

    def run(self) -> int:
        from rlinf_lab.experiments import compare

        found = compare(*self.folders, metric=self.metric)
        print(found)
        if self.to is not None:
            if self.to.suffix not in (".html", ".png"):
                raise UnknownNameError.of("ending of a picture's file", self.to.suffix, (".html", ".png"))
            content = found.picture() if self.to.suffix == ".png" else found.figure().to_html(include_plotlyjs=True).encode()
            self.to.write_bytes(content)
        return 0


def words(arguments: Sequence[str]) -> list[str]:
    """Arguments that are neither options nor the value right after one, in their order.

    Numbers are left out where there is anything else: an option may have several values.
    """
    found = _bare(arguments)
    return [word for word in found if not _is_number(word)] or found


def _bare(arguments: Sequence[str]) -> list[str]:
    found, is_value = [], False
    for argument in arguments:
        is_option = argument.startswith("-") and not _is_number(argument)
        if not is_option and not is_value:
            found.append(argument)
        is_value = is_option and "=" not in argument and argument not in ("-h", "--help")
    return found


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def words_first(arguments: Sequence[str]) -> list[str]:
    """The same arguments with those before all options that are none. A list of folders must stand together."""
    first, rest = _bare(arguments), list(arguments)
    for word in first:
        rest.remove(word)
    return [*first, *rest]


def train(arguments: list[str]) -> int:
    """What stands behind ``rlinf-lab train``. Returns the exit status.

    ``SystemExit`` from tyro for flags that there are not.
    """
    from rlinf_lab.experiments import recipe, starting

    given = words(arguments)
    if not given:
        tyro.cli(Train, prog="rlinf-lab train", args=arguments)
        return 2
    named = next((word for word in given if word in recipe.names()), given[0])
    at = given.index(named)
    env = next(iter([*given[at + 1 :], *given[:at]]), None)  # it decides between two of one name
    found = recipe.find(named, env)
    settings = _settings(found, arguments, named, env, "train", flags_of(found))
    return _waited(starting.train(found, settings.pop("env"), **settings))


def resume(arguments: list[str]) -> int:
    """What stands behind ``rlinf-lab resume``, as `train`."""
    from rlinf_lab.experiments import starting
    from rlinf_lab.experiments.storage.folder import RunFolder

    given = words(arguments)
    if not given:
        tyro.cli(Resume, prog="rlinf-lab resume", args=arguments)
        return 2
    named = next((word for word in given if Path(word).is_dir()), given[0])
    found = RunFolder(named).recipe()
    return _waited(starting.resume(named, **_settings(found, arguments, named, None, "resume", flags_of(found, anew=False))))


def _settings(recipe: Any, arguments: list[str], named: str, env: str | None, command: str, flags: type[Any]) -> dict[str, Any]:
    """What the flags say, as keywords of `train` and `resume`.

    ``named``: the argument that said which flags there are. ``env``: the other one that is no flag, if there is one.
    """
    rest = list(arguments)
    rest.remove(named)
    if env is not None:  # first: behind a flag that takes several values it would be one of them
        rest.remove(env)
        rest.insert(0, env)
    found = tyro.cli(flags, prog=f"rlinf-lab {command} {named}", args=rest, description=summary(recipe.config))
    given = {f.name: value for f in dataclasses.fields(found) if (value := getattr(found, f.name)) is not None}
    settings = {name: parsed(name, value) for name, value in given.items()}
    until = {goal: settings.pop(f"until_{goal}") for goal in ("return", "success_rate", "hours", "patience") if f"until_{goal}" in settings}
    return settings | ({"until": until} if until else {})


def _waited(run: Any) -> int:
    """The exit status of a run that goes on until its end."""
    try:
        run.wait()
    except KeyboardInterrupt:
        print(f"interrupted; {run.folder} is kept. Next: rlinf-lab resume {run.folder}", file=sys.stderr)
        return 130
    print(f"Next: rlinf-lab evaluate {run.folder}")  # what became of it stands where its progress stood
    return 0


# --- words ----------------------------------------------------------------------------------------------------------------
_CALL = re.compile(r"\blab\.(train|resume|runs|compare)\(([^()]*)\)")
_SAID = r"('[^']*'|[^\s,;()]*[^\s,;.()])"


def in_shell(said: str) -> str:
    """What an error says of Python, in the words of a shell.

    ``lab.runs()`` is ``rlinf-lab runs``, ``gamma=0.9`` is ``--gamma 0.9``.
    """
    said = re.sub(rf"^train\((\w+)={_SAID}\)", lambda found: _as_flag(*found.groups()), said)
    said = re.sub(r"\b[A-Z]\w*Config\.(\w+)(?= is )", lambda found: _as_flag(found[1]), said)
    said = _CALL.sub(lambda found: _command(*found.groups()) or found[0], said)
    return re.sub(rf"(?<=Next: )(\w+)={_SAID}", lambda found: _as_flag(*found.groups()), said)


def _command(name: str, arguments: str) -> str:
    """A call as a command; "" where an argument is an object of a program."""
    words = [f"rlinf-lab {name}"]
    for argument in filter(None, (part.strip() for part in arguments.split(","))):
        keyword, equals, value = argument.rpartition("=")
        if not re.fullmatch(r"'[^']*'|[\d_.e+-]+|\.\.\.", value):
            return ""
        words.append(_as_flag(keyword, value) if equals else value.strip("'"))
    return " ".join(words)


def _as_flag(name: str, value: str = "") -> str:
    return f"--{name.replace('_', '-')} {re.sub(r'(?<=[0-9])_(?=[0-9])', '', value).strip(chr(39))}".rstrip()


def flags_of(recipe: Any, anew: bool = True) -> type[Any]:
    """A dataclass with a flag for each setting.

    None: as the recipe, or its preset for the environment, has it. ``anew``: of a run that begins.
    """
    from rlinf_lab.experiments.options import Options

    env: Any = ("env", Annotated[str, tyro.conf.Positional, tyro.conf.arg(help="an environment's id, such as CartPole-v1")])
    again = _flag("env", str, "the file of problems again, where it has changed, or another environment's id", BEFORE)
    made: list[tuple[str, Any, Any]] = [env if anew else again]
    counted = getattr(recipe.config, "unit", "environment steps over all environments")
    made.append(_flag("total_timesteps", int, f"{counted}, of the whole run", "as the preset has it" if anew else BEFORE))
    docs, hints = field_docs(recipe.config), typing.get_type_hints(recipe.config)
    for name, field in recipe.fields.items():
        kind = flag_type(hints[name])
        if kind is not None and name not in ("env", "total_timesteps"):
            made.append(_flag(name, kind, docs.get(name, ""), default_of(field) if anew else BEFORE))
    docs, hints = field_docs(Options), typing.get_type_hints(Options)
    for field in dataclasses.fields(Options):
        if field.name in SHELL:
            kind = tuple[str, ...] if field.name == "loggers" else flag_type(hints[field.name]) or int
            made.append(_flag(field.name, kind, docs[field.name], default_of(field)))
    for goal, meaning in {"return": "mean return of an episode", "success_rate": "share of successes, 0 to 1", "hours": "wall clock",
                          "patience": "looks without a better return"}.items():  # fmt: skip
        made.append(_flag(f"until_{goal}", float, f"end as soon as it is reached: {meaning}", "none"))
    if anew:
        made.append(_flag("folder", str, "where the run is kept", "a new one in runs/"))
    made.append(_flag("executor", str, '"local" (threads), "processes" or "ray"', "by the plan"))
    return dataclasses.make_dataclass("Flags", made, frozen=True)


def _flag(name: str, kind: Any, text: str, default: str) -> tuple[str, Any, Any]:
    said = " ".join(text.split())
    what = getattr(kind, "__name__", "text").upper() if kind in PLAIN else None
    told = tyro.conf.arg(help=said, metavar=what, help_behavior_hint=f"(default: {default})")
    return name, Annotated[kind | None, told], dataclasses.field(default=None)


def flag_type(hint: Any) -> Any:
    """What a flag can hold of a setting; None: no flag can.

    A plain type, a tuple of them, or text where a number may be a schedule.

    A plain type, a tuple of them, or text where a number may be a schedule.
    """
    options = [h for h in typing.get_args(hint) if h is not type(None)] if typing.get_origin(hint) in (typing.Union, type(int | None)) else [hint]
    if any(typing.get_origin(h) is tuple for h in options):
        found = next(h for h in options if typing.get_origin(h) is tuple)
        return tuple[str, ...] if str in typing.get_args(typing.get_args(found)[0]) else found  # of names, or objects
    plain = [h for h in options if h in PLAIN]
    if len(plain) < len(options) and float in plain:
        return str
    return plain[0] if plain else None


def parsed(name: str, value: Any) -> Any:
    """Text of a flag as the setting: a number, or ``linear(1e-3, 1e-4)``."""
    if not isinstance(value, str):
        return value
    try:
        number = float(value)
    except ValueError:
        pass
    else:
        return int(number) if number.is_integer() and "." not in value and "e" not in value.lower() else number
    if value.startswith("linear(") and value.endswith(")"):
        from rlinf_lab.recipes.schedules import linear

        try:
            return linear(*(float(part) for part in value[7:-1].split(",")))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"--{name.replace('_', '-')} {value}: numbers. Next: 'linear(1e-3, 1e-4)'.") from error
    return value
