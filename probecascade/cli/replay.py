"""`probecascade extract --replay`: an observing model reads the runs that other agents recorded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from probecascade.cli.options import changed
from probecascade.cli.recipes import CaptureSection, CheckpointKind, ExtractRecipe, plain
from probecascade.errors import NothingToDoError, UsageError

if TYPE_CHECKING:
    from probecascade.agents.recorded import RecordedFile, RecordedRun
    from probecascade.agents.templates import Template
    from probecascade.episode import Recording
    from probecascade.models import LoadedModel
    from probecascade.models.engine import Engine
    from probecascade.store import Run

CHECKPOINTS: tuple[CheckpointKind, ...] = ("prompt", "thought", "action", "observation")
"""Those that are kept where no recipe says otherwise."""

CACHE_TOKENS = 32_768  # ids whose keys are held at once, whatever the number of slots
_SMALLEST = 256  # ids of the smallest slots
_BATCH_TOKENS = {"cpu": 2048}
_BATCH_TOKENS_ELSEWHERE = 8192  # fills an accelerator, where 2048 ids of a small model do not


@dataclass(frozen=True, slots=True)
class Chosen:
    """The runs of a file that are to be read, in its order, and how the file as a whole is laid out.

    `matching` is the number of runs that could be chosen, before a limit.
    """

    path: Path
    layout: str
    opening: str
    runs: tuple[RecordedRun, ...]
    faults: int
    matching: int


def default_recipe() -> ExtractRecipe:
    """The recipe of a replay for which none was given."""
    return ExtractRecipe(capture=CaptureSection(checkpoints=CHECKPOINTS))


def choose(path: Path, layout: str | None, where: Sequence[str], limit: int | None) -> Chosen:
    """Read a file of recorded runs and take the first `limit` of those with the asked attributes.

    UsageError or DataError for a file that cannot be read, NothingToDoError where no run is left.
    """
    from probecascade.agents.layout import opening_of
    from probecascade.agents.recorded import read_recorded

    if limit is not None and limit < 1:
        raise UsageError(f"--limit is {limit}: give the number of runs to read, 1 or more.")
    found = read_recorded(path, layout)
    wanted = [_pair(text) for text in where]
    runs = [run for run in found.runs if all(_has(run, name, value) for name, value in wanted)]
    if not runs:
        raise NothingToDoError(_none_left(path, found, where))
    return Chosen(path, found.layout, opening_of(found.runs), tuple(runs[:limit]), len(found.faults), len(runs))


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise UsageError(f"--where is {text!r}: give an attribute and its value, such as --where model=gpt-4o.")
    return name, value


def _has(run: RecordedRun, name: str, value: str) -> bool:
    own = {"run_id": run.run_id, "task_id": run.task_id, "group": run.group, **run.attributes}
    return name in own and value in (str(own[name]), json.dumps(own[name]))  # True and true alike


def _none_left(path: Path, found: RecordedFile, where: Sequence[str]) -> str:
    names = sorted({name for run in found.runs for name in run.attributes})
    return (
        f"none of the {len(found.runs)} runs in {str(path)!r} has {' and '.join(where)}; their attributes are "
        f"{', '.join(('run_id', 'task_id', 'group', *names))}."
    )


def extract_recorded(
    recipe: ExtractRecipe, chosen: Chosen, output: Path, resume: bool, again: str, as_json: bool
) -> int | None:
    """Read the runs, store them and say what was stored; `again` is the command that goes on after Ctrl-C."""
    from probecascade.cli.extract import check_any_played, stopped, summary, tell
    from probecascade.store import Run

    try:
        read_runs(recipe, chosen, output, resume)
    except KeyboardInterrupt:
        return stopped(output, again)
    run = Run.open(output)
    record = summary(run) | {"replay": replay_summary(run, chosen)}
    if as_json:
        from probecascade.cli.tables import print_json

        print_json(record)
    else:
        for line in told(record["replay"]):
            typer.echo(line)
        tell(record)
    check_any_played(record)
    return None


def read_runs(recipe: ExtractRecipe, chosen: Chosen, output: Path, resume: bool) -> None:
    """Let the recipe's model read the runs and store them in a run folder."""
    from probecascade.cli.progress import progress
    from probecascade.store import RunWriter

    reader = open_reader(recipe, chosen)
    capture, engine, limit = recipe.capture, reader.engine, reader.limit
    lengths = reader.lengths(chosen.runs)
    if not any(length for length, _ in lengths):
        raise UsageError(
            f"no prompt of these {len(lengths)} runs fits into the {limit} tokens that may be read: raise --max-tokens "
            "or take a model that reads more."
        )
    header = {
        "model": dict(reader.loaded.identity),
        "n_layers": engine.n_layers,
        "d_model": engine.d_model,
        **_described(recipe, chosen, reader.template, limit),
    }
    if recipe.replay.template == "chat":
        header["template_rewrites"] = _rewrites(recipe, chosen, reader)
    with RunWriter(
        output, header, layers=engine.layers, d_model=engine.d_model, dtype=capture.store_dtype, resume=resume
    ) as writer:
        left = [
            (run, length)
            for run, (length, _) in zip(chosen.runs, lengths, strict=True)
            if run.run_id not in writer.stored
        ]
        if resume:
            typer.echo(
                f"resuming: {len(lengths) - len(left)} of {len(lengths)} runs are stored, {len(left)} are left.",
                err=True,
            )
        for recording in progress(reader.read(left), len(left), "replay"):
            writer.add(recording)


