"""The pool: append, ring, whole bytes, passes; and its shards in checkpoints, of which only what
is new is written.
"""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attar.blocks.images import Pool
from attar.core import State
from attar.errors import RunError
from attar.running import remove_checkpoint, restore_state, save_state
from attar.seeds import rng

DOT = (1, 1, 1)


def filled(capacity, *sizes, as_bytes=False, shape=DOT):
    """A pool to which images 0, 1, 2, ... (pixel n / 1000, label n) were added in batches of
    these sizes.
    """
    pool = Pool(shape, capacity, "cpu", as_bytes=as_bytes)
    for size in sizes:
        add(pool, size)
    return pool


def add(pool, size):
    numbers = torch.arange(pool.added, pool.added + size)
    shape = pool.images(torch.arange(0)).shape[1:]
    pool.add((numbers / 1000).view(-1, 1, 1, 1).expand(-1, *shape), numbers)


def everything(pool):
    places = torch.arange(len(pool))
    return pool.labels(places).tolist()


# --- by itself ------------------------------------------------------------------------------------


def test_add_appends():
    pool = filled(10)
    assert len(pool) == 0
    add(pool, 3)
    add(pool, 4)
    assert (len(pool), pool.added) == (7, 7)
    assert everything(pool) == list(range(7))
    assert pool.images(torch.tensor([5])).item() == pytest.approx(0.005)


def test_add_replaces_the_oldest():
    pool = filled(5, 3, 3, 3)
    assert (len(pool), pool.added) == (5, 9)
    assert sorted(everything(pool)) == [4, 5, 6, 7, 8]
    assert pool.newest(2).flatten().tolist() == pytest.approx([0.007, 0.008])
    assert pool.newest(50).flatten().tolist() == pytest.approx([0.004, 0.005, 0.006, 0.007, 0.008])


def test_add_keeps_the_last_of_a_batch_larger_than_the_pool():
    pool = filled(4, 1, 10)
    assert (len(pool), pool.added) == (4, 11)
    assert sorted(everything(pool)) == [7, 8, 9, 10]
    assert pool.newest(4).flatten().tolist() == pytest.approx([0.007, 0.008, 0.009, 0.010])
    for place, label in enumerate(everything(pool)):
        assert pool.images(torch.tensor([place])).item() == pytest.approx(label / 1000)


@given(st.integers(1, 9), st.lists(st.integers(1, 12), max_size=8))
@settings(max_examples=60)
def test_add_keeps_the_newest_whatever_the_batches(capacity, sizes):
    pool, total = filled(capacity, *sizes), sum(sizes)
    kept = list(range(max(0, total - capacity), total))
    assert sorted(everything(pool)) == kept
    assert pool.newest(3).flatten().tolist() == pytest.approx([n / 1000 for n in kept[-3:]])


def test_images_of_bytes_are_rounded():
    """0.1 * 255 = 25.5 becomes 26, 0.302 * 255 = 77.01 becomes 77; what lies outside of [0, 1]
    is bounded.
    """
    pool = Pool(DOT, 4, "cpu", as_bytes=True)
    pool.add(
        torch.tensor([0.1, 0.302, 1.2, -0.3]).view(4, 1, 1, 1), torch.zeros(4, dtype=torch.int64)
    )
    back = pool.images(torch.arange(4)).flatten()
    assert back.dtype == torch.float32
    assert (back * 255).tolist() == pytest.approx([26.0, 77.0, 255.0, 0.0])
    precise = Pool(DOT, 1, "cpu")
    precise.add(torch.tensor(0.1).view(1, 1, 1, 1), torch.tensor([0]))
    assert precise.images(torch.tensor([0])).item() == torch.tensor(0.1).item()


def test_images_have_no_history():
    pool, images = filled(4), torch.rand(2, *DOT, requires_grad=True)
    pool.add(images * 1, torch.tensor([0, 1]))
    assert not pool.images(torch.arange(2)).requires_grad
    drawn = pool.images(torch.arange(2))
    drawn += 1
    assert pool.images(torch.arange(2)).max() <= 1


@pytest.mark.parametrize("sizes", [(7,), (3, 3, 3)])
def test_batches_have_every_place_once_in_another_order_each_time(sizes):
    pool, draws = filled(8, *sizes), rng(0)
    passes = [list(pool.batches(3, draws)) for _ in range(2)]
    for batches in passes:
        assert [len(batch) for batch in batches[:-1]] == [3] * (len(batches) - 1)
        assert sorted(torch.cat(batches).tolist()) == list(range(len(pool)))
    assert torch.cat(passes[0]).tolist() != torch.cat(passes[1]).tolist()
    assert list(filled(8).batches(3, draws)) == []


@pytest.mark.parametrize(
    ("images", "sizes"), [(2, [2]), (5, [2, 2, 1]), (6, [6]), (11, [6, 2, 2, 1]), (13, [6, 6, 1])]
)
def test_batches_together_have_one_size_and_the_rest_comes_one_by_one(images, sizes):
    pool = filled(20, images)
    pieces = list(pool.batches(2, rng(0), together=3))
    assert [len(piece) for piece in pieces] == sizes
    assert (
        torch.cat(pieces).tolist() == torch.cat(list(pool.batches(2, rng(0)))).tolist()
    )  # the same order as ever


