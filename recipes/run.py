"""Rerun a recipe: train every seed, evaluate, score, and write the results to recipes/results/.

    python recipes/run.py multi30k-en-de-transformer --data PATH_TO_DATA

Training needs only the package; the Moses-token score needs sacremoses (extra 'dev'). `--score-only` scores outputs
that were made elsewhere, such as on a GPU machine, from the same --work folder.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
Table = dict[str, Any]


def make_fibonacci(data: Path, work: Path) -> None:
    """Windows of 20 numbers of 1,200 Fibonacci numbers, scaled to 0 … 1 as a whole, and the next one; 70 % to train."""
    series = [0.0, 1.0]
    while len(series) < 1200:
        series.append(series[-1] + series[-2])
    scaled = [number / series[-1] for number in series]
    lines = [
        " ".join(f"{number:.9g}" for number in scaled[place : place + 20]) + f"\t{scaled[place + 20]:.9g}\n"
        for place in range(len(scaled) - 20)
    ]
    random.Random(13).shuffle(lines)
    cut = int(0.7 * len(lines))
    for part, some in (("train", lines[:cut]), ("test", lines[cut:])):
        (work / f"fibonacci.{part}.tsv").write_text("".join(some), encoding="utf-8")


def make_tinyshakespeare(data: Path, work: Path) -> None:
    """The first 90 % of the characters for training, the rest for validation, as in nanoGPT."""
    with gzip.open(data / "tinyshakespeare/input.txt.gz", "rt", encoding="utf-8", newline="\n") as file:
        text = file.read()
    cut = int(0.9 * len(text))
    for part, some in (("train", text[:cut]), ("valid", text[cut:])):
        (work / f"tinyshakespeare.{part}.txt").write_text(some, encoding="utf-8", newline="\n")


def make_task_texts(data: Path, work: Path) -> None:
    """Sentences of WikiText-2 and of four GLUE tasks, one a line, detokenised; no labels, no test sets."""
    glue = {"CoLA": (4,), "SST-2": (1,), "MRPC": (4, 5), "RTE": (2, 3)}
    for part, wiki, split in (("train", "train", "train"), ("valid", "valid", "dev")):
        texts: list[str] = []
        for line in read_lines(data / "wikitext2" / f"{wiki}.txt.gz"):
            if line.strip() and not line.strip().startswith("="):  # headings
                texts += [f"{text} ." for text in line.strip().removesuffix(" .").split(" . ")]
        for name, columns in glue.items():
            rows = [line.split("\t") for line in read_lines(data / "glue_small" / name / f"{split}.tsv.gz")]
            texts += [row[column - 1] for row in rows[name != "CoLA" :] for column in columns if len(row) >= column]
        lines = (spaced(text) for text in texts)
        (work / f"task-texts.{part}.txt").write_text("".join(f"{line}\n" for line in lines if line), encoding="utf-8")


def spaced(text: str) -> str:
    """Detokenise a text whose tokens are separated by spaces."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([.,;:!?%)\]])", r"\1", text)
    text = re.sub(r"([(\[$]) ", r"\1", text)
    text = re.sub(r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1", text)
    text = re.sub(r"[\x00-\x1f\x7f-\x9f]", " ", text)  # some sentences hold control characters
    return " ".join(re.sub(r'" ([^"]*?) "', r'"\1"', text).split())


def make_flickr8k(data: Path, work: Path) -> None:
    """The captions as they are usually scored: lower case, and no full stop at the end."""
    for part in ("train", "dev", "test"):
        lines = read_lines(data / f"flickr8k/{part}.tsv.gz")
        rows = (
            [name, *(text.lower().rstrip(" .") for text in texts)]
            for name, *texts in (one.split("\t") for one in lines)
        )
        (work / f"flickr8k.{part}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def make_fraktur(data: Path, work: Path) -> None:
    """The transcripts of the training lines alone, for a language model of characters."""
    lines = (data / "ocr_fraktur_goethe/train.tsv").read_text(encoding="utf-8").splitlines()
    (work / "fraktur.train.txt").write_text("".join(line.split("\t")[1] + "\n" for line in lines), encoding="utf-8")


def make_rte(data: Path, work: Path) -> None:
    """Both parts of RTE with spaces for control characters, so that all examples are scored."""
    for part in ("train", "dev"):
        lines = (
            re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", " ", line)
            for line in read_lines(data / f"glue_small/RTE/{part}.tsv.gz")
        )
        (work / f"rte.{part}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


MAKERS = {
    "fibonacci": make_fibonacci,
    "task-texts": make_task_texts,
    "tinyshakespeare": make_tinyshakespeare,
    "flickr8k": make_flickr8k,
    "fraktur": make_fraktur,
    "rte": make_rte,
}  # data that are computed: `make` in a recipe, `made` in its entries


def data_table(data: Path, work: Path, entry: Table) -> Table | str:
    """A recipe's data entry as the `data.train` setting wants it."""
    if "made" in entry:
        return str((work / entry["made"]).absolute())
    if "file" in entry:
        return str(data / entry["file"])
    return {side: str(data / entry[side]) for side in ("source", "target")}


def hardware() -> str:
    """A description of the machine."""
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    return f"{platform.machine()} CPU, {os.cpu_count()} cores, torch {torch.__version__}"


def write_config(name: str, recipe: Table, data: Path, work: Path) -> Path:
    """The recipe's configuration as a file `dragoman train` reads."""
    from dragoman.base import config as settings
    from dragoman.runs.tasks import config as configuration

    table = placed(recipe["config"], str((work / f"{recipe['recipe'].get('first', '')}-1").absolute()))
    table["data"] = dict(table.get("data", {}), train=data_table(data, work, recipe["recipe"]["train"]))
    if "valid" in recipe["recipe"]:
        table["data"]["valid"] = data_table(data, work, recipe["recipe"]["valid"])
    if "media" in recipe["recipe"]:  # the archive of recordings or pictures that manifests name
        table["data"]["media"] = str(data / recipe["recipe"]["media"])
    path = work / f"{name}.toml"
    path.write_text(settings.dump(configuration.build(table)), encoding="utf-8")
    return path


def placed(value: Any, first: str) -> Any:
    """The same settings with {first} replaced by the run of the recipe that comes first."""
    if isinstance(value, dict):
        return {key: placed(inner, first) for key, inner in value.items()}
    return value.replace("{first}", first) if isinstance(value, str) else value


def train_and_evaluate(
    name: str, seed: int, recipe: Table, data: Path, work: Path, extra: list[str], note: str
) -> None:
    """One seed: train, then evaluate every test set; the log, the scores and the outputs stay in the work folder."""
    run = work / f"{name}-{seed}"
    log = (work / f"{name}-{seed}.log").open("a", encoding="utf-8")
    command = [sys.executable, "-m", "dragoman"]
    started = time.time()
    train = [*command, "train", str(work / f"{name}.toml"), f"train.seed={seed}", *extra, "--run", str(run)]
    subprocess.run(train, check=True, stderr=log, stdout=log)
    found: Table = {
        "seed": seed,
        "train_seconds": round(time.time() - started, 1),
        "hardware": hardware(),
        "note": note,
        "tests": {},
    }
    how = [part.format(work=work) for part in recipe["recipe"].get("evaluate", ())]
    if "choose" in recipe["recipe"]:
        how, found["chosen"] = chosen(recipe, data, work, run, log)
    for test, entry in recipe["recipe"]["tests"].items():
        started = time.time()
        asked = how
        if recipe["config"].get("task") not in ("language-model", "masked-language-model"):  # which have no outputs
            asked = [*how, "--output", str(work / f"{name}-{seed}.{test}.txt")]
        scores = evaluated(recipe, data_table(data, work, entry), run, asked, log)
        found["tests"][test] = scores | {"seconds": round(time.time() - started, 1)}
        for label, more in recipe["recipe"].get("also", {}).items():  # the same evaluated in another way
            started = time.time()
            scores = evaluated(recipe, data_table(data, work, entry), run, [*how, *more], log)
            found["tests"][f"{test}-{label}"] = scores | {"seconds": round(time.time() - started, 1)}
    report = json.loads((run / "data.json").read_text(encoding="utf-8"))
    found["data_fingerprint"] = report["fingerprint"]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found["progress"] = rows[-1]
    trained = [row for row in rows if "tokens" in row][-1]
    found["target_tokens_per_second"] = round(trained["tokens"] / trained["seconds"], 1)
    found["parameters"] = parameters(run)
    (work / f"{name}-{seed}.json").write_text(json.dumps(found, indent=2), encoding="utf-8")


def evaluated(recipe: Table, table: Any, run: Path, how: list[str], log: Any) -> Table:
    """The scores of a run on a test set."""
    files = [table] if isinstance(table, str) else ["--source", table["source"], "--target", table["target"]]
    rows = str(recipe["recipe"].get("batch_size", 256))
    command = [sys.executable, "-m", "dragoman", "evaluate", str(run), *files, "--json", "--batch-size", rows, *how]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=log, text=True)
    scores: Table = json.loads(done.stdout)
    return scores


def chosen(recipe: Table, data: Path, work: Path, run: Path, log: Any) -> tuple[list[str], Table]:
    """The search options with the best validation score, and the validation score of each."""
    choose = recipe["recipe"]["choose"]
    table = data_table(data, work, recipe["recipe"]["valid"])
    reached = {" ".join(how): evaluated(recipe, table, run, how, log)[choose["metric"]] for how in choose["among"]}
    best = max(reached, key=lambda how: reached[how])
    return best.split(), {"metric": choose["metric"], "best": best, "on the validation set": reached}


def parameters(run: Path) -> int:
    """The number of trainable parameters."""
    from dragoman.inspect.views.layer_table import parameter_count
    from dragoman.runs import Run

    found = Run(run)
    return parameter_count(found.task.model(found.config, *found.tokenizers()))


def moses_scores(sources: list[str], hypotheses: list[str], references: list[str], language: str) -> Table:
    """BLEU on lowercased Moses tokens: both sides normalised, tokenised and lowercased before scoring."""
    import sacrebleu
    import sacremoses

    from dragoman.scoring.buckets import by_length

    normalise = sacremoses.MosesPunctNormalizer(language)
    tokenise = sacremoses.MosesTokenizer(language)

    def prepared(text: str) -> str:
        return str(tokenise.tokenize(normalise.normalize(text), return_str=True, escape=False)).lower()

    outputs, truths = [prepared(line) for line in hypotheses], [prepared(line) for line in references]
    metric = sacrebleu.metrics.BLEU(tokenize="none", force=True)
    score = metric.corpus_score(outputs, [truths])
    groups = []
    for bucket in by_length(sources):
        lengths = [len(sources[segment].split()) for segment in bucket.segments]
        own, expected = ([texts[segment] for segment in bucket.segments] for texts in (outputs, truths))
        groups.append({
            "min_length": min(lengths), "max_length": max(lengths), "segments": len(lengths),
            "bleu": metric.corpus_score(own, [expected]).score,
        })  # fmt: skip
    return {
        "moses_bleu": score.score,
        "signature": f"{metric.get_signature()}|sacremoses:{sacremoses.__version__}|lowercased",
        "by_length": groups,
    }


def read_lines(path: Path) -> list[str]:
    """The lines of a gzipped text."""
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


def score(name: str, recipe: Table, data: Path, work: Path) -> Table:
    """The scores of all seeds, comparable with published results."""
    seeds = [
        json.loads(path.read_text(encoding="utf-8"))
        for seed in recipe["recipe"]["seeds"]
        if (path := work / f"{name}-{seed}.json").exists()
    ]
    moses = recipe["recipe"].get("moses")
    for found in seeds if moses else []:
        for test, entry in recipe["recipe"]["tests"].items():
            lines = (work / f"{name}-{found['seed']}.{test}.txt").read_text(encoding="utf-8").split("\n")[:-1]
            sources, references = (read_lines(data / entry[side]) for side in ("source", "target"))
            moses_score = moses_scores(sources, lines, references, moses["language"])
            found["tests"][test]["signatures"]["moses_bleu"] = moses_score.pop("signature")
            found["tests"][test] |= moses_score
    for found in seeds:
        for test, file in recipe["recipe"].get("groups", {}).items():
            outputs = (work / f"{name}-{found['seed']}.{test}.txt").read_text(encoding="utf-8").split("\n")[:-1]
            rows = read_lines(data / recipe["recipe"]["tests"][test]["file"])
            right = [output == row.split("\t")[1] for output, row in zip(outputs, rows, strict=True)]
            found["tests"][test]["exact_match_by_group"] = by_group(right, read_lines(data / file))
    means: Table = {}
    for test in seeds[0]["tests"] if seeds else ():
        rows = [found["tests"][test] for found in seeds]
        numbers = [key for key, value in rows[0].items() if isinstance(value, float)]
        means[test] = {key: float(f"{statistics.mean(row[key] for row in rows):.4g}") for key in numbers}
    notes = {key: recipe["recipe"][key] for key in ("variant", "beside") if recipe["recipe"].get(key) is not None}
    return {"recipe": name, "about": recipe["recipe"]["about"], **notes, "mean": means, "seeds": seeds}


def by_group(right: list[bool], groups: list[str]) -> dict[str, float]:
    """The percentage of right outputs of every group; `groups` names the group of each output."""
    rows: dict[str, list[bool]] = {}
    for is_right, group in zip(right, groups, strict=True):
        rows.setdefault(group, []).append(is_right)
    return {group: round(100 * statistics.mean(found), 2) for group, found in sorted(rows.items())}


def variants(name: str, recipe: Table, only: list[str] | None) -> dict[str, Table]:
    """A recipe with variants as one recipe per variant; the file states shared settings once."""
    from dragoman.base import config as settings

    if "variants" not in recipe:
        return {name: recipe}
    found = {}
    for variant, over in recipe["variants"].items():
        if only and variant not in only:
            continue
        own = {key: value for key, value in over.items() if key not in ("beside", "seeds")}
        shared = dict(recipe["recipe"], variant=variant, beside=over.get("beside"))
        shared["seeds"] = over.get("seeds", shared["seeds"])
        found[f"{name}-{variant}"] = {"recipe": shared, "config": settings.merge(recipe["config"], own)}
    return found


def main() -> None:
    """Train, evaluate and score a recipe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a .toml file of this folder, without its ending")
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds the data sets")
    parser.add_argument("--work", type=Path, default=Path("runs/recipes"), help="runs, logs and outputs go here")
    parser.add_argument("--seeds", type=int, nargs="+", help="other seeds than the recipe's")
    parser.add_argument("--only", nargs="+", metavar="VARIANT", help="some variants of a recipe that has several")
    parser.add_argument("--parallel", type=int, default=1, help="seeds trained at the same time")
    parser.add_argument("--score-only", action="store_true", help="score what is in --work already")
    parser.add_argument("--no-score", action="store_true", help="train and evaluate only")
    parser.add_argument("--note", default="", help="stored with the times, such as what else ran on the machine")
    parser.add_argument("overrides", nargs="*", metavar="place=value", help="other settings, for trials")
    options = parser.parse_intermixed_args()
    path = HERE / f"{options.name}.toml"
    if not path.exists():
        names = ", ".join(sorted(found.stem for found in HERE.glob("*.toml")))
        parser.error(f"no recipe '{options.name}'; there are {names}")
    recipe = tomllib.loads(path.read_text(encoding="utf-8"))
    options.work.mkdir(parents=True, exist_ok=True)
    if "first" in recipe["recipe"] and not options.score_only:
        name = recipe["recipe"]["first"]
        if not (options.work / f"{name}-1.json").exists():
            before = tomllib.loads((HERE / f"{name}.toml").read_text(encoding="utf-8"))
            settings = [one for one in options.overrides if one.startswith(("train.device=", "data.cache="))]
            rerun(
                name,
                before,
                argparse.Namespace(**{**vars(options), "only": None, "seeds": None, "overrides": settings}),
            )
    problem = rerun(options.name, recipe, options)
    if problem:
        parser.error(problem)


def rerun(recipe_name: str, recipe: Table, options: argparse.Namespace) -> str:
    """Train, evaluate and score every variant and seed; returns what is wrong with the options, if anything."""
    recipes = variants(recipe_name, recipe, options.only)
    if not recipes:
        return f"found none of {', '.join(options.only)}, expected some of {', '.join(recipe['variants'])}"
    if "make" in recipe["recipe"] and not options.score_only:
        MAKERS[recipe["recipe"]["make"]](options.data, options.work)
    for each in recipes.values():
        each["recipe"]["seeds"] = options.seeds or each["recipe"]["seeds"]
    if not options.score_only:
        with ThreadPoolExecutor(options.parallel) as pool:
            jobs = []
            for name, each in recipes.items():
                write_config(name, each, options.data, options.work)
                for seed in each["recipe"]["seeds"]:
                    work = (name, seed, each, options.data, options.work, options.overrides, options.note)
                    jobs.append(pool.submit(train_and_evaluate, *work))
            for job in jobs:
                job.result()
    for name, each in recipes.items() if not options.no_score else ():
        result = score(name, each, options.data, options.work)
        folder = HERE / "results"
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        print(name, json.dumps(result["mean"], indent=2))
    return ""


if __name__ == "__main__":
    main()
