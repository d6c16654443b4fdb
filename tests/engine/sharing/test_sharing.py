"""Preprocessing shared by many models: the same bits as without, made once, whatever dies, and nothing left behind."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import recipes
import transforms
from processes import children, is_running
from recipes import small_data
from transforms import linear_fn, logged_lines, noisy, squares

from regatta import Cluster, Dataset, Run, Sweep, open_run, search
from regatta.data.sharing import Sharing
from regatta.engine.controller import faults
from regatta.engine.messages import Recipe, SharingPlan, WorkerReady, WorkerSetup
from regatta.engine.planning.planner import available_workers
from regatta.engine.profiling.models import ModelProfiles
from regatta.engine.replay import replay
from regatta.engine.sharing.block_reader import BlockReader, PreprocessingError
from regatta.engine.sharing.broker import Broker, StartedWorker
from regatta.engine.sharing.connections import SocketChannel, receive, send
from regatta.engine.sharing.ledger import MAX_DEATHS, BlockKey, Ledger
from regatta.engine.sharing.preprocess import ROWS_PER_CALL, Preprocessor, UnreadableError
from regatta.engine.sharing.preprocess_worker import open_broker
from regatta.engine.workers.process import ProcessPool
from regatta.errors import PausedError, UsageError
from regatta.plan.schedule.estimates import Estimates
from regatta.plan.strategy.plan_tree import ShareNode
from regatta.seeds import derive_seed

pytestmark = pytest.mark.usefixtures("one_thread")
LOCAL = Cluster.local(workers=2, threads=1)
CONFIGS = [{"lr": rate, "batch_size": size} for rate in (0.1, 0.01) for size in (8, 20)]
EPOCHS, ROOM = 2, 10**8


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Two partitions, each of more than one piece."""
    folder = tmp_path_factory.mktemp("data")
    return small_data(folder, rows=800, proportions=(1, 1), eval_partitions=1)


def sweep(
    data: Dataset, folder: Path, share: Any, transform: Any = noisy, cluster: Cluster = LOCAL, **more: Any
) -> Sweep:
    options = {"visits": "seeded", "epochs": EPOCHS, "pack": False, **more}
    return Sweep(
        data, search.configs(CONFIGS), linear_fn, loss_fn=squares, transform_fn=transform, share=share, cluster=cluster,
        repo=folder, **options,
    )  # fmt: skip


def hashes(run: Run) -> dict[Any, Any]:
    return {(unit.config, unit.epoch, unit.partition): unit.hash for unit in run.record.units if unit.kind == "train"}


def seeds(data: Dataset, epochs: range) -> list[str]:
    """Those of all pieces of the training partitions."""
    pieces = [(j, start) for j, part in enumerate(data.train) for start in range(0, part.rows or 0, ROWS_PER_CALL)]
    return [str(derive_seed(0, "transform", epoch, *piece)) for epoch in epochs for piece in pieces]


# -- whole runs ----------------------------------------------------------------------------------------------


def test_shared_or_not_the_bits_are_the_same_and_blocks_are_made_once(data: Dataset, tmp_path: Path) -> None:
    found, made = {}, {}
    for name, share, cluster in (("shared", True, LOCAL), ("own", False, LOCAL), ("inline", None, Cluster.inline(2))):
        log = tmp_path / f"{name}.log"
        run = sweep(data, tmp_path / name, share, partial(noisy, log=log), cluster).launch(progress=False)
        found[name], made[name] = hashes(run), Counter(seed for _, seed in logged_lines(log))
    wanted = seeds(data, range(1, EPOCHS + 1))
    assert len(found["own"]) == len(CONFIGS) * EPOCHS * len(data.train)
    assert found["shared"] == found["own"] == found["inline"]
    assert {made["shared"][seed] for seed in wanted} == {1}
    assert {made["own"][seed] for seed in wanted} == {len(CONFIGS)}
    assert len(set(found["own"].values())) == len(found["own"])


def test_a_replay_without_sharing_gives_the_same_bits(data: Dataset, tmp_path: Path) -> None:
    run = sweep(data, tmp_path, True, visits="free").launch(progress=False)
    again = sweep(data, tmp_path, False)
    assert replay(again, run.record).ok
    other = sweep(data, tmp_path, False, partial(noisy, sleeps=0.0))
    assert again.identity() != other.identity()


