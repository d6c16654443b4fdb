"""Observes Regatta from outside and returns plain data.

`make_fixtures.py` writes the data to files, `test_compatibility.py` compares it with them. Only the
public API and the command line are used, because internal modules may move.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import importlib
import inspect
import io
import itertools
import json
import math
import re
import sqlite3
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from locations import FIXTURES

import regatta
from regatta.cli.main import build_parser, main
from regatta.store.folder import PackFolder

HERE = FIXTURES / "v0"
ROOT = Path("/tmp/regatta-fixture-v0")  # the data sets of the fixture's runs are below it
Json = Any

# -- the fixture -----------------------------------------------------------------------------------


def unpack(folder: Path) -> Path:
    """Extract the project into a folder, and the data sets to the paths that the runs hold."""
    with tarfile.open(HERE / "repository.tar.xz") as archive:
        _place_data(archive)
        archive.extractall(folder, [m for m in archive if m.name.startswith("project/")], filter="fully_trusted")
    _in_order(folder / "project")
    return folder / "project"


def _place_data(archive: tarfile.TarFile) -> None:
    """Extract the data sets under a lock; files that exist already are kept."""
    ROOT.mkdir(exist_ok=True)
    with (ROOT / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for member in archive:
            known = ROOT / member.name
            if member.name.startswith("data/") and not (known.is_file() and known.stat().st_size == member.size):
                archive.extract(member, ROOT, filter="fully_trusted")


def _in_order(project: Path) -> None:
    """Give the journals increasing ctimes: `regatta runs` orders runs by them."""
    journals = sorted(project.glob(".regatta/runs/*/journal.jsonl"), key=lambda path: json_lines(path)[0]["time"])
    for before, path in zip([None, *journals], journals, strict=False):
        while before is not None and path.stat().st_ctime <= before.stat().st_ctime:
            time.sleep(0.002)
            path.chmod(0o644)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a journal, without a last line that is incomplete."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


# -- commands --------------------------------------------------------------------------------------


def command(*words: str) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its stdout."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            code = main(list(words))
        except SystemExit as ended:
            code = int(ended.code or 0)
    return code, out.getvalue()


def document(project: Path, *words: str) -> Json:
    """The exit code and the JSON document of a command; the project's path is replaced."""
    with contextlib.chdir(project):
        code, out = command(*words, "--json")
    return {"code": code, "document": json.loads(out.replace(str(project), "<project>")) if out else None}


