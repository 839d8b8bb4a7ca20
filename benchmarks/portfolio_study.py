"""The experiments behind the automatic choices: every entry of the portfolio on every practice set, with several seeds.

    python benchmarks/portfolio_study.py --prepare ../shared/data
    python benchmarks/portfolio_study.py --device cuda --jobs 12 --minutes 25 --seeds 1
    python benchmarks/portfolio_study.py --only inflection --candidates convs2s,luong-256 --device cpu --jobs 2
    python benchmarks/portfolio_study.py --table

What regularisation adds to the automatic choice; a job trains for the same time, whatever a step costs:

    python benchmarks/portfolio_study.py --regularisation --seeds 3 --device cuda --jobs 14 --job-minutes 2 \
        --only tatoeba-eng-fra,multi30k-7000,multi30k-en-de
    python benchmarks/portfolio_study.py --regularisation --seeds 3 --device cuda --jobs 14 --job-minutes 1 \
        --only wikipron-low-spa,wikipron-low-tha,wikipron-medium-ukr,inflection-low-german,inflection-medium-german

So many jobs share a GPU that a sentence model has a third of its steps in that time. With their own budgets, few at
a time:

    T=entry=transformer-t5+train.steps=12000
    python benchmarks/portfolio_study.py --device cuda --jobs 4 --only tatoeba-eng-fra-10000,multi30k-7000 \
        --candidates $T,$T+train.objective=likelihood,$T+tokenizer.source.dropout=0.05

With CUDA's multi-process service (`nvidia-cuda-mps-control -d`) 13 such jobs beside each other took 6.5 minutes.

--prepare writes carry/portfolio/SET/{train,valid,test}.tsv; a line of the last two may have several references. Each
job trains one candidate with one seed and scores its best weights on the validation pairs, by which rules are chosen,
greedily and by beam search; with --part test on the test pairs, for one report at the end. A finished job is one line
of results.jsonl; the same command skips it, so a stopped study goes on where it was. --minutes ends the study: jobs
that still run are stopped and start again next time. The candidate "auto" is what `dragoman train` chooses by itself,
with its own budget, "search=9m" what `dragoman train --time 9m` finds; a search has processes of its own. "entry=NAME"
is an entry with the budget that the search would give it; the entry's name alone means the study's own budget. A
candidate may have overrides: `auto+train.steps=4000`.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

FOLDER = Path("carry/portfolio")
Row = tuple[str, ...]  # a source and its references
# By the beginning of a set's name; the others: exact_match.
METRICS = {"wikipron": "wer", "cmudict": "wer", "e2e": "bleu", "disfl": "bleu", "ua": "bleu", "multi30k": "bleu",
           "tatoeba": "bleu", "paraphrases": "bleu", "reworded": "bleu"}  # fmt: skip
LOW = ("spa", "pol", "ces", "ukr", "tha", "tgl", "tur", "mya", "swe", "eus")
INFLECTED = ("german", "finnish", "arabic", "turkish", "spanish", "zulu")
PARTS = ("train", "valid", "test", "generalisation")  # the last one in COGS only
OFFICIAL = ("train", "dev", "test")
KEPT = 3000  # validation pairs
SEARCHES = (("greedy", 1), ("beam", None))
# Of --regularisation, in words that a table can show; those with sub-words are for sentences alone.
REGULARISATION = ("train.objective=r-drop", "train.objective=simcut")
DROPOUT = "tokenizer.source.dropout=0.1"
SENTENCES = ("tatoeba", "multi30k", "paraphrases")
OTHER_BEAMS = (("beam_2", 2), ("beam_5", 5), ("beam_10", 10))  # of the automatic choice
SEARCH = "search="  # then the time
ENTRY = "entry="  # then the name of an entry
PR_SET_PDEATHSIG = 1


def lines(path: Path) -> list[str]:
    """The lines of a .gz file."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return [line.rstrip("\r\n") for line in file]


def tsv(data: Path, *names: str) -> Callable[[], list[list[Row]]]:
    """Three tab-separated files: train, valid, test."""
    return lambda: [[tuple(line.split("\t")) for line in lines(data / name)] for name in names]


def with_pairs(read: Callable[[], list[list[Row]]], count: int) -> Callable[[], list[list[Row]]]:
    """The same parts with so many training pairs, evenly spread."""

    def some() -> list[list[Row]]:
        train, *others = read()
        return [spread(train, count), *others]

    return some


