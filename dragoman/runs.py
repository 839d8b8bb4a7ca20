"""Run folders: made whole or not at all, trained, resumed and read."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dragoman.config import settings
from dragoman.data.collate import PAIR_COLLATOR
from dragoman.data.corpus import Corpus
from dragoman.data.media.feature_extractor import FeatureExtractor
from dragoman.data.tokenizers.base import Tokenizer
from dragoman.data.tokenizers.labels import LabelVocabulary
from dragoman.data.tokenizers.load import load_tokenizer
from dragoman.data.tokenizers.numbers import NumberScaler
from dragoman.errors import ConfigError, RunError, nearest
from dragoman.files import remove_folder, set_compiler_caches, write_text
from dragoman.models.encoders.images import TorchvisionConfig, TorchvisionEncoder, trunk_of
from dragoman.tasks.base import Task
from dragoman.tasks.config import Config, from_table, with_absolute_paths
from dragoman.tasks.table import task_of
from dragoman.training.checkpoints import Checkpoints, TrainingState, read_tensors
from dragoman.training.display import Display
from dragoman.training.distributed import ProcessGroup
from dragoman.training.optimizer import load_weights
from dragoman.training.signals import exit_cleanly_on_sigterm
from dragoman.training.start_from import load_parts, load_whole_model
from dragoman.training.trainer import Trainer, tensorboard_writer, use_bfloat16
from dragoman.training.transfer import EMBEDDING_TABLES, TransferReport, all_named_weights, freeze, rate_factors

# Settings that change neither the data, the model nor what a step does: a run may go on with new ones.
CHANGEABLE = (
    "train.steps",
    "train.validate_every",
    "train.save_every",
    "train.log_every",
    "train.patience",
    "train.decode",
    "train.device",
    "train.tensorboard",
    "search.",
    "data.cache",
    "data.train",  # the files may have moved; their content is checked by its hash
    "data.valid",
    "tokenizer.source.run",  # the same holds for another run's units
    "tokenizer.target.run",
    "data.media",
)

TELLING = 0.01  # a share of unknown tokens worth a word


class Run:
    """A folder with everything about one model."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not (self.folder / "config.toml").is_file():
            raise RunError(missing_run_message(self.folder))
        self.config = from_table(settings.read_toml(self.folder / "config.toml"))

    @property
    def task(self) -> Task:
        """What kind of problem it learned."""
        return task_of(self.config)

    @property
    def data(self) -> dict[str, Any]:
        """What is known of the data: counts, faults, fingerprint."""
        try:
            report: dict[str, Any] = json.loads((self.folder / "data.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.folder}/data.json: damaged ({error})") from None
        missing = {"train", "valid", "length_ratio", "fingerprint"} - set(report if isinstance(report, dict) else ())
        if missing:
            raise RunError(f"{self.folder}/data.json: damaged (it does not tell {', '.join(sorted(missing))})")
        return report

    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Source and target tokenizer."""
        folder = self.folder / "tokenizer"
        return load_tokenizer(folder, "source"), load_tokenizer(folder, "target")

    def model(self, device: torch.device, weights: Path | None = None) -> nn.Module:
        """The trained model, ready to predict."""
        source, target = self.tokenizers()
        model = self.task.model(self.config, source, target)
        load_weights(model, read_tensors(weights or self.weights_path()))
        return model.to(device).eval()

    def weights_path(self) -> Path:
        """The weights to use: the best validated ones, else those of the newest checkpoint."""
        best = self.folder / "weights.safetensors"
        if best.exists():
            return best
        steps = Checkpoints(self.folder).steps()
        if not steps:
            raise RunError(f"{self.folder}: not trained yet; start with: dragoman train {self.folder}")
        if any((self.folder / "best").glob("*.safetensors")):  # the newest are not those that validation chose
            raise RunError(
                f"{best}: no such file, but the run was validated; make it anew: dragoman train {self.folder}"
            )
        return Checkpoints(self.folder).path(steps[-1]) / "weights.safetensors"

    def metrics(self) -> list[dict[str, Any]]:
        """Every line of metrics.jsonl."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        rows = []
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:  # a line being written, or torn by a kill
                continue
        return rows


def missing_run_message(folder: Path) -> str:
    """Why a folder cannot be used, with the nearest one that could."""
    if not folder.exists():
        parent = folder.parent
        others = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
        near = nearest(folder.name, others)
        return f"{folder}: no such run folder." + (f" Did you mean '{parent / near}'?" if near else "")
    if folder.is_file():
        return f"{folder}: found a file, expected a run folder"
    return f"{folder}: not a run folder (it has no config.toml)"


def resolve_device(name: str, processes: ProcessGroup | None = None) -> torch.device:
    """The device a setting names; auto prefers a GPU."""
    local = processes.local_rank if processes is not None else 0
    if name == "auto":
        name = f"cuda:{local}" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"device: found {name!r}, expected auto, cpu, cuda or cuda:N") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device: found {name!r}, but no GPU can be used here; expected auto or cpu")
        if device.index is None:
            device = torch.device("cuda", local)
        if device.index >= torch.cuda.device_count():
            raise ConfigError(f"device: found {name!r}, but there are {torch.cuda.device_count()} GPUs")
        set_compiler_caches()  # our own kernels too
    elif device.type != "cpu":
        raise ConfigError(f"device: found {name!r}, expected auto, cpu, cuda or cuda:N")
    return device