READING = {
    "runs": "runs",
    "show lines-done": "show lines-done",
    "show lines-killed": "show lines-killed",
    "show spots-packed": "show spots-packed",
    "explain lines-done": "explain lines-done",
    "explain lines-done --analyze": "explain lines-done --analyze",
    "list": "list --all",
    "list of a run": "list --run lines-done --metric loss --best",
    "list by words": "list --search tuned",
    "log": "log late",
    "desc brought": "desc brought@1",
    "desc brought, exactly": "desc brought@1 --exact",
    "desc judge": "desc judge",
    "desc kinds": "desc kinds --exact",
    "desc series": "desc series:2",
    "desc rough": "desc rough",
    "desc of a run": "desc lines-done/{config}",
    "desc of a run's network": "desc spots-done/{spots} --no-weights",
    "desc of what lost bits": "desc roughest",
    "diff same": "diff judge judge",
    "diff brought": "diff brought@1 brought@2",
    "diff brought, exactly": "diff brought@1 brought@2 --exact --all",
    "diff epochs": "diff series:1 series:4",
    "diff others": "diff judge late",
    "eval": "eval judge --data judge.npz",
    "eval 1": "eval judge --data judge.npz --precision 1 --top-k 2",
    "eval full": "eval judge --data judge.npz --precision full",
    "fsck": "fsck --depth deep",
    "status": "status",
    "tag": "tag",
    "simulate": "simulate lines-done --workers 1,2,3",
}
SHAPES = {  # values depend on the time and the machine, so only keys are compared
    "archive": "archive --dry-run --budget inf",
    "archive a version": "archive series --lossy float16 --dry-run --budget inf",
    "doctor": "doctor",
}
WRITING = {  # executed in this order, in a copy of the project
    "init": "init elsewhere",
    "add": "add settings.json log.csv tuned.npz",
    "status": "status",
    "unstage": "unstage settings.json",
    "commit": "commit fresh -m new --param lr=0.5 --metric loss=1 --parent brought@2",
    "commit of a run": "commit --run by-value",
    "copy": "copy judge judge-2",
    "tag": "tag newest fresh",
    "checkout": "checkout brought@1 out",
    "stop": "stop lines-killed {killed}",
    "extend": "extend lines-killed {killed} 1",
    "clone": "clone lines-killed {killed} lr=0.5 --fresh",
    "delete": "delete judge-2",
    "archive": "archive --budget inf",
    "gc": "gc --grace 0",
    "fsck": "fsck --depth deep",
}
CODES = {
    "a verb that is none": "nonsense",
    "an option that is none": "show lines-done --nope",
    "an argument that is missing": "eval judge",
    "a number that is none": "extend lines-done {config} many",
    "a file that is missing": "run missing.py",
    "a precision that is none": "eval judge --data judge.npz --precision ten",
    "data that is missing": "eval judge --data missing.npz",
    "a version without a network": "eval late --data judge.npz",
    "an archive of one version": "archive judge",
    "a scheme that is none": "archive judge --lossy float3",
    "a run that is done": "resume lines-done",
    "no name for a version": "commit",
    "one side of a difference": "diff judge",
    "a run that is missing": "show missing",
    "a configuration that is missing": "show lines-done ffffffffff",
    "a version that is missing": "desc missing",
    "a number of a version that is missing": "checkout judge@9 out",
    "a tag that is missing": "tag missing --delete",
    "a worker for nobody": "worker lines-done",
    "a tag that is taken": "tag candidate judge",
    "a version that has children": "delete brought@1",
    "a file that is there": "checkout judge judge.npz",
    "differs": "diff judge late",
    "the same": "diff judge judge",
    "no command": "",
    "help": "--help",
    "version": "--version",
}
NOWHERE = {
    "list": "list",
    "runs": "runs",
    "desc": "desc judge",
    "show": "show",
    "archive": "archive",
    "status": "status",
}


def names_in(project: Path) -> dict[str, str]:
    """Ids of configurations that the commands above refer to."""
    runs = project / ".regatta" / "runs"
    first = next(line for line in json_lines(runs / "lines-killed" / "journal.jsonl") if line["event"] == "config")
    with contextlib.chdir(project):
        best, spots = (regatta.open_run(name).table()[0]["config"] for name in ("lines-done", "spots-done"))
    return {"config": best, "spots": spots, "killed": first["config"]}


def documents(project: Path, commands: Mapping[str, str]) -> dict[str, Json]:
    known = names_in(project)
    found = {name: document(project, *line.format(**known).split()) for name, line in commands.items()}
    for run in found["runs"]["document"]["runs"] if "runs" in found else ():
        if run["name"] == "spots-fast":  # it has a `groups` record, see `tried_groups`
            del run["units"], run["seconds"]
    return found


def exit_codes(folder: Path, commands: Mapping[str, str], known: Mapping[str, str] | None = None) -> dict[str, int]:
    with contextlib.chdir(folder):
        return {name: command(*line.format(**known or {}).split())[0] for name, line in commands.items()}


def exported(project: Path) -> str:
    """The CSV that `show --export` writes."""
    with contextlib.chdir(project):
        command("show", "lines-done", "--export", "csv:results.csv")
    return (project / "results.csv").read_text()


