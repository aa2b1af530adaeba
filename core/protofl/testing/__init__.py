"""The checks that every plugin passes, for your own tests and for ``protofl check``.

One contract a kind; in a test file of yours::

    from protofl.testing import MethodContract
    from protofl_mine import Mine

    class TestMine(MethodContract):
        plugin = Mine

pytest finds the checks, as they are methods ``test_…``; add your own below. ``plugin`` is a class,
or the name of an installed plugin. `Contract` says what else can be set. pytest is not needed:
`run_checks` runs a contract by itself.

Imports: data, errors, federation, hooks, runs, system.
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
from protofl.testing.recipes import RecipeContract
from protofl.testing.selections import SelectionContract
from protofl.testing.text_encoders import TextEncoderContract
from protofl.testing.trackers import TrackerContract
from protofl.testing.worlds import WorldContract
from protofl.testing.wrappers import WrapperContract

__all__ = [
    "CONTRACTS",
    "BackendContract",
    "CommandContract",
    "Contract",
    "DatasetContract",
    "EngineContract",
    "Finding",
    "GeneratorContract",
    "MethodContract",
    "MetricContract",
    "ModelGroupContract",
    "PartitionerContract",
    "RecipeContract",
    "SelectionContract",
    "TextEncoderContract",
    "TrackerContract",
    "WorldContract",
    "WrapperContract",
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
        TextEncoderContract,
        WrapperContract,
        MetricContract,
        SelectionContract,
        WorldContract,
        TrackerContract,
        EngineContract,
        BackendContract,
        RecipeContract,
        CommandContract,
    )
}
"""The contract of each kind but studies: that one is `protofl_workbench.studies.study_contract`."""
