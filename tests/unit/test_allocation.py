"""Which device gets which net, and what is said when none fits."""

from pathlib import Path

import pytest

from attar.core import ModelSpec
from attar.errors import SettingsError
from attar.federation import allocate, read_devices
from attar.federation.devices import COPIES, FLOAT, Cost, Device, Fleet
from attar.nets.cost import multiply_accumulates
from attar.training import activation_bytes

EXAMPLE = Path(__file__).parents[2] / "examples" / "devices.toml"
NETS = tuple(ModelSpec.parse(name) for name in ("lenet5", "resnet20", "resnet32"))


def fleet(*devices: Device, knowledge: str | None = None, nets=NETS) -> Fleet:
    return Fleet(
        devices,
        (3, 32, 32),
        10,
        32,
        nets,
        None if knowledge is None else ModelSpec.parse(knowledge),
    )


def test_allocate_example():
    rows = {row["device"]: row for row in allocate(read_devices(EXAMPLE))}
    assert {name: row["net"] for name, row in rows.items()} == {
        "gate": "resnet20",
        "yard": "resnet32",
        "phone": "resnet44",
        "laptop": "vgg11",
        "meter": "lenet5",
    }
    for row in rows.values():
        assert row["macs"] <= row["mac_budget"]
        assert row["memory_bytes"] <= row["memory_budget"]
    assert (
        len({row["upload_bytes"] for row in rows.values()}) == 1
    )  # of all of them, the knowledge network


def test_cost_of_a_net():
    """resnet20: 269,722 weights three times, and the activations of a batch.
    Multiply-accumulates of one image, by stage:

    442,368 + 6 x 2,359,296 + 2 x (1,179,648 + 5 x 2,359,296) + 640 = 40,551,040.
    """
    cost, net = (
        Cost(ModelSpec("resnet20"), fleet()),
        ModelSpec("resnet20").build((3, 32, 32), 10, 0),
    )
    assert cost.parameters == 269_722
    assert cost.macs == multiply_accumulates(net, (3, 32, 32)) == 40_551_040
    assert cost.memory == COPIES * FLOAT * 269_722 + 32 * activation_bytes(net, (3, 32, 32))
    assert 4 * 269_722 < cost.upload_bytes < 4 * 269_722 + 40_000


def test_cost_with_knowledge_network():
    alone, both = (
        Cost(ModelSpec("resnet32"), fleet()),
        Cost(ModelSpec("resnet32"), fleet(knowledge="resnet20")),
    )
    small = Cost(ModelSpec("resnet20"), fleet())
    assert both.macs == alone.macs + small.macs
    assert both.memory == alone.memory + small.memory
    assert both.parameters == alone.parameters
    assert abs(both.upload_bytes - small.upload_bytes) < 200  # the part's name is shorter


def test_allocate_largest_net():
    cost = Cost(ModelSpec("resnet32"), fleet())
    exactly = Device("d", cost.memory, cost.macs)
    assert allocate(fleet(exactly))[0]["net"] == "resnet32"
    assert allocate(fleet(Device("d", cost.memory - 1, cost.macs)))[0]["net"] == "resnet20"
    assert allocate(fleet(Device("d", cost.memory, cost.macs - 1)))[0]["net"] == "resnet20"


def test_allocate_names_smallest_budget():
    """More of one thing where that is enough; the budget that is named is enough, one less is
    not.
    """
    least = Cost(NETS[0], fleet())
    with pytest.raises(SettingsError) as refused:
        allocate(
            fleet(
                Device("poor", 1000, 10**9), Device("slow", 10**9, 1000), Device("both", 1000, 1000)
            )
        )
    poor, slow, both = refused.value.problems
    assert f"{least.memory:,} bytes of memory for lenet5" in poor
    assert f"{least.macs:,} multiply-accumulates for lenet5" in slow
    assert f"{least.memory:,} bytes and {least.macs:,} multiply-accumulates for lenet5" in both
    assert allocate(fleet(Device("poor", least.memory, 10**9)))[0]["net"] == "lenet5"
    with pytest.raises(SettingsError, match="poor"):
        allocate(fleet(Device("poor", least.memory - 1, 10**9)))


def test_read_devices_names_all_problems(tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(
        '[task]\nimage = [3]\nnets = ["lenet9"]\ncolour = 1\n[classes.a]\nmemory = "1 GB"\n'
        '[devices.one]\nclass = "b"\nmemory = "lots"\nmacs = 5\n'
        '[devices.two]\nclass = "a"\nmacs = "2 k"\n[other]\n'
    )
    with pytest.raises(SettingsError) as refused:
        read_devices(path)
    text = str(refused.value)
    for piece in (
        "[other]",
        "task.image",
        "lenet9",
        "task.colour",
        "[classes.b]",
        "one.memory = 'lots'",
    ):
        assert piece in text
    assert "two" not in text
    with pytest.raises(SettingsError, match="cannot be read"):
        read_devices(tmp_path / "absent.toml")


def test_read_devices_amounts_and_classes(tmp_path):
    path = tmp_path / "devices.toml"
    path.write_text(
        '[classes.a]\nmemory = "1.5 GB"\nmacs = "60 M"\n'
        '[devices.x]\nclass = "a"\n[devices.y]\nclass = "a"\nmemory = 7\n'
    )
    found = read_devices(path)
    assert found.devices == (Device("x", 1_500_000_000, 60_000_000), Device("y", 7, 60_000_000))
    assert found.batch_size == 64
    assert ModelSpec("vgg11") in found.nets
    assert all(spec.kind == "classifier" and spec.fresh for spec in found.nets)
