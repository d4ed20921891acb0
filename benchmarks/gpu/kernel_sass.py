# SPDX-License-Identifier: Apache-2.0
"""What the metric kernels cost by their machine code: calculated, not measured, and without a GPU.

    python -m benchmarks.gpu.kernel_sass [--nvdisasm PATH] [CUBIN ...]

NVRTC compiles the kernels as for a training (`PYINSTRUMENT_GPU_LIBNVRTC` names another library), or
cubins are given. For each kernel the loop that reads the data is found: the innermost one around
the loads. Of it the usual way around is counted, without what is rare, which the table `COUNTED`
tells, and divided by the elements whose bytes it loads.
"""

from __future__ import annotations

import argparse
import re
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pyinstrument_gpu.metrics import kernels

WARP = 32
ARCHITECTURES = (75, 80, 90, 100, 120)
# By the compute capability: threads, registers and bytes of shared memory of a multiprocessor.
PROCESSORS = {
    75: (1024, 65_536, 64 << 10),
    80: (2048, 65_536, 164 << 10),
    90: (2048, 65_536, 228 << 10),
    100: (2048, 65_536, 228 << 10),
    120: (1536, 65_536, 100 << 10),
}
# What the ring of a block holds (csrc/metrics/kernel_ring.cuh), and the operations that fill it.
RING_BYTES = 32 << 10
RINGS = {"UBLKCP": "bulk", "LDGSTS": "by lanes"}
# The kernels whose loops are counted: bytes of an element or logit; those that a thread loads at a
# time, or half of them, which tells a kernel's loops for several formats apart; and an operation of
# which each takes so many at least, which tells the usual way around from those that do nothing.
COUNTED = {
    "values": (4, 64, "DFMA", 1),
    "update_float32_block": (4, 64, "FMNMX", 0.9),
    "update_bfloat16_block": (2, 64, "FMNMX", 0.9),
    "cross_entropy_float32_block": (4, 64, "FADD", 1.4),
    "cross_entropy_bfloat16_block": (2, 64, "FADD", 1.4),
    "cross_entropy_float32_warp": (4, 64, "FADD", 1.4),
    "cross_entropy_bfloat16_warp": (2, 64, "FADD", 1.4),
}
# Of an ELF file, and of NVIDIA's attributes in it.
_NO_BITS = 8
_SIZED = 4
_REGISTER_COUNT = 0x2F
Way = tuple[int, list[int]]
"""How many instructions it has, and its blocks."""
_WIDTH = re.compile(r"\.(U?8|S8|U?16|S16|64|128)\b")


@dataclass
class Block:
    """Instructions without a jump between them."""

    operations: list[str] = field(default_factory=list)
    next: list[int] = field(default_factory=list)

    @property
    def calls(self) -> bool:
        return any(each.startswith("CALL") for each in self.operations)

    @property
    def loaded(self) -> int:
        """Bytes that a thread loads from global memory, or has a bulk copy load."""
        return sum(map(_bytes_of, self.operations))


def _bytes_of(operation: str) -> int:
    if not re.match(r"LDG|LDS\.(U\.)?128", operation):
        return 0
    found = _WIDTH.search(operation)
    return int(re.sub(r"\D", "", found[1])) // 8 if found else 4


def blocks_of(text: str) -> list[Block]:
    """The flow of control of a function, as nvdisasm prints it."""
    lines: list[tuple[str, str, str]] = []  # operation, its arguments, its predicate
    at: dict[str, int] = {}
    for line in text.splitlines():
        if found := re.match(r"\s*(\.L_\w+):", line):
            at[found[1]] = len(lines)
        elif found := re.match(r"\s*/\*[0-9a-f]{4,}\*/\s+(@!?\w+\s+)?([A-Z][\w.]*)(.*)", line):
            lines.append((found[2], found[3], found[1] or ""))
    begins = {0, *at.values()}
    begins |= {i + 1 for i, line in enumerate(lines) if re.match("BR[AX]|EXIT|RET|BSYNC", line[0])}
    starts = sorted(each for each in begins if each < len(lines))
    number = {start: i for i, start in enumerate(starts)}
    blocks = []
    joins: dict[str, str] = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        block = Block([line[0] for line in lines[start:end]])
        operation, arguments, predicate = lines[end - 1]
        for each in lines[start:end]:
            if each[0].startswith("BSSY") and (
                found := re.search(r"(B\d+), `\((\.L_\w+)\)", each[1])
            ):
                joins[found[1]] = found[2]
        targets = re.findall(r"\.L_\w+", arguments) if operation.startswith("BR") else []
        if operation.startswith("BSYNC") and (found := re.search(r"B\d+", arguments)):
            targets = [joins[found[0]]] if found[0] in joins else []
            targets = [each for each in targets if at[each] >= end]
        is_conditional = bool(predicate) or "P" in arguments.split("`")[0]
        falls = is_conditional or not re.match("BRA|BRX|EXIT|RET", operation)
        if operation.startswith("BSYNC"):
            falls = not targets
        block.next = [number[at[each]] for each in targets if at.get(each) in number]
        if falls and end in number:
            block.next.append(number[end])
        blocks.append(block)
    return blocks