def shape(value: Json) -> Json:
    """The keys and types of a document; a list is described by the union of its elements."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_merged(shape(item) for item in value)]
    if value is None or isinstance(value, str | bool):
        return type(value).__name__
    return "number"


def _merged(shapes: Iterable[Json]) -> Json:
    """The union of several shapes; types that differ are joined with `|`."""
    found: Json = None
    for each in shapes:
        if found is None or found == each:
            found = each
        elif isinstance(found, dict) and isinstance(each, dict):
            keys = list(dict.fromkeys([*found, *each]))
            found = {key: _merged(part[key] for part in (found, each) if key in part) for key in keys}
        elif isinstance(found, list) and isinstance(each, list):
            found = [_merged(part[0] for part in (found, each) if part[0] is not None)]
        else:
            kinds = {*str(found).split("|"), *str(each).split("|")}
            found = "|".join(sorted(kinds))
    return found


# -- runs ------------------------------------------------------------------------------------------


def states(journal: Path) -> dict[str, str]:
    """The hash of the state after each training unit."""
    units = [line for line in json_lines(journal) if line["event"] == "unit" and line["kind"] == "train"]
    return {f"{unit['config']} {unit['epoch']}-{unit['partition']}": unit["hash"] for unit in units}


def journal_names() -> list[str]:
    return sorted(path.stem for path in (HERE / "journals").glob("*.jsonl"))


def lay_out(folder: Path) -> Path:
    """Make a project whose runs consist of their journals only."""
    for path in (HERE / "journals").glob("*.jsonl"):
        run = folder / ".regatta" / "runs" / path.stem
        run.mkdir(parents=True)
        (run / "journal.jsonl").write_bytes(path.read_bytes())
    return folder


def seen_run(project: Path, name: str) -> dict[str, Json]:
    """Everything that the public API reports about a run."""
    with contextlib.chdir(project):
        run = regatta.open_run(name)
    record = run.record
    done, wanted = record.progress()
    return {
        "show": document(project, "show", name),
        "explain": document(project, "explain", name, "--analyze"),
        "best": run.best,
        "table": [_brief(row) for row in run.table()],
        "speeds": run.speeds(),
        "efficiency": asdict(run.efficiency()),
        "text": repr(run),
        "progress": [done, wanted],
        "elapsed": record.elapsed,
        "device_seconds": record.device_seconds,
        "sessions": record.sessions,
        "workers": {worker.name: [worker.up, worker.info] for worker in record.workers.values()},
        "requests": [[request["verb"], request["answer"]] for request in record.requests.values()],
        "plans": [[plan["reason"], plan["changed"], plan["width"]] for plan in record.plans],
        "notes": [list(note) for note in record.notes],
    }


def _brief(row: Mapping[str, Any]) -> Json:
    """A table row without the values of the account, which `show --json` holds too."""
    return {key: None if key.endswith(("_seconds", "_bytes")) else value for key, value in row.items()}


def tried_groups(journal: Path) -> float:
    """Seconds of the `groups` records; later code counts them as pilot time."""
    tried = [line for line in json_lines(journal) if line["event"] == "groups" and not line.get("cached")]
    return sum(line["end"] - line["start"] for line in tried)


def worker_seconds(journal: Path) -> tuple[float, float, float]:
    """The busy and the present seconds of all workers and the seconds of the run, moment by moment.

    A worker is present from its `worker` record up to the next one, and at most until its controller ends. Before its
    first such record it is present from its first unit on; without any, it is present until its last unit.
    """
    units: dict[str, list[tuple[float, float, int]]] = {}
    up: dict[str, list[tuple[float, float, int]]] = {}
    controllers: list[tuple[float, float]] = []
    for line in json_lines(journal):
        if line["event"] in ("run", "resume"):
            controllers.append((line["time"], line["time"]))
        controllers[-1] = (controllers[-1][0], line["time"])
        if line["event"] == "worker":
            spans = up.setdefault(line["worker"], [])
            if spans and spans[-1][1] == math.inf:
                spans[-1] = (spans[-1][0], line["time"], spans[-1][2])
            if line["state"] == "up":
                spans.append((line["time"], math.inf, line.get("width", 1)))
        if line["event"] in ("unit", "pilot", "packs", "groups") and not line.get("cached"):
            units.setdefault(line["worker"], []).append((line["start"], line["end"], line.get("width", 1)))
    busy = present = 0.0
    first, last = (
        min(s for own in units.values() for s, _, _ in own),
        max(e for own in units.values() for _, e, _ in own),
    )
    for worker in {*units, *up}:
        own = units.get(worker, [])
        spans = [
            (begin, min(until, next(e for s, e in controllers if s <= begin <= e)), width)
            for begin, until, width in up.get(worker, [])
        ]
        begins, ends = [s for s, _, _ in own], [e for _, e, _ in own]
        if not spans:
            spans = [(min(begins), max(ends), 1)]
        elif begins:
            spans[0] = (min(*begins, spans[0][0]), *spans[0][1:])
        times = sorted({first, last, *begins, *ends, *(t for begin, until, _ in spans for t in (begin, until))})
        for now, later in itertools.pairwise(times):
            widths = [width for begin, until, width in spans if begin <= now and later <= until]
            working = [width for start, end, width in own if start <= now and later <= end]
            if first <= now and later <= last and (widths or working):
                width = max([*widths, *working])
                present += width * (later - now)
                busy += width * (later - now) if working else 0.0
    return busy, present, sum(max(0.0, min(e, last) - max(s, first)) for s, e in controllers)


COUNTED_WITH_PILOTS = ("pilot", "workers", "idle", "wall", "units")


def without_time_of_groups(seen: Json) -> tuple[Json, Json]:
    """Split off the figures that change when `groups` records count as pilot time."""
    whole = json.loads(json.dumps(seen))
    document = whole["show"]["document"]
    figures = {name: document["resources"].pop(name) for name in COUNTED_WITH_PILOTS}
    figures |= {"run.units": document["run"].pop("units"), "run.seconds": document["run"].pop("seconds")}
    return whole, {**figures, "efficiency": whole.pop("efficiency")}


def trace_of(journal: Path) -> list[dict[str, Any]]:
    """The rows of `Run.trace`, derived from the journal; `groups` records are left out."""
    columns = ("kind", "config", "epoch", "partition", "worker", "start", "end", "hop_bytes", "hop_seconds")
    pilot = {"kind": "pilot", "epoch": 0, "partition": 0, "hop_bytes": 0, "hop_seconds": 0.0}
    rows = []
    for line in json_lines(journal):
        if line["event"] == "unit":
            rows.append({name: line[name] for name in columns})
        elif line["event"] in ("pilot", "packs") and not line.get("cached"):
            rows.append({name: {**pilot, **line}[name] if name not in pilot else pilot[name] for name in columns})
    return rows


# -- records of journals ---------------------------------------------------------------------------

FREE = ("values", "metrics", "versions", "packs", "search", "members", "resources", "answer")  # free keys


def record_kinds(lines: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Json]]:
    """For each kind of record: the fields that are always present, and the types of all."""
    seen: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        seen.setdefault(record_kind(line), []).append(dict(fields(line)))
    return {kind: _kind(records) for kind, records in sorted(seen.items())}


def record_kind(line: Mapping[str, Any]) -> str:
    parts = [line["event"], line.get("state", "") if line["event"] == "worker" else ""]
    return " ".join(filter(None, [*parts, "cached" if line.get("cached") else ""]))


def fields(value: Json, path: str = "") -> Iterator[tuple[str, str]]:
    """All fields of a record, nested ones with a path, and the types of their values."""
    if isinstance(value, dict) and path.rpartition(".")[2] not in FREE:
        if path:
            yield path, "dict"
        for key, item in value.items():
            yield from fields(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield path, "list"
        for item in value:
            yield from fields(item, f"{path}[]")
    else:
        yield path, "number" if type(value) in (int, float) else type(value).__name__


def _kind(records: Sequence[Mapping[str, str]]) -> dict[str, Json]:
    names = sorted({name for record in records for name in record})
    always = [name for name in names if all(name in record for record in records)]
    kinds = {name: sorted({record[name] for record in records if name in record}) for name in names}
    return {"always": always, "fields": kinds}


# -- what is public --------------------------------------------------------------------------------

MODULES = ("", "search", "network", "pack", "data", "data.sharing", "sinks", "repo", "errors")
SUITES = ("testing.frameworks", "testing.search", "testing.store", "testing.workers")
SUITE_NAMES = ("Contract", "Subject", "Setting")  # what a test of one's own framework, search or store uses
CLASSES = ("Sweep", "Run", "Repo", "Dataset", "Cluster", "Pack")


def surface() -> dict[str, Json]:
    """The public names of the modules with their parameters, and the members of main classes."""
    modules = {name: importlib.import_module(f"regatta.{name}".rstrip(".")) for name in (*MODULES, *SUITES)}
    names = {f"regatta.{name}".rstrip("."): _names(module) for name, module in modules.items()}
    return {"modules": names, "classes": {name: _members(getattr(regatta, name)) for name in CLASSES}}


def _names(module: Any) -> dict[str, Json]:
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    public = getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]
    if ".testing." in module.__name__:
        public = [name for name in public if name.endswith(SUITE_NAMES)]
    return {name: _described(getattr(module, name)) for name in sorted(public)}


def _described(value: Any) -> Json:
    if inspect.isclass(value) and issubclass(value, regatta.RegattaError):
        return {"exit_code": value.exit_code, "arguments": _arguments(value)}
    if inspect.isclass(value) or inspect.isroutine(value):
        return {"arguments": _arguments(value)}
    return {"kind": type(value).__name__}


def _members(cls: type) -> dict[str, Json]:
    """Public methods with their parameters, properties, and fields of dataclasses."""
    names = [name for name in dir(cls) if not name.startswith("_")]
    names += [name for name in getattr(cls, "__dataclass_fields__", ()) if name not in names]
    return {name: _member(inspect.getattr_static(cls, name, None)) for name in sorted(names)}


def _member(value: Any) -> Json:
    function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    kind = type(value).__name__
    return {"kind": kind, "arguments": _arguments(function)} if inspect.isroutine(function) else {"kind": kind}


def _arguments(function: Any) -> Json:
    """Name, kind and default of each parameter; annotations are ignored."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return None
    public = [each for each in parameters if not each.name.startswith("_")]
    return [[each.name, each.kind.name, _default(each.default)] for each in public]


