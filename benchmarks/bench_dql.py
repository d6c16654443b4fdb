"""Selects of DQL over 10,000 versions, what it costs to read a query, and the start of the command line.

    python benchmarks/bench_dql.py [--versions 10000] [--networks 10000]

The catalog has 10,000 versions: 200 sweeps of 50 configurations, with 6 hyperparameters, 2 metrics over 20 epochs and
parents. Each has a network of 60 nodes of its own (`--networks` makes fewer, which versions share): 14 blocks with a
convolution, a pool of either kind or an addition with a skip connection, a normalization and a ReLU. A call goes from
the text to the list of versions. Times are the median of several calls in this process. The bars are on the time of
the processor, which other work on the machine hardly changes; the time that passed is beside it. Each answer is
compared with one that is computed from the values that were written.

Read: the four queries of the ModelHub paper, from text to bound query, with the grammar loaded.

Peer: MLflow's `search_runs` over 10,000 runs with the same hyperparameters and metrics, in SQLite. One run is logged by
its API, and its rows are copied with the other values. MLflow has neither networks nor `or` in its filters, so the
remaining questions have no counterpart; parameters are texts there.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench_command_line import START, command, imported_by, median_seconds
from report import Bar, report

from regatta.dql.run import QueryContext, prepare
from regatta.dql.saved_queries import save_query
from regatta.network import Edge, Network, Node
from regatta.repo import Repo
from regatta.repo.catalog.catalog import NewVersion
from regatta.repo.catalog.networks import network_rows
from regatta.repo.catalog.records import Link

SWEEP, EPOCHS, BLOCKS, NODES = 50, 20, 14, 60
BEGIN = datetime(2015, 11, 1, tzinfo=UTC).timestamp()
ATTRIBUTES_MS, LAYERS_MS, READ_MS, HELP_S = 50.0, 500.0, 5.0, 0.2

QUERY_1 = """select m1
where m1.name like "alexnet_%" and
m1.creation_time > "2015-11-22" and
m1["conv[1,3,5]"].next has POOL("MAX")
"""
PAPER = {
    "Query 1": QUERY_1,
    "Query 2": """slice m2 from m1
where m1.name like "alexnet-origin%"
mutate m2.input = m1["conv1"] and
m2.output = m1["fc7"]
""",
    "Query 3": """construct m2 from m1
where m1.name like "alexnet-avgv1%" and
m1["conv*($1)"].next has POOL("AVG")
mutate m1["conv*($1)"].insert = RELU("relu$1")
""",
    "Query 4": """evaluate m