def loop_of(
    blocks: list[Block], element: int, bytes_: int, operation: str, per_element: float
) -> list[str]:
    """The operations of the loop that reads the data, as a row of COUNTED says: the innermost one
    around the block that loads about so many bytes, and in it the shortest way around that does the
    work, without calls and loops within it."""
    loops = _loops(blocks)
    inner = {i for i in range(len(blocks)) if any(i in body for _, body in loops)}
    if not inner:
        return []
    heavy = min(inner, key=lambda i: (abs(blocks[i].loaded - bytes_), i))
    head, body = min((each for each in loops if heavy in each[1]), key=lambda each: len(each[1]))
    nested = {i for _, other in loops if other < body for i in other}
    least = round(bytes_ / element * per_element)
    way = _way_around(blocks, head, body - nested | {head, heavy}, operation, least)
    return [operation for i in way for operation in blocks[i].operations]


def _loops(blocks: list[Block]) -> list[tuple[int, set[int]]]:
    """Natural loops: their heads and all that lies in them."""
    before: list[list[int]] = [[] for _ in blocks]
    for i, block in enumerate(blocks):
        for each in block.next:
            before[each].append(i)
    everything = set(range(len(blocks)))
    dominators = [{0}, *(set(everything) for _ in blocks[1:])]
    changes = True
    while changes:
        changes = False
        for i in range(1, len(blocks)):
            above = [dominators[each] for each in before[i]]
            new = {i} | (set.intersection(*above) if above else set())
            changes |= new != dominators[i]
            dominators[i] = new
    loops: dict[int, set[int]] = {}
    for i, block in enumerate(blocks):
        for head in block.next:
            if head not in dominators[i]:
                continue
            body = loops.setdefault(head, {head})
            open_ = [i]
            while open_:
                at = open_.pop()
                if at not in body:
                    body.add(at)
                    open_ += before[at]
    return list(loops.items())


def _way_around(
    blocks: list[Block], head: int, body: set[int], operation: str, least: int
) -> list[int]:
    best: dict[int, dict[int, Way]] = {}

    def from_(at: int) -> dict[int, Way]:
        """The shortest ways from here back to the head, by how many such operations they have."""
        if at not in best:
            best[at] = {}
            own = sum(each.startswith(operation) for each in blocks[at].operations)
            ways: dict[int, Way] = {}
            for each in blocks[at].next:
                ahead: dict[int, Way] = {}
                if each == head:
                    ahead = {0: (0, [])}
                elif each in body and not blocks[each].calls:
                    ahead = from_(each)
                for count, (length, rest) in ahead.items():
                    way = (length + len(blocks[at].operations), [at, *rest])
                    count = min(count + own, least)
                    ways[count] = min(ways.get(count, way), way, key=lambda each: each[0])
            best[at] = ways
        return best[at]

    return from_(head).get(least, (0, []))[1]


