"""Does the planner of the games win them, and how long does that take?

    python data/alfworld/measure.py FOLDER [EVERY]

Plays every game below the folder, or every so many, with the commands of its own planner, and prints JSON. Needs the
extra `games`.
"""

from __future__ import annotations

import json
import sys
import time

from tqdm import tqdm

from probecascade.environments import TextGameEnvironment, game_tasks
from probecascade.episode import Action, Task


def won(environment: TextGameEnvironment, task: Task) -> tuple[bool, int]:
    """Whether the plan wins the game, and how many commands it took."""
    environment.reset(task)
    plan = environment.plan
    for number, command in enumerate(plan, 1):
        seen = environment.step(Action("do", command))
        if seen.done:
            return seen.reward == 1.0, number
    return False, len(plan)


def main(folder: str, every: str = "1") -> None:
    """Play the games and print how many were won."""
    tasks = game_tasks(folder)[:: int(every)]
    environment = TextGameEnvironment(folder)
    began, cpu = time.perf_counter(), time.process_time()
    results = [won(environment, task) for task in tqdm(tasks, unit="game", disable=None)]
    commands = [number for _, number in results]
    lost = [task.task_id for task, (wins, _) in zip(tasks, results, strict=True) if not wins]
    record = {
        "games": len(tasks),
        "won": len(tasks) - len(lost),
        "lost": lost,
        "commands_mean": sum(commands) / len(commands),
        "commands_most": max(commands),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }
    print(json.dumps(record, indent=2))


if __name__ == "__main__":
    main(*sys.argv[1:])
