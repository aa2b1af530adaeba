"""The checks that every plugin passes, for your own tests and for ``protofl check``.

One contract a kind; in a test file of yours::

    from protofl.testing import MethodContract
    from protofl_mine import Mine

    class TestMine(MethodContract):
        plugin = Mine

pytest finds the checks, as they are methods ``test_…``; add your own below. ``plugin`` is a class,
or the name of an installed plugin. `Contract` says what else can be set. pytest is not needed:
`run_checks` runs a contract by itself.

Imports: data, errors, federation, hooks, records, runs, system.
Start with ``contract.py``.
"""

from protofl.testing.backends import BackendContract
from protofl.testing.commands import CommandContract
from protofl.testing.contract import Contract, Finding, checks_of, expect, run_checks, skip
from protofl.testing.datasets import DatasetContract
from protofl.testing.engines import EngineContract
from protofl.testing.groups import ModelGroupContract
from protofl.testing.image_generators import GeneratorContract
from protofl.testing.methods import MethodContract
from protofl.testing.metrics import MetricContract
from protofl.testing.partitioners import PartitionerContract
from protofl.testing.payload_transforms import PayloadTransformContract
from protofl.testing.rounds import ClientSamplerContract, DeviceModelContract, ScheduleContract
from protofl.testing.trackers import TrackerContract

__all__ = [
    "CONTRACTS",
    "BackendContract",
    "ClientSamplerContract",
    "CommandContract",
    "Contract",
    "DatasetContract",
    "DeviceModelContract",
    "EngineContract",
    "Finding",
    "GeneratorContract",
    "MethodContract",
    "MetricContract",
    "ModelGroupContract",
    "PartitionerContract",
    "PayloadTransformContract",
    "ScheduleContract",
    "TrackerContract",
    "checks_of",
    "expect",
    "run_checks",
    "skip",
]

CONTRACTS: dict[str, type[Contract]] = {
    contract.kind: contract
    for contract in (
        MethodContract,
        ModelGroupContract,
        PartitionerContract,
        DatasetContract,
        GeneratorContract,
        PayloadTransformContract,
        MetricContract,
        ClientSamplerContract,
        DeviceModelContract,
        ScheduleContract,
        TrackerContract,
        EngineContract,
        BackendContract,
        CommandContract,
    )
}
"""The contract of each kind but reproductions: that one is
`protofl_workbench.reproductions.reproduction_contract`."""