def test_packs_and_hops_share_alike(data: Dataset, tmp_path: Path) -> None:
    def trained(name: str, **options: Any) -> dict[Any, Any]:
        configs = search.configs([{"lr": rate, "batch_size": 20} for rate in (0.1, 0.03)])
        made = Sweep(
            data, configs, recipes.model_fn, loss_fn=recipes.loss_fn, transform_fn=noisy, visits="seeded",
            repo=tmp_path / name, **options,
        )  # fmt: skip
        return hashes(made.launch(progress=False))

    packed = trained("packed", share=True, pack=True, cluster=Cluster.local(workers=1, threads=1))
    assert packed == trained("inline", share=False, pack=False, cluster=Cluster.inline())


def test_partitions_as_read_are_shared_too(data: Dataset, tmp_path: Path) -> None:
    log = tmp_path / "reads"
    read = partial(transforms.read_noted, log=log)
    run = sweep(data, tmp_path / "shared", True, input_fn=read).launch(progress=False)
    assert Counter(name for _, name in logged_lines(log)) == {part.path.name: 1 for part in (*data.train, *data.eval)}
    assert hashes(run) == hashes(sweep(data, tmp_path / "own", False, cluster=Cluster.inline()).launch(progress=False))


@pytest.mark.parametrize("share", [True, False])
def test_a_transform_that_raises_pauses_the_run_with_its_traceback(
    data: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: bool
) -> None:
    """It makes data for all models, so none of them is to blame."""
    monkeypatch.setattr(faults, "DELAYS_S", (0.01, 0.02))
    raises = partial(transforms.fails_for, seeds={int(seed) for seed in seeds(data, range(2, 3))})
    with pytest.raises(PausedError, match="ValueError: cannot augment") as caught:
        sweep(data, tmp_path, share, raises, name="raises").launch(progress=False)
    assert "in fails_for" in str(caught.value) and "regatta/engine" not in str(caught.value)
    run = open_run("raises", tmp_path)
    assert (run.record.status, {config.error for config in run.record.configs.values()}) == ("interrupted", {None})
    assert {unit.epoch for unit in run.record.units if unit.kind == "train"} == {1}


def test_a_transform_that_never_works_fails_before_training(data: Dataset, tmp_path: Path) -> None:
    raises = partial(transforms.fails_for, seeds={int(seed) for seed in seeds(data, range(3))})
    with pytest.raises(UsageError, match="cannot augment"):
        sweep(data, tmp_path, True, raises).launch(progress=False)


