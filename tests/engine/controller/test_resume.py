"""A run that was cut off anywhere resumes: no unit is done twice, weights and search are the same."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import killed_after, soon
from recipes import eval_fn, loss_fn, model_fn, plain_fn, plain_loss, small_data

from regatta import Cluster, Run, Sweep, open_run, search
from regatta.errors import ConflictError, UsageError
from regatta.journal.journal_file import Journal, Record
from regatta.journal.lock import is_live
from regatta.search import Search

EPOCHS = 3


def plain_sweep(folder: Path, name: str = "run", **options: Any) -> Sweep:
    """NumPy models in this process, with fixed visits: quick, and the same every time."""
    settings = {
        "search": search.grid(lr=[0.01, 0.02, 0.05], batch_size=[4, 9]),
        "epochs": EPOCHS, "visits": "seeded", "cluster": Cluster.inline(2), "framework": "numpy", **options,
    }  # fmt: skip
    space = settings.pop("search")
    return Sweep(small_data(folder / "data"), space, plain_fn, loss_fn=plain_loss, repo=folder, name=name, **settings)


def hashes(run: Run) -> dict[Any, str | None]:
    return {(u.config, u.epoch, u.partition): u.hash for u in run.record.units if u.kind == "train"}


def check_counted_once(run: Run) -> None:
    counted = Counter((u.kind, u.config, u.epoch, u.partition) for u in run.record.units if u.kind != "pilot")
    assert set(counted.values()) == {1}
    for config in run.record.configs.values():
        epochs = [u.epoch for u in config.units if u.kind == "train"]
        assert epochs == sorted(epochs)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return plain_sweep(tmp_path_factory.mktemp("undisturbed")).launch(progress=False)


def test_a_controller_killed_again_and_again(tmp_path: Path, undisturbed: Run) -> None:
    luck, sweep = random.Random(5), plain_sweep(tmp_path)
    kills = int(killed_after(0, sweep))  # before its first record, perhaps
    while True:
        kills += killed_after(luck.randint(1, 40), sweep)  # the same sweep again: it goes on
        run = open_run("run", tmp_path)
        if run.record.status == "done":
            break
        assert run.record.status == "interrupted"
    assert kills > 4
    assert hashes(run) == hashes(undisturbed)
    check_counted_once(run)
    assert [c.reports for c in run.record.configs.values()] == [c.reports for c in undisturbed.record.configs.values()]
    assert run.replay().ok
    states = {path.name for path in (run.folder / "states").glob("*/*")}
    assert states == {path.name for path in (undisturbed.folder / "states").glob("*/*")}, "nothing is left lying about"


def test_every_prefix_of_a_journal_can_be_resumed(tmp_path: Path) -> None:
    """With a search that decides: what a resumed one decides is what it would have decided."""
    space = search.hyperband(lr=search.uniform(0.001, 0.1), batch_size=[7], R=4, eta=2)
    first = plain_sweep(tmp_path, search=space, epochs=4, name="whole").launch(progress=False)
    lines = (first.folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    starts = [number for number, line in enumerate(lines) if b'"event":"unit"' in line and b'"train"' in line]
    for cut in random.Random(1).sample(starts, 4):
        run = _copied_up_to(first, tmp_path / "runs" / f"cut-{cut}", lines, cut)
        run.go_on(progress=False)
        assert hashes(run) == hashes(first)
        check_counted_once(run)
        assert {c.id: (c.epochs, c.status) for c in run.record.configs.values()} == {
            c.id: (c.epochs, c.status) for c in first.record.configs.values()
        }


def _copied_up_to(run: Run, folder: Path, lines: list[bytes], cut: int) -> Run:
    """The run as it would be, had it been killed while it wrote this line; states are made again as they were."""
    (folder / "states").mkdir(parents=True)
    os.link(run.folder / "sweep.pkl", folder / "sweep.pkl")
    (folder / "journal.jsonl").write_bytes(b"".join(lines[:cut]) + lines[cut][: len(lines[cut]) // 2])
    partial = open_run(folder.name, folder.parents[1])
    wanted = {u.state for u in partial.record.units if u.state}
    orders = {c.id: {e: c.visits(e) for e in range(1, c.epochs + 1)} for c in run.record.configs.values()}
    kept = folder.with_name(f"again-{cut}")
    kept.mkdir()
    keeping = run.sweep()
    monkey = pytest.MonkeyPatch()
    monkey.setattr("regatta.store.states.state_files.StateFolder.drop", lambda self, path: None)
    keeping.execute(kept, orders=orders)
    monkey.undo()
    for state in wanted:
        (folder / state).parent.mkdir(exist_ok=True)
        os.link(kept / state, folder / state)
    return open_run(folder.name, folder.parents[1])


def test_launching_the_same_sweep_again_resumes_it(tmp_path: Path, undisturbed: Run) -> None:
    run = plain_sweep(tmp_path, name=None)
    interrupted = _interrupt_after(run, units=5)
    assert interrupted.record.status == "interrupted"
    assert {c.status for c in interrupted.record.configs.values()} <= {"interrupted", "done"}
    again = plain_sweep(tmp_path, name=None).launch(progress=False)
    assert again.name == interrupted.name
    assert any("Resuming " in text for _, text in again.record.notes)
    assert hashes(again) == hashes(undisturbed)
    check_counted_once(again)
    assert len(again.record.sessions) == 2
    other = plain_sweep(tmp_path, name=None).launch(progress=False)
    assert other.name != again.name, "one that is done is not gone on with"


def _interrupt_after(sweep: Sweep, units: int) -> Run:
    def began(runner: Any) -> None:
        runner._run_log.listeners.append(
            lambda record, line: runner.interrupt() if sum(u.kind == "train" for u in record.units) >= units else None
        )

    from regatta.engine.resumable_runs import new_folder

    runs = Path(str(sweep.repo)) / "runs"
    folder = new_folder(runs, sweep.name, sweep.dataset.name)
    (folder / "sweep.pkl").write_bytes(sweep._pickle(runs.parent))
    with pytest.raises(KeyboardInterrupt):
        sweep.execute(folder, began=began)
    return open_run(folder.name, sweep.repo)


def test_another_sweep_or_changed_functions_start_a_new_run(tmp_path: Path) -> None:
    cut = _interrupt_after(plain_sweep(tmp_path, name=None), units=2)
    for other in (
        plain_sweep(tmp_path, name=None, seed=1),
        plain_sweep(tmp_path, name=None, search=search.grid(lr=[0.3], batch_size=[4])),
        Sweep(
            small_data(tmp_path / "data"), search.grid(lr=[0.01, 0.02, 0.05], batch_size=[4, 9]), plain_fn,
            loss_fn=lambda weights, batch, config: plain_loss(weights, batch, config), epochs=EPOCHS, visits="seeded",
            cluster=Cluster.inline(2), framework="numpy", repo=tmp_path,
        ),
    ):  # fmt: skip
        assert other.launch(progress=False).name != cut.name
    assert plain_sweep(tmp_path, name=None).launch(progress=False, resume=False).name != cut.name


def test_a_second_controller_is_refused(tmp_path: Path) -> None:
    run = Sweep(
        small_data(tmp_path / "data"), search.grid(batch_size=[5], sleeps=[0.02]), model_fn, loss_fn=loss_fn,
        epochs=500, cluster=Cluster.local(1, threads=1), repo=tmp_path, name="only",
    ).launch(wait=False, progress=False)  # fmt: skip
    assert soon(lambda: bool(run.record.units))
    assert is_live(run.folder)
    assert open_run("only", tmp_path).record.status == "running"
    with pytest.raises(ConflictError, match=f"being trained already, by process {os.getpid()}"):
        open_run("only", tmp_path).go_on(progress=False)
    run.halt()
    with pytest.raises(KeyboardInterrupt):
        run.result()
    assert not is_live(run.folder)
    assert open_run("only", tmp_path).record.status == "interrupted"


def test_a_finished_run_cannot_be_resumed(undisturbed: Run) -> None:
    with pytest.raises(UsageError, match="is done"):
        undisturbed.go_on(progress=False)


def test_diverged_models_leave_a_journal_that_is_json(tmp_path: Path) -> None:
    space = search.configs([{"batch_size": 5, "fails": "nan"}, {"batch_size": 5}])
    run = Sweep(
        small_data(tmp_path / "data"), space, model_fn, loss_fn=loss_fn, eval_fn=eval_fn, epochs=2,
        cluster=Cluster.inline(1), repo=tmp_path, name="nan",
    ).launch(progress=False)  # fmt: skip

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for line in (run.folder / "journal.jsonl").read_text().splitlines():
        json.loads(line, parse_constant=refuse)
    reread = open_run("nan", tmp_path)
    assert str(reread.find(space.start(reread.sweep().goal)[0].config).reports[1]["loss"]) == "nan"


def halving_sweep(folder: Path) -> Sweep:
    space = search.hyperband(lr=search.uniform(0.001, 0.1), batch_size=[7], R=4, eta=2)
    return plain_sweep(folder, search=space, epochs=4)


def kill_before(sweep: Sweep, wanted: Callable[[Record], bool]) -> None:
    """Train in a process that is gone at the moment when it would write such a record."""
    child = os.fork()
    if child == 0:
        write = Journal._write

        def dying(self: Journal, line: bytes) -> None:
            if wanted(json.loads(line)):
                os._exit(9)
            write(self, line)

        Journal._write = dying  # type: ignore[method-assign]
        try:
            sweep.launch(progress=False)
        finally:
            os._exit(0)
    assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 9, "it got there"


def outcomes(run: Run) -> dict[str, Any]:
    return {c.id: (c.epochs, c.status, c.reports) for c in run.record.configs.values()}


@pytest.fixture(scope="module")
def undisturbed_halving(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return halving_sweep(tmp_path_factory.mktemp("undisturbed")).launch(progress=False)


@pytest.mark.parametrize("event", ["report", "config", "end"])
def test_a_controller_killed_before_a_record(tmp_path: Path, undisturbed_halving: Run, event: str) -> None:
    """Before the report on which a rung waits, before the first promotion, before the end."""
    rung, heard = list(undisturbed_halving.record.configs)[:4], set[str]()

    def wanted(line: Record) -> bool:
        if line["event"] == "report" and line["config"] in rung:
            heard.add(line["config"])
        return line["event"] == event and (event == "end" or len(heard) == len(rung))

    kill_before(halving_sweep(tmp_path), wanted)
    journal = tmp_path / "runs" / "run" / "journal.jsonl"
    if event == "config":  # and had it come from the first of the rung, those that go on are still to be recalled
        kept = [line for line in journal.read_bytes().splitlines(True) if not _reports(json.loads(line), rung[0])]
        journal.write_bytes(b"".join(kept))
    run = open_run("run", tmp_path)
    assert run.record.status == "interrupted"
    run.go_on(progress=False)
    assert outcomes(run) == outcomes(undisturbed_halving)


def _reports(line: Record, config: str) -> bool:
    return bool(line["event"] == "report" and line["config"] == config)


def test_rules_in_iterations_decide_alike_in_a_resumed_run(tmp_path: Path) -> None:
    """`top` stops models by the iterations in the journal; after kills, the same ones are kept."""

    def rules_over_grid() -> Search:
        grid = search.grid(lr=[0.001, 0.01, 0.02, 0.05, 0.1], batch_size=[4, 9])
        return search.keeping(grid, search.top(3, "loss", 16), search.require("loss", "<", 100.0, 2))

    first = plain_sweep(tmp_path, search=rules_over_grid(), epochs=4, name="whole").launch(progress=False)
    configs = first.record.configs
    rows = [part.rows or 0 for part in first.sweep().dataset.train]

    def batches(config: Any) -> int:
        return sum(-(-count // config.values["batch_size"]) for count in rows)

    at = {  # the first report at or after iteration 16: a partition's last, smaller batch counts as well
        config.id: next(e for e in config.reports if e * batches(config) >= 16) for config in configs.values()
    }
    best = sorted(configs, key=lambda config: (configs[config].reports[at[config]]["loss"], config))[:3]
    assert {c.id for c in configs.values() if c.status == "done"} == set(best)
    assert {c.status for c in configs.values()} == {"done", "stopped"}
    lines = (first.folder / "journal.jsonl").read_bytes().splitlines(keepends=True)
    reports = [json.loads(line) for line in lines if b'"event":"report"' in line]
    assert all(report["iterations"] == report["epoch"] * batches(configs[report["config"]]) for report in reports)
    again = plain_sweep(tmp_path, search=rules_over_grid(), epochs=4, name="killed")
    assert [killed_after(records, again) for records in (30, 45)] == [True, True]
    run = again.launch(progress=False)
    assert {c.id for c in run.record.configs.values() if c.status == "done"} == set(best)
    check_counted_once(run)
