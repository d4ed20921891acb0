# SPDX-License-Identifier: Apache-2.0
"""Where steps end, told from what a loop does: loops as sequences of activities."""

import math
import threading
from collections.abc import Callable

import _step_detector  # type: ignore[import-not-found]
import pytest
from _step_detector import StepDetector

from tests.helpers.threads import on_thread

TRAINING, VALIDATION = 1, 2
"""The loaders."""


class Log:
    """A step port that writes down what it is told, and the activities in between.

    A step is written as the activities inside it and how it ended: "dzfbo|" complete, "dfb!" not,
    "d~" dropped with what it held; "|=" and "!=" ended at the last update. Activities outside steps
    stand alone.

    Attributes:
        optimizers: how many there are.
        on_begin, on_end: called when a step begins, and after it has ended.
        goes_on: whether the program is behind its last update in the same iteration, if known.
    """

    def __init__(self, optimizers: int = 0) -> None:
        self.optimizers = optimizers
        self.on_begin: Callable[[], None] = lambda: None
        self.on_end: Callable[[], None] = lambda: None
        self.goes_on: bool | None = None
        self.text = ""
        self.items = 0
        self.samples: list[float] = []
        self._begun = 0
        self._open = 0

    @property
    def is_open(self) -> bool:
        return self._open != 0

    def step_begin(self) -> int:
        self.on_begin()
        if self._open:
            return -1
        self.text += " "
        self._begun += 1
        self._open = self._begun
        return self._open

    def step_item(self, token: int, samples: float) -> None:
        assert token == self._open
        self.items += 1
        self.samples.append(samples)

    def step_note_update(self, token: int) -> None:
        assert token == self._open

    def step_end(self, token: int, complete: bool, at_update: bool) -> None:
        assert token == self._open
        self._open = 0
        self.text += ("|" if complete else "!") + ("=" if at_update else "") + " "

    def step_drop(self, token: int) -> None:
        if token == -1:
            return
        assert token == self._open
        self._open = 0
        # One that held nothing leaves no trace: the loader had no item.
        self.text += "~ " if not self.text.endswith(" ") else ""

    def optimizer_count(self) -> int:
        return self.optimizers

    def step_has_ended(self) -> None:
        self.on_end()

    def goes_on_after_update(self) -> bool | None:
        return self.goes_on


def detector_of(log: Log) -> StepDetector:
    """A detector whose training thread is this one."""
    return StepDetector(log, threading.get_ident())


def perform(
    detector: StepDetector,
    activities: str,
    optimizers: str = "o",
    write: Callable[[str], None] = lambda text: None,
) -> None:
    """Tell a detector what a loop does; `write` is called with each activity of the loop.

    d: the training loader has an item; . : it has none. w: it starts its workers. v and , : those
    of another loader. V: of another one under no_grad. z: clear gradients. h: copy to the device.
    f: forward. e: forward without training. b: backward. g: derivatives that are not accumulated.
    >, <: from here on the program is behind its update, or before it in another iteration. Other
    letters: the step of an optimizer.
    s: something that does not concern the detector. $: the end.
    """
    calls: dict[str, Callable[[], None]] = {
        "w": lambda: detector.starts_loader(TRAINING),
        "z": detector.clears_gradients,
        "h": detector.copies_to_device,
        "f": detector.runs_forward,
        "e": detector.evaluates,
        "b": detector.runs_backward,
        "g": detector.differentiates,
        "$": detector.finish,
    }
    for activity in activities.replace(" ", ""):
        if activity in "d.v,V":
            loader = TRAINING if activity in "d." else VALIDATION
            detector.asks_for_item(loader, activity != "V")
            write(activity.strip(".,"))
            detector.got_none(loader) if activity in ".," else detector.got_item(4)
        elif activity in optimizers:
            detector.begins_update(optimizers.index(activity))
            write(activity)
            detector.ends_update(optimizers.index(activity))
        else:
            calls.get(activity, lambda: None)()
            write(activity.strip("$"))


