# SPDX-License-Identifier: Apache-2.0
"""Live sinks: where a recording sends what is new while it goes on.

A sink is a `Sink`. To add one, write its module and export its class here.
"""

from pyinstrument_gpu.sinks.phase_times import PHASE_TIME_DTYPE
from pyinstrument_gpu.sinks.prometheus import PrometheusSink
from pyinstrument_gpu.sinks.sink import Sink
from pyinstrument_gpu.sinks.tensorboard import TensorBoardSink
from pyinstrument_gpu.sinks.update import RunUpdate

__all__ = ["PHASE_TIME_DTYPE", "PrometheusSink", "RunUpdate", "Sink", "TensorBoardSink"]
