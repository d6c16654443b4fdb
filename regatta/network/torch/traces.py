"""Three ways to trace what a PyTorch module computes, all with the same recorder.

`trace_symbolic` runs the module on symbolic values (torch.fx): it needs no input, but allows no control flow on values.
`trace_exported` uses torch.export to get operators. `trace_example` runs the module once on an example and records the
layers and functions that are called: it works for every module that runs, and shows the path of that one input.
"""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.fx
from torch import nn
from torch.export import Dim as ExportDim
from torch.export import export
from torch.fx.proxy import TraceError
from torch.overrides import TorchFunctionMode

from regatta.network.builder import Builder
from regatta.network.graph import Network, Parameter, Shape
from regatta.network.torch.calls import (
    Dim,
    LayerCall,
    Ref,
    StateTensor,
    UnknownValue,
    plain_name,
    tensors_in,
    translate,
)
from regatta.network.torch.modules import describe_layer, is_leaf, layer_parameters

UNTRACEABLE = (  # raised in a forward that cannot be traced, most of them by the forward itself
    TraceError, ArithmeticError, AssertionError, AttributeError, LookupError, NameError, RuntimeError, TypeError,
    ValueError,
)  # fmt: skip
_VIEWS = ("real", "imag", "T", "mT", "H", "mH")  # attributes of a tensor that are tensors
_NOT_RECORDED = ("get", "set", "size", "dim", "numel", "is_floating_point", "item", "tolist", "bool")
_CHECKS = ("_assert_is_none", "_assert", "_assert_scalar", "_assert_tensor_metadata", "_guards_fn")


class Recorder:
    """Turns calls of layers and functions into nodes."""

    def __init__(self, name: str, module: nn.Module) -> None:
        self._builder = Builder(name, "torch")
        self._first_names = _first_names(module)
        self._weights: dict[str, str] = {}

    def input(self, name: str, shape: Shape | None, dtype: str | None = None) -> Ref:
        return Ref(self._builder.add("INPUT", name=name, shape=shape, attributes={"dtype": dtype}), shape)

    def layer(self, module: nn.Module, path: str, args: Any, kwargs: Any, shape: Shape | None) -> Ref:
        kind, attributes = describe_layer(module)
        inputs = [self._operand(x) for x in tensors_in([args, kwargs])]
        if kind == "ATTENTION":
            attributes |= _attention_call(args, kwargs)
        parameters = [self._parameter(p.role, p.name, p.shape) for p in layer_parameters(module, path)]
        if shape is None and kind == "CONV":
            shape = (None, attributes["out"], *[None] * attributes["dims"])
        id = self._builder.add(kind, inputs, name=path, attributes=attributes, shape=shape, parameters=parameters)
        return Ref(id, shape, many=kind in ("RNN", "SPLIT", "ATTENTION"))

    def call(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], shape: Shape | None) -> Ref:
        return self._add(translate(name, args, kwargs), plain_name(name).removeprefix("aten_"), shape)

    def select(self, of: Ref, item: int, shape: Shape | None) -> Ref:
        return self._add(LayerCall("SELECT", (of,), {"item": item}), "select", shape)

    def output(self, value: Any) -> Network:
        results = [self._operand(x) for x in tensors_in(value)]
        if not results:
            raise RuntimeError("the module returns something that is not an output of a layer")
        self._builder.add("OUTPUT", results, name="output")
        return _without_dead_ends(self._builder.network())

    def _parameter(self, role: str, name: str, shape: Shape) -> Parameter:
        return Parameter(role, self._first_names.get(name, name), shape)

    def _add(self, layer: LayerCall, name: str, shape: Shape | None) -> Ref:
        inputs = [self._operand(x) for x in layer.inputs]
        held = [(role, x) for role, x in layer.weights.items() if isinstance(x, StateTensor)]
        parameters = [self._parameter(role, x.name, x.shape) for role, x in held]
        named = _common_path([parameter.name for parameter in parameters]) or name
        id = self._builder.add(
            layer.kind, inputs, name=named, attributes=layer.attributes, shape=shape, parameters=parameters
        )
        return Ref(id, shape, many=layer.many)

    def _operand(self, value: Ref | StateTensor) -> str:
        if isinstance(value, Ref):
            return value.id
        if value.name not in self._weights:
            parameters = [self._parameter("weight" if value.learned else "buffer", value.name, value.shape)]
            id = self._builder.add("WEIGHT", name=value.name, shape=value.shape, parameters=parameters)
            self._weights[value.name] = id
        return self._weights[value.name]