def create(folder: Path, config: Config, corpus: Corpus) -> None:
    """Make a run folder in one step: beside, then renamed."""
    beside = folder.with_name(f".{folder.name}.part")
    try:
        remove_folder(beside)  # a killed process may have left one
        beside.mkdir(parents=True)
        (beside / "tokenizer").mkdir()
        corpus.source_tokenizer.save(beside / "tokenizer", "source")
        corpus.target_tokenizer.save(beside / "tokenizer", "target")
        (beside / "data.json").write_text(json.dumps(corpus.report, indent=2), encoding="utf-8")
        (beside / "config.toml").write_text(settings.dump(with_absolute_paths(config)), encoding="utf-8")
        beside.rename(folder)
    except OSError as error:
        raise RunError(f"{folder}: cannot make the run folder ({error.strerror})") from None
    finally:
        remove_folder(beside)


def check_resumable(run: Run, config: Config) -> None:
    """A run goes on only with the settings it was started with."""
    changed = [
        f"{place} was {before!r}, is {now!r}"
        for place, before, now in settings.differences(run.config, with_absolute_paths(config))
        if not place.startswith(CHANGEABLE)
    ]
    if changed:
        raise RunError(
            f"{run.folder}: started with other settings ({'; '.join(changed)}). "
            "Go on with the old ones, or name a new folder with --run"
        )


def check_start(folder: str) -> None:
    """A run to start from must be there and have weights."""
    try:
        Run(folder).weights_path()
    except RunError as error:
        raise RunError(f"train.start_from: {error}") from None


def check_library(model: Any) -> None:
    """What a library must bring is asked for before long data are read."""
    encoder = getattr(model, "encoder", None)
    if isinstance(encoder, TorchvisionConfig):
        trunk_of(encoder.name, None)


def check_steps(folder: Path, steps: int) -> None:
    """A run cannot be taken back to fewer steps; its configuration would tell of steps that it has left behind."""
    reached = max(Checkpoints(folder).steps(), default=0)
    if reached > steps:
        raise RunError(
            f"{folder}: the run already has {reached:,} steps, more than train.steps = {steps:,} asks for, so nothing "
            f"was trained; go on with train.steps above {reached}, or name a new folder with --run"
        )


def folder_state(folder: Path) -> str:
    """ "new", "run", or an error for a folder that holds something else."""
    if not folder.exists():
        return "new"
    if (folder / "config.toml").is_file():
        return "run"
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        return "new"
    raise RunError(missing_run_message(folder) + "; name another with --run")