def steps_of(activities: str, optimizers: str = "o") -> str:
    """The log of a loop; activities as in `perform`."""
    log = Log(len(optimizers))

    def write(text: str) -> None:
        if text in "<>":
            log.goes_on = text == ">"
        else:
            log.text += text

    perform(detector_of(log), activities, optimizers, write)
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
        ("dfbo vf$", "dfbo| vf~"),  # what no step has trained on
        # Derivatives that are used to train, and others.
        ("fgbo fgbo fg$", "fgbo| fgbo| fg~"),
        ("dfgo dfgo .", "dfgo| dfgo|"),
        ("dfgdfgo dfgdfgo .", "dfgdfgo| dfgdfgo|"),
        ("dfgbo dfgbo . vegveg, dfgbo .", "dfgbo| dfgbo| veg~ veg~ dfgbo|"),
        ("fo eg fo g$", "fo| eg fo| g~"),
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
        # Where the loop shows that it goes on.
        ("fbx" * 2 + "<" + "fbx>fby<" * 2 + "$", "xy", "fbxfb| x| fbxfby| fbxfby|="),
        (
            "fbx" * 2 + "<" + "fbx<fbx>efby<" * 2 + "$",
            "xy",
            "fbxfb| x| fbx| fbx| e fby| fbx| fbx| e fby|=",
        ),
        # Each of them many times.
        ("zfbx" * 3 + "zfby" * 3 + "$", "xy", "zfbxzfb| x| zfbx| zfby| zfby| zfby|="),
    ],
)
def test_loops_with_two_optimizers(loop: str, optimizers: str, expected: str) -> None:
    assert steps_of(loop, optimizers) == expected


def test_items_and_samples_count_once_the_step_is_sure() -> None:
    log = Log()
    detector = detector_of(log)
    for samples in (8, 4):
        detector.asks_for_item(TRAINING, True)
        detector.got_item(samples)
        detector.runs_forward()
        assert log.items == (0 if samples == 8 else 2)
        detector.runs_backward()
    assert log.samples == [8, 4]


def test_items_that_wait_are_as_many_as_were_fetched() -> None:
    log = Log()
    detector = detector_of(log)
    for samples in (8, math.nan, 8, -math.nan, 3, 8):
        detector.asks_for_item(TRAINING, True)
        detector.got_item(samples)
    detector.runs_backward()
    assert str(log.samples) == "[8.0, 8.0, 8.0, nan, nan, 3.0]"


def test_items_that_are_all_different_have_unknown_samples_in_the_end() -> None:
    log = Log()
    detector = detector_of(log)
    kinds = _step_detector.MOST_KINDS_OF_ITEMS
    for samples in [*range(kinds + 10), 0]:
        detector.asks_for_item(TRAINING, True)
        detector.got_item(samples)
    detector.runs_backward()
    assert log.samples[: kinds + 1] == [0, *range(kinds)]
    assert [str(samples) for samples in log.samples[kinds + 1 :]] == ["nan"] * 10


def test_loader_is_known_until_steps_have_trained_on_many_others() -> None:
    log = Log(1)
    detector = detector_of(log)

    def trains_on(loaders: range) -> None:
        for loader in loaders:
            detector.asks_for_item(loader, True)
            detector.got_item(1)
            detector.runs_backward()
            detector.ends_update(1)
            detector.got_none(loader)

    def is_known(loader: int) -> bool:
        """Whether a step that holds an item of it stays open at its end."""
        detector.asks_for_item(loader, True)
        detector.got_item(1)
        detector.got_none(loader)
        was_open = log.is_open
        detector.finish()
        return was_open

    most = _step_detector.MOST_LOADERS
    trains_on(range(1, most + 1))
    assert is_known(1)
    trains_on(range(1, 2))  # again, which makes it the most recent one
    trains_on(range(most + 1, most + 2))
    assert not is_known(2)
    assert is_known(1)
    assert is_known(3)


