# SPDX-License-Identifier: Apache-2.0
"""The names of readings that tell how a GPU is used, such as `gpu/0/sm_active_percent`.

They are readings like others, so that whatever shows or exports these has them too. But they are no
results of the program, and have a section of their own.
"""

from __future__ import annotations

SM_ACTIVE = "sm_active_percent"
"""Which share of the multiprocessors had work. These three are means since the reading before."""
TENSOR_ACTIVE = "tensor_active_percent"
"""For which share of the time their tensor cores had."""
DRAM_ACTIVE = "dram_active_percent"
"""Which share of the memory's greatest bandwidth was used."""
SM_CLOCK, SM_CLOCK_MAX, MEMORY_CLOCK = "sm_clock_mhz", "sm_clock_max_mhz", "memory_clock_mhz"
POWER, POWER_LIMIT, TEMPERATURE = "power_w", "power_limit_w", "temperature_c"
BY_POWER, BY_HEAT, BY_HARDWARE = (
    f"clock_lowered_by_{why}" for why in ("power", "heat", "hardware")
)
"""1 while the clock is lower for the sake of the power cap, of the temperature, or by the hardware,
by its power supply for example; else 0."""

_QUANTITIES = frozenset(
    [
        *(SM_ACTIVE, TENSOR_ACTIVE, DRAM_ACTIVE, SM_CLOCK, SM_CLOCK_MAX, MEMORY_CLOCK),
        *(POWER, POWER_LIMIT, TEMPERATURE, BY_POWER, BY_HEAT, BY_HARDWARE),
    ]
)
_PREFIX = "gpu/"


def name_of(device: int, quantity: str) -> str:
    """Return the name of the reading."""
    return f"{_PREFIX}{device}/{quantity}"


def device_and_quantity(name: str) -> tuple[int, str] | None:
    """Return the device and quantity in the name of a reading; None if it is of something else."""
    device, _, quantity = name.removeprefix(_PREFIX).partition("/")
    is_one = name.startswith(_PREFIX) and device.isdecimal() and quantity in _QUANTITIES
    return (int(device), quantity) if is_one else None
