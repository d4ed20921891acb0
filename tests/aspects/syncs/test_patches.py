# SPDX-License-Identifier: Apache-2.0
"""What the preview replaces, and puts back."""

from pyinstrument_gpu.aspects.syncs.preview.patches import Patches


def test_patch_of_somebody_else_above_ours_stays() -> None:
    class Place:
        @staticmethod
        def call() -> list[str]:
            return []

    before = vars(Place)["call"]
    first, second = Patches(), Patches()
    first.wrap(Place, "call", lambda original: [*original(), "first"])
    second.wrap(Place, "call", lambda original: [*original(), "second"])
    first.remove()
    assert Place.call() == ["first", "second"]
    second.remove()
    assert vars(Place)["call"] is before


def test_inherited_attribute_does_not_become_the_class_own() -> None:
    class Base:
        def method(self) -> int:
            return 1

    class Derived(Base):
        pass

    patches = Patches()
    patches.wrap(Derived, "method", lambda original, self: original(self) + 1)
    patches.wrap(Derived, "none_such", lambda original: original())
    assert Derived().method() == 2 and Base().method() == 1
    patches.remove()
    assert "method" not in vars(Derived)