def train(config: Config, folder: str | Path, display: Display | None = None) -> TrainingState:
    """Train in a folder: start it, or go on where it stands."""
    folder = Path(folder)
    display = display or Display(quiet=True)
    processes = ProcessGroup()
    device = resolve_device(config.train.device, processes)
    use_bfloat16(config.train.precision, device)  # what cannot be done is said before anything is written
    check_library(config.model)
    if config.train.tensorboard:
        tensorboard_writer()
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not processes.is_main:
        display = Display(io.StringIO(), quiet=True)  # one voice is enough, for warnings too
    with exit_cleanly_on_sigterm(lambda: max(Checkpoints(folder).steps(), default=0)), processes.initialized(device):
        state = folder_state(folder) if processes.is_main else ""
        if state == "run":
            check_resumable(Run(folder), config)
            check_steps(folder, config.train.steps)
        elif config.train.start is not None:
            check_start(config.train.start.run)
        task = task_of(config)
        if processes.is_main:
            with display:  # what may be wrong with the data is told on a line of its own
                task.prepare(config, display.preparing)
        processes.barrier()
        corpus = task.prepare(config)
        torch.manual_seed(config.train.seed)
        source, target = corpus.source_tokenizer, corpus.target_tokenizer
        model = task.model(config, source, target).to(device)
        freeze(model, config.train.freeze)  # a name that is not there is said before anything is written
        rate_factors(model, config.train.rates)
        validator = task.validator(config, corpus, device)  # a metric that these data do not have, too
        begun: list[str] = []
        otherwise = ""
        if not Checkpoints(folder).steps():
            begun = load_torchvision_weights(model)
            if config.train.start is not None:
                came = start_from(config, model, corpus)
                begun += came.lines(config.train.start.run)
                otherwise = learned_otherwise(config, came)
        if state == "new":
            create(folder, config, corpus)
        elif state == "run":
            check_same_data(folder, corpus)
            write_text(folder / "config.toml", settings.dump(with_absolute_paths(config)))
        processes.barrier()
        tell_data(display, corpus, task)
        for line in begun:
            display.info(line)
        if otherwise:
            display.warning(otherwise)
        loader = task.loader(config, corpus, model, processes)
        trainer = Trainer(
            config.train,
            config.search,
            model,
            corpus,
            folder,
            device,
            processes,
            display,
            config.data.units,
            validator,
            loader,
        )
        count = sum(part.numel() for part in model.parameters())
        threads = torch.get_num_threads()
        alone = f"one process, {threads} thread{'s' if threads > 1 else ''}"
        place = alone if not processes.is_distributed else f"{processes.world_size} processes"
        still = sum(part.numel() for part in model.parameters() if not part.requires_grad)
        kept = f", {still:,} of them frozen" if still else ""
        display.info(f"model: {count:,} parameters on {device} ({place}){kept}")
        if trainer.progress.step:
            display.info(f"going on from step {trainer.progress.step}")
        with display:
            return trainer.train()


def load_torchvision_weights(model: nn.Module) -> list[str]:
    """Let the parts of a new model that a library has trained take its weights; tells which."""
    lines = [part.load_pretrained() for part in model.modules() if isinstance(part, TorchvisionEncoder)]
    return [f"starts with {line}" for line in lines if line]


def start_from(config: Config, model: nn.Module, corpus: Corpus) -> TransferReport:
    """Give a new model the best weights of another run, or parts of them, and tell what came of it."""
    start = config.train.start
    assert start is not None
    run = Run(start.run)
    theirs, ours = run.tokenizers(), (corpus.source_tokenizer, corpus.target_tokenizer)
    weights = all_named_weights(run.model(torch.device("cpu")))
    alike = run.config.task == config.task and type(run.config.model) is type(config.model)
    if isinstance(config.train.start_from, str) and alike:
        return load_whole_model(model, weights, theirs, ours, start.run)
    return load_parts(model, weights, theirs, ours, start)


def learned_otherwise(config: Config, came: TransferReport) -> str:
    """How the parts that came over were built where they were learned, as far as it differs; empty where it does not.

    Weights may fit and mean something else, such as those of attention with another number of heads.
    """
    assert config.train.start is not None
    theirs = Run(config.train.start.run).config.model
    renamed = [part.partition(":") for part in config.train.start.parts if ":" in part]
    other_names = {ours: name for name, _, ours in renamed}
    parts: dict[str, str] = {}  # here, and what they are called there
    for name in came.loaded:
        if not fnmatchcase(name, EMBEDDING_TABLES):  # rows mean the same whatever reads them
            here = next((ours for ours in other_names if f"{name}.".startswith(f"{ours}.")), name.partition(".")[0])
            parts[here] = other_names.get(here, here)
    found: list[str] = []
    for part, other in parts.items():
        there, here = settings_of(theirs, other), settings_of(config.model, part)
        if hasattr(there, "kind") and type(there) is type(here):
            found += [
                f"model.{part}.{place} was {before!r}, is {now!r}"
                for place, before, now in settings.differences(there, here)
                if not re.search(r"dropout$|layers$|max_positions$", place)  # other weights mean the same
            ]
    return f"{config.train.start.run} learned what is taken from it otherwise: {'; '.join(found)}" if found else ""