def parallel(data: Path, source: str, target: str, *tests: str) -> list[list[Row]]:
    """Multi30k: two files of lines for each part; the test parts are joined."""

    def read(name: str) -> list[Row]:
        return list(zip(*(lines(data / f"{name}.{side}.gz") for side in (source, target)), strict=True))

    return [read("train"), read("val"), [row for name in tests for row in read(name)]]


def cmudict(data: Path) -> list[list[Row]]:
    """The split of the literature; 2,670 words are held out, chosen by their hash."""
    groups: dict[str, list[str]] = defaultdict(list)
    for line in lines(data / "g014b2b.train.gz"):
        word, sounds = line.split("\t")
        groups[word].append(sounds)
    order = sorted(groups, key=lambda word: hashlib.blake2b(word.encode()).digest())
    train = [(word, sounds) for word in order[2670:] for sounds in groups[word]]
    valid = [(word, *groups[word]) for word in order[:2670]]
    return [train, valid, [tuple(line.split("\t")) for line in lines(data / "g014b2b.ref.gz")]]


def commands() -> list[list[Row]]:
    """All commands of SCAN (Lake and Baroni 2018) with their actions, from its grammar; a fifth is held out."""
    turns = {"left": "LTURN", "right": "RTURN"}
    verbs = {"walk": "WALK", "look": "LOOK", "run": "RUN", "jump": "JUMP"}
    phrases = dict(verbs)
    for side, turn in turns.items():
        for verb, act in [*verbs.items(), ("turn", "")]:
            phrases[f"{verb} {side}"] = f"{turn} {act}"
            phrases[f"{verb} opposite {side}"] = f"{turn} {turn} {act}"
            phrases[f"{verb} around {side}"] = f"{turn} {act} " * 4
    repeated = {f"{text}{often}": f"{acts} " * times for text, acts in phrases.items()
                for often, times in (("", 1), (" twice", 2), (" thrice", 3))}  # fmt: skip
    rows = list(repeated.items())
    for first, acts in repeated.items():
        for second, others in repeated.items():
            rows += [(f"{first} and {second}", f"{acts} {others}"), (f"{first} after {second}", f"{others} {acts}")]
    return shares(rows, 10, 10)


def paraphrases(data: Path) -> list[list[Row]]:
    """Two English sentences of Tatoeba with the same German translation: most words are copied."""
    english: dict[str, list[str]] = defaultdict(list)
    for part in OFFICIAL:
        for line in lines(data / f"{part}.eng-deu.tsv.gz"):
            first, second = line.split("\t")[:2]
            english[second].append(first)
    return shares([(found[0], found[1]) for found in english.values() if len(found) > 1], 20, 20)


def reworded(data: Path) -> list[list[Row]]:
    """English sentences of Tatoeba, each with the next one of the same German or French translation."""
    english: dict[tuple[str, str], dict[str, None]] = defaultdict(dict)
    for other in ("deu", "fra"):
        for part in OFFICIAL:
            for line in lines(data / f"{part}.eng-{other}.tsv.gz"):
                first, second = line.split("\t")[:2]
                english[other, second][first] = None
    pairs: dict[str, str] = {}
    for found in map(list, english.values()):
        for first, second in pairwise(found):
            pairs.setdefault(first, second)
    rows = [row for row in pairs.items() if min(len(text.split()) for text in row) >= 3]
    rows.sort(key=lambda row: hashlib.blake2b(row[1].encode()).digest())
    kept = {text for row in rows[:1800] for text in row}
    train = [row for row in rows[1800:] if kept.isdisjoint(row)]
    return [list(train), list(rows[:800]), list(rows[800:1800])]


def shares(rows: list[Row], valid: int, test: int) -> list[list[Row]]:
    """Training, validation and test rows; of the last two one in `valid` and one in `test`, chosen by a hash."""
    order = sorted(rows, key=lambda row: hashlib.blake2b(row[0].encode()).digest())
    some, others = len(rows) // valid, len(rows) // test
    return [order[some + others :], order[:some], order[some : some + others]]