def test_loader_that_is_not_known_was_never_trained_on() -> None:
    log = Log(1)
    detector = detector_of(log)
    for _ in range(2):
        detector.asks_for_item(0, True)
        detector.got_item(1)
        log.text += "d"
        detector.runs_backward()
        detector.ends_update(1)
    detector.asks_for_item(0, True)
    detector.got_item(1)
    log.text += "d"
    detector.got_none(0)
    assert log.text.split() == ["d|", "d|", "d~"]


def test_optimizer_that_is_gone_is_not_waited_for() -> None:
    log = Log(optimizers=2)
    detector = detector_of(log)
    log.optimizers = 1
    for _ in range(3):
        detector.runs_forward()
        detector.begins_update(1)
        detector.ends_update(1)
    assert log.text.count("|") == 2


def test_optimizer_that_has_stepped_often_is_one() -> None:
    log = Log(optimizers=2)
    detector = detector_of(log)
    detector.runs_backward()
    for _ in range(1000):
        detector.has_stepped(7)
    detector.ends_backward(has_updated=True)  # the second update: of a backward pass
    detector.runs_forward()
    assert log.text == " |  "
    for optimizer in (7, 8, 9):
        detector.begins_update(optimizer)
        detector.ends_update(optimizer)
    assert log.text == " |  "  # two updates were enough, but nothing came after the third
    detector.begins_update(7)
    assert log.text == " |  |  "


def one_step(detector: StepDetector, optimizer: int = 1) -> None:
    detector.asks_for_item(TRAINING, True)
    detector.got_item(4)
    detector.runs_forward()
    detector.runs_backward()
    detector.ends_backward(has_updated=False)
    detector.begins_update(optimizer)
    detector.ends_update(optimizer)


def test_a_thread_that_only_fetches_does_not_train() -> None:
    log = Log(1)
    detector = detector_of(log)

    def fetch() -> None:
        detector.asks_for_item(TRAINING, True)
        detector.got_item(4)

    for _ in range(2):
        on_thread(fetch)
        detector.clears_gradients()
        detector.runs_forward()
        detector.runs_backward()
        detector.begins_update(1)
        detector.ends_update(1)
    detector.finish()
    assert log.text.split() == ["|", "|="]


def test_a_step_whose_beginning_was_passed_over_is_incomplete() -> None:
    log = Log(1)
    detector = detector_of(log)
    detector.runs_forward()  # once, to look at the model

    def train() -> None:
        for _ in range(2):
            one_step(detector)
        detector.finish()

    on_thread(train)
    assert log.text.split() == ["!", "|="]


def test_a_step_that_is_certain_is_kept_when_another_thread_takes_over() -> None:
    log = Log()  # without an optimizer, a backward pass is an update
    detector = detector_of(log)
    detector.runs_forward()
    detector.runs_backward()
    detector.ends_backward(False)

    def train() -> None:
        log.optimizers = 1
        one_step(detector)
        detector.finish()

    on_thread(train)
    # What it took may be in the statistics by now. The thread's own first step lacks its beginning.
    assert log.text.split() == ["|=", "!="]


