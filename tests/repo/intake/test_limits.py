"""Small files that would take hours or gigabytes: each is refused, or read, within a second or two and 1 GiB.

Every attack runs in a process of its own, whose memory is limited to 1 GiB above that of its imports.
"""

from __future__ import annotations

import io
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regatta.errors import DataError, LimitError, UsageError
from regatta.repo import Repo
from regatta.repo.intake.limits import MAX_NAMES, check_tensor_bytes
from regatta.repo.intake.metrics import metric_points
from regatta.repo.intake.read_file import recognize
from regatta.repo.intake.staging import add, commit_staged

TIMEOUT_S = 60  # of a child with its imports, on a busy machine; the attacks take hours
_CHILD = """
import resource, sys
from pathlib import Path
from regatta.errors import DataError
from regatta.repo.intake.read_file import recognize
path = Path(sys.argv[1])
if path.suffix in (".pt", ".pt2"):
    import regatta.frameworks.torch.files
if path.suffix == ".onnx":
    import onnx.shape_inference, regatta.repo.intake.onnx_weights
now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + 2**30,) * 2)
try:
    found = recognize(path)
    print(found.kind, *found.notes)
except DataError as error:
    print("refused", error)
"""


def outcome(path: Path) -> str:
    """What becomes of a file in a process with little memory and little time."""
    command = [sys.executable, "-c", _CHILD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def yaml_aliases() -> str:
    """Lists of lists of lists: 470 bytes, 9 to the power of 12 values."""
    return "a: &a [1]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
    )


def yaml_merges() -> str:
    return "a: &a {x: 1}\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} {{<<: [{','.join(['*' + chr(97 + n)] * 9)}]}}\n" for n in range(20)
    )