def practice_sets(data: Path) -> dict[str, Callable[[], list[list[Row]]]]:
    """Every set by name, with the function that reads its parts."""
    found: dict[str, Callable[[], list[list[Row]]]] = {}
    speech, forms = data / "wikipron_g2p", data / "inflection"
    for name in LOW:
        test = f"{name}.medium.test.tsv.gz" if (speech / f"{name}.medium.test.tsv.gz").exists() else (
            f"{name}.low.test1000.tsv.gz")  # fmt: skip
        found[f"wikipron-low-{name}"] = tsv(speech, f"{name}.low.train.tsv.gz", f"{name}.low.dev.tsv.gz", test)
    for size in ("low", "medium", "high"):
        for name in INFLECTED:
            parts = (f"{name}.{size}.train.tsv.gz", f"{name}.dev.tsv.gz", f"{name}.test.tsv.gz")
            found[f"inflection-{size}-{name}"] = tsv(forms, *parts)
    for name in LOW[:6]:
        found[f"wikipron-medium-{name}"] = tsv(speech, *(f"{name}.medium.{part}.tsv.gz" for part in OFFICIAL))
    for name in ("geo.question", "geo880.prolog", "geo.query", "advising.question", "advising.query"):
        found[f"geoquery-{name}"] = tsv(data / "geoquery", *(f"{name}.{part}.tsv.gz" for part in OFFICIAL))
    for name in ("german-ridges", "slovene-bohoric", "icelandic-icepahc"):
        found[f"histnorm-{name}"] = tsv(data / "histnorm", *(f"{name}.{part}.tsv.gz" for part in OFFICIAL))
    for name in ("disfl_qa", "ua_gec", "e2e_nlg"):
        found[name] = tsv(data / name, "train.tsv.gz", "dev.tsv.gz", "test.tsv.gz")
    found["cogs"] = tsv(data / "cogs", *(f"{part}.tsv.gz" for part in ("train", "dev", "test", "test_gen")))
    found["transliteration"] = tsv(data / "transliteration", *(f"en-he.{part}.tsv.gz" for part in OFFICIAL))
    flickr = ("test_2016_flickr", "test_2017_flickr")
    found["multi30k-en-de"] = lambda: parallel(data / "multi30k", "en", "de", flickr[0])
    found["multi30k-both-tests"] = lambda: parallel(data / "multi30k", "en", "de", *flickr)
    found["multi30k-7000"] = with_pairs(found["multi30k-both-tests"], 7000)
    found["tatoeba-eng-deu"] = tsv(data / "tatoeba_pairs", *(f"{part}.eng-deu.tsv.gz" for part in OFFICIAL))
    french = tsv(data / "tatoeba_pairs", *(f"{part}.eng-fra.tsv.gz" for part in OFFICIAL))
    for count in (2000, 4000, 10_000, 30_000):
        found[f"tatoeba-eng-fra-{count}"] = with_pairs(french, count)
    found["commands"] = commands
    found["paraphrases"] = lambda: paraphrases(data / "tatoeba_pairs")
    found["reworded"] = lambda: reworded(data / "tatoeba_pairs")
    for name, count in (("reworded", 1000), ("reworded", 3000), ("disfl_qa", 1000)):
        found[f"{name}-{count}"] = with_pairs(found[name], count)
    found["cmudict"] = lambda: cmudict(data / "cmudict_g2p")
    return found


def prepare(data: Path, folder: Path) -> None:
    """Write every set as tab-separated files; sources that occur in several test lines keep all their references."""
    for name, read in practice_sets(data).items():
        try:
            parts = read()
        except FileNotFoundError as error:
            print(f"{name}: left out, no file {error.filename}")
            continue
        (folder / name).mkdir(parents=True, exist_ok=True)
        for part, rows in zip(PARTS, parts, strict=False):
            clean = [tuple(" ".join(text.split()) for text in row) for row in rows]  # Multi30k has a tab in a sentence
            usable = [row for row in clean if len(row) > 1 and all(row)]
            usable = spread(usable, KEPT) if part == "valid" else usable
            text = "".join("\t".join(row) + "\n" for row in usable)
            (folder / name / f"{part}.tsv").write_text(text, encoding="utf-8", newline="\n")
        print(f"{name}: {' / '.join(f'{len(rows):,}' for rows in parts)}")


def metric_of(name: str) -> str:
    """The metric that a set is judged by."""
    return next((metric for beginning, metric in METRICS.items() if name.startswith(beginning)), "exact_match")


@dataclass(frozen=True)
class Job:
    """One training: a set, a candidate of the portfolio and a seed."""

    set: str
    candidate: str
    seed: int
    folder: str  # of the prepared sets
    device: str
    steps: int  # 0: by the size of the set
    test_size: int
    threads: int
    minutes: float  # of training; 0: no limit
    keep: str  # folder for the run folders; "": they are removed
    part: str  # that is scored: valid or test

    @property
    def key(self) -> tuple[str, str, int, int, str]:
        """What tells finished jobs apart."""
        return (self.set, self.candidate, self.seed, self.steps, self.part)