def open_reader(recipe: ExtractRecipe, chosen: Chosen) -> Reader:
    """Load the recipe's model and make it ready to read. ModelError or UsageError where it cannot."""
    from probecascade.models import load

    section = recipe.model
    loaded = load(**asdict(section))
    return Reader(loaded, recipe, _template(recipe, chosen, loaded), _limit(recipe, loaded))


def _limit(recipe: ExtractRecipe, loaded: LoadedModel) -> int:
    """Ids that are read of a run at most. UsageError for more than the model reads."""
    from probecascade.models.hooks import text_config

    context = getattr(text_config(loaded.model), "max_position_embeddings", None)
    asked = recipe.replay.max_tokens
    if asked is not None and context is not None and asked > context:
        raise UsageError(
            f"--max-tokens is {asked}, but the model {loaded.source.name!r} reads {context} tokens: give at most that."
        )
    limit = context if asked is None else asked
    if limit is None:
        raise UsageError(f"the model {loaded.source.name!r} does not say how much it reads: add --max-tokens.")
    return int(limit)


def _template(recipe: ExtractRecipe, chosen: Chosen, loaded: LoadedModel) -> Template:
    from probecascade.agents.templates import recorded_chat_template, recorded_template
    from probecascade.cli.session import renderer, with_mark

    instruction = _instruction(recipe)
    if recipe.replay.template == "chat":
        return recorded_chat_template(chosen.opening, renderer(loaded, "[replay]"), instruction)
    return with_mark(recorded_template(chosen.opening, instruction), loaded.tokenizer)


def _instruction(recipe: ExtractRecipe) -> str:
    from probecascade.agents.templates import WATCHED

    return WATCHED if recipe.replay.instruction is None else recipe.replay.instruction


def _rewrites(recipe: ExtractRecipe, chosen: Chosen, reader: Reader) -> list[str]:
    """What the chat template would do to history and the reading does not, as in the header of a played run."""
    from probecascade.agents.replay import recorded_rewrites
    from probecascade.cli.session import renderer

    chat = renderer(reader.loaded, "[replay]")
    found = recorded_rewrites(chosen.opening, chat, _instruction(recipe), reader.template, reader.engine)
    return [*found, *(["states today's date"] if chat.dated else [])]


def _described(recipe: ExtractRecipe, chosen: Chosen, template: Template, limit: int) -> dict[str, Any]:
    """What a replay adds to a header; `recipe_identity` is all that may not change when it is resumed."""
    from probecascade.cli.session import SPLIT, versions
    from probecascade.store import LAYER_CONVENTION, described_file

    record = plain(recipe)
    own = {"layout": chosen.layout, "template": template.name, "opening": chosen.opening, "max_tokens": limit}
    return {
        "layer_convention": LAYER_CONVENTION,
        "final_norm": False,
        "template": template.identity,
        "dtype": recipe.capture.store_dtype,
        "checkpoints": list(recipe.capture.checkpoints),
        "gates": [],
        "split": dict(SPLIT),
        "recipe": {key: record[key] for key in ("model", "capture", "replay")},
        "recipe_identity": {"replay": own},
        "replay": {**own, "rule": "the prompt and the latest whole rounds that fit"},
        "files": {"replay": described_file(chosen.path)},
        "versions": versions(),
    }