def _default(value: Any) -> str | None:
    if value is inspect.Parameter.empty:
        return None
    plain = sorted(value) if isinstance(value, set | frozenset) else value
    return re.sub(r"<([\w ]+).*>", r"<\1>", repr(plain))


def attributes(project: Path) -> dict[str, list[str]]:
    """The public attributes that instances have in addition to those of their class."""
    with contextlib.chdir(project), regatta.Repo.open(read_only=True) as repo:
        run = regatta.open_run("lines-done")
        known = {"Run": run, "Sweep": run.sweep(), "Repo": repo}
        return {name: sorted(key for key in vars(value) if key[0] != "_") for name, value in known.items()}


def options() -> dict[str, Json]:
    """The verbs of the command line with their arguments and options."""
    parser, verbs = build_parser()
    return {name: _options(each) for name, each in {"": parser, **verbs}.items()}


def _options(parser: argparse.ArgumentParser) -> dict[str, Json]:
    actions = [action for action in parser._actions if not isinstance(action, argparse._SubParsersAction)]
    return {" ".join(action.option_strings) or f"<{action.metavar}>": _option(action) for action in actions}


def _option(action: argparse.Action) -> Json:
    default = None if action.default is argparse.SUPPRESS else action.default
    plain = default if isinstance(default, str | int | float | bool | list) else None
    choices = None if action.choices is None else list(action.choices)
    return {"nargs": action.nargs, "choices": choices, "required": action.required, "default": plain}