def budget(pairs: int, steps: int) -> list[str]:
    """Generous and the same for all candidates; the validation curve shows who needed less."""
    chosen = steps or (3000 if pairs < 2000 else 6000 if pairs < 20_000 else 10_000 if pairs < 60_000 else 16_000)
    batch = 1024 if pairs < 2000 else 4096 if pairs < 60_000 else 8192
    every = max(25, chosen // 30)
    return [
        f"train.steps={chosen}", f"train.batch_tokens={batch}", f"train.validate_every={every}",
        f"train.save_every={every}", "train.patience=12", f"train.optimizer.warmup={max(100, chosen // 20)}",
    ]  # fmt: skip


def candidate_settings(job: Job, pairs: int) -> list[str]:
    """The overrides of a job."""
    from dragoman.auto.portfolio import PORTFOLIO

    common = [f"train.seed={job.seed}", f"train.device={job.device}"]
    if job.minutes:
        common.append(f"train.minutes={job.minutes}")
    name, *overrides = job.candidate.split("+")
    if name == "auto" or name.startswith((SEARCH, ENTRY)):
        return [*common, *overrides]
    candidate = next(one for one in PORTFOLIO if one.name == name)
    return [*budget(pairs, job.steps), *candidate.settings, *common, *overrides]


def regularised(name: str) -> list[str]:
    """The automatic choice for a set, alone and with each kind of regularisation; for few sentences a neural one."""
    if not name.startswith(SENTENCES):
        return ["auto", *(f"auto+{setting}" for setting in REGULARISATION)]
    neural = "entry=transformer-t5+train.objective=likelihood"
    with_dropout = [f"{neural}+{DROPOUT}", *(f"{neural}+{setting}+{DROPOUT}" for setting in REGULARISATION)]
    few = ["entry=phrase-based"] if name in ("tatoeba-eng-fra-2000", "tatoeba-eng-fra-4000") else []
    return [*few, neural, *(f"{neural}+{setting}" for setting in REGULARISATION), *with_dropout]


def spread(rows: list[Any], count: int) -> list[Any]:
    """At most `count` rows, evenly spread over all."""
    return [rows[index * len(rows) // count] for index in range(count)] if len(rows) > count else rows


def end_with_study() -> None:
    """Let this process end when the study does (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def search(pairs: Path, run: Path, duration: str, overrides: list[str]) -> None:
    """`dragoman train --time`, in a process of its own; its output goes to run.log beside the run."""
    command = [sys.executable, "-m", "dragoman", "train", str(pairs), "--run", str(run), "--time", duration, *overrides]
    with run.with_suffix(".log").open("w", encoding="utf-8") as log:
        done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, preexec_fn=end_with_study)
    if done.returncode:
        raise RuntimeError(run.with_suffix(".log").read_text(encoding="utf-8").strip().rpartition("\n")[2])


def run_job(job: Job) -> dict[str, Any]:
    """Train and evaluate; returns the line of results.jsonl."""
    import torch

    from dragoman.auto.configure import configure, configure_candidates
    from dragoman.auto.search.state import leaderboard_rows, load_search
    from dragoman.data.examples import Example
    from dragoman.data.readers.base import ReadOptions
    from dragoman.data.readers.pairs import read_pairs
    from dragoman.inference.load import load_predictor
    from dragoman.runs import Run, train
    from dragoman.runs.resume import newest_state
    from dragoman.training.display import Display

    torch.set_num_threads(job.threads)
    folder = Path(job.folder) / job.set
    with (folder / "train.tsv").open("rb") as file:
        pairs = sum(1 for _ in file)
    beside = Path(tempfile.mkdtemp(prefix="portfolio-"))
    try:
        overrides = [f"data.valid={folder / 'valid.tsv'}", f"data.cache={beside / 'cache'}"]
        overrides += candidate_settings(job, pairs)
        started, target = time.perf_counter(), beside / "run"
        reasons: list[str] = []
        leaderboard: list[tuple[str, ...]] = []
        if job.candidate.startswith(SEARCH):
            search(folder / "train.tsv", target, job.candidate.split("+")[0].removeprefix(SEARCH), overrides)
            leaderboard = leaderboard_rows(load_search(target))
        else:
            if job.candidate.startswith(ENTRY):
                configs, reasons = configure_candidates(str(folder / "train.tsv"), overrides)
                config = configs[job.candidate.split("+")[0].removeprefix(ENTRY)]
            else:
                config, reasons = configure(str(folder / "train.tsv"), overrides)
            train(config, target, Display(quiet=True))
        seconds = time.perf_counter() - started
        run, state = Run(target), newest_state(target)
        config = run.config
        predictor = load_predictor(target, job.device, engine="torch")
        scores: dict[str, Any] = {}
        parts = (job.part,) if job.part == "valid" else PARTS[2:]
        for part in (part for part in parts if (folder / f"{part}.tsv").exists()):
            read = read_pairs(folder / f"{part}.tsv", ReadOptions(several_references=True))
            examples = spread([one for one in read if isinstance(one, Example)], job.test_size)
            for how, beam in (*SEARCHES, *(OTHER_BEAMS if job.candidate == "auto" and part == job.part else ())):
                keywords = {} if beam is None else {"beam": beam}
                found = predictor.evaluate(examples, **keywords)[0]
                scores[f"{part}_{how}"] = {
                    name: value for name, value in found.items() if isinstance(value, float | int)
                }
        curve = [[row["step"], row["valid"].get(config.train.metric)] for row in run.metrics() if "valid" in row]
        return {
            "set": job.set, "candidate": job.candidate, "seed": job.seed, "asked_steps": job.steps, "part": job.part,
            "pairs": pairs,
            "metric": metric_of(job.set), "steps": state.step if state else 0,
            "best_step": state.best[0][1] if state and state.best else 0,
            "train_metric": config.train.metric, "batch_tokens": config.train.batch_tokens,
            "parameters": sum(weight.numel() for weight in predictor.model.parameters()),
            "train_seconds": round(seconds, 1), "evaluate_seconds": round(time.perf_counter() - started - seconds, 1),
            "device": torch.cuda.get_device_name() if job.device.startswith("cuda") else "cpu",
            **scores, "curve": curve, "reasons": reasons, "leaderboard": leaderboard,
        }  # fmt: skip
    finally:
        if job.keep and (beside / "run" / "best").exists():
            name = "-".join(map(str, job.key))
            shutil.move(beside / "run", Path(job.keep) / (name if len(name) < 200 else f"{name[:90]}...{name[-90:]}"))
        shutil.rmtree(beside, ignore_errors=True)


def guarded(job: Job) -> dict[str, Any]:
    """`run_job`; an error becomes a line of its own, which does not count as finished."""
    try:
        return run_job(job)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return {"set": job.set, "candidate": job.candidate, "seed": job.seed, "asked_steps": job.steps,
                "error": message, "trace": traceback.format_exc()[-2000:]}  # fmt: skip


def read_results(path: Path) -> list[dict[str, Any]]:
    """The finished jobs."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # cut off by the end of an earlier study
            continue
    return [row for row in found if "error" not in row]


def study(jobs: list[Job], results: Path, processes: int, minutes: float) -> None:
    """Run the jobs in parallel and append a line for each."""
    deadline = time.monotonic() + 60 * minutes
    context = multiprocessing.get_context("spawn")
    results.parent.mkdir(parents=True, exist_ok=True)
    with results.open("a", encoding="utf-8") as file:
        pool = ProcessPoolExecutor(processes, context, end_with_study)
        waiting, running = list(reversed(jobs)), dict[Future[dict[str, Any]], Job]()
        done = 0
        while (waiting or running) and time.monotonic() < deadline:
            while waiting and len(running) < processes:
                job = waiting.pop()
                running[pool.submit(guarded, job)] = job
            finished, _ = wait(running, timeout=max(0.1, deadline - time.monotonic()), return_when=FIRST_COMPLETED)
            for future in finished:
                job = running.pop(future)
                try:
                    row = future.result()
                except BrokenProcessPool:  # a process died, of memory perhaps: the others start again
                    print(f"{job.set} {job.candidate}: a process died", file=sys.stderr)
                    waiting += running.values()
                    running = {}
                    pool = ProcessPoolExecutor(processes, context, end_with_study)
                    break
                done += 1
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                print(f"[{done}/{len(jobs)}] {summary(row)}", flush=True)
        for process in list((pool._processes or {}).values()):
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)


def summary(row: dict[str, Any]) -> str:
    """One finished job in a line."""
    name = f"{row['set']} {row['candidate']} seed {row['seed']}:"
    if "error" in row:
        return f"{name} {row['error']}"
    metric = row["metric"]
    return (
        f"{name} {part_of(row)} {metric} {percent(row[part_of(row) + '_beam'].get(metric), metric)} (greedy "
        f"{percent(row[part_of(row) + '_greedy'].get(metric), metric)}), {row['steps']} steps, best "
        f"{row['best_step']}, "
        f"{row['train_seconds']:.0f} s"
    )


def part_of(row: dict[str, Any]) -> str:
    """The part that a job scored."""
    return str(row.get("part", "test"))


def percent(value: float | None, metric: str) -> str:
    """A score in per cent; BLEU is one already."""
    return "–" if value is None else f"{value if metric == 'bleu' else 100 * value:.1f}"


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Scores by set and candidate, the mean over seeds and their standard deviation; the best of each set in bold."""
    candidates = list(dict.fromkeys(row["candidate"] for row in rows))
    for part in dict.fromkeys(map(part_of, rows)):
        yield f"| {part} | metric | " + " | ".join(candidates) + " |"
        yield "|---|---|" + "---|" * len(candidates)
        mine = [row for row in rows if part_of(row) == part]
        for name in dict.fromkeys(row["set"] for row in mine):
            metric = metric_of(name)
            scores: dict[str, list[float]] = defaultdict(list)
            for row in mine:
                if row["set"] == name and metric in row[f"{part}_beam"]:
                    scores[row["candidate"]].append(row[f"{part}_beam"][metric])
            means = {candidate: mean(found) for candidate, found in scores.items()}
            best = (min if metric in ("wer", "per", "cer") else max)(means.values(), default=None)
            cells = []
            for candidate in candidates:
                found = scores.get(candidate, [])
                cell = percent(means.get(candidate), metric)
                spread_of_seeds = f" ± {percent(stdev(found), metric)}" if len(found) > 1 else ""
                cells.append((f"**{cell}**" if found and means[candidate] == best else cell) + spread_of_seeds)
            yield f"| {name} | {metric} | " + " | ".join(cells) + " |"


def main() -> None:
    """Prepare, run or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", type=Path, metavar="DATA", help="write the sets from this folder, then end")
    parser.add_argument("--data", type=Path, default=FOLDER, help="folder of the prepared sets [carry/portfolio]")
    parser.add_argument("--results", type=Path, help="[results.jsonl in --data]")
    parser.add_argument("--only", default="", help="beginnings of names of sets, with commas")
    parser.add_argument("--candidates", default="", help="names of the portfolio, or auto, with commas [auto and all]")
    parser.add_argument(
        "--regularisation", action="store_true", help="candidates: what each kind of it adds to a set's"
    )
    parser.add_argument("--part", choices=("valid", "test"), default="valid", help="pairs that are scored [valid]")
    parser.add_argument("--seeds", type=int, default=1, help="seeds 1 to this number")
    parser.add_argument("--steps", type=int, default=0, help="[by the size of the set]")
    parser.add_argument("--test-size", type=int, default=1000, help="pairs that are scored, evenly spread")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--job-minutes", type=float, default=0.0, help="training time of a job [no limit]")
    parser.add_argument("--keep", default="", help="folder in which the run folders are kept [they are removed]")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a process")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--minutes", type=float, default=600.0)
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    options = parser.parse_args()
    if options.prepare is not None:
        prepare(options.prepare, options.data)
        return
    results = options.results or options.data / "results.jsonl"
    if not options.table:
        from dragoman.auto.portfolio import PORTFOLIO

        sets = sorted(path.name for path in options.data.iterdir() if (path / "train.tsv").exists())
        wanted = [one for one in options.only.split(",") if one]
        if wanted:
            sets = [name for beginning in wanted for name in sets if name.startswith(beginning)]
        candidates = [one for one in options.candidates.split(",") if one] or [
            "auto",
            *(one.name for one in PORTFOLIO),
        ]
        finished = {
            (row["set"], row["candidate"], row["seed"], row["asked_steps"], part_of(row))
            for row in read_results(results)
        }
        folder = str(options.data.resolve())
        common = (folder, options.device, options.steps, options.test_size, options.threads, options.job_minutes,
                  options.keep, options.part)  # fmt: skip
        jobs = [
            Job(name, candidate, seed, *common)
            for seed in range(1, options.seeds + 1)
            for name in sets
            for candidate in (regularised(name) if options.regularisation else candidates)
        ]  # fmt: skip
        jobs = [job for job in jobs if job.key not in finished]
        print(f"{len(jobs)} jobs, {len(finished)} finished before", flush=True)
        study(jobs, results, options.jobs, options.minutes)
    for line in table(read_results(results)):
        print(line, flush=True)
    os._exit(0)  # workers that were stopped may still hold their pipes


if __name__ == "__main__":
    main()