def settings_of(model: Any, part: str) -> Any:
    """The settings of a part of a model by the name of its weights; None where it has none of its own."""
    names = part.split(".")
    if names[0] == "decoder_head":
        names = names[1:] or ["decoder"]  # a captioner's
    for name in names:
        model = getattr(model, name, None)
    return model


def check_same_data(folder: Path, corpus: Corpus) -> None:
    """The text and vocabulary must be those the run was started with."""
    run = Run(folder)
    pairs = zip(run.tokenizers(), (corpus.source_tokenizer, corpus.target_tokenizer), strict=True)
    tagged = any(tokenizer.tags for tokenizer in (*run.tokenizers(), corpus.source_tokenizer))
    same = all(old.fingerprint() == new.fingerprint() for old, new in pairs)
    if run.data["fingerprint"] != corpus.report["fingerprint"] or not same:
        raise RunError(
            f"{folder}: the data files{' or their tags' if tagged else ''} are not those this run was started with; "
            "put the old ones back, or start anew with --run"
        )


def units_of(codec: Tokenizer) -> str:
    """How many units there are to read or write: features and numbers are no vocabulary."""
    if isinstance(codec, NumberScaler):
        return "numbers"
    if isinstance(codec, FeatureExtractor):
        return f"{len(codec):,} features"
    return f"{len(codec):,} labels" if isinstance(codec, LabelVocabulary) else f"vocabulary {len(codec):,}"


def sides(corpus: Corpus) -> str:
    """What is read and what is written, in a few words."""
    source, target = units_of(corpus.source_tokenizer), units_of(corpus.target_tokenizer)
    if corpus.collator.loss_terms is not None:  # what is told stands in the sources
        return source
    both = source.startswith("vocabulary") and target.startswith("vocabulary")
    return f"{source} → {target.removeprefix('vocabulary ') if both else target}"


def tell_data(display: Display, corpus: Corpus, task: Task) -> None:
    """What came of the files."""
    report = corpus.report
    train_part, valid_part = report["train"], report["valid"]
    what = "pairs" if corpus.collator == PAIR_COLLATOR else "examples"
    if task.is_language_model:
        display.info(
            f"data: {train_part['target_tokens']:,} tokens in {train_part['pairs']:,} lines to learn from, "
            f"{valid_part['target_tokens']:,} to validate; vocabulary {len(corpus.target_tokenizer):,}"
        )
    else:
        display.info(
            f"data: {train_part['pairs']:,} {what} to learn from, {valid_part['pairs']:,} to validate; {sides(corpus)}"
        )
    if isinstance(corpus.target_tokenizer, LabelVocabulary):
        names = corpus.target_tokenizer.names
        display.info(f"labels: {', '.join(names[:20])}{', …' if len(names) > 20 else ''}")
    if report.get("tags"):
        display.info("tags: " + ", ".join(f"{tag} ({count:,} pairs)" for tag, count in report["tags"].items()))
    left_out = {kind: count for kind, count in report["faults"].items() if count}
    if train_part["too_long"]:
        left_out["longer than data.max_length"] = train_part["too_long"]
    if left_out:
        display.warning("left out: " + ", ".join(f"{count:,} {kind}" for kind, count in left_out.items()))
    if unknown := unknown_token_report(report):
        display.info(unknown)


def unknown_token_report(report: dict[str, Any]) -> str:
    """Which shares of the text its vocabulary does not know, if any is worth a word; older stores do not tell."""
    parts = {part: report[part].get("unknown", {}) for part in ("train", "valid")}
    sides = [side for side in ("source", "target") if any(shares.get(side, 0) > TELLING for shares in parts.values())]
    if not sides:
        return ""
    one = len(parts["train"]) == 1
    told = (
        f"{parts['train'].get(side, 0):.1%} of the {'tokens' if one else f'{side} tokens'} to learn from, "
        f"{parts['valid'].get(side, 0):.1%} of those to validate"
        for side in sides
    )
    return f"unknown to the vocabulary: {'; '.join(told)}"


def resume_config(folder: str | Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a run with `place=value` settings on top."""
    Run(folder)
    if any(assignment.partition("=")[0].strip() == "preset" for assignment in overrides):
        raise ConfigError(f"preset: found with {folder}, which has its settings already; change single ones by place")
    table = settings.override(settings.read_toml(Path(folder) / "config.toml"), list(overrides))
    return from_table(table)