def test_nothing_is_left_behind_by_a_run_that_ends(data: Dataset, tmp_path: Path) -> None:
    before = children(os.getpid())  # other tests may have some
    run = sweep(data, tmp_path, Sharing(memory=1, disk=ROOM), epochs=1).launch(progress=False)
    assert run.record.status == "done"
    assert not blocks_open()
    wait_for(lambda: not children(os.getpid()) - before)
    assert {file.suffix for file in (run.folder / "logs").rglob("*") if file.is_file()} <= {".log"}


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_sharing import Sharing, noisy, small_data, sweep
folder = Path({folder!r})
data = small_data(folder / "data", rows=800, proportions=(1, 1), eval_partitions=1)
slow = partial(noisy, log=folder / "made", sleeps=0.2)
sweep(data, folder, Sharing(memory=20_000, disk=10**8), slow, epochs=50).launch(progress=False)
"""


def test_no_process_outlives_a_killed_controller(tmp_path: Path) -> None:
    text = SCRIPT.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    paths = os.pathsep.join(sys.path)
    controller = subprocess.Popen([sys.executable, "-c", text], env={**os.environ, "PYTHONPATH": paths})
    wanted = {str(derive_seed(0, "transform", 2, 0, 0))}
    wait_for(lambda: wanted & {seed for _, seed in logged_lines(tmp_path / "made")})
    family = children(controller.pid)
    preprocessing = {int(pid) for pid, seed in logged_lines(tmp_path / "made") if seed in wanted}
    assert preprocessing < family
    controller.kill()
    controller.wait()
    wait_for(lambda: not any(map(is_running, family)))
    assert not [name for name in os.listdir("/dev/shm") if "regatta" in name]
    logs = next(tmp_path.rglob("preprocessing.log")).parent
    assert {file.suffix for file in logs.rglob("*") if file.is_file()} <= {".log"}


# -- the broker and its preprocess workers -------------------------------------------------------------------------


class Harness:
    """A broker with readers in this process."""

    def __init__(self, data: Dataset, folder: Path, transform: Any, settings: Sharing, **recipe: Any) -> None:
        made = Recipe(linear_fn, squares, transform_fn=transform, **recipe)
        plan = SharingPlan(settings, len(CONFIGS), EPOCHS, "input_fn" in recipe, transform is not None)
        train, held = (tuple(part.path for part in kind) for kind in (data.train, data.eval))
        self.setup = WorkerSetup(made, 0, train, held, folder / "logs", plan)
        found = open_broker(self.setup, 1, preload="")
        assert found is not None
        self.broker: Broker = found
        self.readers: list[BlockReader] = []

    def reader(self, name: str) -> BlockReader:
        self.readers.append(BlockReader(SocketChannel(self.broker.connect(name))))
        return self.readers[-1]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.broker.close()

    def right(self, key: BlockKey) -> Any:
        """What a worker by itself would make."""
        preprocessor = Preprocessor(self.setup)
        base = preprocessor.read("train", key.partition)
        return base if key.epoch is None else preprocessor.transform(base, key.partition, key.epoch)


@pytest.fixture
def opened(data: Dataset, tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    harnesses: list[Harness] = []

    def opened(transform: Any = noisy, memory: int = ROOM, disk: int = ROOM, most: int = 2, **recipe: Any) -> Harness:
        settings = Sharing(memory=memory, disk=disk, processes=most)
        harnesses.append(Harness(data, tmp_path, transform, settings, **recipe))
        return harnesses[-1]

    yield opened
    for harness in harnesses:
        harness.close()
    assert not blocks_open()


KEYS = [BlockKey("train", partition, epoch) for epoch in (1, 2, 3) for partition in (0, 1)]


def equal(found: Any, wanted: Any) -> bool:
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(("memory", "disk"), [(ROOM, ROOM), (25_000, ROOM), (25_000, 0), (0, ROOM), (0, 25_000)])
def test_a_cache_of_any_size_gives_every_block(opened: Any, memory: int, disk: int) -> None:
    """A block has 9,600 bytes: two fit into memory or disk, or many, or none."""
    harness = opened(memory=memory, disk=disk)
    readers = [harness.reader(name) for name in ("r0", "r1")]
    for key in (*KEYS, *KEYS[:3]):
        for reader in readers:
            assert equal(reader.get(key, ["m0"]), harness.right(key))
        for reader in readers:
            reader.release(key)
    files = blocks_open()
    in_memory = [file for file in files if "memfd" in file]
    assert len(in_memory) <= memory // 9_600
    assert len(files) - len(in_memory) <= disk // 9_600


def test_workers_make_their_own_data_where_a_block_fits_nowhere(opened: Any) -> None:
    harness = opened(memory=100, disk=100)
    assert harness.reader("r0").get(KEYS[0], ["m0"]) is None


def test_readers_map_one_block_and_their_writes_are_private(opened: Any) -> None:
    harness = opened()
    first, second = (harness.reader(name).get(KEYS[0], [name]) for name in ("r0", "r1"))
    first[0][:] = 0
    assert equal(second, harness.right(KEYS[0])) and not equal(first, second)


def test_a_killed_preprocess_worker_is_replaced_and_its_block_made_again(opened: Any, tmp_path: Path) -> None:
    harness = opened(partial(transforms.dies_once, mark=tmp_path / "died"))
    found = harness.reader("r0").get(KEYS[0], ["m0"])
    assert (tmp_path / "died").exists() and equal(found, harness.right(KEYS[0]))
    (idle,) = harness.broker.preprocess_workers()
    os.kill(idle, signal.SIGKILL)
    assert equal(harness.reader("r1").get(KEYS[3], ["m0"]), harness.right(KEYS[3]))


def test_a_block_that_kills_its_workers_is_given_up(opened: Any) -> None:
    harness = opened(transforms.dies)
    with pytest.raises(PreprocessingError, match=r"train partition 0 for epoch 1 took 3 processes with it"):
        harness.reader("r0").get(KEYS[0], ["m0"])


READER = """
import os, socket, sys
from regatta.engine.sharing.ledger import BlockKey
from regatta.engine.sharing.connections import SocketChannel
from regatta.engine.sharing.block_reader import BlockReader
reader = BlockReader(SocketChannel(socket.socket(fileno={file})))
block = reader.get(BlockKey("train", 0, 1), ["m0"])
print("has it", flush=True)
sys.stdin.read()
"""


def test_a_stopped_or_dead_reader_does_not_block_others(opened: Any) -> None:
    harness = opened(memory=10_000, disk=0)  # room for one block
    theirs = harness.broker.connect("stopped")
    text, paths = READER.format(file=theirs.fileno()), os.pathsep.join(sys.path)
    with subprocess.Popen(
        [sys.executable, "-c", text], pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": paths},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as stopped:  # fmt: skip
        theirs.close()
        assert stopped.stdout is not None and stopped.stdout.readline() == b"has it\n"
        os.kill(stopped.pid, signal.SIGSTOP)
        reader = harness.reader("r1")
        try:
            assert equal(reader.get(KEYS[0], ["m1"]), harness.right(KEYS[0]))  # the same block, which is there
            reader.release(KEYS[0])
            assert reader.get(KEYS[1], ["m1"]) is None  # there is no room, but the reader does not wait
        finally:
            stopped.kill()
    wait_for(lambda: reader.get(KEYS[1], ["m0", "m1"]) is not None)


def test_a_reader_that_reconnects_at_once_does_not_block_others(data: Dataset, tmp_path: Path) -> None:
    """The broker hears of the end of the first at the same time as of the second, which says nothing yet."""
    from regatta.engine.sharing.connections import receive, send

    harness = Harness(data, tmp_path, noisy, Sharing(always=None))
    want = {"want": KEYS[0], "models": ["m0"]}
    with contextlib.ExitStack() as seats:
        seats.callback(harness.close)
        asks = seats.enter_context(harness.broker.connect("asks"))
        asks.settimeout(60.0)
        for number in range(20):
            with harness.broker.connect(f"r{number}") as first:
                send(first, want)
                receive(first)
                for _ in range(50):
                    send(asks, want)  # so that it has something to do meanwhile
                seats.enter_context(harness.broker.connect(f"r{number}"))
            for _ in range(50):
                assert receive(asks) == ({"yourself": True}, None)


def test_a_hanging_preprocess_worker_is_ended_with_its_reader(opened: Any, tmp_path: Path) -> None:
    log = tmp_path / "made"
    harness = opened(partial(noisy, log=log, sleeps=600), most=1)
    waits = harness.broker.connect("r0")
    from regatta.engine.sharing.connections import send

    send(waits, {"want": KEYS[0], "models": ["m0"]})
    wait_for(lambda: logged_lines(log))
    waits.close()
    wait_for(lambda: not is_running(int(logged_lines(log)[0][0])))


def test_there_are_as_many_preprocess_workers_as_readers_need(opened: Any) -> None:
    harness = opened(partial(noisy, sleeps=0.05), most=2)
    assert harness.broker.preprocess_workers() == []
    reader = harness.reader("r0")
    for key in KEYS[:3]:
        reader.get(key, ["m0"])
        reader.release(key)
    assert len(harness.broker.preprocess_workers()) == 1


def test_waiting_for_the_first_worker_does_not_start_a_second(opened: Any) -> None:
    """Blocks are made faster than another worker would start; the start of the first one does not count."""
    harness = opened(transforms.SlowToStart(), most=2)
    readers = [harness.reader(name) for name in ("r0", "r1")]
    with ThreadPoolExecutor(2) as both:
        found = list(both.map(lambda reader, key: reader.get(key, ["m0"]), readers, KEYS))
    assert all(equal(block, harness.right(key)) for block, key in zip(found, KEYS, strict=False))
    assert len(harness.broker._workers) == 1


def test_short_waits_add_up_to_another_worker(opened: Any) -> None:
    """Each wait is shorter than a start, but there is one for every block."""
    harness = opened(partial(noisy, sleeps=0.02), most=2)
    readers = [harness.reader(name) for name in ("r0", "r1")]

    def read(reader: BlockReader, partition: int) -> None:
        for epoch in range(1, 1000):
            key = BlockKey("train", partition, epoch)
            assert reader.get(key, [f"m{partition}"]) is not None
            reader.release(key)
            if len(harness.broker.preprocess_workers()) == 2:
                break

    with ThreadPoolExecutor(2) as both:
        list(both.map(read, readers, (0, 1)))
    assert len(harness.broker.preprocess_workers()) == 2


def test_workers_report_how_long_a_preprocess_worker_takes_to_start(opened: Any) -> None:
    """A preprocess worker is ready before the first worker is, because it does not need the model's functions."""
    harness = opened()
    setup = replace(harness.setup, recipe_or_pickle=replace(harness.setup.recipe, model_fn=recipes.model_fn))
    pool, outcome, begin = ProcessPool(LOCAL.sized(2), setup), ModelProfiles(Estimates([1])), time.perf_counter()
    try:
        pool.start()
        while len(outcome.ready) < 2:
            for event in pool.events():
                assert isinstance(event, WorkerReady)
                outcome.on_worker_up(event)
        seconds = [event.info["maker_seconds"] for event in outcome.ready.values()]
        assert 0 < min(seconds) < time.perf_counter() - begin
        assert available_workers(pool, LOCAL, outcome).start_seconds == min(seconds)
    finally:
        pool.close()


