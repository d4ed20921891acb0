# SPDX-License-Identifier: Apache-2.0
"""Where steps end, told from what a loop does: loops as sequences of activities."""

import threading

import pytest

from pyinstrument_gpu.auto.step_detector import StepDetector


class Loader:
    pass


class Optimizer:
    pass


class Log:
    """A step port that writes down what it is told, and the activities in between.

    A step is written as the activities inside it and how it ended: "dzfbo|" complete, "dfb!" not,
    "d~" dropped with what it held; "|=" and "!=" ended at the last update. Activities outside steps
    stand alone.
    """

    def __init__(self) -> None:
        self.text = ""
        self.items = 0
        self.samples: list[float] = []
        self._tokens = 0

    def step_begin(self) -> int:
        self.text += " "
        self._tokens += 1
        return self._tokens

    def step_item(self, token: int, samples: float) -> None:
        assert token == self._tokens
        self.items += 1
        self.samples.append(samples)

    def step_note_update(self, token: int) -> None:
        assert token == self._tokens

    def step_end(self, token: int, complete: bool, at_update: bool = False) -> None:
        assert token == self._tokens
        self.text += ("|" if complete else "!") + ("=" if at_update else "") + " "

    def step_drop(self, token: int) -> None:
        assert token == self._tokens
        # One that held nothing leaves no trace: the loader had no item.
        self.text += "~ " if not self.text.endswith(" ") else ""


def steps_of(activities: str, optimizers: str = "o") -> str:
    """The log of a loop.

    d: the training loader has an item; . : it has none. w: it starts its workers. v and , : those
    of another loader. V: of another one under no_grad. z: clear gradients. h: copy to the device.
    f: forward. e: forward without training. b: backward. Other letters: the step of an optimizer.
    s: something that is none of our business. $: the end.
    """
    log = Log()
    detector = StepDetector(log)
    loaders = {"d": Loader(), "v": Loader()}
    made = {letter: Optimizer() for letter in optimizers}
    for optimizer in made.values():
        detector.knows(optimizer)
    for activity in activities.replace(" ", ""):
        if activity == "w":
            detector.starts_loader(loaders["d"])
        elif activity in "d.":
            detector.asks_for_item(loaders["d"], True)
        elif activity in "v,V":
            detector.asks_for_item(loaders["v"], activity != "V")
        elif activity == "z":
            detector.clears_gradients()
        elif activity == "h":
            detector.copies_to_device()
        elif activity == "f":
            detector.runs_forward()
        elif activity == "e":
            detector.evaluates()
        elif activity == "b":
            detector.runs_backward()
        elif activity == "$":
            detector.finish()
        elif activity in made:
            detector.begins_update(made[activity])
        log.text += activity if activity not in ".,$" else ""
        if activity in "dvV":
            detector.got_item(4)
        elif activity in ".,":
            detector.got_none(loaders["d" if activity == "." else "v"])
        elif activity in made:
            detector.ends_update(made[activity])
    return " ".join(log.text.split())


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        # The plain loop, its gradients cleared first, last, or before the loop.
        ("dzfbo dzfbo .", "dzfbo| dzfbo|"),
        ("dfboz dfboz .", "dfboz| dfboz|"),
        ("z wd fboz dfboz .", "z~ w dfboz| dfboz|"),
        ("wdhzfbos dhzfbos .", "w dhzfbos| dhzfbos|"),
        # Accumulation; its rest; a library that fetches one item ahead.
        ("zdfbdfbo zdfbdfbo .", "z~ dfbdfboz| dfbdfbo|"),
        ("dfbdfboz dfb. $", "dfbdfboz| dfb!="),
        ("dfbdfboz dfb. dfbdfboz .", "dfbdfboz| dfb!= dfbdfboz|"),
        ("d dfbo dfbo .fbo $", "ddfbo| dfbo| fbo|="),
        ("dfb . fbo $", "dfbfbo|="),
        # Validation: under no_grad, without, within the epoch, before the first step.
        ("dfbo dfbo . VeVe, dfbo .", "dfbo| dfbo| VeVe dfbo|"),
        ("dfbo dfbo . veve, dfbo .", "dfbo| dfbo| ve~ ve~ dfbo|"),
        ("dfbo VeVe, dfbo .", "dfbo| VeVe dfbo|"),
        ("dfbo e dfbo .", "dfbo| e dfbo|"),
        ("ve ve, dfbo . veve, dfbo .", "ve~ ve~ dfbo| ve~ ve~ dfbo|"),
        # A teacher, or a frozen encoder, before the model.
        ("defbo defbo .", "defbo| defbo|"),
        # Loops without a loader.
        ("fbo fbo fbo $", "fbo| fbo| fbo|="),
        ("zfbo zfbo $", "zfbo| zfbo|="),
        ("fboz fboz $", "fboz| fboz|="),
        ("hzfbo hzfbo hzfbo $", "h zfbo| hzfbo| hzfbo|="),
        ("bo bo $", "bo| bo|="),
        ("fbfbo fbfbo $", "fbfbo| fbfbo|="),
        ("fbo e fbo $", "fbo| e fbo|="),
        # One item, many updates: the second shows that the loop does not return to the loader.
        ("d fbo fbo fbo $", "dfbofb| o| fbo|="),
        ("dfbofbo dfbofbo dfbofbo .", "dfbofb| o| dfbo| fbo| dfbo| fbo|"),
        # The model is run once more after the update, to log something.
        ("dfbo dfbof dfbof .", "dfbo| dfbof| dfbof|"),
        # Loaders that are only looked at.
        ("ddd. dfbo .", "ddd~ dfbo|"),
        ("wd wdfbo wd wdfbo .", "w d~ w dfbo| w dwdfbo|"),
        # Fetched ahead; so are the last ones of an epoch, once the loop has trained on that loader.
        ("dddfbfbfbo dddfbfbfbo .", "dddfbfbfbo| dddfbfbfbo|"),
        ("ddfbfbo d.wdfbfbo .", "ddfbfbo| dwdfbfbo|"),
        # An item is fetched for the next step before a validation.
        ("dfbo d VeV, fbo $", "dfbo| d~ VeV fbo|="),
        # Run to log something, and trained never or not yet.
        ("f wdfbo dfbo .", "f~ w dfbo| dfbo|"),
        ("ff$", "ff~"),
        ("dfbo df$", "dfbo| df!"),
        # Nothing but an optimizer.
        ("oo$", "o| o|="),
    ],
)
def test_loops_with_one_optimizer(loop: str, expected: str) -> None:
    assert steps_of(loop) == expected