from "query3"
with config = "path to config"
vary config.base_lr in [0.1, 0.01, 0.001] and
config.net["conv*"].lr auto and
config.input_data in ["path1", "path2"]
keep top(5, m["loss"], 100)
""",
}


@dataclass(frozen=True)
class Model:
    """What is known of one version, in both catalogs. `pools` has what follows each convolution: max, avg or add."""

    name: str
    created: float
    pools: tuple[str, ...]
    width: int
    hyperparameters: dict[str, Any]
    loss: dict[int, float]
    accuracy: dict[int, float]


def models(count: int, networks: int) -> Iterator[Model]:
    rng, shapes = random.Random(0), random.Random(1)
    nets = [
        (tuple(shapes.choice(("max", "avg", "add", "add")) for _ in range(BLOCKS)), 16 + shapes.randrange(240))
        for _ in range(networks)
    ]
    for number in range(count):
        final = rng.lognormvariate(-1.5, 0.5)
        family = ("alexnet_v", "vgg-", "resnet-")[number // SWEEP % 3]
        pools, width = nets[number % networks]
        yield Model(
            name=f"{family}{number // SWEEP:03d}/{number % SWEEP:02d}",
            created=BEGIN + 360 * number,
            pools=pools,
            width=width,
            hyperparameters={
                "lr": 10 ** rng.uniform(-4, -1),
                "batch_size": rng.choice([32, 64, 128]),
                "hidden": rng.choice([64, 128, 256]),
                "optimizer": rng.choice(["adam", "sgd", "adamw"]),
                "dropout": rng.choice([0.0, 0.1, 0.5]),
                "nesterov": rng.random() < 0.5,
            },
            loss={epoch: final * (1 + 3 / epoch) for epoch in range(1, EPOCHS + 1)},
            accuracy={epoch: 1 / (1 + final / epoch) for epoch in range(1, EPOCHS + 1)},
        )


def network(pools: Sequence[str], width: int) -> Network:
    nodes, edges, last = [Node("input", "INPUT")], list[Edge](), "input"
    for number, pool in enumerate(pools, 1):
        kernel = (5, 5) if number == 1 else (3, 3)
        conv = {"dims": 2, "in": 3 if number == 1 else width, "out": width, "kernel": kernel, "padding": (1, 1)}
        nodes.append(Node(f"conv{number}", "CONV", f"conv{number}", conv))
        edges.append(Edge(last, f"conv{number}"))
        if pool == "add":
            nodes.append(Node(f"add{number}", "ADD", f"add{number}"))
            edges += [Edge(f"conv{number}", f"add{number}", 0), Edge(last, f"add{number}", 1)]
        else:
            values = {"dims": 2, "function": pool, "kernel": (2, 2), "stride": (2, 2)}
            nodes.append(Node(f"pool{number}", "POOL", f"pool{number}", values))
            edges.append(Edge(f"conv{number}", f"pool{number}"))
        norm = Node(f"norm{number}", "NORM", f"norm{number}", {"function": "batch", "features": width})
        nodes += [norm, Node(f"relu{number}", "RELU", f"relu{number}")]
        edges += [Edge(edges[-1].target, norm.id), Edge(norm.id, f"relu{number}")]
        last = f"relu{number}"
    nodes += [Node("flatten", "FLATTEN"), Node("fc", "FULL", "fc", {"in": width, "out": 10}), Node("output", "OUTPUT")]
    edges += [Edge(last, "flatten"), Edge("flatten", "fc"), Edge("fc", "output")]
    assert len(nodes) == NODES
    return Network(tuple(nodes), tuple(edges))


def fill(repo: Repo, given: Sequence[Model]) -> None:
    rng = random.Random(2)
    known: dict[Any, Any] = {}
    last = ""
    with repo.catalog.transaction():
        for number, model in enumerate(given):
            key = (model.pools, model.width)
            if key not in known:
                known[key] = network_rows(network(*key))
            parents = [Link(last, "", "child", EPOCHS, "")] if number % 40 else []
            last = f"{rng.getrandbits(128):032x}"
            repo.catalog.add(
                NewVersion(
                    id=last, name=model.name, created=model.created, message=f"version {number}", network=known[key],
                    hyperparameters=model.hyperparameters, metrics={"loss": model.loss, "accuracy": model.accuracy},
                    parents=parents, parameters=100_000, bytes=400_000, metadata={"dataset": "digits"},
                )
            )  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A query, which models it finds, and the same for MLflow's `search_runs` if it can express it."""

    text: str
    holds: Callable[[Model], bool]
    limit: float
    filter: str | None = None
    order: Callable[[Model], Any] | None = None
    order_by: str | None = None
    most: int | None = None

    @property
    def query(self) -> str:
        return self.text if self.most is None else f"{self.text} limit {self.most}"

    def answer(self, given: Sequence[Model]) -> list[str]:
        found = [model for model in given if self.holds(model)]
        if self.order is not None:
            found.sort(key=self.order)
        return [model.name for model in found[: self.most]]


def after_conv(model: Model, kind: str, *numbers: int) -> bool:
    return any(model.pools[number - 1] == kind for number in numbers or range(1, BLOCKS + 1))


