# SPDX-License-Identifier: Apache-2.0
"""Live sinks: where a recording sends what is new while it goes on.

A sink is a `Sink`. To add one, write its module and export its class here.
"""

from pyinstrument_gpu.sinks.mlflow import MLflowSink
from pyinstrument_gpu.sinks.phase_times import PHASE_TIME_DTYPE
from pyinstrument_gpu.sinks.prometheus import PrometheusSink
from pyinstrument_gpu.sinks.sink import RunUpdate, Sink
from pyinstrument_gpu.sinks.tensorboard import TensorBoardSink
from pyinstrument_gpu.sinks.wandb import WandbSink

__all__ = [
    "PHASE_TIME_DTYPE",
    "MLflowSink",
    "PrometheusSink",
    "RunUpdate",
    "Sink",
    "TensorBoardSink",
    "WandbSink",
]
