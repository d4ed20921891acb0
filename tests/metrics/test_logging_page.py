# SPDX-License-Identifier: Apache-2.0
"""The lines of docs/metrics.md, run on small tensors, against what the trainers compute.

Each function below is one trainer's loop. It yields the variables that the page's lines use, and
where the trainer logs, what it would log, by the name that it gives it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

pytest.importorskip("torch")
import torch
from torch.nn.functional import cross_entropy

_METRICS = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
PAGE = _METRICS.partition("\n## What your trainer logs")[2].partition("\n## ")[0]
MICRO_BATCHES, STEPS, LOGS = 2, 3, 2
BATCH, TOKENS, CLASSES = 4, 5, 7

Step = dict[str, Any]
Logged = dict[str, float]
Loop = Callable[[torch.Generator], Iterator[tuple[Step, Logged | None]]]


class Row(NamedTuple):
    """A row of a table: what the trainer logs, our line, and the keys to read."""

    names: list[str]
    line: str
    keys: list[str]
    is_total: bool


def code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def sections() -> dict[str, str]:
    """The text below each heading."""
    _, *parts = re.split(r"^### ", PAGE, flags=re.MULTILINE)
    return dict(part.split("\n", 1) for part in parts)


def rows(text: str) -> list[Row]:
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split(" | ")]
        if len(cells) == 3 and cells[1].startswith("`"):
            logged, ours, value = cells
            (only,) = code(ours)
            found.append(Row(code(logged), only, code(value), "in all" in value))
    return found


# --- the trainers' loops ---


def random(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator)


def classes(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randint(CLASSES, shape, generator=generator)


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def nanogpt(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    for _ in range(LOGS):
        losses = []
        for micro in range(STEPS * MICRO_BATCHES):
            loss = random(generator).abs().requires_grad_() / MICRO_BATCHES
            losses.append(loss.item() * MICRO_BATCHES)
            is_last = micro == STEPS * MICRO_BATCHES - 1
            step = {"loss": loss, "gradient_accumulation_steps": MICRO_BATCHES}
            yield step, {"loss": losses[-1]} if is_last else None


def nanogpt_estimate_loss(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    losses = []
    for step in range(STEPS):
        logits, target = (
            random(generator, BATCH, TOKENS, CLASSES),
            classes(generator, BATCH, TOKENS),
        )
        loss = cross_entropy(logits.flatten(0, 1), target.flatten())
        losses.append(loss.item())
        logged = {"val/loss": mean(losses)} if step == STEPS - 1 else None
        yield {"logits": logits, "Y": target, "loss": loss}, logged


def hugging_face(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    seen = 0
    for _ in range(LOGS):
        tr_loss = torch.tensor(0.0)
        for micro in range(STEPS * MICRO_BATCHES):
            tr_loss_step = random(generator).abs() / MICRO_BATCHES
            tr_loss += tr_loss_step
            grad_norm = random(generator).abs()
            input_tokens = classes(generator, BATCH).sum()
            seen += int(input_tokens)
            step: Step = {
                "args": SimpleNamespace(gradient_accumulation_steps=MICRO_BATCHES),
                "tr_loss_step": tr_loss_step,
                "grad_norm": grad_norm,
                "input_tokens": input_tokens,
            }
            is_last = micro == STEPS * MICRO_BATCHES - 1
            logged = {
                "loss": tr_loss.mean().item() / STEPS,
                "grad_norm": grad_norm.item(),
                "num_input_tokens_seen": seen,
            }
            yield step, logged if is_last else None


def hugging_face_evaluation(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    all_losses, all_logits, all_labels = [], [], []
    for step in range(STEPS):
        logits, labels = random(generator, BATCH, CLASSES), classes(generator, BATCH)
        losses = cross_entropy(logits, labels)
        all_losses.append(losses.repeat(BATCH))
        all_logits.append(logits)
        all_labels.append(labels)
        is_hit = torch.cat(all_logits).argmax(-1) == torch.cat(all_labels)
        logged = {
            "eval_loss": torch.cat(all_losses).mean().item(),
            "eval_accuracy": is_hit.float().mean().item(),
        }
        variables = {"losses": losses, "batch_size": BATCH, "logits": logits, "labels": labels}
        yield variables, logged if step == STEPS - 1 else None


def as_many_each(generator: torch.Generator, count: int, *shape: int) -> torch.Tensor:
    """A mask with so many elements that are not masked."""
    total = torch.Size(shape).numel()
    return (torch.randperm(total, generator=generator) < count).reshape(shape)


def trl_sft(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    seen = 0
    for _ in range(LOGS):
        kept: dict[str, list[float]] = {"entropy": [], "mean_token_accuracy": [], "aux_loss": []}
        for micro in range(STEPS):
            mask = as_many_each(generator, 11, BATCH, TOKENS)
            outputs = SimpleNamespace(
                log_probs=-random(generator, BATCH, TOKENS).abs() * mask,
                entropy=random(generator, BATCH, TOKENS).abs() * mask,
                is_top1=(random(generator, BATCH, TOKENS) > 0) & mask,
                label_mask=mask,
                aux_loss=random(generator).abs(),
            )
            attention_mask = as_many_each(generator, 13, BATCH, TOKENS).long()
            num_valid = mask.sum()
            kept["entropy"].append((outputs.entropy.sum() / num_valid).item())
            kept["mean_token_accuracy"].append((outputs.is_top1.sum() / num_valid).item())
            kept["aux_loss"].append(outputs.aux_loss.item())
            seen += int(attention_mask.sum().item())
            logged = {**{name: mean(values) for name, values in kept.items()}, "num_tokens": seen}
            inputs = {"attention_mask": attention_mask}
            yield {"outputs": outputs, "inputs": inputs}, logged if micro == STEPS - 1 else None


def trl_dpo(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    seen = 0
    for _ in range(LOGS):
        kept: dict[str, list[float]] = {}
        for micro in range(STEPS):
            chosen_mask, rejected_mask = (
                as_many_each(generator, count, BATCH, TOKENS).long() for count in (7, 12)
            )
            mask = torch.cat([chosen_mask, rejected_mask])
            step: Step = {
                "chosen_rewards": random(generator, BATCH),
                "rejected_rewards": random(generator, BATCH),
                "chosen_logps": -random(generator, BATCH).abs(),
                "rejected_logps": -random(generator, BATCH).abs(),
                "chosen_mean_logits": random(generator, BATCH, TOKENS),
                "rejected_mean_logits": random(generator, BATCH, TOKENS),
                "chosen_is_top1": random(generator, BATCH, TOKENS) > 0,
                "chosen_mask": chosen_mask,
                "rejected_mask": rejected_mask,
                "per_token_entropy": random(generator, 2 * BATCH, TOKENS).abs(),
                "mask": mask,
                "inputs": {"attention_mask": as_many_each(generator, 31, 2 * BATCH, TOKENS).long()},
                "aux_loss": random(generator).abs(),
            }
            here = SimpleNamespace(**step)
            step["reward_accuracies"] = (here.chosen_rewards > here.rejected_rewards).float()
            step["margins"] = here.chosen_rewards - here.rejected_rewards
            now = {
                "rewards/chosen": here.chosen_rewards.mean(),
                "rewards/rejected": here.rejected_rewards.mean(),
                "rewards/accuracies": step["reward_accuracies"].mean(),
                "rewards/margins": step["margins"].mean(),
                "logps/chosen": here.chosen_logps.mean(),
                "logps/rejected": here.rejected_logps.mean(),
                "logits/chosen": here.chosen_mean_logits[chosen_mask.bool()].mean(),
                "logits/rejected": here.rejected_mean_logits[rejected_mask.bool()].mean(),
                "entropy": (here.per_token_entropy * mask).sum() / mask.sum(),
                "mean_token_accuracy": (here.chosen_is_top1 & chosen_mask.bool()).sum()
                / chosen_mask.sum(),
                "aux_loss": here.aux_loss,
            }
            for name, value in now.items():
                kept.setdefault(name, []).append(value.item())
            seen += int(here.inputs["attention_mask"].sum().item())
            logged = {**{name: mean(values) for name, values in kept.items()}, "num_tokens": seen}
            yield step, logged if micro == STEPS - 1 else None


def torchtitan(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    for _ in range(LOGS):
        local_valid_tokens = classes(generator) + 1
        accumulated_loss = random(generator).abs()
        local_avg_loss = accumulated_loss * local_valid_tokens / local_valid_tokens
        grad_norm = random(generator).abs()
        step: Step = {
            "self": SimpleNamespace(device="cpu"),
            "loss_mesh": None,
            "local_avg_loss": local_avg_loss,
            "local_valid_tokens": local_valid_tokens,
            "labels": classes(generator, BATCH, TOKENS),
            "grad_norm": grad_norm,
        }
        logged = {
            "loss_metrics/global_avg_loss": accumulated_loss.item(),
            "loss_metrics/global_max_loss": accumulated_loss.item(),
            "n_tokens_seen": BATCH * TOKENS,
            "grad_norm": grad_norm.item(),
        }
        yield step, logged


def lightning(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    loss_sum, reward_sum, samples = 0.0, 0.0, 0
    for step in range(STEPS):
        size = BATCH if step < STEPS - 1 else BATCH - 1  # the last batch is smaller
        logits, target = random(generator, size, CLASSES), classes(generator, size)
        loss, reward = cross_entropy(logits, target), random(generator)
        loss_sum += loss.item() * size
        reward_sum += reward.item() * size
        samples += size
        logged = {
            "train_loss_step": loss.item(),
            "train_loss_epoch": loss_sum / samples,
            "reward": reward_sum / samples,
        }
        variables = {"logits": logits, "y": target, "loss": loss, "reward": reward}
        yield variables, logged if step == STEPS - 1 else None


def lightning_validation(generator: torch.Generator) -> Iterator[tuple[Step, Logged | None]]:
    accuracy_sum, samples = 0.0, 0
    for step, size in enumerate((BATCH, BATCH, BATCH - 1)):
        logits, target = random(generator, size, CLASSES), classes(generator, size)
        accuracy_sum += (logits.argmax(-1) == target).float().mean().item() * size
        samples += size
        logged = {"val_acc": accuracy_sum / samples} if step == 2 else None
        yield {"logits": logits, "y": target}, logged


LOOPS: dict[str, tuple[Loop, ...]] = {
    "nanoGPT": (nanogpt, nanogpt_estimate_loss),
    "Hugging Face Trainer": (hugging_face, hugging_face_evaluation),
    "TRL: SFTTrainer": (trl_sft,),
    "TRL: DPOTrainer": (trl_dpo,),
    "torchtitan": (torchtitan,),
    "Lightning": (lightning, lightning_validation),
}


# --- the test ---


def newest(reading: Any) -> dict[str, float]:
    """The values of a reading, or of the merge over ranks that was begun."""
    values: dict[str, float] = reading.result() if hasattr(reading, "result") else reading.values
    return values


def test_page_and_loops_know_the_same_trainers() -> None:
    assert set(sections()) == set(LOOPS)


@pytest.mark.parametrize("trainer", LOOPS)
def test_lines_of_the_page_give_what_the_trainer_logs(trainer: str) -> None:
    text = sections()[trainer]
    before_the_loop, where_it_logs = blocks(PAGE.split("\n### ")[0])
    where_it_logs = next(iter(blocks(text)), where_it_logs)
    table = rows(text)
    assert len(table) == text.count("`metrics.update"), "a row of the table is not understood"
    checked: list[str] = []
    for loop in LOOPS[trainer]:
        steps = list(loop(torch.Generator().manual_seed(0)))
        names = {name for _, logged in steps for name in logged or ()}
        lines = [row for row in table if {*row.names} <= names]
        variables: dict[str, Any] = {}
        exec(before_the_loop, variables)
        for step, logged in steps:
            variables |= step
            for row in lines:
                exec(row.line, variables)
            if logged is None:
                continue
            exec(where_it_logs, variables)
            for row in lines:
                values = newest(variables["total" if row.is_total else "recent"])
                for name, key in zip(row.names, row.keys, strict=True):
                    assert values[key] == pytest.approx(logged[name], rel=1e-5, abs=1e-7), name
        checked += [name for row in lines for name in row.names]
    assert sorted(checked) == sorted(name for row in table for name in row.names)