# -- what is written -------------------------------------------------------------------------------


def made_repository(folder: Path) -> Path:
    """Make a repository of fixed numbers with the present code."""
    values = np.random.default_rng(8).integers(-4096, 4097, size=(60, 60))
    weight = (values / 1024).astype(np.float32)
    decimals = np.round(values[:40].reshape(-1) / 100, 2)
    with regatta.Repo.init(folder) as repo:
        epochs = {1: {"weight": weight, "decimals": decimals}, 2: {"weight": weight + np.float32(2**-14)}}
        repo.commit("made", epochs, metrics={"loss": [2.0, 1.0]}, hyperparameters={"lr": 0.5}, git=False)
        repo.commit("half", {"half": weight.astype(np.float16), "count": values}, files={"a.txt": b"a"}, git=False)
        repo.archive(budget=1000.0)  # a given budget is kept even if nothing is saved
        repo.archive("half", lossy="bfloat16", budget=1000.0)
    return folder / ".regatta"


def stored(repository: Path) -> dict[str, Json]:
    """Ids of snapshots and files, and the names of packs, which are hashes of their bytes."""
    with regatta.Repo.open(repository) as repo:
        snapshots = {name: [snapshot.id for snapshot in repo.snapshots(name)] for name in ("made", "half")}
        files = [file.hash for file in repo.describe("half").files]
        packs = sorted(_packs_without_copies(repo.store.folder))
    return {"snapshots": snapshots, "files": files, "packs": packs}


