"""Pairs of an evaluate and what it would train, or its error, as text: fixtures/*.txt. As in test_query_fixtures.py.

Models, data and configs are those of `folder`. `--update-fixtures` writes the answers again; then read the difference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from evaluations import CONFIG, alexnet, project

from regatta import Cluster
from regatta.configuration import canonical
from regatta.dql.evaluation.bound_evaluate import BoundEvaluate
from regatta.dql.evaluation.operators import prepare_evaluation
from regatta.dql.run import QueryContext, prepare
from regatta.dql.saved_queries import save_query
from regatta.errors import RegattaError
from regatta.repo import Repo
from regatta.search.base import Train

FOLDER = Path(__file__).parent / "fixtures"
CONFIGS = {
    "two.toml": 'input_data = ["path1", "path2"]\nbatch_size = 4\n[data]\npath1 = "path1.npz"\npath2 = "path2.npz"\n',
    "config.yaml": "input_data: small.npz\nepochs: 4\nnet:\n  'conv*':\n    lr_mult: 0.5\n",
    "config.json": '{"input_data": "digits", "optimizer": "adam", "base_lr": 0.001}',
    "no_data.toml": "epochs = 2\n",
    "broken.toml": "epochs = 2\n\nbatch_size = = 3\n",
    "broken.json": '{"epochs": 2,\n "batch_size" 3}',
    "broken.yaml": "epochs: 2\nnet: [a, {b: ]\n",
    "unknown.toml": 'epochs = 2\nbase_rate = 0.1\ninput_data = "digits"\n',
    "wrong.toml": '# a comment\nepochs = "two"\ninput_data = "digits"\n',
    "wrong_rate.toml": 'input_data = "digits"\n[net."conv*"]\nlr = "fast"\n',
    "wrong_layers.toml": 'input_data = "digits"\n[net."fcc*"]\nlr = 0.1\n',
    "wrong_data.toml": 'input_data = "a"\n[data.a]\ntrain = ["small.npz"]\nvalidation = ["small.npz"]\n',
    "no_eval.toml": 'input_data = "a"\n[data.a]\ntrain = ["small.npz"]\n',
    "no_quotes.toml": 'input_data = "digits"\noptimizer = adam\n',
    "fraction.toml": 'input_data = "digits"\neval_fraction = 1.5\n',
    "loss.toml": 'input_data = "digits"\nloss = "cross"\n',
    "metric.toml": 'input_data = "digits"\nmetric = "accurcy"\n',
    "no_momentum.toml": 'input_data = "digits"\noptimizer = "adam"\nmomentum = 0.9\n',
    "no_file.toml": 'input_data = "a"\n[data]\na = "missing.npz"\n',
    "list.json": "[1, 2]",
    "deep.yaml": "[" * 60_000,
    "deep.json": "[" * 60_000,
    "dots.toml": ".".join("a" * 30_000) + " = 1\n",
    "latin.toml": "epochs = 2\n# caf\xe9\n",
    "run.py": "raise SystemExit('executed')",
}


class Case(NamedTuple):
    file: str
    title: str
    query: str
    answer: str

    def __str__(self) -> str:
        return f"{self.file}: {self.title}"


def read_cases() -> list[Case]:
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for block in path.read_text().split("== ")[1:]:
            title, _, rest = block.partition("\n")
            query, _, answer = rest.partition("\n--\n")
            found.append(Case(path.name, title, query, answer.rstrip("\n")))
    return found


CASES = read_cases()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    with project(folder, "avg", "avg", "max", config=CONFIG) as repo:
        repo.commit("no-network", alexnet("avg").state_dict(), git=False)
        save_query(repo.folder, "python", 'evaluate m from m1 where m1.name = "alexnet-maxv1-2" with config = "run.py"')
        save_query(repo.folder, "averages", 'select m where m.name like "alexnet-avg%"')
    for name, text in CONFIGS.items():
        (folder / name).write_bytes(text.encode("latin-1"))
    return folder


def answer(repo: Repo, query: str) -> str:
    parameters: dict[str, Any] = {}
    if query.startswith("{"):
        first, _, query = query.partition("\n")
        parameters = json.loads(first)
    context = QueryContext(repo, query, max_models=100, launch={"cluster": Cluster.inline(1)})
    try:
        bound = prepare(context, parameters).query
        assert isinstance(bound, BoundEvaluate)
        found = prepare_evaluation(context, bound)
    except RegattaError as error:
        return f"{type(error).__name__}: {error}".replace(str(Path.cwd()), ".")
    goal, begun = found.goal, [a for a in found.search.start(found.goal) if isinstance(a, Train)]
    lines = [
        f"{len(found.models)} models: {', '.join(found.names.values())}",
        f"{len(begun)} configurations on {found.dataset.name}, {goal.epochs} epochs, {goal.mode} {goal.metric}",
        *(f"keep {each.rule}" for each in bound.rules),
        *([f"into {bound.into}"] if bound.into else []),
        _without_model(begun[0].config), _without_model(begun[-1].config),
    ]  # fmt: skip
    return "\n".join(lines)


def _without_model(config: dict[str, Any]) -> str:
    return canonical({name: value for name, value in config.items() if name != "model"})


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_answer_is_as_written(
    case: Case, folder: Path, update_fixtures: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    with Repo.open(folder) as repo:
        found = answer(repo, case.query)
    if update_fixtures:
        path = FOLDER / case.file
        old, new = (f"== {case.title}\n{case.query}\n--\n{text}\n" for text in (case.answer, found))
        assert path.read_text().count(old) == 1, "two cases have one title and query"
        path.write_text(path.read_text().replace(old, new))
        return
    assert found == case.answer


def test_titles_are_unique() -> None:
    assert len(CASES) >= 60
    assert len({str(case) for case in CASES}) == len(CASES)