class Reader:
    """A model that reads recorded runs, short ones together and long ones few at a time."""

    def __init__(self, loaded: LoadedModel, recipe: ExtractRecipe, template: Template, limit: int) -> None:
        from probecascade.agents.react import AgentSettings

        self.loaded, self.template, self.limit = loaded, template, limit
        self.slots = recipe.agent.slots
        self.layers = recipe.capture.layers
        self.settings = AgentSettings(checkpoints=recipe.capture.checkpoints, store_dtype=recipe.capture.store_dtype)
        self.engine = self._engine(_SMALLEST)

    def lengths(self, runs: Sequence[RecordedRun]) -> list[tuple[int, bool]]:
        """How many ids are fed of each run, none where its prompt alone is too long, and whether rounds are dropped."""
        from probecascade.agents.layout import lay_out

        laid = (lay_out(self.engine, self.template, run, self.limit) for run in runs)
        return [(each.length, bool(each.dropped)) if each.length <= self.limit else (0, False) for each in laid]

    def read(self, runs: Sequence[tuple[RecordedRun, int]]) -> Iterator[Recording]:
        """The runs, each with its number of ids, as episodes; the shortest first."""
        from probecascade.agents.replay import replay

        for capacity, group in classes(runs):
            engine = self.engine = self._engine(capacity)  # the keys of the last one are let go
            yield from engine.run(replay(engine, run, self.template, self.settings, self.limit) for run in group)

    def _engine(self, capacity: int) -> Engine:
        from probecascade.models.engine import Engine
        from probecascade.models.hooks import text_config

        model = self.loaded.model
        every = range(text_config(model).num_hidden_layers + 1)
        return Engine(
            model,
            self.loaded.tokenizer,
            layers=tuple(every if self.layers == "all" else self.layers),
            slots=max(1, min(self.slots, CACHE_TOKENS // capacity)),
            capacity=capacity,
            max_batch_tokens=_BATCH_TOKENS.get(self.device, _BATCH_TOKENS_ELSEWHERE),
        )

    @property
    def device(self) -> str:
        """The kind of device that reads, such as cpu."""
        kind: str = next(self.loaded.model.parameters()).device.type
        return kind


def classes(runs: Sequence[tuple[RecordedRun, int]]) -> list[tuple[int, list[RecordedRun]]]:
    """The runs by the power of two that holds their ids, each class with that capacity, the shortest runs first."""
    found: dict[int, list[RecordedRun]] = {}
    for run, length in sorted(runs, key=lambda pair: pair[1]):
        capacity = max(_SMALLEST, 1 << (length - 1).bit_length())
        found.setdefault(capacity, []).append(run)
    return list(found.items())


def told(record: dict[str, Any]) -> list[str]:
    """What the summary of a replay says beyond that of any run."""
    from probecascade.thresholds.promise import counted

    lines = [
        f"read from {record['file']} ({record['layout']}) by {record['observer']}, at most {record['max_tokens']} "
        "tokens of a run",
    ]
    if record["template_rewrites"]:
        lines.append(
            f"rendered over a whole conversation, the model's chat template {', '.join(record['template_rewrites'])}; "
            "here it is what was recorded that was read and is stored, at the date of 1 January 2025 where one is "
            "asked for"
        )
    if record["taken"] < record["matching"]:
        lines.append(
            f"the first {record['taken']} of {record['matching']} runs, in the file's order: the share of successes "
            "among them need not be that of all"
        )
    if record["truncated"]:
        lines.append(
            f"{record['truncated']} of {record['runs']} runs ({100 * record['truncated_share']:.1f} %) were longer: of "
            "them the prompt and the latest whole rounds that fit were read"
        )
    if record["faults"]:
        listed = shlex.join(["probecascade", "transcripts", record["file"]])
        lines.append(f"{counted(record['faults'], 'fault')} found in the file: `{listed}` tells")
    return lines


def replay_summary(run: Run, chosen: Chosen) -> dict[str, Any]:
    """How a run was read from a file, as JSON values."""
    try:
        truncated = sum(count is not None for count in run.attributes("rounds_dropped"))
    except UsageError:  # no episode has it
        truncated = 0
    header = run.header["replay"]
    return {
        "file": str(chosen.path),
        "sha256": run.header["files"]["replay"]["sha256"],
        "layout": header["layout"],
        "observer": run.header["model"].get("model"),
        "max_tokens": header["max_tokens"],
        "template_rewrites": run.header.get("template_rewrites", []),
        "runs": len(run),
        "taken": len(chosen.runs),
        "matching": chosen.matching,
        "truncated": truncated,
        "truncated_share": truncated / len(run),
        "faults": chosen.faults,
    }


def with_options(recipe: ExtractRecipe, template: str | None, max_tokens: int | None) -> ExtractRecipe:
    """The recipe with what the command line says of the layout. UsageError for what a recipe could not say."""
    if template is not None and template not in ("plain", "chat"):
        raise UsageError(f"--template is {template!r}: give plain or chat.")
    if max_tokens is not None and max_tokens < 1:
        raise UsageError(f"--max-tokens is {max_tokens}: give 1 or more.")
    return changed(recipe, "replay", template=template, max_tokens=max_tokens)