def test_of_two_threads_that_train_one_has_the_steps() -> None:
    log = Log(2)
    detector = detector_of(log)
    turns = [threading.Semaphore(1), threading.Semaphore(0)]

    def train(which: int) -> None:
        for _ in range(3):
            turns[which].acquire()
            one_step(detector, optimizer=1 + which)
            turns[1 - which].release()

    threads = [threading.Thread(target=train, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    detector.finish()
    assert log.text.split() == ["|", "|", "|="]
    assert log.items == 3


def test_a_thread_takes_over_from_one_that_trains_no_more() -> None:
    log = Log(1)
    detector = detector_of(log)
    for _ in range(2):
        one_step(detector)

    def train() -> None:
        for _ in range(259):
            one_step(detector)
        detector.finish()

    on_thread(train)
    # As many updates as 256 could have been anything.
    assert log.text.split() == ["|", "|=", "!", "|", "|="]


def test_a_step_that_begins_or_ends_is_not_taken_over() -> None:
    log = Log(2)
    detector = detector_of(log)

    def elsewhere() -> None:
        on_thread(lambda: one_step(detector, optimizer=2))

    one_step(detector)
    log.on_begin = log.on_end = elsewhere
    for _ in range(2):
        one_step(detector)
    assert log.text.split() == ["|", "|"]
    assert log.items == 3


def test_end_of_each_step_is_told_while_none_is_open() -> None:
    log = Log(1)
    ends = []
    log.on_end = lambda: ends.append(log.text.endswith("| "))
    detector = detector_of(log)
    for _ in range(3):
        detector.runs_forward()
        detector.begins_update(1)
        detector.ends_update(1)
    detector.finish()
    assert ends == [True, True, False]


@pytest.mark.parametrize("loop", ["fbo", "bo", "o", "zfbo", "dfbo", "hfbo"])
def test_what_is_left_alone_at_the_end_of_a_step_opens_no_other(loop: str) -> None:
    log = Log(1)
    detector = detector_of(log)
    log.on_end = detector.leave_alone
    perform(detector, loop * 2)
    assert log.text == " | "


@pytest.mark.parametrize("loop", ["fbo", "bo", "o", "zfbo", "dfbo"])
def test_recording_that_ends_at_the_end_of_a_step_can_go_on(loop: str) -> None:
    log = Log(1)
    detector = detector_of(log)
    ended = []

    def on_end() -> None:
        ended.append(log.text)
        detector.finish()

    log.on_end = on_end
    perform(detector, loop * 3)
    detector.finish()
    assert log.text == " |  |  |= "
    assert ended == [" | ", " |  | ", " |  |  |= "]


@pytest.mark.parametrize("loop", ["fbo", "bo", "o", "zfbo", "dfbo"])
def test_step_that_begins_at_the_end_of_another_is_the_one_that_goes_on(loop: str) -> None:
    log = Log(1)
    detector = detector_of(log)
    log.on_end = lambda: perform(detector, "b")
    perform(detector, loop * 2)
    log.on_end = lambda: None
    detector.finish()
    assert log.text == " |  |= "


def test_step_whose_beginning_makes_the_detector_stop_is_dropped() -> None:
    log = Log(1)
    detector = detector_of(log)
    log.on_begin = detector.leave_alone
    detector.runs_forward()
    assert not log.is_open


def test_step_whose_beginning_opens_another_is_that_one() -> None:
    log = Log(1)
    detector = detector_of(log)

    def on_begin() -> None:
        log.on_begin = lambda: None
        detector.begins_update(1)

    log.on_begin = on_begin
    detector.runs_forward()
    assert log.is_open
    detector.ends_update(1)
    detector.finish()
    assert log.text == " |= "


def test_update_that_a_finished_recording_has_cut_in_two_is_no_step() -> None:
    log = Log(1)
    detector = detector_of(log)
    detector.begins_update(1)
    detector.finish()
    detector.ends_update(1)
    detector.runs_forward()
    detector.finish()
    assert log.text.split() == ["!"]
    assert detector.optimizer_seen is True


def test_optimizers_that_are_made_anew_in_each_step() -> None:
    log = Log(optimizers=5)
    detector = detector_of(log)
    steps = 6000
    for step in range(steps):
        for updater in (*range(4 * step + 1, 4 * step + 5), 0):  # and one that stays
            detector.runs_forward()
            detector.runs_backward()
            detector.ends_backward(False)
            detector.begins_update(updater)
            detector.ends_update(updater)
    detector.finish()
    assert log.text.count("|") == steps
