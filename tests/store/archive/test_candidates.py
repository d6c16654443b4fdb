"""Candidate edges: which tensors a tensor may be a delta to, and what that would cost."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from training_series import series, start, step

from regatta.errors import UsageError
from regatta.store.archive.candidates import (
    SAMPLE_WORDS,
    EdgeEstimates,
    EncodingChoice,
    Matrix,
    Samples,
    StorageOption,
    candidate_edges,
    declared_pairs,
    lineage,
    near_pairs,
)
from regatta.store.archive.speeds import Speeds, measured_speeds
from regatta.store.format.dtypes import DTYPES, Words, words_of
from regatta.store.format.encodings import ENCODINGS, encoding_named
from regatta.store.format.manifest import Manifest, ManifestEntry

F32 = DTYPES["F32"]
SPEEDS = Speeds({(encoding, width): 1e9 for encoding in range(7) for width in (1, 2, 4, 8)})


class Shelf:
    """Tensors in memory, with the numbers that candidates want of them."""

    def __init__(self, **arrays: NDArray[np.float32]) -> None:
        self.words: dict[str, Words] = {name: words_of(array) for name, array in arrays.items()}
        self.matrices = {
            name: Matrix(name, F32, len(words), StorageOption(1, None), words.nbytes)
            for name, words in self.words.items()
        }
        self.reads: list[tuple[str, int, int]] = []
        self.samples = Samples(self.matrices, self.read)
        self.estimates = EdgeEstimates(self.matrices, self.samples, SPEEDS)

    def read(self, tensor: str, begin: int, end: int) -> Words:
        self.reads.append((tensor, begin, end))
        return self.words[tensor][begin:end]


def manifest(**tensors: str) -> Manifest:
    return Manifest({name: ManifestEntry(tensor, "F32", (4,)) for name, tensor in tensors.items()})


class TestLineage:
    def test_lineage_uses_the_previous_snapshot_and_the_last_of_each_parent(self) -> None:
        found = lineage({"v1": ["a", "b", "c"], "v2": ["d", "e"], "v3": ["f"]}, {"v2": ["v1"], "v3": ["v1", "v2"]})
        assert found == {"b": ["a"], "c": ["b"], "e": ["d", "c"], "d": ["c"], "f": ["c", "e"]}

    def test_no_parents(self) -> None:
        assert lineage({"v1": ["a"], "v2": []}) == {}

    def test_an_unknown_parent_is_named(self) -> None:
        with pytest.raises(UsageError, match="'v2' has the parent 'v11'") as error:
            lineage({"v1": ["a"], "v2": ["b"]}, {"v2": ["v11"]})
        assert "v1" in error.value.candidates

    def test_pairs_share_name_type_and_size(self) -> None:
        four, five = np.zeros(4, np.float32), np.zeros(5, np.float32)
        shelf = Shelf(a1=four, b1=four, b2=four, c1=five, c2=four, d2=four)
        manifests = {
            "s1": manifest(a="a1", b="b1", c="c1", gone="lost"),
            "s2": manifest(a="a1", b="b2", c="c2", d="d2", gone="lost2"),
        }
        assert declared_pairs(shelf.matrices, manifests, {"s2": ["s1"]}) == [("b1", "b2")]

    def test_tensors_that_are_partly_remote_are_not_changed(self) -> None:
        shelf = Shelf(a=np.zeros(4, np.float32), b=np.zeros(4, np.float32))
        shelf.matrices["b"] = Matrix("b", F32, 4, StorageOption(1, None), 16, remote=8)
        assert declared_pairs(shelf.matrices, {"1": manifest(x="a"), "2": manifest(x="b")}, {"2": ["1"]}) == []


class TestSketches:
    def test_sketches_find_related_tensors(self) -> None:
        arrays = {f"unrelated{seed}": start(seed)["hidden.weight"] for seed in range(6)}
        arrays["child"] = step({"w": arrays["unrelated3"]}, 99)["w"]
        shelf = Shelf(**arrays)
        found = near_pairs(shelf.matrices, shelf.samples, [])
        assert ("unrelated3", "child") in found or ("child", "unrelated3") in found

    def test_a_known_pair_that_is_as_near_is_enough(self) -> None:
        chain = series(1, 4)
        shelf = Shelf(**{f"s{number}": weights["hidden.weight"] for number, weights in enumerate(chain)})
        known = [("s0", "s1"), ("s1", "s2"), ("s2", "s3")]
        assert near_pairs(shelf.matrices, shelf.samples, known) == []
        assert near_pairs(shelf.matrices, shelf.samples, []) != []

    def test_only_tensors_of_one_type_and_size_are_compared(self) -> None:
        shelf = Shelf(a=np.ones(300, np.float32), b=np.ones(301, np.float32))
        assert near_pairs(shelf.matrices, shelf.samples, []) == []

    def test_comparisons_are_limited_to_neighbours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each is compared with those around it alone, wherever in the list it is."""
        monkeypatch.setattr("regatta.store.archive.candidates.MAX_NEIGHBOURS", 4)
        weights = {f"w{number}": start(number)["out.weight"] for number in range(12)}
        weights["w11"] = step({"w": weights["w9"]}, 1)["w"]
        weights["w0"] = step({"w": weights["w2"]}, 2)["w"]
        shelf = Shelf(**weights)
        found = {frozenset(pair) for pair in near_pairs(shelf.matrices, shelf.samples, [])}
        assert {frozenset({"w9", "w11"}), frozenset({"w0", "w2"})} <= found

    def test_a_large_tensor_is_read_in_blocks(self) -> None:
        shelf = Shelf(large=np.zeros(5 * SAMPLE_WORDS, np.float32))
        assert len(shelf.samples.of("large")) == SAMPLE_WORDS
        assert [end - begin for _, begin, end in shelf.reads] == [SAMPLE_WORDS // 4] * 4
        assert shelf.reads[0][1] == 0
        assert shelf.reads[-1][2] == 5 * SAMPLE_WORDS


class TestEstimates:
    @pytest.mark.parametrize("name", ["zstd-planes", "pcodec"])
    def test_a_sample_estimates_the_size_of_the_whole_tensor(self, name: str) -> None:
        random = np.random.default_rng(3)
        whole = random.normal(0, 0.02, 2**18).astype(np.float32)
        shelf = Shelf(w=whole)
        encoding = encoding_named(name)
        real = sum(map(len, encoding.encode(shelf.words["w"], F32, None)))
        assert sum(shelf.estimates.streams(encoding, "w", None)) == pytest.approx(real, rel=0.01)

    @pytest.mark.parametrize("name", ["subtract", "subtract-grouped", "subtract-planes"])
    def test_a_sample_estimates_the_size_of_a_delta(self, name: str) -> None:
        random = np.random.default_rng(3)
        base = random.normal(0, 0.02, 2**18).astype(np.float32)
        shelf = Shelf(base=base, w=base + random.normal(0, 1e-4, 2**18).astype(np.float32))
        encoding = encoding_named(name)
        real = sum(map(len, encoding.encode(shelf.words["w"], F32, shelf.words["base"])))
        assert sum(shelf.estimates.streams(encoding, "w", "base")) == pytest.approx(real, rel=0.015)

    def test_speeds_are_measured_for_every_encoding_and_width(self) -> None:
        speeds = measured_speeds()
        lossless = [encoding.id for encoding in ENCODINGS.values() if not encoding.lossy]
        assert set(speeds.decode) == {(encoding, width) for encoding in lossless for width in (1, 2, 4, 8)}
        assert all(speed > 1e6 for speed in speeds.decode.values())
        assert speeds is measured_speeds()

    def test_recreation(self) -> None:
        speeds = Speeds({(2, 4): 4e6}, read=1e6, per_tensor=0.5, remote=1e5, per_request=3)
        assert speeds.recreation(2, F32, 1_000_000, 2e6) == pytest.approx(0.5 + 2 + 1)
        assert speeds.recreation(2, F32, 1_000_000, 2e6, remote=1e6) == pytest.approx(0.5 + 1 + 1 + 3 + 10)


class TestEdges:
    ARCHIVAL = tuple(encoding_named(name) for name in ("raw", "zstd-planes", "pcodec", "subtract", "subtract-grouped"))

    def test_related_tensors_get_deltas_in_both_directions_and_others_none(self) -> None:
        one, other = series(1, 2)
        shelf = Shelf(a=one["hidden.weight"], b=other["hidden.weight"], c=start(7)["hidden.weight"])
        edges = candidate_edges(
            shelf.matrices, [("a", "b"), ("a", "c")], shelf.estimates, EncodingChoice(self.ARCHIVAL)
        )
        deltas = {(edge.source, edge.target) for edge in edges if edge.source is not None}
        assert deltas == {("a", "b"), ("b", "a")}
        for edge in edges:
            assert isinstance(edge.option, StorageOption)
            assert edge.option.base == edge.source
            assert ENCODINGS[edge.option.encoding].needs_base == (edge.source is not None)

    def test_the_present_encoding_is_always_a_candidate(self) -> None:
        shelf = Shelf(a=start(1)["hidden.weight"])
        edges = candidate_edges(shelf.matrices, [], shelf.estimates, EncodingChoice(self.ARCHIVAL))
        kept = [edge for edge in edges if edge.option == StorageOption(1, None)]
        assert len(kept) == 1
        assert kept[0].storage == pytest.approx(shelf.matrices["a"].stored, rel=0.01)

    def test_a_lossy_encoding_is_kept_if_it_is_smaller(self) -> None:
        shelf = Shelf(a=start(1)["hidden.weight"])
        lossy = next(encoding for encoding in ENCODINGS.values() if encoding.lossy)
        shelf.matrices["a"] = Matrix("a", F32, shelf.matrices["a"].count, StorageOption(lossy.id, None), 1000)
        edges = candidate_edges(shelf.matrices, [], shelf.estimates, EncodingChoice(self.ARCHIVAL))
        assert min(edges, key=lambda edge: edge.storage).option == StorageOption(lossy.id, None)

    def test_tiny_and_incompressible_tensors_may_be_stored_as_they_are(self) -> None:
        noise = np.random.default_rng(1).integers(0, 2**32, 5000, np.uint32).view(np.float32)
        shelf = Shelf(tiny=np.ones(3, np.float32), noise=noise, weights=start(1)["hidden.weight"])
        edges = candidate_edges(shelf.matrices, [], shelf.estimates, EncodingChoice(self.ARCHIVAL))
        assert {edge.target for edge in edges if edge.option == StorageOption(0, None)} == {"tiny", "noise"}

    def test_an_empty_tensor_stays_as_it_is(self) -> None:
        shelf = Shelf(empty=np.zeros(0, np.float32))
        (edge,) = candidate_edges(shelf.matrices, [], shelf.estimates, EncodingChoice(self.ARCHIVAL))
        assert edge.option == StorageOption(1, None)

    def test_planes_at_the_remote_are_parallel_edges(self) -> None:
        shelf = Shelf(a=start(1)["hidden.weight"])
        choice = EncodingChoice([encoding_named("zstd-planes")], remote_planes=2)
        shelf.matrices["a"] = Matrix("a", F32, shelf.matrices["a"].count, StorageOption(2, None), 10**6)
        edges = {edge.option: edge for edge in candidate_edges(shelf.matrices, [], shelf.estimates, choice)}
        here, there = edges[StorageOption(1, None)], edges[StorageOption(1, None, 2)]
        assert there.storage < 0.45 * here.storage
        assert there.recreation > here.recreation + SPEEDS.per_request

    def test_dominated_edges_are_left_out(self) -> None:
        slow = Speeds({(encoding, 4): 1e6 if encoding == 2 else 1e9 for encoding in range(7)})
        shelf = Shelf(a=np.ones(5000, np.float32))  # constant: both make next to nothing of it
        shelf.matrices["a"] = Matrix("a", F32, 5000, StorageOption(0, None), 20000)
        estimates = EdgeEstimates(shelf.matrices, shelf.samples, slow)
        sizes = {name: sum(estimates.streams(encoding_named(name), "a", None)) for name in ("zstd-planes", "pcodec")}
        edges = candidate_edges(
            shelf.matrices, [], estimates, EncodingChoice([encoding_named("zstd-planes"), encoding_named("pcodec")])
        )
        expected = {StorageOption(0, None), StorageOption(1, None)} | (
            {StorageOption(2, None)} if sizes["pcodec"] < sizes["zstd-planes"] else set()
        )
        assert {edge.option for edge in edges} == expected