def _packs_without_copies(folder: PackFolder) -> Iterator[str]:
    """The names of all pack files, each without records that an older one has: version 0 did not copy these along."""
    known: set[bytes] = set()
    for pack, _ in sorted(folder.present(), key=lambda found: found[1].st_mtime_ns):
        records = folder.records(pack)
        own = [record for record in records if record.moved(0).pack() not in known]
        known |= {record.moved(0).pack() for record in own}
        with folder.packing() as packing:
            for record in own:
                packing.add(record, [folder.read(pack, record.offset, record.size)])
            yield from (f"{sealed.id}.pack" for sealed in packing.seal())


def schemas(repository: Path) -> dict[str, Json]:
    places = {"catalog": repository / "catalog.sqlite", "index": repository / "store" / "index.sqlite"}
    return {name: _schema(path) for name, path in places.items()}


def _schema(path: Path) -> Json:
    """The statements of sqlite_master without comments and layout, and the version."""
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT type, name, sql FROM sqlite_master ORDER BY type, name").fetchall()
        version = database.execute("PRAGMA user_version").fetchone()[0]
    bare = {f"{kind} {name}": " ".join(re.sub(r"--.*", "", sql or "").split()) for kind, name, sql in rows}
    return {"version": version, "statements": bare}


def format_digest() -> str:
    """A hash of the description of the store's format."""
    (path,) = Path(regatta.__file__).parent.rglob("FORMAT.md")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def weights(project: Path) -> dict[str, Json]:
    """A digest of the weights of each snapshot of each version, and of each epoch of a run."""
    with contextlib.chdir(project), regatta.Repo.open(read_only=True) as repo:
        versions = {
            f"{version.reference} {snapshot.position}": digest(repo.load(version, snapshot.id or snapshot.epoch))
            for version in repo.versions()
            for snapshot in repo.snapshots(version)
        }
        run = regatta.open_run("lines-done")
    epochs = [(row["config"], epoch) for row in run.table() for epoch in range(1, row["epoch"] + 1)]
    return {"versions": versions, "run": {f"{c} {epoch}": digest(run.weights(c, epoch)) for c, epoch in epochs}}


def digest(tensors: Mapping[str, Any]) -> str:
    found = hashlib.sha256()
    for name in sorted(tensors):
        value = np.asarray(tensors[name])
        found.update(f"{name} {value.dtype} {value.shape}\n".encode() + value.tobytes())
    return found.hexdigest()[:16]


# -- sweeps ----------------------------------------------------------------------------------------


def pickles() -> list[Path]:
    return sorted((HERE / "pickles").glob("*.pkl"))


def unpickled(project: Path, name: str) -> regatta.Sweep:
    """Load a pickled sweep as that of a run, which is made in the project for this."""
    run = project / ".regatta" / "runs" / f"pickled-{name}"
    run.mkdir(parents=True)
    (run / "sweep.pkl").write_bytes((HERE / "pickles" / f"{name}.pkl").read_bytes())
    (run / "journal.jsonl").write_bytes((HERE / "journals" / "failed.jsonl").read_bytes())
    return regatta.open_run(run.name, run.parents[1]).sweep()


def describe_sweep(sweep: regatta.Sweep) -> dict[str, Json]:
    """The first configurations of a sweep by id, its identity and its descriptions."""
    known = {"configs": sweep.configs(), "identity": sweep.identity(), "text": repr(sweep)}
    return {**known, "search": sweep.search.describe(), "cluster": sweep.cluster.describe(), "share": repr(sweep.share)}


def clean(value: Json) -> Json:
    """The value after a round trip through JSON; NaN becomes a string."""
    return json.loads(json.dumps(value), parse_constant=str)


def environment() -> dict[str, Any]:
    """Versions that bitwise results depend on."""
    import sys
    from importlib.metadata import version

    import torch

    packages = {name: version(name) for name in ("torch", "zstandard", "pcodec", "numpy")}
    return {"python": list(sys.version_info[:2]), "cpu": torch.backends.cpu.get_cpu_capability(), **packages}


def read_expected(name: str) -> Json:
    return json.loads((HERE / "expected" / f"{name}.json").read_text())