@given(
    st.integers(1, 7),
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=3), min_size=1, max_size=5),
)
@settings(max_examples=60)
def test_put_back_gives_the_same_pool(capacity, rounds):
    pool, shards = Pool(DOT, capacity, "cpu"), []
    for sizes in rounds:
        before = pool.added
        for size in sizes:
            add(pool, size)
        shard = pool.since(before)
        assert len(shard["labels"]) == min(capacity, sum(sizes))
        shards.append((shard, pool.added))
    back = Pool(DOT, capacity, "cpu")
    for shard, end in shards:
        back.put_back(shard, end)
    assert back.added == pool.added
    assert everything(back) == everything(
        pool
    )  # each image in its old place: the next pass draws the same
    places = torch.arange(len(pool))
    assert torch.equal(back.images(places), pool.images(places))


# --- in checkpoints -------------------------------------------------------------------------------


@dataclass
class Filling(State):
    pool: Pool
    draws: torch.Generator


PICTURE = (3, 16, 16)


def state_of(pool):
    return Filling(pool, rng(0))


def shards_in(folder):
    return sorted(path.name for path in folder.glob("*.shard"))


@pytest.mark.parametrize("as_bytes", [False, True])
def test_save_state_writes_only_what_is_new(tmp_path, as_bytes):
    pool = filled(100, 20, as_bytes=as_bytes, shape=PICTURE)
    state, path = state_of(pool), tmp_path / "checkpoint.safetensors"
    save_state(path, state, {})
    (first,) = tmp_path.glob("*.shard")
    before = first.stat()
    small = path.stat().st_size
    add(pool, 4)
    save_state(path, state, {})
    save_state(path, state, {})  # nothing is new: nothing is written
    (second,) = set(tmp_path.glob("*.shard")) - {first}
    assert (first.stat().st_ino, first.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    image = 3 * 16 * 16 * (1 if as_bytes else 4)
    assert 20 * image < first.stat().st_size < 20 * image + 1000
    assert 4 * image < second.stat().st_size < 4 * image + 1000
    assert path.stat().st_size < small + 500 < image * 20

    fresh = state_of(filled(100, as_bytes=as_bytes, shape=PICTURE))
    restore_state(path, fresh)
    places = torch.arange(24)
    assert (len(fresh.pool), fresh.pool.added) == (24, 24)
    assert torch.equal(fresh.pool.images(places), pool.images(places))
    assert everything(fresh.pool) == everything(pool)


def test_save_state_appends_after_a_resume(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save_state(path, state_of(filled(100, 5)), {})
    fresh = state_of(filled(100))
    restore_state(path, fresh)
    add(fresh.pool, 3)
    save_state(path, fresh, {})
    assert len(shards_in(tmp_path)) == 2
    again = state_of(filled(100))
    restore_state(path, again)
    assert everything(again.pool) == list(range(8))


def test_save_state_writes_no_shard_of_an_empty_pool(tmp_path):
    path = tmp_path / "c"
    save_state(path, state_of(filled(5)), {})
    assert shards_in(tmp_path) == []
    fresh = state_of(filled(5))
    restore_state(path, fresh)
    assert len(fresh.pool) == 0


def test_save_state_deletes_shards_without_images_in_the_pool(tmp_path):
    pool, path = filled(6), tmp_path / "c"
    state, numbers = state_of(pool), []
    for _ in range(6):
        add(pool, 4)
        save_state(path, state, {})
        numbers.append(len(shards_in(tmp_path)))
        fresh = state_of(filled(6))
        restore_state(path, fresh)
        assert everything(fresh.pool) == everything(pool)
        assert fresh.pool.added == pool.added
    assert numbers == [1, 2, 2, 2, 2, 2]  # six images are in the last two batches of four


@given(st.integers(1, 6), st.lists(st.integers(0, 8), min_size=1, max_size=6))
@settings(max_examples=25)
def test_restore_state_restores_any_ring(tmp_path_factory, capacity, sizes):
    folder, pool = tmp_path_factory.mktemp("ring"), filled(capacity)
    state = state_of(pool)
    for size in sizes:
        add(pool, size)
        save_state(folder / "c", state, {})
    fresh = state_of(filled(capacity))
    restore_state(folder / "c", fresh)
    assert everything(fresh.pool) == everything(pool)
    assert fresh.pool.added == pool.added


@pytest.mark.parametrize("damage", ["flip", "cut", "missing", "swapped"])
def test_restore_state_refuses_a_damaged_shard(tmp_path, damage):
    pool, path = filled(50, 5), tmp_path / "c"
    state = state_of(pool)
    save_state(path, state, {})
    add(pool, 5)
    save_state(path, state, {})
    first, second = sorted(tmp_path.glob("*.shard"))
    data = first.read_bytes()
    if damage == "flip":
        first.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "cut":
        first.write_bytes(data[: len(data) // 2])
    elif damage == "missing":
        first.unlink()
    else:
        first.write_bytes(second.read_bytes())
    with pytest.raises(RunError, match=r"does not fit this run .*shard"):
        restore_state(path, state_of(filled(50)))


def test_remove_checkpoint_removes_its_shards_and_nothing_else(tmp_path):
    pool, path, other = (
        filled(50, 5),
        tmp_path / "checkpoint.safetensors",
        tmp_path / "other.safetensors",
    )
    state = state_of(pool)
    save_state(path, state, {})
    add(pool, 5)
    save_state(path, state, {})
    save_state(other, state_of(filled(50, 2)), {})
    kept = {other, *tmp_path.glob("other.*.shard")}
    assert len(set(tmp_path.iterdir()) - kept) == 3
    remove_checkpoint(path)
    assert set(tmp_path.iterdir()) == kept
    remove_checkpoint(path)  # twice is fine