@dataclass
class Kernel:
    """What is known of a kernel without running it."""

    name: str
    registers: int
    shared_bytes: int
    loop: list[str]
    ring: str
    threads: int = 256

    @property
    def bytes_under_way(self) -> int:
        """Of a block whose threads all wait for memory."""
        if self.ring:
            return RING_BYTES
        return self.threads * sum(map(_bytes_of, self.loop))

    def blocks_per_processor(self, capability: int) -> int:
        threads, registers, shared = PROCESSORS[capability]
        of_warp = -(-self.registers * WARP // 256) * 256
        limits = [threads // self.threads, registers // (of_warp * (self.threads // WARP))]
        limits.append(shared // (self.shared_bytes + 1024))
        return min(limits)


def _sections(cubin: bytes) -> dict[str, bytes]:
    (begin,) = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, begin + i * size) for i in range(count)]
    found = {}
    for name, kind, _, _, offset, length in headers:
        at = headers[names][4] + name
        content = bytes(length) if kind == _NO_BITS else cubin[offset : offset + length]
        found[cubin[at : cubin.index(b"\0", at)].decode()] = content
    return found


def _registers(sections: dict[str, bytes]) -> dict[str, int]:
    """By the function's name, from the attributes that ptxas leaves."""
    symbols, strings, info = (sections[name] for name in (".symtab", ".strtab", ".nv.info"))
    found = {}
    at = 0
    while at < len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == _SIZED and attribute == _REGISTER_COUNT:
            symbol, count = struct.unpack_from("<II", info, at + 4)
            (name,) = struct.unpack_from("<I", symbols, 24 * symbol)
            found[strings[name : strings.index(b"\0", name)].decode()] = count
        at += 4 + (size if form == _SIZED else 0)
    return found


def kernels_of(cubin: bytes, nvdisasm: str) -> list[Kernel]:
    """All kernels of a cubin."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [nvdisasm, "-c", file.name], capture_output=True, text=True, check=True
        ).stdout
    parts = re.split(r"\n//-+ \.text\.(\S+)\s+-+", text)
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    sections = _sections(cubin)
    registers = _registers(sections)
    found = []
    for name, row in COUNTED.items():
        full = f"pig_metric_{name}"
        if full not in texts:
            continue
        shared = len(sections.get(f".nv.shared.{full}", b""))
        element, bytes_, operation, per_element = row
        blocks = blocks_of(texts[full])
        ring = next((kind for each, kind in RINGS.items() if each in texts[full]), "")
        loop = loop_of(blocks, element, bytes_, operation, per_element)
        if not loop:
            loop = loop_of(blocks, element, bytes_ // 2, operation, per_element)
        if sum(map(_bytes_of, loop)) < bytes_ // 2:
            loop = []  # one for the rare: the usual one was not found
        found.append(Kernel(name, registers[full], shared, loop, ring))
    return found


def table(capability: int, found: list[Kernel]) -> Iterator[str]:
    """What is counted of the kernels for one architecture."""
    yield f"## sm_{capability}\n"
    yield (
        "| kernel | instructions of the loop | bytes | per element | of them float64 | special "
        "| registers | shared bytes | ring | blocks | bytes in flight per multiprocessor |"
    )
    yield "|---|" + "---:|" * 7 + "---|" + "---:|" * 2
    for kernel in found:
        bytes_ = sum(map(_bytes_of, kernel.loop))
        if not bytes_:
            unknown = "| " * 6
            yield f"| {kernel.name} {unknown}{kernel.registers} | {kernel.shared_bytes:,} | | | |"
            continue
        elements = bytes_ / COUNTED[kernel.name][0]
        wide = sum(bool(re.match("D(ADD|MUL|FMA|SETP)", each)) for each in kernel.loop)
        special = sum(bool(re.match("MUFU|F2F|F2I|I2F", each)) for each in kernel.loop)
        blocks = kernel.blocks_per_processor(capability)
        yield (
            f"| {kernel.name} | {len(kernel.loop)} | {bytes_} | {len(kernel.loop) / elements:.1f} "
            f"| {wide / elements:.1f} | {special / elements:.1f} | {kernel.registers} "
            f"| {kernel.shared_bytes:,} | {kernel.ring} | {blocks} "
            f"| {blocks * kernel.bytes_under_way:,} |"
        )
    yield ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cubins", nargs="*", type=Path, help="named X90.cubin or the like")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    arguments = parser.parse_args()
    compiled = {
        int(re.findall(r"\d+", path.stem)[-1]): path.read_bytes() for path in arguments.cubins
    }
    for capability in () if compiled else ARCHITECTURES:
        compiled[capability] = kernels.compiled(capability)
    for capability, cubin in compiled.items():
        print("\n".join(table(capability, kernels_of(cubin, arguments.nvdisasm))))


if __name__ == "__main__":
    main()