def read_corrected(kind: str, name: str) -> Json:
    """What the old code reported, but for the figures that it got wrong: see the fixture's README.md."""
    known = read_expected(kind)[name] if kind == "commands" else read_expected(f"{kind}/{name}")
    for path, value in read_expected("corrected_times")[kind].get(name, {}).items():
        *parents, last = (int(key) if key.isdigit() else key for key in path.strip("/").split("/"))
        place = known
        for key in parents:
            place = place[key]
        if _same(place[last], value):
            raise ValueError(f"The old code reported this, too: {kind}/{name}{path}")
        place[last] = value
    return known


def write_expected(folder: Path, name: str, value: Json) -> None:
    """Write a JSON file with one line for each top-level key."""
    path = folder / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{json.dumps(key)}: {json.dumps(clean(value[key]), sort_keys=True)}" for key in sorted(value)]
    path.write_text("{\n" + ",\n".join(rows) + "\n}\n")


# -- comparing -------------------------------------------------------------------------------------

NEAR = 1e-9  # relative; sums may be rounded differently on other processors


def differences(expected: Json, found: Json, more: bool = False, path: str = "") -> list[str]:
    """Where two documents differ; with `more`, additional keys are allowed."""
    if isinstance(expected, dict) and isinstance(found, dict):
        lost = [f"{path}/{key} is gone" for key in expected if key not in found]
        new = [] if more else [f"{path}/{key} is new" for key in found if key not in expected]
        both = [key for key in expected if key in found]
        return [
            *lost,
            *new,
            *(d for key in both for d in differences(expected[key], found[key], more, f"{path}/{key}")),
        ]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [d for at, (one, other) in pairs for d in differences(one, other, more, f"{path}/{at}")]
    return [] if _same(expected, found) else [f"{path} was {expected!r:.200} and is {found!r:.200}"]


def _same(one: Json, other: Json) -> bool:
    if type(one) in (int, float) and type(other) in (int, float):
        return math.isclose(one, other, rel_tol=NEAR, abs_tol=1e-12)
    return type(one) is type(other) and one == other


def lost_name(expected: Json, found: Json) -> list[str]:
    """Why uses of a public name would fail now; empty if they would not."""
    if found is None:
        return ["it is gone"]
    (old, known), (new, now) = (({**each, "arguments": 0}, each.get("arguments")) for each in (expected, found))
    return [*differences(old, new), *lost_arguments(known, now)]


def lost_arguments(expected: Json, found: Json) -> list[str]:
    """Why calls with the old parameters would fail now; empty if they would not."""
    if expected is None or found is None:
        return [] if expected == found else [f"{expected} became {found}"]
    places = [[each for each in side if each[1].startswith("POSITIONAL")] for side in (expected, found)]
    moved = places[0] != places[1][: len(places[0])]
    known = {each[0]: each for each in found}
    typed = any(each[1] == "KEYWORD_ONLY" and each not in expected for each in found)  # once **options
    lost = [each for each in expected if known.get(each[0]) != each and not (typed and each[1] == "VAR_KEYWORD")]
    needed = [each for each in found if each not in expected and each[2] is None and not each[1].startswith("VAR")]
    said = ["positions have changed"] if moved else []
    return [*said, *(f"{each} is gone" for each in lost), *(f"{each} is needed now" for each in needed)]


def _is_due(name: str, has: Mapping[str, str]) -> bool:
    """Whether a field must be present: its parent is a dict here and it is not in a list."""
    holder = name.rpartition(".")[0]
    return "[]" not in name and (not holder or has.get(holder) == "dict")


def misfits(kinds: Mapping[str, Json], lines: Iterable[Mapping[str, Any]]) -> list[str]:
    """Differences between these records and the known kinds of records."""
    found = []
    for line in lines:
        kind, known = record_kind(line), kinds.get(record_kind(line))
        if known is None:
            found.append(f"there was no record {kind!r}")
            continue
        has = dict(fields(line))
        found += [f"{kind}: {name} is gone" for name in known["always"] if name not in has and _is_due(name, has)]
        found += [f"{kind}: {name} is new" for name in has if name not in known["fields"]]
        shared = [name for name in has if name in known["fields"]]
        odd = [name for name in shared if has[name] not in known["fields"][name]]
        found += [f"{kind}: {name} is a {has[name]}, not {known['fields'][name]}" for name in odd]
    return sorted(set(found))