def questions(count: int) -> dict[str, Question]:
    middle = BEGIN + 360 * (count // 2)
    day = datetime.fromtimestamp(middle, UTC)
    sweep = f"{('alexnet_v', 'vgg-', 'resnet-')[count // SWEEP // 2 % 3]}{count // SWEEP // 2:03d}"
    last = EPOCHS

    def good(model: Model) -> bool:
        return model.hyperparameters["optimizer"] == "adam" and model.loss[last] < 0.1

    return {
        "one sweep, by name": Question(
            f'select m where m.name like "{sweep}/%"', lambda m: m.name.startswith(f"{sweep}/"), ATTRIBUTES_MS,
            f"attributes.run_name LIKE '{sweep}/%'",
        ),
        "a text and a metric": Question(
            'select m where m.param.optimizer = "adam" and m.metric.loss < 0.1', good, ATTRIBUTES_MS,
            "params.optimizer = 'adam' and metrics.loss < 0.1",
        ),
        "three hyperparameters": Question(
            'select m where m.param.optimizer = "adam" and m.param.batch_size = 64 and m.param.hidden = 128',
            lambda m: [m.hyperparameters[name] for name in ("optimizer", "batch_size", "hidden")] == ["adam", 64, 128],
            ATTRIBUTES_MS, "params.optimizer = 'adam' and params.batch_size = '64' and params.hidden = '128'",
        ),
        "a name, a date and a metric": Question(
            f'select m where m.name like "alexnet_%" and m.created > "{day:%Y-%m-%d %H:%M}" and m.metric.loss < 0.1',
            lambda m: m.name.startswith("alexnet_") and m.created > middle and m.loss[last] < 0.1, ATTRIBUTES_MS,
            f"attributes.run_name LIKE 'alexnet_%' and attributes.start_time > {middle * 1000:.0f} "
            "and metrics.loss < 0.1",
        ),
        "the best 50": Question(
            "select m order by m.metric.loss", lambda m: True, ATTRIBUTES_MS, "", lambda m: m.loss[last],
            "metrics.loss ASC", 50,
        ),
        "the best 50 with adam": Question(
            'select m where m.param.optimizer = "adam" order by m.metric.loss',
            lambda m: m.hyperparameters["optimizer"] == "adam", ATTRIBUTES_MS, "params.optimizer = 'adam'",
            lambda m: m.loss[last], "metrics.loss ASC", 50,
        ),
        "or, and a range": Question(
            "select m where (m.metric.loss.best < 0.08 or m.metric.accuracy.best > 0.996) and m.param.lr < 0.01",
            lambda m: (min(m.loss.values()) < 0.08 or max(m.accuracy.values()) > 0.996)
            and m.hyperparameters["lr"] < 0.01, ATTRIBUTES_MS,
        ),
        "next has POOL": Question(
            'select m where m["conv3"].next has POOL("MAX")', lambda m: after_conv(m, "max", 3), LAYERS_MS
        ),
        "next has POOL, of several layers": Question(
            'select m where m["conv[1,3,5]"].next has POOL("MAX")', lambda m: after_conv(m, "max", 1, 3, 5), LAYERS_MS
        ),
        "next has POOL, of all convolutions": Question(
            'select m where m["conv*"].next has POOL("AVG")', lambda m: after_conv(m, "avg"), LAYERS_MS
        ),
        "next has POOL, in few models": Question(
            'select m where m["conv*"].next has POOL(function = "max") and not m["conv*"].next has POOL("avg") '
            'and m.param.optimizer = "adam"',
            lambda m: after_conv(m, "max") and not after_conv(m, "avg") and m.hyperparameters["optimizer"] == "adam",
            LAYERS_MS,
        ),
        "next has a hyperparameter": Question(
            'select m where m["relu2"].next has CONV(kernel = 3, out > 250)', lambda m: m.width > 250, LAYERS_MS
        ),
        "next has nothing": Question(
            'select m where m["conv*"].next has RELU', lambda m: False, LAYERS_MS
        ),
        "Query 1 of the paper": Question(
            QUERY_1,
            lambda m: m.name.startswith("alexnet_")
            and m.created > BEGIN + 21 * 86400
            and after_conv(m, "max", 1, 3, 5),
            LAYERS_MS,
        ),
        "all ... next has": Question(
            'select m where all m["conv[1,2]"].next has ADD',
            lambda m: all(after_conv(m, "add", number) for number in (1, 2)), LAYERS_MS,
        ),
        "count(... next has)": Question(
            'select m where count(m["conv*"].next has POOL) >= 12',
            lambda m: sum(pool != "add" for pool in m.pools) >= 12, LAYERS_MS,
        ),
        "a path of three arrows": Question(
            'select m where m["conv1"] -> POOL("max") -> NORM -> RELU', lambda m: after_conv(m, "max", 1), LAYERS_MS
        ),
        "an arrow over one to three steps": Question(
            'select m where m["conv1"] ->{1,3} RELU', lambda m: True, LAYERS_MS, most=50
        ),
    }  # fmt: skip


def ask(act: Callable[[], Any], times: int) -> tuple[float, float]:
    """Median milliseconds of the processor, and those that passed; the first call is not counted."""
    act()
    found = []
    for _ in range(times):
        began, spent = time.perf_counter(), time.process_time()
        act()
        found.append((time.process_time() - spent, time.perf_counter() - began))
    processor, passed = (1e3 * statistics.median(each) for each in zip(*found, strict=True))
    return processor, passed


def seconds(act: Callable[[], Any]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def asked(repo: Repo, question: Question, given: Sequence[Model], times: int) -> tuple[int, float, float]:
    """How many models it finds, after a comparison with the right answer, and milliseconds."""
    names = [version.name for version in repo.query(question.query).versions()]
    wanted = question.answer(given)
    assert names == wanted, f"{question.query}: {len(names)} models instead of {len(wanted)}"
    return len(names), *ask(lambda: repo.query(question.query).versions(), times)


# MLflow


def mlflow_runs(folder: Path, given: Sequence[Model]) -> Any:
    """A client of as many runs, and their experiment: the first is logged, the others are copies of its rows."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    logging.getLogger("alembic").setLevel(logging.ERROR)
    path = folder / "mlflow.db"
    client = MlflowClient(f"sqlite:///{path}")
    experiment = client.create_experiment("models", artifact_location=str(folder / "artifacts"))
    model = given[0]
    run = client.create_run(experiment, start_time=int(model.created * 1000), run_name=model.name)
    metrics = [
        Metric(name, value, int(model.created * 1000), step)
        for name, values in (("loss", model.loss), ("accuracy", model.accuracy))
        for step, value in values.items()
    ]
    params = [Param(name, str(value)) for name, value in model.hyperparameters.items()]
    client.log_batch(run.info.run_id, metrics, params)
    client.set_terminated(run.info.run_id)
    copy_runs(path, run.info.run_id, given[1:])
    return client, experiment


def copy_runs(path: Path, template: str, given: Sequence[Model]) -> None:
    with sqlite3.connect(path) as db:
        db.row_factory = sqlite3.Row
        tables = ("runs", "params", "metrics", "latest_metrics", "tags")
        rows = {
            table: [dict(row) for row in db.execute(f"SELECT * FROM {table} WHERE run_uuid = ?", (template,))]
            for table in tables
        }
        found: dict[str, list[dict[str, Any]]] = {table: [] for table in tables}
        for number, model in enumerate(given, 1):
            uuid, start = f"{number:032x}", int(model.created * 1000)
            series = {"loss": model.loss, "accuracy": model.accuracy}
            artifacts = rows["runs"][0]["artifact_uri"].replace(template, uuid)
            changes: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
                "runs": lambda row: {"name": model.name, "start_time": start, "artifact_uri": artifacts},  # noqa: B023
                "params": lambda row: {"value": str(model.hyperparameters[row["key"]])},  # noqa: B023
                "metrics": lambda row: {"value": series[row["key"]][row["step"]], "timestamp": start},  # noqa: B023
                "latest_metrics": lambda row: {"value": series[row["key"]][row["step"]], "timestamp": start},  # noqa: B023
                "tags": lambda row: {"value": model.name if row["key"] == "mlflow.runName" else row["value"]},  # noqa: B023
            }
            for table in tables:
                found[table] += [{**row, **changes[table](row), "run_uuid": uuid} for row in rows[table]]
        for table, made in found.items():
            names = ", ".join(made[0])
            values = ", ".join(f":{name}" for name in made[0])
            db.executemany(f"INSERT INTO {table} ({names}) VALUES ({values})", made)
    db.close()


def searched(client: Any, experiment: str, question: Question, given: Sequence[Model], times: int) -> float:
    def search() -> Any:
        order = [question.order_by] if question.order_by else ["attributes.start_time ASC"]
        return client.search_runs([experiment], question.filter, max_results=question.most or 50_000, order_by=order)

    names = [run.info.run_name for run in search()]
    wanted = question.answer(given)
    assert names == wanted, f"MLflow, {question.filter}: {len(names)} runs instead of {len(wanted)}"
    return ask(search, times)[0]


# Reading a query, and the command line


def read_times(repo: Repo, times: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of the processor and passed, from text to bound query, with grammar and catalog open."""
    save_query(repo.folder, "query3", PAPER["Query 3"])
    found = {}
    for name, text in PAPER.items():
        found[name] = ask(lambda: prepare(QueryContext(repo, text)), times)  # noqa: B023
    return found


def main() -> None:
    options = arguments()
    given = list(models(options.versions, options.networks or options.versions))
    rows: list[list[Any]] = []
    bars: list[Bar] = []
    notes: dict[str, Any] = {"versions": options.versions, "networks": options.networks or options.versions}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        with Repo.init(folder) as repo:
            notes["make_seconds"] = seconds(lambda: fill(repo, given))
            notes["catalog_bytes"] = (repo.folder / "catalog.sqlite").stat().st_size
        client, experiment = mlflow_runs(folder, given)
        for name, question in questions(options.versions).items():
            with Repo.open(folder) as repo:
                count, processor, passed = asked(repo, question, given, options.repeats)
            theirs: Any = "-"
            if question.filter is not None:
                theirs = searched(client, experiment, question, given, options.repeats)
                bars.append(Bar(f"{name}: to MLflow", processor / theirs, 1.0))
            rows.append([name, count, processor, passed, theirs])
            bars.append(Bar(f"{name}: ms", processor, question.limit))
        with Repo.open(folder) as repo:
            for name, (processor, passed) in read_times(repo, 20).items():
                rows.append([f"parse and bind {name}", "-", processor, passed, "-"])
                bars.append(Bar(f"parse and bind {name}: ms", processor, READ_MS))
    help_seconds = median_seconds([*command(), "--help"], 10)
    heavy = imported_by("--help")
    rows.append(["regatta --help", "-", "-", 1e3 * help_seconds, "-"])
    bars.append(Bar("regatta --help: seconds", help_seconds, HELP_S))
    bars.append(Bar("regatta --help imports lark or torch", float(bool({"lark", "torch"} & set(heavy))), 0))
    notes |= {"repeats": options.repeats, "start": START}
    columns = ["what", "models", "processor ms", "passed ms", "MLflow ms"]
    report("dql", columns, rows, bars=bars, peers=["lark", "mlflow-skinny"], notes=notes)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=10_000)
    parser.add_argument("--networks", type=int, help="different networks (default: one for each version)")
    parser.add_argument("--repeats", type=int, default=9)
    return parser.parse_args()


if __name__ == "__main__":
    main()