ATTACKS = {
    "aliases.yaml": (yaml_aliases(), "YAML values, each alias counted"),
    "merges.yaml": (yaml_merges(), "YAML values, each alias counted"),
    "itself.yaml": ("a: &a [*a, *a]\n", "stands for what it is a part of"),
    "sixty.yaml": ("a: " + "1:" * 1_000_000 + "1\n", "characters in a number"),
    # The reader of YAML calls itself in C for each level, until the process dies.
    "lists.yaml": ("a: " + "[" * 200_000 + "]" * 200_000, "101 levels of YAML values; 100 is the limit"),
    "dashes.yaml": ("- " * 200_000 + "a", "101 levels of YAML values; 100 is the limit"),
    "mappings.yaml": ("{a: " * 200_000 + "}" * 200_000, "101 levels of YAML values; 100 is the limit"),
    # The time and the memory of the reader of TOML grow with the square of the parts of a name.
    "name.toml": (".".join(["a"] * 50_000) + " = 1", "101 parts of a dotted name; 100 is the limit"),
    "quoted.toml": ("x = {a" + ' . "b"' * 50_000 + " = 1}", "101 parts of a dotted name; 100 is the limit"),
    "table.toml": ("[[" + "'a'." * 50_000 + "b]]", "101 parts of a dotted name; 100 is the limit"),
    "columns.csv": (
        "step," + ",".join(f"c{n}" for n in range(100_000)) + "\n" + "1,2\n" * 100_000,
        "100,001 columns; 10,000 is the limit",
    ),
    "names.jsonl": (
        "\n".join(f'{{"step": {n}, "name{n}": 1}}' for n in range(150_000)),
        "names in a log; 10,000 is the limit",
    ),
    "digits.json": ('{"a": 0.' + "1" * 20_000_000 + "}", "digits in a number; 1,000 is the limit"),
    "digits.toml": ("a = 0." + "1" * 2_000_000, "digits in a number; 1,000 is the limit"),
    "hexadecimal.toml": ("a = 0x" + "f" * 3_000_000, "digits in a number; 1,000 is the limit"),
    "lists.json": ("[" + "[]," * 20_000_000 + "[]]", "JSON values; 2,000,000 is the limit"),
    "lists.jsonl": ("{}\n" * 20_000_000, "JSON values; 2,000,000 is the limit"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_small_texts_that_grow_are_kept_as_files(tmp_path: Path, name: str) -> None:
    text, reason = ATTACKS[name]
    (tmp_path / name).write_text(text)
    found = outcome(tmp_path / name)
    assert found.startswith("file") and reason in found


def onnx_model(nodes: list[Any], constants: dict[str, Any], output: str, functions: list[Any] | None = None) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    tensors = [numpy_helper.from_array(np.array(value, "int64"), name) for name, value in constants.items()]
    ends = [helper.make_tensor_value_info(output, TensorProto.INT64, None)]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    graph = helper.make_graph(nodes, "g", [], ends, tensors)
    return bytes(helper.make_model(graph, functions=functions or [], opset_imports=opsets).SerializeToString())


def test_onnx_models_whose_constants_grow_are_read_without_them(tmp_path: Path) -> None:
    from onnx import helper

    nodes = [helper.make_node("Range", ["a", "b", "c"], ["r"]), helper.make_node("Unsqueeze", ["r", "a"], ["y"])]
    (tmp_path / "range.onnx").write_bytes(onnx_model(nodes, {"a": 0, "b": 10**9, "c": 1}, "y"))
    assert (tmp_path / "range.onnx").stat().st_size < 200
    nodes = [helper.make_node("Shape", ["a"], ["v0"])]
    nodes += [helper.make_node("Concat", [f"v{n}"] * 2, [f"v{n + 1}"], axis=0) for n in range(40)]
    (tmp_path / "concat.onnx").write_bytes(onnx_model(nodes, {"a": [1]}, "v40"))
    for name in ("range.onnx", "concat.onnx"):
        assert outcome(tmp_path / name) == "network"


def test_onnx_functions_that_call_each_other_are_counted(tmp_path: Path) -> None:
    from onnx import helper

    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    bodies = [[helper.make_node(f"f{n + 1}", ["x"], ["y"], domain="own")] * 2 for n in range(40)]
    bodies.append([helper.make_node("Identity", ["x"], ["y"])])
    functions = [helper.make_function("own", f"f{n}", ["x"], ["y"], body, opsets) for n, body in enumerate(bodies)]
    nodes = [helper.make_node("f0", ["a"], ["y"], domain="own")]
    (tmp_path / "net.onnx").write_bytes(onnx_model(nodes, {"a": [1]}, "y", functions))
    assert "nodes in the model" in outcome(tmp_path / "net.onnx")


def test_a_header_of_many_values_is_refused(tmp_path: Path) -> None:
    """Each takes twenty times the memory of its text."""
    header = b'{"a":[' + b"[]," * 30_000_000 + b"[]]}"
    (tmp_path / "net.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    assert "60,000,003 values, more than the 5,000,000 allowed" in outcome(tmp_path / "net.safetensors")


class Call:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


def checkpoint(path: Path, content: object) -> Path:
    """A file of PyTorch with this pickle, also where torch.save would refuse to write it."""
    torch.save({"w": torch.zeros(1)}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, old in entries.items():
            pickled = content if isinstance(content, bytes) else pickle.dumps(content, 2)
            archive.writestr(name, pickled if name.endswith("data.pkl") else old)
    return path


def test_an_expanded_tensor_is_counted_with_all_its_elements(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1).expand(2**30)}, tmp_path / "wide.pt")
    assert (tmp_path / "wide.pt").stat().st_size < 2_000
    assert "4,294,967,296 bytes of tensors" in outcome(tmp_path / "wide.pt")
    shared = torch.zeros(2**20)
    torch.save(
        {f"w{n}": shared for n in range(100)}, tmp_path / "shared.pt"
    )  # one tensor under many names is no growth
    assert outcome(tmp_path / "shared.pt") == "weights"


def test_a_long_stack_of_a_pickle_is_followed_in_linear_time(tmp_path: Path) -> None:
    """Each of many empty tuples ends at the nearest mark; all values below it must not be looked at."""
    pickled = b"\x80\x02" + b"N" * 300_000 + b"(t0" * 300_000 + b"."
    assert outcome(checkpoint(tmp_path / "marks.pt", pickled)) != "weights"


def test_calls_that_a_checkpoint_does_not_need_are_refused(tmp_path: Path) -> None:
    twice: Any = ()
    for _ in range(60):
        twice = (twice, twice)
    for number, (content, reason) in enumerate(
        [
            ({"w": Call(bytearray, 10**12)}, "bytearray"),
            ({"w": Call(torch.FloatTensor, 10**12)}, "torch FloatTensor"),
            ({"w": Call(torch._tensor._rebuild_from_type_v2, torch.FloatTensor, torch.Tensor, (10**12,), {})},
             "torch FloatTensor"),
            (b"\x80\x02}" + pickle.dumps(twice, 2)[2:-1] + b"K\x01s.", "elements in nested tuples"),
        ]
    ):  # fmt: skip
        assert reason in outcome(checkpoint(tmp_path / f"{number}.pt", content))


def test_an_exported_program_with_an_expanded_weight_is_refused(tmp_path: Path) -> None:
    meta = {
        "dtype": 7, "sizes": [{"as_int": 2**31}], "strides": [{"as_int": 0}], "storage_offset": {"as_int": 0},
        "layout": 7,
    }  # fmt: skip
    entry = {"path_name": "weight_0", "use_pickle": False, "tensor_meta": meta}
    with zipfile.ZipFile(tmp_path / "p.pt2", "w") as archive:
        archive.writestr("p/data/weights/model_weights_config.json", repr({"config": {"w": entry}}).replace("'", '"')
                         .replace("False", "false"))  # fmt: skip
        archive.writestr("p/data/weights/weight_0", bytes(16))
    assert "8,589,934,592 bytes of tensors" in outcome(tmp_path / "p.pt2")


# In this process: the same limits, and where they do not bite


def test_usual_files_are_below_the_limits(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("base: &base {lr: 0.1, steps: [1, 2]}\nwide: {<<: *base, width: 8}\nsame: *base\n")
    assert recognize(tmp_path / "c.yaml").hyperparameters == {
        "base.lr": 0.1, "base.steps": [1, 2], "wide.lr": 0.1, "wide.steps": [1, 2], "wide.width": 8,
        "same.lr": 0.1, "same.steps": [1, 2],
    }  # fmt: skip
    (tmp_path / "log.csv").write_text("step,loss,acc\n1,0.5\n2,0.25,0.75,more\n\n")
    assert recognize(tmp_path / "log.csv").metrics == {"loss": {1: 0.5, 2: 0.25}, "acc": {2: 0.75}}
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.zeros(2, 3)).sum().backward()
    optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(),
                "best": {1, 2}, "at": (1, (2, 3))}, tmp_path / "all.pt")  # fmt: skip
    assert recognize(tmp_path / "all.pt").weights is not None


