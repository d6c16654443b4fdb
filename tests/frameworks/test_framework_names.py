"""Frameworks by name, and without importing what is not used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from regatta.errors import MissingExtraError, UsageError
from regatta.frameworks import NAMES, Framework, load_framework


@pytest.mark.parametrize("name", NAMES)
def test_a_framework_has_every_verb_of_the_protocol(name: str) -> None:
    framework = load_framework(name)
    verbs = [verb for verb in vars(Framework) if not verb.startswith("_")]
    assert "train" in verbs
    assert all(callable(getattr(framework, verb)) for verb in verbs)
    assert name == framework.NAME
    assert framework.COMPILES is (name in ("keras", "jax"))


def test_the_error_for_a_misspelt_name_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no framework 'pytorch'") as caught:
        load_framework("pytorch")
    assert "Did you mean torch?" in str(caught.value)


def test_recognising_a_model_loads_no_framework() -> None:
    code = (
        "import sys, numpy; from regatta.frameworks import framework_of;"
        "framework_of({'w': numpy.zeros(1)});"
        "assert not {'torch', 'keras', 'tensorflow', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


SWEEP_OF_JAX = """
import sys
import numpy as np
import regatta

def model_fn(config):
    import jax.numpy as jnp
    import optax
    return {"w": jnp.ones(3) * np.random.rand()}, optax.sgd(0.1)

def loss_fn(params, batch, config):
    return ((batch[0] @ params["w"] - batch[1]) ** 2).mean()

x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
data = regatta.Dataset.from_arrays(x, x.sum(1), partitions=2)
space = regatta.search.grid(batch_size=[5, 10])
sweep = regatta.Sweep(data, space, model_fn, loss_fn=loss_fn, epochs=1, cluster=regatta.Cluster.inline(1, device="cpu"))
run = sweep.launch(progress=False)
assert all(config.status == "done" for config in run.record.configs.values())
assert not {"torch", "keras", "tensorflow"} & set(sys.modules)
assert sweep.launch(progress=False).best["loss"] == run.best["loss"]
"""


def test_a_sweep_loads_no_framework_but_its_own(tmp_path: Path) -> None:
    """The first model imports JAX. The second launch finds JAX already imported, and gets the same weights."""
    done = subprocess.run([sys.executable, "-c", SWEEP_OF_JAX], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("package", "name"), [("jax", "jax"), ("keras", "keras")])
def test_a_framework_that_is_not_installed_is_named(package: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=f"needs the package '{package}'"):
        load_framework(name).assemble(None, "cpu")