@pytest.mark.parametrize(
    ("loop", "optimizers", "expected"),
    [
        ("dzfbx zfby dzfbx zfby .", "xy", "dzfbxzfby| dzfbxzfby|"),
        ("dzfbx zefby dzfbx zefby .", "xy", "dzfbxzefby| dzfbxzefby|"),
        ("zfbx zfby zfbx zfby $", "xy", "zfbxzfby| zfbxzfby|="),
        # The second one steps now and then, or not at all.
        ("dfbx dfbx dfbxfby dfbx .", "xy", "dfbx| dfbx| dfbxfby| dfbx|"),
        ("dfbx VeV, dfbx .", "xy", "dfbx| VeV dfbx|"),
        ("fbx" * 4 + "$", "xy", "fbxfb| x| fbx| fbx|="),
        # Each of them many times.
        ("zfbx" * 3 + "zfby" * 3 + "$", "xy", "zfbxzfb| x| zfbx| zfby| zfby| zfby|="),
    ],
)
def test_loops_with_two_optimizers(loop: str, optimizers: str, expected: str) -> None:
    assert steps_of(loop, optimizers) == expected


def test_items_and_samples_count_once_the_step_is_sure() -> None:
    log = Log()
    detector = StepDetector(log)
    loader, optimizer = Loader(), Optimizer()
    for samples in (8, 4):
        detector.asks_for_item(loader, True)
        detector.got_item(samples)
        detector.runs_forward()
        assert log.items == (0 if samples == 8 else 2)
        detector.runs_backward()
    detector.ends_update(optimizer)
    assert log.samples == [8, 4]


def test_optimizer_that_is_gone_is_not_waited_for() -> None:
    log = Log()
    detector = StepDetector(log)
    gone, optimizer = Optimizer(), Optimizer()
    detector.knows(gone)
    detector.knows(optimizer)
    del gone
    for _ in range(3):
        detector.runs_forward()
        detector.begins_update(optimizer)
        detector.ends_update(optimizer)
    assert log.text.count("|") == 2


def test_optimizers_that_step_within_the_backward_pass() -> None:
    log = Log()
    detector = StepDetector(log)
    loader, optimizers = Loader(), [Optimizer() for _ in range(3)]
    for _ in range(3):
        detector.asks_for_item(loader, True)
        detector.got_item()
        detector.runs_forward()
        detector.runs_backward()
        for optimizer in optimizers:
            detector.has_stepped(optimizer)
        detector.ends_backward(has_updated=True)
    assert log.text.count("|") == 2


def test_other_threads_do_not_count() -> None:
    log = Log()
    detector = StepDetector(log)
    loader = Loader()

    def other() -> None:
        detector.asks_for_item(loader, True)
        detector.got_item()
        detector.runs_forward()
        detector.got_none(loader)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert log.text == ""


def test_training_thread_is_the_one_that_runs_an_optimizer() -> None:
    log = Log()
    detector = StepDetector(log)
    optimizer = Optimizer()

    def train() -> None:
        for _ in range(2):
            detector.runs_forward()
            detector.begins_update(optimizer)
            detector.ends_update(optimizer)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    detector.runs_forward()  # of the main thread: not any more
    assert log.text.count("|") == 1


def test_program_with_steps_of_its_own_is_left_alone() -> None:
    log = Log()
    detector = StepDetector(log)
    detector.asks_for_item(Loader(), True)
    detector.leave_alone()
    detector.runs_forward()
    detector.finish()
    assert log.text == " "


def test_end_of_each_step_is_told_while_none_is_open() -> None:
    log = Log()
    ends = []
    detector = StepDetector(log, lambda: ends.append(log.text.endswith("| ")))
    optimizer = Optimizer()
    for _ in range(3):
        detector.runs_forward()
        detector.begins_update(optimizer)
        detector.ends_update(optimizer)
    detector.finish()
    assert ends == [True, True, False]
