"""Judges for reward functions: language models with rubrics, pairs, panels; reward models.

    from arl_envs.judge import Criterion, Judge

    JUDGE = Judge("NAME", base_url="http://HOST:8000/v1", cache="verdicts.db")
    RUBRIC = [Criterion("correct", "Is the answer right?", weight=2), Criterion("brief", "...")]

    async def score(completion: str, row: dict) -> dict[str, float]:   # --env reward:module:score
        return await JUDGE.score(row["prompt"], completion, RUBRIC)

asking.py   rubrics, pairs and rankings, made of single questions judge.py    one model behind an
OpenAI-compatible URL or LiteLLM; a panel of them question.py the request: quotes behind random
marks, the schema of the verdict, its reading endpoint.py the calls: deadlines, retries, the
attribution of errors cache.py    the file of verdicts watch.py    warnings about a judge without
information, and about its cost group.py    rewards of a finished group by pairs
(`rollout.group_reward`) reward_model.py  a sequence classifier behind vLLM's route /classify
"""

from .asking import Criterion
from .group import by_pairs, final_answer
from .judge import Judge, Panel
from .reward_model import RewardModel

__all__ = ["Criterion", "Judge", "Panel", "RewardModel", "by_pairs", "final_answer"]