def test_a_limit_says_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(LimitError, match="100 is the limit") as caught:
        raise LimitError("things", 1_000, 100, place=str(tmp_path))
    assert (caught.value.found, caught.value.limit) == (1_000, 100) and "1,000 things" in str(caught.value)
    check_tensor_bytes(2**26, 10, tmp_path)
    with pytest.raises(LimitError):
        check_tensor_bytes(2**26 + 1, 10, tmp_path)
    assert MAX_NAMES == 10_000


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', '{"\\udfff": 1}', '{"a": ["\\ud800"]}'])
def test_half_characters_are_refused_where_they_enter(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.json").write_text(text)
    found = recognize(tmp_path / "c.json")
    assert found.kind == "file" and "half of a character" in found.notes[0]
    with pytest.raises(DataError, match="half of a character"):
        recognize(tmp_path / "c.json", "hyperparameters")
    (tmp_path / "c.yaml").write_text(text)
    assert recognize(tmp_path / "c.yaml").kind == "file"
    (tmp_path / "log.jsonl").write_text('{"step": 1, "\\ud800": 0.5}\n')
    assert recognize(tmp_path / "log.jsonl").kind == "file"
    (tmp_path / "log.json").write_text('{"\\ud800": [1, 2]}')
    assert recognize(tmp_path / "log.json").kind == "file"
    with pytest.raises(UsageError, match="cannot be written as UTF-8"):
        metric_points({"\ud800": 1.0})


def test_numbers_of_400_digits(tmp_path: Path) -> None:
    large = "1" + "0" * 400
    (tmp_path / "c.json").write_text(f'{{"n": {large}, "lr": 0.1}}')
    (tmp_path / "c.yaml").write_text(f"m: {large}\n")
    (tmp_path / "c.toml").write_text(f"t = {large}\n")
    (tmp_path / "log.json").write_text(f'{{"loss": [{large}, 1]}}')
    (tmp_path / "log.csv").write_text(f"step,loss,acc\n{large},1,1\n1,{large},0.5\n")
    with Repo.init(tmp_path) as repo:
        add(repo, [tmp_path / name for name in ("c.json", "c.yaml", "c.toml", "log.json", "log.csv")])
        made = commit_staged(repo, "net")
        assert made.hyperparameters["n"] == made.hyperparameters["m"] == made.hyperparameters["t"] == 10**400
        assert [version.name for version in repo.versions(where={"lr": 0.1})] == ["net"]
        with pytest.raises(UsageError, match="too large for a float"):
            repo.commit("other", metrics={"loss": 10**400})
        with pytest.raises(UsageError, match="too large"):
            repo.versions(where={"n": 10**400})


@pytest.mark.parametrize(
    "text", ['!!int ""', '!!float ""', "!!bool maybe", "!!timestamp x", "1:1:1:1.5e", "? [a]\n: 1"]
)
def test_wrong_tags_of_yaml_are_not_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "c.yaml").write_text(f"a: {text}\n" if not text.startswith("?") else text)
    assert recognize(tmp_path / "c.yaml").kind in ("file", "hyperparameters")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # PyTorch writes such files no longer gladly
def test_torchscript_is_named(tmp_path: Path) -> None:
    module = torch.jit.trace(torch.nn.Linear(3, 2), torch.zeros(1, 3))
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    (tmp_path / "net.pt").write_bytes(buffer.getvalue())
    with pytest.raises(DataError, match="TorchScript program"):
        recognize(tmp_path / "net.pt")
    assert recognize(tmp_path / "net.pt", "file").kind == "file"