def test_sharing_begins_where_it_pays(data: Dataset, tmp_path: Path) -> None:
    harness = Harness(data, tmp_path, noisy, Sharing(always=None))
    try:
        reader = harness.reader("r0")
        assert reader.get(KEYS[0], ["m0"]) is None
        reader.measured(1e-5)
        assert reader.get(KEYS[0], ["m0"]) is None
        reader.measured(10.0)
        assert equal(reader.get(KEYS[0], ["m0"]), harness.right(KEYS[0]))
    finally:
        harness.close()


def test_workers_preprocess_for_themselves_when_the_broker_is_gone(opened: Any) -> None:
    harness = opened()
    reader = harness.reader("r0")
    harness.broker.close()
    assert reader.get(KEYS[0], ["m0"]) is None and reader.get(KEYS[1], ["m0"]) is None
    reader.release(KEYS[0])


# -- what cannot be --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", ["yes", 2, 0.5, 1, 0])
def test_share_is_true_false_or_none(data: Dataset, tmp_path: Path, share: Any) -> None:
    with pytest.raises(UsageError, match=f"share is {share!r}; it must be True, False, or None"):
        sweep(data, tmp_path, share)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"memory": -1}, "memory is -1"), ({"processes": 0}, "processes is 0"), ({"disk": 1.5}, "disk is 1.5")],
)
def test_limits_are_whole_numbers(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Sharing(**wrong)


def test_a_transform_is_called_with_rows_and_their_seed(data: Dataset, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Regatta calls transform_fn\(batch, seed\)"):
        sweep(data, tmp_path, True, lambda batch: batch)
    with pytest.raises(UsageError, match="transform_fn is 3, which cannot be called"):
        sweep(data, tmp_path, True, 3)


@pytest.mark.parametrize(
    ("transform", "said"),
    [
        (lambda batch, seed: batch[0][:5], "got 300 rows and returned 5 rows|got 256 rows and returned 5 rows"),
        (lambda batch, seed: [["a"]], "transform_fn returned str"),
        (lambda batch, seed: np.array([None] * len(batch[0])), "dtype object"),
        (lambda batch, seed: batch[0].astype("f8" if len(batch[0]) < ROWS_PER_CALL else "f4"), "for the rows from 256"),
    ],
)
def test_the_result_of_a_transform_is_checked(data: Dataset, tmp_path: Path, transform: Any, said: str) -> None:
    train = tuple(part.path for part in data.train)
    preprocessor = Preprocessor(WorkerSetup(Recipe(linear_fn, transform_fn=transform), 0, train, (), tmp_path))
    with pytest.raises(UnreadableError) as caught:
        preprocessor.transform(preprocessor.read("train", 0), 0, 1)
    assert re.search(said, str(caught.value.error))


def test_a_sample_has_the_first_rows_of_the_partition(data: Dataset, tmp_path: Path) -> None:
    train = tuple(part.path for part in data.train)
    preprocessor = Preprocessor(WorkerSetup(Recipe(linear_fn, transform_fn=noisy), 0, train, (), tmp_path))
    base = preprocessor.read("train", 0)
    whole, some = preprocessor.transform(base, 0, 1), preprocessor.transform(base, 0, 1, max_rows=270)
    assert equal(some, [part[:270] for part in whole]) and not equal(whole, preprocessor.transform(base, 0, 2))


def blocks_open() -> list[str]:
    """The blocks that this process has open: in memory, or in files without a name."""
    found = []
    for file in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{file}"))
        except FileNotFoundError:
            continue  # it was the folder itself
    return [name for name in found if "regatta-block" in name or ("/logs/" in name and "(deleted)" in name)]


def wait_for(sign: Callable[[], Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not sign():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def packed_rows(path: Path) -> Any:
    """Rows as bytes, which no block holds."""
    rows = np.empty(300, object)
    rows[:] = [np.float32([row, 1]).tobytes() for row in range(len(rows))]
    return rows, np.arange(len(rows)) % 3


def unpacked(batch: Any, seed: int) -> Any:
    time.sleep(0.15)
    x = np.stack([np.frombuffer(row, np.float32) for row in batch[0]])
    return np.concatenate([x, x, x], axis=1), batch[1]


def test_unsharable_data_is_an_error_only_with_share_true(tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.raw" for number in range(2)]
    for file in files:
        file.touch()
    many = {"input_fn": packed_rows, "metric": "train_loss", "epochs": 3}
    found = sweep(Dataset.from_paths(files), tmp_path / "a", None, unpacked, **many)
    run = found.launch(progress=False)
    assert [config.error for config in run.record.configs.values()] == [None] * len(CONFIGS)
    plan = found.explain()
    assert not any(isinstance(part, ShareNode) for part in plan.root.parts)
    assert "what input_fn returns is not made of arrays" in plan.text()
    with pytest.raises(UsageError, match="input_fn returned an array of dtype object"):
        sweep(Dataset.from_paths(files), tmp_path / "b", True, unpacked, **many).launch(progress=False)


@pytest.mark.parametrize("always", [True, False])
def test_readers_make_data_that_turns_out_to_be_unsharable(always: bool) -> None:
    """Of the later partitions, say, at which no pilot looked."""
    here, there = socket.socketpair()
    broker = Broker(_ledger(), lambda: (SocketChannel(here), here.close), always, 1, 1)
    broker.decide(True)
    with there, contextlib.closing(broker), ThreadPoolExecutor() as pool:
        reader = BlockReader(SocketChannel(broker.connect("w0")))
        send(there, {"ready": 1})
        answer = pool.submit(reader.get, BlockKey("train", 0, 1), ["m"])
        order, _ = receive(there)
        assert order["make"] == ["train", 0, 1]
        send(there, {"error": "no", "traceback": "no", "unsharable": True})
        if always:
            with pytest.raises(PreprocessingError):
                answer.result(10)
        else:
            assert answer.result(10) is None
            assert reader.get(BlockKey("train", 0, 2), ["m"]) is None  # no block is requested any more
        reader.close()


def test_readers_preprocess_where_no_worker_can_be_started() -> None:
    starts = []

    def start() -> StartedWorker:
        starts.append(1)
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    broker = Broker(_ledger(), start, True, 1, 1)
    with contextlib.closing(broker), ThreadPoolExecutor() as pool:
        for name in ("w0", "w0", "w1"):
            reader = BlockReader(SocketChannel(broker.connect(name)))
            assert pool.submit(reader.get, BlockKey("train", 0, 1), ["m"]).result(20) is None
            reader.close()
    assert len(starts) == MAX_DEATHS


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_reader_that_connects_after_the_end_does_not_wait() -> None:
    broker = Broker(_ledger(), lambda: pytest.fail("no worker is needed"), False, 1, 1)
    with contextlib.closing(broker), broker.connect("odd") as odd:
        send(odd, {"nothing": "known"})  # or whatever the thread may die of
        broker._thread.join(10)
        assert not broker._thread.is_alive()
        assert BlockReader(SocketChannel(broker.connect("late"))).get(BlockKey("train", 0, 1), ["m"]) is None


def _ledger() -> Ledger:
    return Ledger(10**6, 10**6, partitions=1, epochs=2, reads=False, transforms=True)
