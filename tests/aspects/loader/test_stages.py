# SPDX-License-Identifier: Apache-2.0
"""Which functions make a batch, from trees of lines whose times are given."""

import sysconfig
from collections.abc import Iterable
from pathlib import Path

from pyinstrument_gpu.aspects.loader.data import LineTime
from pyinstrument_gpu.aspects.loader.stages import LineTree, Stage, stages_of

LIBRARIES = Path(sysconfig.get_paths()["purelib"])
FETCH = str(LIBRARIES / "torch/utils/data/_utils/fetch.py")
VISION = str(LIBRARIES / "torchvision/transforms/transforms.py")
DATASETS = str(LIBRARIES / "datasets/arrow_dataset.py")
OWN = "/home/me/train.py"

Line = tuple[str, str, int]
LOOP: Line = (str(LIBRARIES / "torch/utils/data/_utils/worker.py"), "_worker_loop", 270)
FETCHING: Line = (FETCH, "_MapDatasetFetcher.fetch", 52)
ITEM: Line = (OWN, "Images.__getitem__", 10)


def tree_of(stacks: Iterable[tuple[list[Line], int]]) -> LineTree:
    functions: dict[tuple[str, str], int] = {}
    places: dict[tuple[int, int], int] = {}
    numbers: dict[tuple[int, int], int] = {}
    times: list[int] = []
    for stack, time_ns in stacks:
        number = -1
        for file, function, line in stack:
            where = functions.setdefault((file, function), len(functions))
            place = places.setdefault((where, line), len(places))
            if (number, place) not in numbers:
                times.append(0)
            number = numbers.setdefault((number, place), len(numbers))
        times[number] += time_ns
    nodes = [LineTime(*key, times[number]) for key, number in numbers.items()]
    return LineTree([*functions], [*places], nodes)


def stages(*stacks: tuple[list[Line], int]) -> list[tuple[str, str, int]]:
    def shown(stage: Stage) -> tuple[str, str, int]:
        line = "" if stage.line is None else f"{Path(stage.line.file).name}:{stage.line.line}"
        return stage.name, line, stage.time_ns

    return [shown(one) for one in stages_of(tree_of(stacks))]


def test_functions_that_the_dataset_calls_are_stages_with_all_that_they_call() -> None:
    read = (OWN, "read", 4)
    assert stages(
        ([LOOP, FETCHING, ITEM, read], 3),
        ([LOOP, FETCHING, ITEM, (OWN, "read", 5), (str(LIBRARIES / "PIL/Image.py"), "load", 9)], 4),
        ([LOOP, FETCHING, (OWN, "Images.__getitem__", 11), (OWN, "augment", 20)], 2),
    ) == [("read", "train.py:5", 7), ("augment", "train.py:20", 2)]


def test_what_the_dataset_does_itself_is_a_stage_by_line() -> None:
    assert stages(
        ([LOOP, FETCHING, ITEM], 1), ([LOOP, FETCHING, (OWN, "Images.__getitem__", 12)], 2)
    ) == [
        ("Images.__getitem__:12", "train.py:12", 2),
        ("Images.__getitem__:10", "train.py:10", 1),
    ]


def test_containers_of_transforms_and_of_datasets_are_passed_by() -> None:
    subset = (str(LIBRARIES / "torch/utils/data/dataset.py"), "Subset.__getitem__", 400)
    compose = (VISION, "Compose.__call__", 95)
    assert stages(
        ([LOOP, FETCHING, subset, ITEM, compose, (VISION, "ToTensor.__call__", 137)], 5),
        (
            [
                *[LOOP, FETCHING, subset, ITEM, compose],
                (str(LIBRARIES / "torch/nn/modules/module.py"), "Module._call_impl", 1),
                *[(VISION, "Resize.forward", 3), (VISION, "resize", 4)],
            ],
            7,
        ),
        ([LOOP, FETCHING, subset, ITEM, compose], 1),
    ) == [
        ("Resize.forward", "train.py:10", 7),
        ("ToTensor.__call__", "train.py:10", 5),
        ("Compose.__call__:95", "train.py:10", 1),
    ]


def test_a_function_of_the_program_that_a_library_calls_is_a_stage() -> None:
    item = (DATASETS, "Dataset.__getitem__", 1)
    table = (DATASETS, "Dataset._getitem", 2)
    assert stages(
        ([LOOP, FETCHING, item, table], 3),
        ([LOOP, FETCHING, item, table, (OWN, "tokenize", 30)], 9),
        ([LOOP, FETCHING, (str(LIBRARIES / "torch/x.py"), "default_collate", 8)], 2),
    ) == [
        ("tokenize", "train.py:30", 9),
        ("Dataset._getitem", "", 3),
        ("default_collate", "", 2),
    ]


def test_transforms_that_a_class_of_the_library_calls_are_told_apart() -> None:
    v2 = str(LIBRARIES / "torchvision/transforms/v2/_transform.py")
    call = (v2, "Transform.forward", 68)
    assert stages(
        (
            [
                LOOP,
                FETCHING,
                ITEM,
                call,
                (str(LIBRARIES / "v2/_geometry.py"), "Resize.transform", 9),
            ],
            5,
        ),
        (
            [
                LOOP,
                FETCHING,
                ITEM,
                call,
                (str(LIBRARIES / "v2/_misc.py"), "Normalize.transform", 3),
            ],
            4,
        ),
        ([LOOP, FETCHING, ITEM, call], 1),
    ) == [
        ("Resize.transform", "train.py:10", 5),
        ("Normalize.transform", "train.py:10", 4),
        ("Transform.forward:68", "train.py:10", 1),
    ]


def test_generators_over_generators_are_passed_by() -> None:
    filters = str(LIBRARIES / "webdataset/filters.py")
    pipeline: list[Line] = [
        (str(LIBRARIES / "webdataset/pipeline.py"), "DataPipeline.iterator", 80),
        (filters, "_batched", 500),
        (filters, "_map", 410),
    ]
    tar: Line = (str(LIBRARIES / "webdataset/tariterators.py"), "tar_file_iterator", 170)
    assert stages(
        (
            [
                LOOP,
                FETCHING,
                *pipeline,
                (str(LIBRARIES / "webdataset/autodecode.py"), "Decoder", 8),
            ],
            6,
        ),
        (
            [LOOP, FETCHING, *pipeline, tar, ("/usr/lib/python3.11/tarfile.py", "TarFile.next", 9)],
            3,
        ),
        ([LOOP, FETCHING, *pipeline, tar], 1),
    ) == [("Decoder", "", 6), ("TarFile.next", "", 3), ("tar_file_iterator:170", "", 1)]


def test_what_the_worker_does_beside_fetching_is_no_stage() -> None:
    assert stages(([LOOP], 5), ([LOOP, (OWN, "init", 1)], 4)) == []
    assert stages_of(LineTree((), (), ())) == []