def _first_names(module: nn.Module) -> dict[str, str]:
    """The first name of each tensor, for tensors that the module has under several names."""
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    first: dict[int, str] = {}
    for name, tensor in named:
        first.setdefault(id(tensor), name)
    return {name: first[id(tensor)] for name, tensor in named}


def _without_dead_ends(network: Network) -> Network:
    """Without nodes that no output depends on, such as conditions."""
    needed: set[str] = {node.id for node in network.nodes if node.kind in ("INPUT", "OUTPUT")}
    for id in reversed(network.order):
        if id in needed:
            needed.update(network.sources[id])
    if len(needed) == len(network):
        return network
    nodes = tuple(node for node in network.nodes if node.id in needed)
    edges = tuple(edge for edge in network.edges if edge.target in needed)
    return replace(network, nodes=nodes, edges=edges)


_ATTENTION_ARGS = (
    "query", "key", "value", "key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal",
)  # fmt: skip


def _attention_call(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of nn.MultiheadAttention that change its result."""
    bound = dict(zip(_ATTENTION_ARGS, args, strict=False)) | dict(kwargs)
    masks = [name for name in bound if name not in _ATTENTION_ARGS[:3] and isinstance(bound[name], Ref | StateTensor)]
    plain = {"weights": bound.get("need_weights", True), "causal": bound.get("is_causal", False)}
    return {key: value for key, value in plain.items() if isinstance(value, bool)} | {"masks": masks or None}


def _common_path(names: Sequence[str]) -> str:
    paths = {name.rpartition(".")[0] for name in names}
    return paths.pop() if len(paths) == 1 else ""


# Symbolic: torch.fx


def trace_symbolic(module: nn.Module, example: tuple[torch.Tensor, ...] | None, name: str) -> Network:
    class Tracer(torch.fx.Tracer):
        def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
            return is_leaf(m)

    if is_leaf(module):  # the tracer asks only about inner modules
        return _single(module, example, name)
    fixed = _default_arguments(module, None if example is None else len(example))
    tracer = Tracer()
    graph = tracer.trace(module, concrete_args=fixed or None)
    shapes = {} if example is None else _propagate_shapes(torch.fx.GraphModule(tracer.root, graph), example, len(fixed))
    return _walk(graph, Recorder(name, module), shapes, _SymbolicSource(module, fixed))


def _single(module: nn.Module, example: tuple[torch.Tensor, ...] | None, name: str) -> Network:
    recorder = Recorder(name, module)
    if example is None:
        inputs, shape = [recorder.input("input", None)], None
    else:
        inputs = [recorder.input(f"input_{i}", batch_free_shape(x), dtype_name(x)) for i, x in enumerate(example)]
        with torch.no_grad(), evaluation_mode(module):
            result = module(*example)
        shape = batch_free_shape(result) if isinstance(result, torch.Tensor) else None
    return recorder.output(recorder.layer(module, "", inputs, {}, shape))


def _default_arguments(module: nn.Module, given: int | None) -> dict[str, Any]:
    """Arguments that get no input and keep their defaults."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = [p for p in inspect.signature(module.forward).parameters.values() if p.kind in positional]
    optional = [p for place, p in enumerate(parameters) if given is None or place >= given]
    return {p.name: p.default for p in optional if p.default is not inspect.Parameter.empty}


class _SymbolicSource:
    """The names of torch.fx: placeholders, attributes and methods."""

    def __init__(self, module: nn.Module, fixed: Mapping[str, Any]) -> None:
        self.module = module
        self._fixed = fixed

    def placeholder(self, node: torch.fx.Node) -> Any:
        stem = str(node.target)
        return UnknownValue() if stem in self._fixed or stem.rpartition("_")[0] in self._fixed else None

    def called(self, node: torch.fx.Node) -> str:
        return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _propagate_shapes(graph: torch.fx.GraphModule, example: tuple[torch.Tensor, ...], fixed: int) -> dict[str, Any]:
    """The shape of each node's output. A size that changes when the batch grows by a row is None."""
    sizes = _sizes_seen(graph, (*example, *[None] * fixed))
    try:
        grown = _sizes_seen(graph, (*(torch.cat([x, x[:1]]) for x in example), *[None] * fixed))
    except (RuntimeError, ValueError, IndexError, TypeError):  # the network works only for this batch size
        grown = sizes
    return {name: _stable(shape, grown.get(name)) for name, shape in sizes.items()}


def _sizes_seen(graph: torch.fx.GraphModule, inputs: tuple[Any, ...]) -> dict[str, Any]:
    seen: dict[str, Any] = {}

    class ShapeRecorder(torch.fx.Interpreter):
        def run_node(self, n: torch.fx.Node) -> Any:
            result = super().run_node(n)
            if isinstance(result, torch.Tensor):
                seen[n.name] = (tuple(result.shape), dtype_name(result))
            elif isinstance(result, tuple | list) and not isinstance(result, torch.Size):
                seen[n.name] = "many"
            return result

    with torch.no_grad(), evaluation_mode(graph), torch.random.fork_rng(devices=[]):
        ShapeRecorder(graph).run(*inputs)
    return seen


def _stable(seen: Any, grown: Any) -> Any:
    if seen == "many" or grown in (None, "many") or len(seen[0]) != len(grown[0]):
        return seen if seen == "many" else (*seen, seen[0][:1])
    shape = tuple(a if a == b else None for a, b in zip(seen[0], grown[0], strict=True))
    return shape, seen[1], (seen[0][:1], grown[0][:1])


# Exported: torch.export


def trace_exported(module: nn.Module, example: tuple[torch.Tensor, ...], name: str) -> Network:
    two = tuple(x if x.dim() == 0 or x.shape[0] > 1 else torch.cat([x, x]) for x in example)  # a batch of 1 is baked in
    varying = tuple({0: ExportDim.AUTO} if x.dim() else None for x in two)
    with evaluation_mode(module), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings for PyTorch's own developers
        try:
            program = export(module, two, dynamic_shapes=varying, strict=False)
        except (RuntimeError, ValueError, TypeError):
            program = export(module, example, strict=False)
    shapes = {node.name: _meta_shape(node.meta.get("val")) for node in program.graph.nodes}
    return _walk(program.graph, Recorder(name, module), shapes, _ExportedSource(program, module))


def _meta_shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        shape = tuple(size if isinstance(size, int) else None for size in value.shape)
        return shape, dtype_name(value), [str(size) for size in value.shape[:1]]
    return "many" if isinstance(value, tuple | list) else None


class _ExportedSource:
    """The names of torch.export: the state of the model enters through placeholders."""

    def __init__(self, program: torch.export.ExportedProgram, module: nn.Module) -> None:
        self.module = module
        signature = program.graph_signature
        self._learned = signature.inputs_to_parameters
        constants = signature.inputs_to_lifted_tensor_constants
        self._names = {**self._learned, **signature.inputs_to_buffers, **constants}
        self._state = {**program.state_dict, **program.constants}

    def placeholder(self, node: torch.fx.Node) -> Any:
        if node.name not in self._names:
            return None
        name = self._names[node.name]
        return StateTensor(name, tuple(self._state[name].shape), learned=node.name in self._learned)

    def called(self, node: torch.fx.Node) -> str:
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            return getattr(node.target, "__name__", str(node.target))
        name = str(schema.name).rpartition("::")[2]
        return "aten_batch_norm" if name == "batch_norm" else name


# The graphs of both


class _ShapeOf:
    """`x.shape` before one of its sizes is taken."""

    def __init__(self, of: Ref | StateTensor) -> None:
        self.of = of

    def __getitem__(self, axis: int) -> Any:
        shape = self.of.shape
        if shape is not None and -len(shape) <= axis < len(shape) and shape[axis] is not None:
            return shape[axis]
        if isinstance(self.of, StateTensor):
            return UnknownValue()
        axis = axis if shape is None or axis >= 0 else axis + len(shape)
        return Dim(self.of.id, axis, self.of.lead if axis == 0 else None)


def _walk(graph: torch.fx.Graph, recorder: Recorder, shapes: Mapping[str, Any], source: Any) -> Network:
    values: dict[Any, Any] = {}
    for node in graph.nodes:
        seen: Any = shapes.get(node.name)
        shape = seen[0] if seen is not None and seen != "many" else None
        if node.op == "output":
            return recorder.output(_resolved(node.args, values))
        if node.op == "placeholder":
            held = source.placeholder(node)
            dtype = seen[1] if shape is not None else None
            values[node] = held if held is not None else recorder.input(str(node.target), shape, dtype)
        elif node.op == "get_attr":
            values[node] = _attribute(source.module, str(node.target))
        elif node.op == "call_module":
            values[node] = _layer_called(node, recorder, source.module, values, shape)
        else:
            values[node] = _called(node, source.called(node), recorder, values, seen)
        if shape is not None and isinstance(values[node], Ref):
            values[node] = replace(values[node], lead=seen[2])
    raise RuntimeError("the graph has no output")


def _layer_called(node: torch.fx.Node, recorder: Recorder, module: nn.Module, values: Any, shape: Shape | None) -> Any:
    path = str(node.target)
    if path in _CHECKS:
        return UnknownValue()
    args, kwargs = _resolved(list(node.args), values), _resolved(dict(node.kwargs), values)
    return recorder.layer(module.get_submodule(path), path, args, kwargs, shape)


def _attribute(module: nn.Module, path: str) -> Any:
    value = operator.attrgetter(path)(module)
    return _held(path, value) if isinstance(value, torch.Tensor) else value


def _held(path: str, tensor: torch.Tensor) -> StateTensor:
    return StateTensor(path, tuple(tensor.shape), learned=isinstance(tensor, torch.nn.Parameter))


def _resolved(value: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(value, torch.fx.Node):
        return values[value]
    if isinstance(value, slice):
        return slice(*(_resolved(part, values) for part in (value.start, value.stop, value.step)))
    if isinstance(value, tuple | list):
        items = [_resolved(item, values) for item in value]
        return tuple(items) if type(value) is tuple else items
    if isinstance(value, dict):
        return {key: _resolved(item, values) for key, item in value.items()}
    return value


def _called(node: torch.fx.Node, name: str, recorder: Recorder, values: Mapping[Any, Any], seen: Any) -> Any:
    args, kwargs = _resolved(list(node.args), values), _resolved(dict(node.kwargs), values)
    if name in _CHECKS or (name.startswith("sym_") and name != "sym_size"):
        return UnknownValue()
    sized = _resolve_size(name, args)
    if sized is not None:
        return sized
    if name == "getitem" and isinstance(args[0], _ShapeOf | list | tuple):
        return args[0][args[1]] if isinstance(args[1], int) else UnknownValue()
    if not any(tensors_in([args, kwargs])):
        if seen is None:
            return _fold_constants(node.target, args, kwargs)
        return recorder.call(name, args, kwargs, seen[0])
    shape = seen[0] if seen is not None and seen != "many" else None
    ref = recorder.call(name, args, kwargs, shape)
    return replace(ref, many=True) if seen == "many" else ref


def _resolve_size(name: str, args: list[Any]) -> Any:
    """Sizes of tensors do not become nodes."""
    if not args or not isinstance(args[0], Ref | StateTensor):
        return None
    tensor = args[0]
    if (name == "getattr" and args[1] == "shape") or (name == "size" and len(args) == 1):
        return _ShapeOf(tensor)
    if name in ("size", "sym_size") and isinstance(args[1], int):
        return _ShapeOf(tensor)[args[1]]
    if name == "dim" or (name == "getattr" and args[1] == "ndim"):
        return UnknownValue() if tensor.shape is None else len(tensor.shape)
    return UnknownValue() if name == "numel" or (name == "getattr" and args[1] not in _VIEWS) else None


def _fold_constants(function: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    """Compute arithmetic on constants; on sizes it stays unknown."""
    plain = all(isinstance(value, bool | int | float) for value in [*args, *kwargs.values()])
    if plain and getattr(function, "__module__", None) in ("_operator", "math"):
        return function(*args, **kwargs)
    return UnknownValue()


# Watched: hooks on layers, and a look at every function that is called between them


def trace_example(module: nn.Module, example: tuple[torch.Tensor, ...], name: str) -> Network:
    watch = _ForwardWatcher(module, example, Recorder(name, module))

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            watch.function(func, args, kwargs or {}, result)
            return result

    with torch.no_grad(), evaluation_mode(module), watch.hooks(), Mode(), torch.random.fork_rng(devices=[]):
        result = module(*example)
    return watch.recorder.output(watch.values(result))


class _ForwardWatcher:
    """Identifies each tensor by its id, and knows the node that made it."""

    def __init__(self, module: nn.Module, example: tuple[torch.Tensor, ...], recorder: Recorder) -> None:
        self.recorder = recorder
        self._module = module
        self._batch = example[0].shape[0] if example and example[0].dim() else None
        self._known: dict[int, Ref | StateTensor] = {}
        self._kept: list[Any] = []  # keeps tensors alive, so that no id is used twice
        self._inside = 0
        for path, tensor in (*module.named_parameters(), *module.named_buffers()):
            self._know(tensor, _held(path, tensor))
        for place, tensor in enumerate(example):
            self._know(tensor, recorder.input(f"input_{place}", batch_free_shape(tensor), dtype_name(tensor)))

    @contextmanager
    def hooks(self) -> Iterator[None]:
        handles: list[Any] = []
        for path, layer in self._outermost_leaves(self._module, ""):
            handles.append(layer.register_forward_pre_hook(self._enter))
            handles.append(layer.register_forward_hook(self._leave(path), with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _outermost_leaves(self, module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
        if is_leaf(module):
            yield path, module
            return
        for child_name, child in module.named_children():
            yield from self._outermost_leaves(child, f"{path}.{child_name}" if path else child_name)

    def _enter(self, layer: Any, args: Any) -> None:
        self._inside += 1

    def _leave(self, path: str) -> Callable[..., None]:
        def hook(layer: Any, args: Any, kwargs: Any, result: Any) -> None:
            self._inside -= 1
            if not self._inside:
                operands, named = self.values(list(args)), self.values(kwargs)
                self._produced(result, lambda shape: self.recorder.layer(layer, path, operands, named, shape))

        return hook

    def function(self, function: Any, args: Any, kwargs: Any, result: Any) -> None:
        name = plain_name(getattr(function, "__name__", str(function)))
        if self._inside or name in _NOT_RECORDED:
            return
        operands, named = self.values(list(args)), self.values(dict(kwargs))
        if not any(tensors_in([operands, named])):
            return
        operands = self._own_batch(name, operands)
        self._produced(result, lambda shape: self.recorder.call(name, operands, named, shape))

    def _own_batch(self, name: str, operands: list[Any]) -> list[Any]:
        """In a shape that begins with the batch, the batch is that of the operand."""
        if name not in ("view", "reshape") or not isinstance(operands[0], Ref) or len(operands) < 2:
            return operands
        shape = operands[1] if isinstance(operands[1], list) else operands[1:]
        if shape and shape[0] == self._batch and operands[0].shape and operands[0].shape[0] is None:
            shape = [Dim(operands[0].id, 0), *shape[1:]]
        return [operands[0], shape]

    def _produced(self, result: Any, record: Callable[[Shape | None], Ref]) -> None:
        if isinstance(result, torch.Tensor):
            self._know(result, record(batch_free_shape(result, self._batch)))
        elif isinstance(result, tuple | list) and any(isinstance(item, torch.Tensor | tuple) for item in result):
            self._know_parts(result, record(None))

    def _know_parts(self, result: Any, ref: Ref) -> None:
        for place, item in enumerate(result):
            if isinstance(item, torch.Tensor):
                self._know(item, self.recorder.select(ref, place, batch_free_shape(item, self._batch)))
            elif isinstance(item, tuple | list):
                self._know_parts(item, self.recorder.select(ref, place, None))

    def _know(self, tensor: torch.Tensor, value: Ref | StateTensor) -> None:
        self._known[id(tensor)] = value
        self._kept.append(tensor)

    def values(self, value: Any) -> Any:
        if isinstance(value, torch.Size):
            return list(value)
        if isinstance(value, torch.Tensor):
            return self._known.get(id(value), UnknownValue())
        if isinstance(value, tuple | list):
            items = [self.values(item) for item in value]
            return tuple(items) if isinstance(value, tuple) else items
        if isinstance(value, Mapping):
            return {key: self.values(item) for key, item in value.items()}
        return value


# What the three share


def batch_free_shape(tensor: torch.Tensor, batch: int | None = None) -> Shape:
    """A tensor's shape with None for its first axis, if that is as long as the batch."""
    shape: Shape = tuple(tensor.shape)
    return (None, *shape[1:]) if shape and batch in (None, shape[0]) else shape


def dtype_name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Evaluation mode: no dropout and no update of running means. Each module gets its own mode back."""
    before = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
